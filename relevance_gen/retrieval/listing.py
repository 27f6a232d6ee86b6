"""List the chunks of an index."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, overload

import numpy as np

from relevance_gen.retrieval.arrays import Offsets, joined, steps
from relevance_gen.retrieval.question.collection import Collection
from relevance_gen.retrieval.question.scorer import SegmentScorer
from relevance_gen.types import Chunk

_STEP: Final = 1 << 10
"""Chunks fetched together."""


class ChunkList(Sequence[Chunk]):
    """The chunks of an index at one moment, by position, read-only. Each is made when it is asked for.

    Args:
        collection: the chunks.
    """

    def __init__(self, collection: Collection) -> None:
        self._collection = collection
        self._positions = np.sort(joined(collection.ask(SegmentScorer.positions), np.int64))

    def __len__(self) -> int:
        return self._positions.size

    @overload
    def __getitem__(self, place: int) -> Chunk: ...
    @overload
    def __getitem__(self, place: slice) -> list[Chunk]: ...
    def __getitem__(self, place: int | slice) -> Chunk | list[Chunk]:
        if isinstance(place, slice):
            return chunks_at(self._collection, self._positions[place])
        return chunks_at(self._collection, self._positions[[place]])[0]

    def __iter__(self) -> Iterator[Chunk]:
        for some in steps(len(self), _STEP):
            yield from self[some]

    def __repr__(self) -> str:
        return f"<ChunkList of {len(self):,} chunks>"


def chunks_at(collection: Collection, positions: Offsets) -> list[Chunk]:
    """Return the chunks at some positions, where there must be some."""
    found = zip(collection.contents(positions), positions.tolist(), strict=True)
    return [Chunk(text, metadata, position) for (text, metadata), position in found]
