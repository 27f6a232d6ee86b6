"""Build segments of any size in bounded memory: write them to temporary files, and merge these.

Terms are merged as in an external merge sort, window by window: a window has the terms of all
segments whose ids are in one range, and few enough postings to be sorted in memory. All other
arrays are copied; ordinals and offsets are increased by the sizes of the segments before.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import numpy as np
from attrs import evolve, frozen

from relevance_gen.arrays import (
    Flags,
    Ids,
    Offsets,
    TermOrds,
    batch_slices,
    ragged_ranges,
    run_starts,
    starts_of,
)
from relevance_gen.errors import InvalidRequestError
from relevance_gen.index import array_file, array_layout, storage
from relevance_gen.index.array_file import Array
from relevance_gen.index.builder import build, merge
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.segment import Segment
from relevance_gen.request_scope import raise_if_cancelled
from relevance_gen.types import Metadata

SegmentArrays: TypeAlias = Mapping[str, Array]
"""The arrays of a segment, by their names in a file."""

CHUNKS_PER_BATCH: Final = 256
"""Number of chunks in a batch."""
_BLOCK_BYTES: Final = 16 << 20
"""Size of the texts, titles and metadata that are indexed together; indexing takes about five times
that memory."""
_MAX_POSTINGS_IN_MEMORY: Final = 1 << 22
"""Maximum postings of segments that are merged in memory: about 30 MiB of text."""
_BATCH_ELEMENTS: Final = 1 << 17
"""Approximate number of terms, postings or occurrences that are merged at once."""
_MAX_ID: Final = (1 << 64) - 1
_TERM_ARRAYS: Final = {"ids", "first", "chunk", "tf", "spelling", "spelling_first", "tokens"}


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
    with closing(Spill()) as spill:
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
    with closing(Spill()) as spill:
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


class Spill:
    """Chunks and segments in unnamed temporary files.

    The files are deleted by `close`, or when the process ends.

    Args:
        folder: folder of the files; None for the system's folder of temporary files.

    Attributes:
        content: writes the texts, metadata and titles of the chunks of all segments.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._open_files = ExitStack()
        self._segments_file = self._open()
        self._segment_bounds = [0]  # offsets in the file
        self.content = storage.ContentWriter(self._open)
        self._n_chunks = 0
        self._non_json_metadata: dict[int, Metadata] = {}

    def _open(self) -> BinaryIO:
        return self._open_files.enter_context(tempfile.TemporaryFile(dir=self._folder))

    def close(self) -> None:
        """Close and thereby delete the files."""
        self._open_files.close()

    def add(self, segment: Segment) -> None:
        """Write the arrays of a segment to a file, without texts, metadata and titles.

        The caller must pass the chunks of the segment to `content.add`, in order and after the
        chunks of the segments before.
        """
        self._segments_file.seek(self._segment_bounds[-1])
        writer = storage.write_arrays(self._segments_file, segment)
        self._segment_bounds.append(writer.end)

    def add_with_chunks(self, segment: Segment) -> None:
        """Write the arrays of a segment, and add its chunks to `content`.

        Metadata that is not JSON stays in memory; only `open_mapped` returns it.
        """
        self.add(segment)
        for chunk_ord, chunk in enumerate(segment.chunks, self._n_chunks):
            try:
                self.content.add(chunk.text, chunk.metadata, chunk.title)
            except InvalidRequestError:
                self._non_json_metadata[chunk_ord] = chunk.metadata
                self.content.add(chunk.text, {}, chunk.title)
        self._n_chunks += segment.size

    def open_mapped(self) -> Segment:
        """Merge all segments, which `add_with_chunks` has written, and return the merged segment.

        Its arrays are mapped from an unnamed file, which the system deletes when they are freed.
        """
        file = self._open()
        self.merge(file, {})
        content = array_file.map_file(file)
        chunks = storage.chunks_in(array_file.read(content, array_layout.TYPES).arrays)
        if self._non_json_metadata:
            metadata = ChainMap(self._non_json_metadata, chunks.metadata)  # type: ignore[arg-type]
            chunks = evolve(chunks, metadata=metadata)
        return storage.read_arrays(content, chunks)

    def merge(
        self,
        file: BinaryIO,
        settings: Mapping[str, Any],
    ) -> None:
        """Write the chunks and all segments, at least one, to a file as a single segment.

        Args:
            file: a file open for reading and writing.
            settings: the settings of the file, as for `array_file.Writer`.
        """
        mapped = array_file.map_file(self._segments_file)
        segments = [
            array_file.read(mapped[start:end], array_layout.TYPES).arrays
            for start, end in itertools.pairwise(self._segment_bounds)
        ]
        content = self.content.finish()
        merged = _merged_term_ords(segments, self._open())
        sizes = [array_layout.sizes_of(segment) for segment in segments]
        total = {axis: sum(size[axis] for size in sizes) for axis in sizes[0]}
        total |= array_layout.sizes_of(content)
        total |= {"term": merged.n_terms, "letter": merged.n_letters}
        array_sizes = _stored_sizes(segments, total)
        writer = array_file.Writer(file, array_layout.TYPES, settings, array_sizes)
        for name, array in content.items():
            writer.extend(name, array)
        _copy_other_arrays(segments, sizes, writer)
        _merge_terms(segments, [size["chunk"] for size in sizes], writer)
        for segment, term_ords in zip(segments, merged.term_ords, strict=True):
            for batch in batch_slices(segment["tokens"].size, _BATCH_ELEMENTS):
                writer.extend("tokens", term_ords[segment["tokens"][batch]])
        writer.seal()


