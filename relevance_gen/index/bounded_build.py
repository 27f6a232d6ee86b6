"""Build segments of any size in bounded memory, and merge segments."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

import numpy as np
from attrs import evolve

from relevance_gen.arrays import Offsets, batch_slices
from relevance_gen.index.builder import build, merge
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.segment import Segment
from relevance_gen.index.spill import Spill

CHUNKS_PER_BATCH: Final = 256
"""Number of chunks in a batch."""
_BLOCK_BYTES: Final = 16 << 20
"""Size of the texts, titles and metadata that are indexed together; indexing takes about five times
that memory."""
_MAX_POSTINGS_IN_MEMORY: Final = 1 << 22
"""Maximum postings of segments that are merged in memory: about 30 MiB of text."""


def batches_of(chunks: Chunks, chunk_ords: Offsets | None = None) -> Iterator[Chunks]:
    """Yield chunks in batches: all chunks, or the chunks with the ordinals `chunk_ords`."""
    if chunk_ords is None:
        chunk_ords = np.arange(len(chunks.texts))
    for batch in batch_slices(chunk_ords.size, CHUNKS_PER_BATCH):
        yield chunks.take(chunk_ords[batch].tolist())


def build_segment(batches: Iterable[Chunks]) -> Segment:
    """Build and return one segment of all chunks that are not blank, with positions from 0.

    The chunks are indexed in blocks of about `_BLOCK_BYTES` of texts, titles and metadata. If there
    is more than one block, each block is written to a temporary file and all blocks are merged at
    the end. The merged segment is memory-mapped from an unnamed file.

    Args:
        batches: the chunks, in the order of their positions.
    """
    remaining = iter(batches)
    n_read = 0
    with closing(Spill(Path(tempfile.gettempdir()))) as spill:
        while True:
            block, is_last = _next_block(remaining)
            chunks, chunk_ords = block.without_blank()
            segment = build(chunks, n_read + chunk_ords)
            if is_last and not n_read:
                return segment
            n_read += len(block.texts)
            spill.add_with_chunks(segment)
            if is_last:
                return spill.open_mapped()
            del block, chunks, segment  # free their memory before the next block is read


def _next_block(batches: Iterator[Chunks]) -> tuple[Chunks, bool]:
    """Return the chunks of the next block, and whether it is the last block.

    Batches are added until the block has `_BLOCK_BYTES` or more. The block is the last, and can be
    empty, if `batches` ends before that.
    """
    block: list[Chunks] = []
    n_bytes = 0
    for batch in batches:
        block.append(batch)
        n_bytes += sum(map(sys.getsizeof, batch.texts))
        n_bytes += sum(map(sys.getsizeof, batch.titles.values()))
        n_bytes += len(repr(dict(batch.metadata)))
        if n_bytes >= _BLOCK_BYTES:
            return Chunks.concat(block), False
    return Chunks.concat(block), True


def merge_segments(segments: Sequence[Segment]) -> Segment:
    """Return one segment with the chunks of several segments, without removed chunks.

    The positions must ascend from segment to segment. Many postings are merged in temporary files.
    """
    is_single = len(segments) == 1 and segments[0].postings.live is None
    n_postings = sum(segment.postings.chunk.size for segment in segments)
    if is_single or n_postings <= _MAX_POSTINGS_IN_MEMORY:
        return merge(segments)
    with closing(Spill(Path(tempfile.gettempdir()))) as spill:
        for segment in segments:
            spill.add_with_chunks(_without_removed(segment))
        return spill.open_mapped()


def _without_removed(segment: Segment) -> Segment:
    """Return the segment rebuilt without its removed chunks; other chunks keep their positions."""
    if segment.postings.live is None:
        return segment
    chunk_ords = np.flatnonzero(segment.live)
    built = build_segment(batches_of(segment.chunks, chunk_ords))
    return evolve(built, positions=segment.positions[chunk_ords])
