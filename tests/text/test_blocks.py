"""Split texts into pieces without changing their terms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from relevance_gen import search
from relevance_gen.text import blocks as portions
from relevance_gen.text.blocks import blocks, pieces
from relevance_gen.text.tokenization import tokenize
from tests import strategies
from tests.profiles import costly

mixed = st.text("ab Az0_-.\n\x00猫が黒タﾞ゙한국ᆨ人กขคงัำက ီខ្😀🏽𠮷tiếơ\u0301é،।་", max_size=80)


@example("0ơががが", 1)
@given(st.one_of(mixed, strategies.texts, st.lists(mixed).map("".join)), st.integers(1, 12))
def test_pieces_have_the_terms_of_the_text(text: str, n_chars: int) -> None:
    """The pieces of a text give the same terms in the same order."""
    whole = tokenize([text])
    parts = [tokenize([piece]) for piece in pieces(text, n_chars)]
    assert np.concatenate([part.ids for part in parts]).tolist() == whole.ids.tolist()
    spelled = [part.decode_term(token) for part in parts for token in range(part.ids.size)]
    assert spelled == [whole.decode_term(token) for token in range(whole.ids.size)]


@pytest.mark.parametrize(
    "text",
    [
        "two words " * 100,
        "猫" * 1000,
        "한" * 1000,
        "ก" * 1000,
        "က" * 1000,
        "😀" * 1000,
        "a。" * 500,
    ],
)
def test_pieces_have_about_the_requested_size(text: str) -> None:
    """A text of any script with separators gives pieces of about the requested size."""
    assert max(map(len, pieces(text, 50))) <= 62


def test_long_word_is_not_split() -> None:
    """A word of any length is one piece."""
    assert list(pieces("end " + "less" * 100, 10)) == ["end " + "less" * 100]


def test_blocks_have_about_the_requested_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short texts share a block, and a long text is split into blocks of its own."""
    monkeypatch.setattr(portions, "BLOCK_CHARS", 8)
    assert list(blocks(["a b", "c d", "one two three", "e"])) == [
        ["a b", "c d"],
        ["one two three"],
        ["e"],
    ]
    assert [*blocks(["one two three four five"])] == [["one two three "], ["four five"]]


@settings(costly, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(strategies.queries, strategies.chunk_lists, st.integers(1, 12))
def test_answers_do_not_depend_on_the_block_size(
    monkeypatch: pytest.MonkeyPatch, query: str, chunks: list[str], block_chars: int
) -> None:
    """Search results are bit-identical for any block size."""
    expected = search(query, chunks)
    with monkeypatch.context() as small:
        small.setattr(portions, "BLOCK_CHARS", block_chars)
        assert search(query, chunks) == expected
