"""Scores: they are what the formulas say."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relevance_gen.retrieval.weighting import Weighting
from tests import reference, strategies
from tests.retrieval.asking import WEIGHTINGS, scores


@given(strategies.queries, strategies.chunk_lists, st.sampled_from(WEIGHTINGS))
@example("cats purr", ["cats purr", "cats purr cats purr", "zebra"], "pivoted")
def test_scores_are_those_of_the_reference(query: str, chunks: list[str], weighting: Weighting) -> None:
    """Every chunk's score is that of the formulas, computed one word at a time."""
    assert scores(query, chunks, weighting) == pytest.approx(reference.scores(query, chunks, weighting), abs=1e-9)
