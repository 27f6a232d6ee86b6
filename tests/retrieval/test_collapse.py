"""Collapsing: the best result for each value of a key, and the number of collapsed results."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import Chunk, ChunkIndex, InvalidRequestError, SearchResult, search
from tests import corpus, strategies
from tests.profiles import costly
from tests.retrieval.asking import ALL

values = st.sampled_from([None, "a", "b", 1, 1.0, True, "1", [1, "a"], [], {"x": [1]}])
metadata = st.just({}) | st.fixed_dictionaries({"key": values})
chunk_lists = st.lists(st.builds(Chunk, strategies.chunk_texts, metadata), max_size=8).map(
    lambda some: some + some[:3]
)


def one_of_each(results: list[SearchResult], top_n: int) -> list[tuple[int, int]]:
    """Return positions and numbers of collapsed chunks, of results best first, by a slow reference."""
    kept: list[tuple[int, Any, int]] = []
    for result in results:
        has, value = "key" in result.metadata, result.metadata.get("key")
        for place, (position, other, n) in enumerate(kept):
            if has and (type(value) is bool, value) == other:
                kept[place] = (position, other, n + 1)
                break
        else:
            kept.append(
                (result.original_index, (type(value) is bool, value) if has else object(), 0)
            )
    return [(position, n) for position, _, n in kept][:top_n]


@costly
@given(strategies.queries, chunk_lists, st.integers(1, 5), st.sampled_from([0.0, 0.8]))
def test_best_result_represents_its_group(
    query: str, chunks: list[Chunk], top_n: int, min_relative_score: float
) -> None:
    """The results are all results of a search without `distinct`, except results whose value a better result has."""
    everything = list(search(query, chunks, ALL, False, min_relative_score=min_relative_score))
    expected = one_of_each(everything, top_n)
    if not any("key" in chunk.metadata for chunk in chunks):
        return
    for found in (
        search(query, chunks, top_n, False, min_relative_score=min_relative_score, distinct="key"),
        ChunkIndex(chunks).search(
            query, top_n, False, min_relative_score=min_relative_score, distinct="key"
        ),
    ):
        assert [(result.original_index, result.num_collapsed) for result in found] == expected
        scores = {result.original_index: result.chunk_score for result in everything}
        assert all(result.chunk_score == scores[result.original_index] for result in found)


def test_distinct_is_exact_beyond_candidates() -> None:
    """If hundreds of the best results have the same value, the best result with a different value is found."""
    texts = [f"cats purr {text}" for text in corpus.prose(300, 5)] + [
        f"{text} cats" for text in corpus.prose(40, 60)
    ]
    chunks = [
        Chunk(text, {"source": "one" if place < 300 else place % 4})
        for place, text in enumerate(texts)
    ]
    index = ChunkIndex(chunks[:100])
    index.add(chunks[100:])
    response = index.search("cats purr", 10, distinct="source")
    assert sorted(map(str, (result.metadata["source"] for result in response))) == [
        "0",
        "1",
        "2",
        "3",
        "one",
    ]
    assert sum(result.num_collapsed for result in response) == len(chunks) - 5
    assert response == search("cats purr", chunks, 10, distinct="source")
    chosen = index.search(
        "cats purr", distinct="source", where=lambda data: data["source"] != "one"
    )
    assert len(chosen) == 4


def test_equal_scores_are_ordered_by_position() -> None:
    """The first of equal chunks is the result, for any type of value and order of results."""
    day = datetime.date(2026, 1, 1)
    chunks = [
        Chunk("cats", {"a": day}),
        Chunk("cats", {"a": np.int64(3)}),
        Chunk("cats", {"a": day}),
        "cats",
        "cats",
    ]
    for true_order in (True, False):
        response = search(
            "cats", [*chunks, Chunk("cats", {"a": 3})], true_order=true_order, distinct="a"
        )
        assert [(result.original_index, result.num_collapsed) for result in response] == [
            (0, 1),
            (1, 1),
            (3, 0),
            (4, 0),
        ]


def test_num_collapsed_is_omitted_if_zero() -> None:
    """A result without collapsed chunks is serialized without the field."""
    found = search(
        "cats", [Chunk("cats", {"a": 1}), Chunk("cats", {"a": 1}), "cats"], distinct="a"
    ).to_dict()
    assert [result.get("num_collapsed") for result in found["results"]] == [1, None]


def test_unknown_key_raises_with_nearest_key() -> None:
    """A misspelled key raises an error with the nearest key; a value of another type raises an error, too."""
    chunks = [Chunk("cats", {"source": "a"}), "cats"]
    for ask in (lambda **reported: search("cats", chunks, **reported), ChunkIndex(chunks).search):
        with pytest.raises(InvalidRequestError, match="source"):
            ask(**({"query": "cats"} if ask.__name__ == "search" else {}), distinct="sourc")
        with pytest.raises(InvalidRequestError, match="distinct must be a string or None"):
            ask(**({"query": "cats"} if ask.__name__ == "search" else {}), distinct=3)
    assert search("dogs", chunks, distinct="source").results == ()


def test_deeply_nested_value_raises() -> None:
    """`distinct` and a filter raise an error if values nest too deeply to be compared."""
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    chunks = [Chunk("cats", {"a": deep}), Chunk("cats", {"a": 1})]
    for asked in ({"distinct": "a"}, {"where": {"a": 1}}, {"where": {"a": [deep]}}):
        with pytest.raises(InvalidRequestError, match="metadata nests too deeply"):
            search("cats", chunks, **asked)  # type: ignore[arg-type]
