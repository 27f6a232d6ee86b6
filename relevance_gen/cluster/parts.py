"""What a shard is made of, told so that any machine can make it again: its recipe."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from attrs import evolve, field, frozen

from relevance_gen.cluster import folder
from relevance_gen.cluster.connection import get
from relevance_gen.errors import ClusterError
from relevance_gen.progress import Progress
from relevance_gen.retrieval.building import build
from relevance_gen.retrieval.chunks import Chunks
from relevance_gen.retrieval.segment import Segment
from relevance_gen.retrieval.terms import Offsets

CountTokens = Callable[[Chunks], int]


@frozen(eq=False)
class Made:
    """What a part becomes.

    Attributes:
        segments: its chunks, searchable.
        n_positions: number of positions that they take, those of blank chunks included.
        n_tokens: tokens in all of them.
    """

    segments: list[Segment]
    n_positions: int
    n_tokens: int


class Part(Protocol):
    """Some chunks, and where they are to be had."""

    def make(self, count_tokens: CountTokens, progress: Progress | None) -> Made:
        """Fetch the chunks and make them searchable."""

    def placed(self, first: int) -> Part:
        """Return the same part with another position of its first chunk."""


@frozen(eq=False)
class HandedOver:
    """Chunks that a process of the cluster holds in Ray's store of objects.

    Attributes:
        chunks: the reference to them, in a list lest Ray fetches them where nobody asks.
        first: position of the first.
    """

    chunks: list[Any]
    first: int = 0

    def make(self, count_tokens: CountTokens, progress: Progress | None) -> Made:
        """Fetch the chunks from the process that handed them over.

        Raises:
            ClusterError: that process is gone, and the chunks with it.
        """
        try:
            (chunks,) = get(self.chunks)
        except Exception as error:
            raise ClusterError(
                f"chunks cannot be fetched from the process that handed them over; save an index that shall outlive "
                f"that process: {type(error).__name__}"
            ) from None
        return make(chunks, self.first, count_tokens, progress)

    def placed(self, first: int) -> HandedOver:
        """Return the same chunks with another position of the first."""
        return evolve(self, first=first)


@frozen(eq=False)
class Saved:
    """Chunks in the file of a saved shard.

    Attributes:
        address: of the file.
        n_tokens: tokens in all of them.
    """

    address: str
    n_tokens: int

    def make(self, count_tokens: CountTokens, progress: Progress | None) -> Made:
        """Open the file; it is mapped into memory where it lies in this machine's file system."""
        del count_tokens, progress
        saved = folder.read_index(self.address)
        if saved.n_context_tokens != self.n_tokens:
            raise ClusterError(f"{self.address} is not the file that belongs to this index")
        return Made([saved.segment], saved.n_positions, saved.n_context_tokens)

    def placed(self, first: int) -> Saved:
        """Return it as it is: the positions are in the file."""
        del first
        return self


def make(chunks: Chunks, first: int, count_tokens: CountTokens, progress: Progress | None) -> Made:
    """Make chunks searchable.

    Args:
        chunks: the chunks, blank ones as "".
        first: position of the first.
        count_tokens: counts the tokens in all of them.
        progress: called after every block.
    """
    kept, numbers = chunks.without_blank()
    positions: Offsets = numbers + np.int64(first)
    return Made([build(kept, positions, progress=progress)], len(chunks.texts), count_tokens(kept))


@frozen(eq=False)
class Recipe:
    """How a shard is made.

    Attributes:
        parts: its chunks, in the order of their positions.
        removed: positions of those that were removed since, ascending.
    """

    parts: tuple[Part, ...]
    removed: Offsets = field(factory=lambda: np.zeros(0, np.int64))

    def with_part(self, part: Part) -> Recipe:
        """Return it with further chunks."""
        return evolve(self, parts=(*self.parts, part))

    def without(self, positions: Offsets) -> Recipe:
        """Return it without the chunks at some positions."""
        return evolve(self, removed=np.union1d(self.removed, positions))
