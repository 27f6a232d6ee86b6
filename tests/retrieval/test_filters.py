"""Filtering: only the chunks that the caller allows are ranked, with the statistics of all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import ChunkIndex, InvalidRequestError, search
from tests import strategies
from tests.retrieval.asking import ALL, WEIGHTINGS

TAGGED = [
    {"text": "a red cat", "metadata": {"colour": "red", "page": 1, "tags": ["pet", "small"]}},
    {
        "text": "a blue cat",
        "metadata": {"colour": "blue", "page": 2, "tags": ["pet"], "wild": True},
    },
    {"text": "a green cat", "metadata": {"colour": "green", "page": 2, "wild": False}},
    "a cat",
]


def matching_positions(where: Any, **options: Any) -> list[int]:
    results = search("cat", TAGGED, ALL, where=where, **options).results
    index = ChunkIndex(TAGGED[:2])
    index.add(TAGGED[2:])
    assert index.search("cat", ALL, where=where).results == results
    return [result.original_index for result in results]


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({}, [0, 1, 2, 3]),
        ({"colour": "red"}, [0]),
        ({"colour": ["red", "blue"]}, [0, 1]),
        ({"colour": ["red", "blue"], "page": 2}, [1]),
        ({"colour": {"red", "blue"}}, [0, 1]),
        ({"page": range(2, 4)}, [1, 2]),
        ({"page": np.array([2, 3])}, [1, 2]),
        ({"page": np.int64(2)}, [1, 2]),
        ({"tags": "pet"}, [0, 1]),
        ({"tags": ["small", "large"]}, [0]),
        ({"page": "2"}, []),
        ({"page": 2.0}, [1, 2]),
        ({"page": True}, []),
        ({"wild": True}, [1]),
        ({"wild": 1}, []),
        ({"wild": []}, []),
        ({"wild": np.True_}, [1]),
        ({"page": {1, 2}}, [0, 1, 2]),
        ({"page": {"gte": 2}}, [1, 2]),
        ({"page": {"gt": 1, "lt": np.int64(2)}}, []),
        ({"page": {"gt": 0.5, "lte": 1}}, [0]),
        ({"colour": {"gte": "blue", "lt": "h"}}, [1, 2]),
        ({"tags": {"gt": "q"}}, [0]),
        ({"page": {"gte": "1"}}, []),
        ({"wild": {"gte": 0}}, []),
        ({"page": [1, {"gt": 1}]}, [0, 1, 2]),
        ({"page": np.array([1, 3])}, [0]),
        ({"wild": [np.True_, np.False_]}, [1, 2]),
        ([], []),
        ([3, 0], [0, 3]),
        ((1, 1), [1]),
        (np.array([2]), [2]),
        (range(2, 4), [2, 3]),
        ([True, False, False, True], [0, 3]),
        (np.array([False, True, True, False]), [1, 2]),
        (lambda metadata: metadata.get("page", 0) > 1, [1, 2]),
        (lambda metadata: not metadata, [3]),
    ],
)
def test_filter_selects_results(where: object, expected: list[int]) -> None:
    """Metadata, a callable of metadata, positions or a mask select the chunks that can be results."""
    assert matching_positions(where) == expected


@given(strategies.queries, strategies.chunk_lists, st.data(), st.sampled_from(WEIGHTINGS))
def test_scores_are_those_among_all(
    query: str, chunks: list[str], data: st.DataObject, weighting: Any
) -> None:
    """A chunk has the score that it has without the filter, up to the bonus that only the best are given."""
    mask = data.draw(st.lists(st.booleans(), min_size=len(chunks), max_size=len(chunks)))
    everything = search(query, chunks, ALL, weighting=weighting).results
    some = search(query, chunks, ALL, weighting=weighting, where=mask).results
    assert [(result.original_index, result.chunk_score) for result in some] == [
        (result.original_index, result.chunk_score)
        for result in everything
        if mask[result.original_index]
    ]


@pytest.mark.parametrize(
    ("where", "field", "message"),
    [
        (["0"], "where[0]", "an integer in [0, 4)"),
        ([0, 4], "where[1]", "an integer in [0, 4)"),
        ([-1], "where[0]", "an integer in [0, 4)"),
        ([0, True], "where[1]", "an integer in [0, 4)"),
        ([0.0], "where[0]", "an integer in [0, 4)"),
        ([True, None, False, True], "where[1]", "True or False"),
        (["x", True], "where[0]", "True or False"),
        (pd.Series([True, False, None], dtype="boolean"), "where[2]", "True or False"),
        ([True, False], "where", "a mask of 4 booleans, one for each position, got 2"),
        (
            {"page": lambda page: page > 1},
            "where.page",
            "a value or a list of values, got function; a callable takes a",
        ),
        ("red", "where", "a mapping of metadata, a callable, a list of positions"),
        (7, "where", "a mapping of metadata, a callable, a list of positions"),
        ({"page": {"gte": 1, "le": 2}}, "where.page.le", "the bounds of a range are gt, gte, lt"),
        ({"page": {"gte": True}}, "where.page.gte", "a number or a string"),
        ({"page": {"lt": float("nan")}}, "where.page.lt", "a number or a string"),
        ({"page": {"lt": None}}, "where.page.lt", "a number or a string"),
        ({"page": {"gte": 1, "lt": "2"}}, "where.page", "bounds of one type"),
        ({"pge": 1}, "where", "must name keys that chunks have, got 'pge'; did you mean page?"),
        ({"page": 2, "zebra": 1}, "where", "got 'zebra'; the keys are colour, page, tags, wild"),
        ({"x" * 1000: 1}, "where", f"got '{'x' * 80}'… (1000 characters); the keys are"),
    ],
)
def test_invalid_filter_raises_with_name(where: object, field: str, message: str) -> None:
    """A filter of another kind, a position that never was, or a mask of another length is named."""
    with pytest.raises(InvalidRequestError) as caught:
        matching_positions(where)
    assert caught.value.field == field
    assert message in str(caught.value)


def test_unknown_key_of_empty_index_is_allowed() -> None:
    """Of no chunks nothing is asked in vain; of chunks without metadata any key is."""
    assert not search("cat", [], where={"page": 1})
    assert not ChunkIndex([]).search("cat", where={"page": 1})
    assert not search("zebra", TAGGED, where={"page": 1})
    index = ChunkIndex([*TAGGED, *"abcd"])
    assert index.metadata_keys == {"colour", "page", "tags", "wild"}
    index.remove([0, 1, 2])
    assert index.metadata_keys == set()
    with pytest.raises(InvalidRequestError, match="got 'page'; no chunk has metadata"):
        index.search("cat", where={"page": 1})


@given(
    st.lists(st.integers(-3, 3) | st.floats(-3, 3) | st.text("ab", max_size=3) | st.booleans()),
    st.dictionaries(st.sampled_from(["gt", "gte", "lt", "lte"]), st.integers(-3, 3), min_size=1),
)
def test_range_selects_numbers_within_bounds(values: list[Any], bounds: dict[str, int]) -> None:
    """A range selects the chunks whose number meets each bound, and no other types."""
    chunks = [{"text": "cat", "metadata": {"size": value}} for value in values]
    expected = []
    for position, value in enumerate(values):
        if isinstance(value, int | float) and not isinstance(value, bool):
            meets = [
                value > bounds.get("gt", -9),
                value >= bounds.get("gte", -9),
                value < bounds.get("lt", 9),
                value <= bounds.get("lte", 9),
            ]
            if all(meets):
                expected.append(position)
    results = search("cat", chunks, ALL, where={"size": bounds})
    assert [result.original_index for result in results] == expected


@pytest.mark.parametrize("comparison", ["ge", "eq", "$gte", ">="])
def test_comparison_of_other_libraries_is_refused(comparison: str) -> None:
    """A range with the names of another library raises an error that lists the names of bounds."""
    chunks = [{"text": "cat", "metadata": {"year": 2020}}]
    with pytest.raises(
        InvalidRequestError, match="the bounds of a range are gt, gte, lt, lte"
    ) as error:
        search("cat", chunks, where={"year": {comparison: 2019}})
    assert error.value.field == f"where.year.{comparison}"


def test_range_compares_iso_dates() -> None:
    """Dates compare as strings; a longer time on a day is after the day."""
    days = ["2019-12-31", "2020-01-01", "2020-01-01T09:30:00Z", "2024-01-01"]
    chunks = [{"text": "cat", "metadata": {"day": day}} for day in days]
    where = {"day": {"gte": "2020-01-01", "lt": "2024"}}
    assert [result.original_index for result in search("cat", chunks, where=where)] == [1, 2]


@pytest.mark.parametrize("of_removed", [[1], [False, True, False, False]])
def test_removed_chunks_are_not_found(of_removed: object) -> None:
    """The position of a chunk that was removed may be allowed, and finds nothing."""
    index = ChunkIndex(TAGGED)
    index.remove([1])
    assert index.search("cat", where=of_removed).results == ()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-2, 2)
    | st.sampled_from([0.0, -0.0, 1.0, 1.5, 1e300])
    | st.text("a1,:", max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text("a=", max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(owned=JSON, wanted=st.lists(JSON | st.dates() | st.decimals(-2, 2, places=0), max_size=4))
def test_values_are_found_as_if_each_were_compared_with_each(owned: Any, wanted: list[Any]) -> None:
    """The lookup in a set finds the same values as comparing all pairs: equal values, and true only for true."""
    items = owned if isinstance(owned, list) else [owned]
    expected = any(
        a == b and isinstance(a, bool) == isinstance(b, bool) for a in items for b in wanted
    )
    texts = [{"text": "a cat", "metadata": {"key": owned}}]
    assert bool(search("cat", texts, where={"key": wanted}).results) == expected


class Number(int):
    """A number that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Number.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_filter_time_is_linear_in_values() -> None:
    """A thousand allowed values and a thousand values of a chunk do not take a million comparisons, for any hashes."""
    collide = (1 << 61) - 1
    chunks = [
        {"text": "a cat", "metadata": {"key": [Number(-n * collide) for n in range(1, 1000)]}}
    ]
    assert not search(
        "cat", chunks, where={"key": [Number(n * collide) for n in range(1, 1000)]}
    ).results
    assert Number.compared < 10_000


def test_exception_of_callable_is_raised_unchanged() -> None:
    """An exception of the callable is raised unchanged."""
    broken: Callable[[Any], bool] = lambda metadata: metadata["page"] > 1  # noqa: E731
    with pytest.raises(KeyError, match="page"):
        matching_positions(broken)
