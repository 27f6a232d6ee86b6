"""What a shard is made of, told so that any machine can make it again: its recipe."""

from __future__ import annotations

import sys
import tempfile
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import ray
from attrs import evolve, frozen

from relevance_gen.arrays import Offsets, batch_slices
from relevance_gen.cluster import saved_folder as folder
from relevance_gen.cluster.actors import get
from relevance_gen.cluster.runs import NO_POSITIONS, PositionRuns
from relevance_gen.errors import ClusterError
from relevance_gen.index.builder import build, merge
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.segment import Segment
from relevance_gen.index.spill import Spill
from relevance_gen.progress import Progress
from relevance_gen.text.token_counting import TokenCounter

CHARS_PER_TOKEN: Final = 4
"""About so many characters of English are a token."""
BATCH: Final = 256
"""Chunks that are read together."""
_BLOCK_BYTES: Final = 16 << 20
"""Texts, titles and metadata that are made searchable together; meanwhile some five times as much memory is taken."""
_MERGED_POSTINGS: Final = 1 << 22
"""Segments that have fewer, some 30 MiB of text, are merged in memory."""
_FETCH_S: Final = 60.0
"""Longest time to wait for chunks from the process that handed them over."""


@frozen(eq=False)
class Product:
    """What a part becomes."""

    segment: Segment
    n_positions: int  # number of positions that they take, those of blank chunks included
    n_tokens: int  # tokens in all of them


class Part(Protocol):
    """Some chunks, and where they are to be had."""

    @property
    def n_chars(self) -> int:
        """About how much text they are."""

    def make(
        self, counter: TokenCounter, progress: Progress | None, removed: PositionRuns = NO_POSITIONS
    ) -> Product:
        """Fetch the chunks, and make those searchable whose positions are not among `removed`.

        These count as the part itself does: from 0, or as they were saved with the chunks.
        """


@frozen(eq=False)
class StoredChunks:
    """Chunks that a process of the cluster holds in Ray's store of objects."""

    # the reference to them, wrapped in a list: Ray resolves a bare reference at once, and would copy the chunks to any
    # process that is given this
    chunks: list[Any]
    n_chars: int  # characters of their texts

    @classmethod
    def put(cls, chunks: Chunks) -> StoredChunks:
        """Put chunks where other processes can fetch them."""
        return cls([ray.put(chunks)], sum(map(len, chunks.texts)))

    def make(
        self, counter: TokenCounter, progress: Progress | None, removed: PositionRuns = NO_POSITIONS
    ) -> Product:
        """Fetch the chunks from the process that handed them over, which may be gone, and the chunks with it."""
        try:
            (chunks,) = get(self.chunks, _FETCH_S)
        except Exception as error:
            raise ClusterError(
                f"chunks cannot be fetched from the process that handed them over; save an index that shall outlive "
                f"that process: {type(error).__name__}"
            ) from None
        return make(_batches(chunks, np.arange(len(chunks.texts))), counter, progress, removed)


@frozen(eq=False)
class ShardFile:
    """Chunks in the file of a saved shard."""

    folder: str  # where the index was saved
    name: str
    n_tokens: int  # tokens in all of them

    @property
    def n_chars(self) -> int:
        """About how much text they are."""
        return CHARS_PER_TOKEN * self.n_tokens

    def make(
        self, counter: TokenCounter, progress: Progress | None, removed: PositionRuns = NO_POSITIONS
    ) -> Product:
        """Open the file, mapped into memory where it lies in this machine's file system; if most is gone, make anew."""
        del progress
        saved = folder.read_index(self.folder, self.name)
        if saved.n_context_tokens != self.n_tokens:
            raise ClusterError(
                f"{self.folder}/{self.name} is not the file that belongs to this index"
            )
        segment, n_positions = saved.segment, saved.n_positions
        is_gone = removed.hold(segment.positions)
        if 2 * np.count_nonzero(is_gone) > segment.size:
            left = make_again(segment, np.flatnonzero(~is_gone))
            return Product(left, n_positions, counter.count_all(left.chunks.texts))
        gone = np.flatnonzero(is_gone)
        n_gone = counter.count_all(segment.chunks.texts[number] for number in gone.tolist())
        return Product(
            segment.without(gone) if gone.size else segment, n_positions, self.n_tokens - n_gone
        )


def _batches(chunks: Chunks, numbers: Offsets) -> Iterator[Chunks]:
    return (chunks.take(numbers[some].tolist()) for some in batch_slices(numbers.size, BATCH))


