"""Neighbors: chunks of a running text lend score to the chunks before and after them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import ChunkIndex, InvalidRequestError, search
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.retrieval.stages.neighbors import Neighborhood
from tests import strategies
from tests.retrieval.asking import ALL

TEXT = [
    "The station opened early.",
    "Where did Joanna see the whale?",
    "It was near Hull, in spring.",
    "Then she went home.",
    "Dinner was late.",
]


def scores(query: str, chunks: list[str] | ChunkIndex, **options: object) -> dict[int, float]:
    index = chunks if isinstance(chunks, ChunkIndex) else ChunkIndex(chunks)
    return {
        result.original_index: result.chunk_score for result in index.search(query, ALL, **options)
    }


def test_chunk_without_a_word_of_the_query_is_found_by_its_neighbor() -> None:
    """The chunks at distance 1 get 0.2 of a score, at distance 2 they get 0.1."""
    own = scores("Joanna whale", TEXT)
    assert own.keys() == {1}
    near = scores("Joanna whale", TEXT, neighbors=1)
    assert near == {0: 0.2 * own[1], 1: own[1], 2: 0.2 * own[1]}
    assert scores("Joanna whale", TEXT, neighbors=2) == near | {3: 0.1 * own[1]}


@given(strategies.queries, strategies.chunk_lists, st.integers(1, 2), st.data())
def test_results_do_not_depend_on_segments_filter_or_top_n(
    query: str, chunks: list[str], neighbors: int, data: st.DataObject
) -> None:
    """Scores are in (0, 1], equal for any division into segments, and a chunk that says the query scores 1."""
    expected = scores(query, chunks, neighbors=neighbors)
    assert all(0.0 < score <= 1.0 for score in expected.values())
    cut = data.draw(st.integers(0, len(chunks)))
    index = ChunkIndex(chunks[:cut])
    index.add(chunks[cut:])
    assert scores(query, index, neighbors=neighbors) == expected
    one_shot = search(query, chunks, ALL, neighbors=neighbors)
    assert {result.original_index: result.chunk_score for result in one_shot} == expected
    allowed = data.draw(st.lists(st.booleans(), min_size=len(chunks), max_size=len(chunks)))
    filtered = scores(query, chunks, neighbors=neighbors, where=np.array(allowed, bool))
    assert filtered == {i: score for i, score in expected.items() if allowed[i]}
    for position, score in scores(query, chunks).items():
        assert expected[position] >= score
        assert (expected[position] == 1.0) == (score == 1.0)


def test_removed_chunk_and_other_document_are_no_neighbors() -> None:
    """Score is not lent over the position of a removed chunk at distance 1, nor to another document."""
    index = ChunkIndex(TEXT)
    index.remove([2])
    assert scores("Joanna whale", index, neighbors=1).keys() == {0, 1}
    documents = Neighborhood(2, np.array([0, 2]))
    params = SearchParams("Joanna whale", neighbors=documents)
    (response,) = ChunkIndex(TEXT).answer_all([params])
    assert [result.original_index for result in response] == [0, 1]


def test_explanation_has_the_lent_score() -> None:
    """The contributions add up to the score, for a chunk with and without a word of the query."""
    chunks = [*TEXT, "A whale was seen from Hull."]
    index = ChunkIndex(chunks)
    for position, score in scores("whale of Hull", index, neighbors=2).items():
        explanation = index.explain("whale of Hull", position, neighbors=2)
        assert explanation.score == score
        total = math.fsum(term.contribution for term in explanation.terms)
        for part in ("bigrams", "coverage", "lead", "phrase", "char_ngrams", "top_similarity"):
            total += getattr(explanation, part)
        assert (explanation.neighbors > 0.0) == (position != 5)
        assert total + explanation.neighbors == pytest.approx(score)


@pytest.mark.parametrize("neighbors", [-1, 3, True, "1", 1.0])
def test_neighbors_must_be_a_distance(neighbors: object) -> None:
    """Only 0, 1 and 2 are accepted."""
    with pytest.raises(InvalidRequestError, match=r"neighbors must be 0, 1 or 2, got"):
        search("a", ["a"], neighbors=neighbors)
