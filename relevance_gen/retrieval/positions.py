"""Validate positions of chunks, and list chunks by position."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias, overload

import numpy as np

from relevance_gen.arrays import Offsets, batch_slices, unique
from relevance_gen.checks import as_list, is_integer, to_python_scalar
from relevance_gen.errors import InvalidRequestError, shorten
from relevance_gen.index.chunks import Chunks
from relevance_gen.retrieval.answer import metadata_keys
from relevance_gen.retrieval.ports import FeatureRequest, InventoryRequest, Segments
from relevance_gen.retrieval.query.filters import Filter, Where, check_keys
from relevance_gen.retrieval.ranking.features import STORED_FIELDS
from relevance_gen.types import Chunk

FindPositions: TypeAlias = Callable[[int, Segments], Offsets]
"""A function that returns distinct positions in ascending order, given the number of assigned
positions and the segments of one state of an index."""

_BATCH_CHUNKS: Final = 1 << 10
"""Number of chunks that one request fetches from the segments."""


def check_position(name: str, value: object, n_positions: int, segments: Segments) -> int:
    """Return `value` as an integer, if it is the position of a chunk.

    A valid position is in [0, `n_positions`), and its chunk was not removed.

    Args:
        name: the field that an error names.
        value: the position to check.
        n_positions: number of positions that the index has assigned, also to removed chunks.
        segments: the chunks of the index.

    Raises:
        InvalidRequestError: the position is invalid; the error names the field `name`.
    """
    return int(_check_all([value], lambda _: name, n_positions, segments)[0])


def check_positions(values: object, n_positions: int, segments: Segments) -> Offsets:
    """Check that each of `values` is the position of a chunk, and return the distinct positions.

    The returned positions are ascending. The other arguments are as for `check_position`.

    Raises:
        InvalidRequestError: `values` is not a list or another iterable of positions, or a position
            is invalid; the error names the first such position.
    """
    values = as_list(values)
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        remedy = "put a single one in a list"
        raise InvalidRequestError.must_be("positions", "a list of positions", values, remedy=remedy)
    return unique(_check_all(list(values), lambda i: f"positions[{i}]", n_positions, segments))


def positions_to_remove(
    positions: object, where: Where | None, n_positions: int, segments: Segments
) -> Offsets:
    """Return distinct positions in ascending order.

    These are the given positions, or the positions of all chunks that pass `where`.

    Raises:
        InvalidRequestError: both or neither are given, a position is invalid as in
            `check_positions`, or `where` is invalid.
    """
    if (positions is None) == (where is None):
        raise InvalidRequestError(
            "must be None if where is given, and must be given otherwise", "positions"
        )
    if where is None:
        return check_positions(positions, n_positions, segments)
    request = InventoryRequest(with_positions=True, filter=Filter.read(where, n_positions))
    matching = segments.inventory(request).positions
    if isinstance(where, Mapping) and not matching.size and segments.statistics.n_chunks:
        check_keys(where, metadata_keys(segments))
    return matching


def identifiers(chunks: Chunks, key: str) -> list[str | int]:
    """Return the metadata value under `key` of each chunk.

    Raises:
        InvalidRequestError: a value is missing, or neither a string nor an integer.
    """
    values = []
    for chunk_ord in range(len(chunks.texts)):
        value = to_python_scalar(chunks.metadata_of(chunk_ord).get(key))
        if not isinstance(value, str) and not is_integer(value):
            name = f"chunks[{chunk_ord}].metadata.{shorten(key)}"
            raise InvalidRequestError.must_be(name, "a string or an integer", value)
        values.append(value)
    return values


def positions_with(where: Mapping[str, Any], n_positions: int, segments: Segments) -> Offsets:
    """Return the positions of all chunks that pass a filter of metadata, ascending."""
    request = InventoryRequest(with_positions=True, filter=Filter.read(where, n_positions))
    return segments.inventory(request).positions


def _check_all(
    values: list[object], name: Callable[[int], str], n_positions: int, segments: Segments
) -> Offsets:
    values = list(map(to_python_scalar, values))
    for i, value in enumerate(values):
        if not is_integer(value) or not 0 <= value < n_positions:
            raise InvalidRequestError.must_be(name(i), f"an integer in [0, {n_positions})", value)
    positions = np.array(values, np.int64)
    is_occupied = segments.inventory(InventoryRequest(occupied=positions)).is_occupied
    for i in np.flatnonzero(~is_occupied).tolist():
        allowed = "the position of a chunk that was not removed"
        raise InvalidRequestError.must_be(name(i), allowed, values[i])
    return positions


class ChunkList(Sequence[Chunk]):
    """The chunks of an index at one time, in the order of positions; read-only.

    Element i is the i-th chunk that was not removed, whose position in the index can be greater
    than i. A chunk is created on access.

    Attributes:
        positions: position of each chunk in the index, ascending, int64 of shape (n,).
    """

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self.positions = segments.inventory(InventoryRequest(with_positions=True)).positions

    def __len__(self) -> int:
        return self.positions.size

    @overload
    def __getitem__(self, index: int) -> Chunk: ...
    @overload
    def __getitem__(self, index: slice) -> list[Chunk]: ...
    def __getitem__(self, index: int | slice) -> Chunk | list[Chunk]:
        if isinstance(index, slice):
            return chunks_at(self._segments, self.positions[index])
        return chunks_at(self._segments, self.positions[[index]])[0]

    def __iter__(self) -> Iterator[Chunk]:
        for batch in batch_slices(len(self), _BATCH_CHUNKS):
            yield from self[batch]

    def __repr__(self) -> str:
        return f"<ChunkList of {len(self):,} chunks>"


def chunks_by_index(
    position: int | slice, n_positions: int, segments: Segments
) -> Chunk | list[Chunk]:
    """Return the chunk at a position, or the chunks in a slice of positions.

    A negative position counts from `n_positions`. A slice leaves out removed chunks. The argument
    is that of `MutableIndex.__getitem__`.

    Raises:
        InvalidRequestError: a single position is not an integer, has not been assigned, or its
            chunk was removed.
    """
    if isinstance(position, slice):
        positions = np.arange(n_positions)[position]
        is_occupied = segments.inventory(InventoryRequest(occupied=positions)).is_occupied
        return chunks_at(segments, positions[is_occupied])
    index = to_python_scalar(position)
    if is_integer(index) and -n_positions <= index < 0:
        index += n_positions
    checked = check_position("position", index, n_positions, segments)
    return chunks_at(segments, np.array([checked]))[0]


def chunks_at(segments: Segments, positions: Offsets) -> list[Chunk]:
    """Return the chunks at the given positions, each of which must have a chunk."""
    if not positions.size:
        return []
    fields = segments.extract_features(FeatureRequest(positions, (STORED_FIELDS,)))[0].rows
    chunks = []
    for chunk, position in zip(fields, positions.tolist(), strict=True):
        chunks.append(Chunk(chunk.text, chunk.metadata, position, chunk.title))
    return chunks