def make_again(segment: Segment, numbers: Offsets) -> Segment:
    """Make some chunks of a segment searchable without the others, at the positions that they have."""
    made = make(_batches(segment.chunks, numbers)).segment
    return evolve(made, positions=segment.positions[numbers])


def make(
    batches: Iterable[Chunks],
    counter: TokenCounter | None = None,
    progress: Progress | None = None,
    removed: PositionRuns = NO_POSITIONS,
) -> Product:
    """Make chunks searchable, without blank and removed ones; where there is no counter, no tokens are counted.

    More than a block are mapped from a temporary file without a name. `progress` is called with the chunks that are
    made, and those that are read so far.
    """
    batches, n_read, n_tokens = iter(batches), 0, 0
    with closing(Spill(Path(tempfile.gettempdir()))) as spill:
        while True:
            chunks, is_last = _block(batches)
            first, n_read = n_read, n_read + len(chunks.texts)
            kept, numbers = chunks.without_blank()
            if (is_gone := removed.hold(first + numbers)).any():
                kept, numbers = kept.take(np.flatnonzero(~is_gone).tolist()), numbers[~is_gone]
            segment = build(
                kept, first + numbers, progress=progress and partial(_told, progress, first, n_read)
            )
            n_tokens += counter.count_all(kept.texts) if counter is not None else 0
            if first or not is_last:
                spill.add_with_chunks(segment)
            if is_last:
                return Product(spill.open_mapped() if first else segment, n_read, n_tokens)
            del chunks, kept, segment  # before the next block is read


def merged(segments: Sequence[Segment]) -> Segment:
    """Return one segment of the chunks of several that stand behind each other, without those taken out.

    Much is mapped from a temporary file without a name.
    """
    is_one = len(segments) == 1 and segments[0].postings.live is None
    if is_one or sum(one.postings.chunk.size for one in segments) <= _MERGED_POSTINGS:
        return merge(segments)
    with closing(Spill(Path(tempfile.gettempdir()))) as spill:
        for one in segments:
            spill.add_with_chunks(
                one if one.postings.live is None else make_again(one, np.flatnonzero(one.live))
            )
        return spill.open_mapped()


def _told(progress: Progress, first: int, n_read: int, done: int, _: int) -> None:
    progress(first + done, n_read)


def _block(batches: Iterator[Chunks]) -> tuple[Chunks, bool]:
    """Return the next chunks, as many as are made searchable together, and whether they are the last."""
    held, n_bytes = [], 0
    for batch in batches:
        held.append(batch)
        n_bytes += sum(map(sys.getsizeof, (*batch.texts, *batch.titles.values())))
        n_bytes += len(ray.cloudpickle.dumps(batch.metadata))  # of what callers made, too
        if n_bytes >= _BLOCK_BYTES:
            return Chunks.concat(held), False
    return Chunks.concat(held), True


@frozen(eq=False)
class Recipe:
    """How a shard is made."""

    # its chunks, in the order of their positions, and for each part the position that counts as its 0
    parts: tuple[tuple[Part, int], ...]
    removed: PositionRuns = (
        NO_POSITIONS  # positions of those that were removed since, or are in another shard now
    )

    @classmethod
    def of(cls, part: Part, first: int = 0) -> Recipe:
        """Return the recipe of one part."""
        return cls(((part, first),))

    @property
    def files(self) -> list[ShardFile]:
        """Those of its parts that are files of saved shards."""
        return [part for part, _ in self.parts if isinstance(part, ShardFile)]

    @property
    def n_chars(self) -> int:
        """About how much text it is."""
        return sum(part.n_chars for part, _ in self.parts)

    @property
    def is_file(self) -> bool:
        """Whether a saved file holds just the chunks of the shard."""
        return len(self.parts) == len(self.files) == 1 and not self.removed

    def with_part(self, part: Part, first: int) -> Recipe:
        """Return it with further chunks."""
        return evolve(self, parts=(*self.parts, (part, first)))

    def without(self, positions: Offsets) -> Recipe:
        """Return it without the chunks at some positions, which ascend."""
        return evolve(self, removed=self.removed | PositionRuns.of(positions))

    def cut(self, at: int, n_positions: int) -> tuple[Recipe, Recipe]:
        """Return the recipes of the chunks before a position and of the others, where so many positions were given.

        Each has the parts that may have a chunk of its own.
        """
        firsts = [first for _, first in self.parts]
        before, behind = (
            self.parts[: bisect_left(firsts, at)],
            self.parts[max(bisect_right(firsts, at) - 1, 0) :],
        )
        return (
            Recipe(before, self.removed | PositionRuns.between(at, n_positions)),
            Recipe(behind, self.removed | PositionRuns.between(0, at)),
        )