def _stored_sizes(
    segments: Sequence[SegmentArrays],
    axes: Mapping[str, int],
) -> dict[str, int]:
    """Return the number of elements of each array of the merged file.

    Args:
        segments: the arrays of the segments; the result is 0 for an array that all of them lack.
        axes: number of items of each axis in the merged file.
    """
    sizes = {}
    for spec in array_layout.STORED:
        is_present = not spec.path or any(segment[spec.name].size for segment in segments)
        sizes[spec.name] = axes[spec.axis] + spec.is_bounds if is_present else 0
    return sizes


def _copy_other_arrays(
    segments: Sequence[SegmentArrays],
    sizes: Sequence[Mapping[str, int]],
    writer: array_file.Writer,
) -> None:
    """Copy the arrays that depend neither on terms nor on texts, segment after segment.

    Offsets and ordinals are increased by the sizes of the segments before. The texts, metadata and
    titles are not copied.

    Args:
        segments: the arrays of the segments.
        sizes: for each segment, the number of items of each axis.
        writer: writes the merged file.
    """
    for spec in array_layout.STORED:
        if not spec.path or spec.name in _TERM_ARRAYS:
            continue
        # Elements of the segments before along the axis that the offsets refer to.
        n_before = 0
        for segment_index, (segment, size) in enumerate(zip(segments, sizes, strict=True)):
            array = segment[spec.name]
            if spec.is_bounds and segment_index:
                array = array[1:]  # the first bound is the last bound of the segment before
            writer.extend(spec.name, array + n_before if spec.refers_to else array)
            n_before += size.get(spec.refers_to, 0)


# ── Terms ─────────────────────────────────────────────────────────────────────────────────────────


@frozen(eq=False)
class _EntryRange:
    """The entries [`start`, `end`) of one segment's lexicon; there may be none."""

    segment: SegmentArrays
    start: int
    end: int

    @property
    def ids(self) -> Array:
        """The id of each entry."""
        return self.segment["ids"][self.start : self.end]

    def sizes(self, bounds: str) -> Offsets:
        """Return the number of elements that belong to each entry.

        `bounds` names the array with the bounds of each entry's elements: "first" for the number of
        postings, "spelling_first" for the number of bytes of the spelling.
        """
        return np.diff(self.segment[bounds][self.start : self.end + 1])

    def elements(self, name: str, bounds: str) -> Array:
        """Return the elements that belong to the entries in the array `name`, entry after entry."""
        first = self.segment[bounds]
        return self.segment[name][first[self.start] : first[self.end]]


@frozen(eq=False)
class _MergedTermOrds:
    """The numbering of the terms of the merged lexicon.

    Attributes:
        term_ords: for each segment, the ordinal in the merged lexicon of each of its terms.
        n_terms: number of terms of the merged lexicon.
        n_letters: number of bytes of their spellings.
    """

    term_ords: Sequence[TermOrds]
    n_terms: int
    n_letters: int


@frozen(eq=False)
class _Window:
    """The lexicon entries, in all segments, of the terms whose ids are in one range.

    Attributes:
        ranges: for each segment, the range of its entries; n entries in all.
        ids: the id of each entry, shape (n,).
        order: indices that sort the entries by id, then by segment, shape (n,).
        is_first: for each entry in sorted order, whether it is the first of its term, shape (n,).
    """

    ranges: Sequence[_EntryRange]
    ids: Ids
    order: Offsets
    is_first: Flags

    @property
    def first_entries(self) -> Offsets:
        """For each term, by id, the index of its entry in the first segment that has the term."""
        return self.order[self.is_first]

    def sizes(self, bounds: str) -> Offsets:
        """Return the number of elements of each entry, shape (n,); see `_EntryRange.sizes`."""
        return np.concatenate([entries.sizes(bounds) for entries in self.ranges])

    def elements(self, name: str, bounds: str) -> Iterator[Array]:
        """Yield the elements of each segment's entries; see `_EntryRange.elements`."""
        return (entries.elements(name, bounds) for entries in self.ranges)


