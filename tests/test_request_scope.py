"""Request scopes: work is cancelled when its result is not required, and reserves memory in advance."""

from __future__ import annotations

from collections import Counter

import pytest

from relevance_gen import ChunkIndex, search
from relevance_gen.errors import RequestCancelledError
from relevance_gen.request_scope import budget_scope, cancel_scope, raise_if_cancelled

CHUNKS = [f"{n} cats and dogs in a garden" for n in range(200)]


class Patience:
    """Requires work for a number of checks."""

    def __init__(self, n_looks: int) -> None:
        self.n_left = n_looks

    def __call__(self) -> bool:
        """Return whether it is required this time."""
        self.n_left -= 1
        return self.n_left >= 0


def test_cancelled_search_stops_at_its_next_stage() -> None:
    """A cancelled search ends; it checks for cancellation several times, with or without index."""
    index = ChunkIndex(CHUNKS)
    for ask in (
        lambda: search("cats 7", CHUNKS, spans=True),
        lambda: index.search("cats 7", 60, spans=True),
    ):
        whole, n_looks = ask(), 0
        while True:
            try:
                with cancel_scope(Patience(n_looks)):
                    assert ask() == whole
                break
            except RequestCancelledError:
                n_looks += 1
        assert n_looks > 4
        assert ask() == whole


def test_cancel_scope_applies_to_its_context() -> None:
    """After the context, and in an inner context with a different condition, work continues."""
    with cancel_scope(lambda: False):
        with cancel_scope(lambda: True):
            raise_if_cancelled()
        with pytest.raises(RequestCancelledError):
            raise_if_cancelled()
    raise_if_cancelled()


def test_spans_are_reserved_before_creation() -> None:
    """All spans are reserved, and an exception from the reservation ends the search."""
    reported: Counter[str] = Counter()

    def reserve_units(unit: str, number: int) -> None:
        reported[unit] += number

    with budget_scope(reserve_units):
        response = search("cats", CHUNKS, spans=True)
    assert reported["span"] == sum(len(result.spans or ()) for result in response.results)
    assert reported["span_char"] == sum(len(result.chunk_txt) for result in response.results)

    def refuse(unit: str, number: int) -> None:
        raise MemoryError

    with budget_scope(refuse), pytest.raises(MemoryError):
        search("cats", CHUNKS, spans=True)


def test_phrase_search_reserves_its_texts() -> None:
    """The largest block of texts that contain all words is reserved; without a phrase, nothing."""
    for texts, n_announced in (
        (["black cat", "cat", "a black " + "cat " * 10], 9 + 48),
        (["cat"], 0),
    ):
        counts: Counter[str] = Counter()

        def reserve_units(unit: str, number: int, counts: Counter[str] = counts) -> None:
            counts[unit] += number

        with budget_scope(reserve_units):
            search('"black cat"', texts, syntax="operators")
        assert counts["phrase_char"] == n_announced


def test_phrase_search_reserves_one_block_at_a_time() -> None:
    """For many texts a single block is reserved, and for a long text a part, because it is split."""
    for texts in (["a black cat " * 50] * 1000, ["a black cat " * 50_000]):
        counts: Counter[str] = Counter()

        def reserve_units(unit: str, number: int, counts: Counter[str] = counts) -> None:
            counts[unit] += number

        with budget_scope(reserve_units):
            assert search('"black cat"', texts, syntax="operators").results
        assert 200_000 < counts["phrase_char"] < 350_000
