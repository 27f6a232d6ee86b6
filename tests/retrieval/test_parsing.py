"""Parsing of queries."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from relevance_gen.retrieval.query.parsing import parse
from relevance_gen.text.tokenization import tokenize


@given(st.text("aabcABC09__ -.", max_size=80))
@example("getUserName HTTPServer a_b __a__ a__b x86_64 SARS-CoV nCoV 2019nCoV")
def test_parse_of_ascii_text_has_the_tokens_of_tokenize(text: str) -> None:
    """An ASCII query has the ids of `tokenize`, also for identifiers and their parts."""
    assert parse(text, inflects=False).ids.tolist() == tokenize([text]).ids.tolist()