def _windows(segments: Sequence[SegmentArrays]) -> Iterator[_Window]:
    """Yield windows that together cover all terms, in the order of their ids.

    A window has at most `_BATCH_ELEMENTS` postings, unless it has only one term.
    """
    max_postings = _BATCH_ELEMENTS // len(segments)
    starts = [0] * len(segments)
    while True:
        # In each segment, the id of the first term that exceeds the segment's share of the
        # postings; the window ends before the smallest of these ids.
        next_ids = []
        for segment, start in zip(segments, starts, strict=True):
            first = segment["first"]
            end = int(first.searchsorted(first[start] + max_postings, "right")) - 1
            next_ids += segment["ids"][end : end + 1].tolist()
        next_id = np.uint64(min(next_ids, default=_MAX_ID))
        ends = [int(segment["ids"].searchsorted(next_id)) for segment in segments]
        if ends == starts:  # a term that exceeds the share is a window of its own
            sides = (segment["ids"].searchsorted(next_id, "right") for segment in segments)
            ends = list(map(int, sides))
        if ends == starts:
            return
        ranges = list(map(_EntryRange, segments, starts, ends))
        ids = np.concatenate([entries.ids for entries in ranges])
        order = ids.argsort(kind="stable")
        yield _Window(ranges, ids, order, run_starts(ids[order]))
        starts = ends


def _merged_term_ords(segments: Sequence[SegmentArrays], file: BinaryIO) -> _MergedTermOrds:
    """Number the terms of the merged lexicon; the ordinals are mapped from `file`."""
    ends = np.cumsum([segment["ids"].size for segment in segments])
    starts = [0, *ends.tolist()]  # for each segment, the index of its first ordinal in the file
    n_terms = 0
    n_letters = 0
    for window in _windows(segments):
        window_ords = np.empty(window.order.size, np.uint32)
        window_ords[window.order] = np.cumsum(window.is_first) + (n_terms - 1)
        low = 0
        for segment_index, entries in enumerate(window.ranges):
            high = low + entries.end - entries.start
            index = starts[segment_index] + entries.start
            file.seek(index * window_ords.itemsize)
            file.write(window_ords[low:high].data)
            low = high
        n_terms += int(window.is_first.sum())
        n_letters += int(window.sizes("spelling_first")[window.first_entries].sum())
    mapped = array_file.map_file(file).view(np.uint32)
    term_ords = np.split(mapped, ends[:-1])
    return _MergedTermOrds(term_ords, n_terms, n_letters)


def _merge_terms(
    segments: Sequence[SegmentArrays],
    n_chunks: Sequence[int],
    writer: array_file.Writer,
) -> None:
    """Write the merged lexicon and the merged postings.

    Args:
        segments: the arrays of the segments.
        n_chunks: number of chunks of each segment; they follow the chunks of the segments before.
        writer: writes the merged file.
    """
    first_chunk = starts_of(np.array(n_chunks)).astype(np.uint32)
    n_postings = 0
    n_letters = 0
    writer.extend("first", np.zeros(1, np.int64))
    writer.extend("spelling_first", np.zeros(1, np.int64))
    for window in _windows(segments):
        raise_if_cancelled()
        first_entries = window.first_entries
        writer.extend("ids", window.ids[first_entries])

        # Spellings of the first entry of each term.
        n_bytes = window.sizes("spelling_first")
        letters = np.concatenate([*window.elements("spelling", "spelling_first")])
        letter_start = starts_of(n_bytes)[first_entries]
        n_bytes = n_bytes[first_entries]
        writer.extend("spelling", letters[ragged_ranges(letter_start, n_bytes)])
        spelling_ends = n_letters + np.cumsum(n_bytes)
        writer.extend("spelling_first", spelling_ends)
        n_letters = int(spelling_ends[-1])

        # Postings of all entries of each term.
        df = window.sizes("first")
        first_rows = window.is_first.nonzero()[0]
        merged_df = np.add.reduceat(df[window.order], first_rows)
        posting_ends = n_postings + np.cumsum(merged_df)
        writer.extend("first", posting_ends)
        n_postings = int(posting_ends[-1])
        chunks: Iterable[Array] = map(np.add, window.elements("chunk", "first"), first_chunk)
        tfs: Iterable[Array] = window.elements("tf", "first")
        if first_entries.size > 1:
            # The postings of several terms fit in memory together; the postings of a single term
            # are copied segment by segment.
            posting_order = ragged_ranges(starts_of(df)[window.order], df[window.order])
            chunks = [np.concatenate([*chunks])[posting_order]]
            tfs = [np.concatenate([*tfs])[posting_order]]
        for array in chunks:
            writer.extend("chunk", array)
        for array in tfs:
            writer.extend("tf", array)
