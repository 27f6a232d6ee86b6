"""Check the positions of chunks that callers name, and list chunks by their positions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, overload

import numpy as np

from relevance_gen.arrays import Flags, Offsets, batch_slices, concat, unique
from relevance_gen.checks import as_list, is_integer, to_python_scalar
from relevance_gen.errors import InvalidRequestError
from relevance_gen.retrieval.collection import Collection
from relevance_gen.retrieval.query.filters import Filter, Where, check_keys
from relevance_gen.retrieval.scorer import SegmentScorer
from relevance_gen.types import Chunk

_STEP: Final = 1 << 10
"""Chunks fetched together."""


def check_position(
    name: str, value: object, n_positions: int, holds: Callable[[Offsets], Flags]
) -> int:
    """Return a position, if it is one of the `n_positions` ever given and, as `holds` tells, a chunk is there.

    Raises:
        InvalidRequestError: it is no integer, none that was given, or its chunk was removed; the error calls it `name`.
    """
    return int(_check_all([value], lambda _: name, n_positions, holds)[0])


def check_positions(values: object, n_positions: int, holds: Callable[[Offsets], Flags]) -> Offsets:
    """Return different positions in ascending order, if a chunk is at each of them; the arguments are as above.

    Raises:
        InvalidRequestError: there is no list of positions, or no chunk at one of them; the error names the first such.
    """
    values = as_list(values)
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        remedy = "put a single one in a list"
        raise InvalidRequestError.must_be("positions", "a list of positions", values, remedy=remedy)
    return unique(_check_all(list(values), lambda place: f"positions[{place}]", n_positions, holds))


def positions_to_remove(
    positions: object, where: Where | None, n_positions: int, collection: Collection
) -> Offsets:
    """Return different positions in ascending order: those that are named, or of all chunks that `where` allows.

    Raises:
        InvalidRequestError: as `check_positions` raises; both or neither are given; or `where` is not allowed.
    """
    if (positions is None) == (where is None):
        raise InvalidRequestError("must be given, or where instead, and not both", "positions")
    if where is None:
        return check_positions(positions, n_positions, collection.holds)
    at = np.sort(
        concat(collection.ask(SegmentScorer.positions, Filter.read(where, n_positions)), np.int64)
    )
    if isinstance(where, Mapping) and not at.size and collection.statistics.n_chunks:
        check_keys(where, collection.metadata_keys)
    return at


def _check_all(
    values: list[object],
    name: Callable[[int], str],
    n_positions: int,
    holds: Callable[[Offsets], Flags],
) -> Offsets:
    values = list(map(to_python_scalar, values))
    for place, value in enumerate(values):
        if not is_integer(value) or not 0 <= value < n_positions:
            raise InvalidRequestError.must_be(
                name(place), f"an integer in [0, {n_positions})", value
            )
    positions = np.array(values, np.int64)
    for place in np.flatnonzero(~holds(positions)).tolist():
        raise InvalidRequestError.must_be(
            name(place), "the position of a chunk that was not removed", values[place]
        )
    return positions


class ChunkList(Sequence[Chunk]):
    """The chunks of an index at one moment, by position, read-only. Each is made when it is asked for.

    Attributes:
        positions: where each stands in the index, ascending, int64 of shape (n,).
    """

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self.positions = np.sort(concat(collection.ask(SegmentScorer.positions), np.int64))

    def __len__(self) -> int:
        return self.positions.size

    @overload
    def __getitem__(self, place: int) -> Chunk: ...
    @overload
    def __getitem__(self, place: slice) -> list[Chunk]: ...
    def __getitem__(self, place: int | slice) -> Chunk | list[Chunk]:
        if isinstance(place, slice):
            return chunks_at(self._collection, self.positions[place])
        return chunks_at(self._collection, self.positions[[place]])[0]

    def __iter__(self) -> Iterator[Chunk]:
        for some in batch_slices(len(self), _STEP):
            yield from self[some]

    def __repr__(self) -> str:
        return f"<ChunkList of {len(self):,} chunks>"


def indexed(collection: Collection, n_positions: int, position: int | slice) -> Chunk | list[Chunk]:
    """Return what an index has at a position, or in a slice of them; see `relevance_gen.ChunkIndex`."""
    if isinstance(position, slice):
        some = np.arange(n_positions)[position]
        return chunks_at(collection, some[collection.holds(some)])
    at = to_python_scalar(position)
    if is_integer(at) and -n_positions <= at < 0:
        at += n_positions
    at = check_position("position", at, n_positions, collection.holds)
    return chunks_at(collection, np.array([at]))[0]


def chunks_at(collection: Collection, positions: Offsets) -> list[Chunk]:
    """Return the chunks at some positions, where there must be some."""
    found = zip(collection.contents(positions), positions.tolist(), strict=True)
    return [Chunk(text, metadata, position, title) for (text, metadata, title), position in found]
