"""Fill: results are followed by chunks that share nothing with the query."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import ChunkIndex, search
from tests import strategies
from tests.retrieval.asking import ALL

CHUNKS = ["one", "two", "cat cat", "three", "four", "a cat and a dog", "five"]


def positions(query: str, top_n: int = ALL, **options: object) -> list[int]:
    response = search(query, CHUNKS, top_n, true_order=False, **options)
    return [result.original_index for result in response]


def test_neighbors_of_the_best_results_are_first() -> None:
    """Chunks at distance 1 of the best, then of the second result, then at distance 2, then the rest."""
    assert positions("cat") == [2, 5]
    assert positions("cat", fill=True) == [2, 5, 1, 3, 4, 6, 0]
    assert positions("cat", 4, fill=True) == [2, 5, 1, 3]
    assert positions("cat", 1, fill=True) == [2]
    assert positions("zebra", 3, fill=True) == [0, 1, 2]


def test_filled_results_have_score_0_and_a_mark() -> None:
    """A filled result is marked in Python and in JSON, and has no spans."""
    found = search("cat", CHUNKS, 3, fill=True, true_order=False, spans=True)
    assert [result.chunk_score > 0.0 for result in found] == [True, True, False]
    assert [result.is_filled for result in found] == [False, False, True]
    assert found.to_dict()["results"][2]["filled"] is True
    assert "filled" not in found.to_dict()["results"][0]
    assert found[2].spans == ()


def test_fill_respects_filters_operators_groups_and_minimum_scores() -> None:
    """Only chunks that pass the filter are added, and none that a minimum score excludes."""
    assert positions("cat", fill=True, where=[0, 4, 5]) == [5, 4, 0]
    assert positions("cat -two", fill=True, syntax="operators") == [2, 5, 3, 4, 6, 0]
    assert 5 not in positions("cat", fill=True, min_relative_score=1.0)
    pages = [{"text": text, "metadata": {"page": i // 2}} for i, text in enumerate(CHUNKS)]
    found = search("cat", pages, 3, fill=True, distinct="page", true_order=False)
    assert [result.metadata["page"] for result in found] == [1, 2, 0]


@given(strategies.queries, strategies.chunk_lists, st.integers(1, 9), st.data())
def test_filled_results_do_not_depend_on_segments(
    query: str, chunks: list[str], top_n: int, data: st.DataObject
) -> None:
    """The scored results are unchanged, and filled results are equal for any division into segments."""
    filled = search(query, chunks, top_n, fill=True, true_order=False).results
    assert len(filled) == min(top_n, len(chunks))
    scored = search(query, chunks, top_n, true_order=False).results
    assert filled[: len(scored)] == scored
    cut = data.draw(st.integers(0, len(chunks)))
    index = ChunkIndex(chunks[:cut])
    index.add(chunks[cut:])
    assert index.search(query, top_n, fill=True, true_order=False).results == filled
    removed = data.draw(st.integers(0, len(chunks) - 1)) if chunks else 0
    if chunks:
        index.remove(np.array([removed]))
        left = index.search(query, ALL, fill=True)
        assert [r.original_index for r in left] == [i for i in range(len(chunks)) if i != removed]
