"""Write segments to temporary files as they are built, and merge them with bounded memory.

Terms are merged as in an external merge sort. The next few thousand terms of each segment are read.
All terms whose ids are not above the smallest of the last ids that were read are complete: no
segment has further postings of these terms. All other arrays are copied; ordinals and offsets are
increased by the sizes of the segments before.
"""

from __future__ import annotations

import itertools
import tempfile
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import numpy as np
from attrs import evolve, frozen

from relevance_gen.arrays import (
    Flags,
    Offsets,
    batch_slices,
    ragged_ranges,
    run_starts,
    starts_of,
)
from relevance_gen.errors import InvalidRequestError
from relevance_gen.index import array_file, array_layout, storage
from relevance_gen.index.array_file import Array
from relevance_gen.index.segment import Segment
from relevance_gen.request_scope import raise_if_cancelled
from relevance_gen.types import Metadata

SegmentArrays: TypeAlias = Mapping[str, Array]
"""The arrays of a segment, by their names in a file."""

_BATCH_ELEMENTS: Final = 1 << 17
"""Approximate number of terms, postings or occurrences that are merged at once."""
_TERM_ARRAYS: Final = {"ids", "first", "chunk", "tf", "spelling", "spelling_first", "tokens"}


class Spill:
    """Chunks and segments in unnamed temporary files.

    The files are deleted by `close`, or when the process ends.

    Args:
        folder: folder of the files.

    Attributes:
        content: writes the texts, metadata and titles of the chunks of all segments.
    """

    def __init__(self, folder: Path) -> None:
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
        arrays = storage.arrays_of(segment)
        writer = array_file.write(self._segments_file, array_layout.TYPES, {}, arrays)
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
        content = self.content.finish(array_file.map_file)
        term_ords_file = self._open()
        n_terms, n_letters = _write_term_ords(segments, term_ords_file)
        sizes = [array_layout.sizes_of(segment) for segment in segments]
        total = {axis: sum(size[axis] for size in sizes) for axis in sizes[0]}
        total |= array_layout.sizes_of(content)
        total |= {"term": n_terms, "letter": n_letters}
        writer = array_file.Writer(
            file, array_layout.TYPES, settings, _stored_sizes(segments, total)
        )
        for name, array in content.items():
            _copy(name, array, writer)
        _copy_other_arrays(segments, sizes, writer)
        _merge_terms(segments, [size["chunk"] for size in sizes], writer)
        names = _term_ords_types(segments)
        term_ords_of = array_file.read(array_file.map_file(term_ords_file), names).arrays
        for name, segment in zip(names, segments, strict=True):
            for batch in batch_slices(segment["tokens"].size, _BATCH_ELEMENTS):
                writer.extend("tokens", term_ords_of[name][segment["tokens"][batch]])
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


def _copy(
    name: str,
    array: Array,
    writer: array_file.Writer,
) -> None:
    for batch in batch_slices(array.size, _BATCH_ELEMENTS):
        writer.extend(name, array[batch])


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
        n_before = (
            0  # elements that the segments before have along the axis that the offsets refer to
        )
        for segment_index, (segment, size) in enumerate(zip(segments, sizes, strict=True)):
            array = segment[spec.name]
            if spec.is_bounds and segment_index:
                array = array[1:]  # the first bound is the last bound of the segment before
            for batch in batch_slices(array.size, _BATCH_ELEMENTS):
                values = array[batch]
                writer.extend(spec.name, values + n_before if spec.refers_to else values)
            n_before += size.get(spec.refers_to, 0)


# ── Terms ─────────────────────────────────────────────────────────────────────────────────────────


@frozen
class _EntryRange:
    """A range of entries of one segment's lexicon.

    Attributes:
        segment_index: index of the segment in the list of all segments.
        entries: the range of indices of the entries.
    """

    segment_index: int
    entries: slice

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(self.entries.stop - self.entries.start)

    def gather(
        self,
        segments: Sequence[SegmentArrays],
        name: str,
    ) -> Array:
        """Return the elements of the array `name` for the entries, one for each entry."""
        return segments[self.segment_index][name][self.entries]


@frozen(eq=False)
class _Window:
    """The lexicon entries, in all segments, of the terms whose ids are in one range.

    Attributes:
        segments: all segments.
        ranges: for each segment that has any of these terms, the range of their entries in its
            lexicon; n entries in all.
        order: indices that sort the n entries of `ranges` by id, then by segment, shape (n,).
        is_first: for each entry in sorted order, whether it is the first of its term, shape (n,).
    """

    segments: Sequence[SegmentArrays]
    ranges: Sequence[_EntryRange]
    order: Offsets
    is_first: Flags

    @classmethod
    def of(
        cls,
        segments: Sequence[SegmentArrays],
        starts: Sequence[int],
        counts: Sequence[int],
    ) -> _Window:
        """Return the window with a range of the lexicon entries of each segment.

        Args:
            segments: all segments.
            starts: for each segment, the index of its first lexicon entry in the window.
            counts: for each segment, the number of its lexicon entries in the window.
        """
        ranges = [
            _EntryRange(segment_index, slice(start, start + count))
            for segment_index, (start, count) in enumerate(zip(starts, counts, strict=True))
            if count
        ]
        ids = np.concatenate([part.gather(segments, "ids") for part in ranges])
        order = ids.argsort(kind="stable")
        return cls(segments, ranges, order, run_starts(ids[order]))

    @property
    def first_entries(self) -> Offsets:
        """For each term, by id, the index of its entry in the first segment that has the term.

        The index counts the lexicon entries of the window in the order of `ranges`.
        """
        return self.order[self.is_first]

    def ids(self) -> Array:
        """Return the id of each entry, shape (n,)."""
        return np.concatenate([part.gather(self.segments, "ids") for part in self.ranges])

    def sizes(self, bounds: str) -> Offsets:
        """Return the number of elements that belong to each entry, shape (n,).

        `bounds` names the array with the bounds of each entry's elements: "first" for the number of
        postings, "spelling_first" for the number of bytes of the spelling.
        """
        sizes = []
        for entry_range in self.ranges:
            entries = entry_range.entries
            first = self.segments[entry_range.segment_index][bounds]
            sizes.append(np.diff(first[entries.start : entries.stop + 1]))
        return np.concatenate(sizes)

    def elements(
        self,
        name: str,
        bounds: str,
    ) -> Iterator[Array]:
        """Yield for each range the elements that belong to its entries in the array `name`.

        `bounds` names the array with the bounds of each entry's elements.
        """
        for entry_range in self.ranges:
            entries = entry_range.entries
            segment = self.segments[entry_range.segment_index]
            first = segment[bounds]
            yield segment[name][first[entries.start] : first[entries.stop]]


def _windows(segments: Sequence[SegmentArrays]) -> Iterator[_Window]:
    """Yield windows that together cover all terms, in the order of their ids.

    A window has at most `_BATCH_ELEMENTS` postings, unless it has only one term.
    """
    starts = [0] * len(segments)
    n_read = max(_BATCH_ELEMENTS // len(segments), 1)
    while True:
        # The next ids of each segment, and the last of these ids if further ids follow them.
        next_ids = []
        last_ids = []
        for segment, start in zip(segments, starts, strict=True):
            segment_ids = segment["ids"]
            next_ids.append(segment_ids[start : start + n_read])
            if start + n_read < segment_ids.size:
                last_ids.append(next_ids[-1][-1])
        counts = [segment_ids.size for segment_ids in next_ids]
        if not any(counts):
            return
        if last_ids:
            counts = _counts_up_to(min(last_ids), next_ids)
        window = _Window.of(segments, starts, counts)
        ids = window.ids()[window.order]
        n_postings = window.sizes("first")[window.order]
        n_fit = int(np.cumsum(n_postings).searchsorted(_BATCH_ELEMENTS, "right"))
        if n_fit < ids.size:
            # Keep the terms before the entry that exceeds the batch, or only the first term.
            last_id = ids[max(int(ids.searchsorted(ids[n_fit])) - 1, 0)]
            counts = _counts_up_to(last_id, next_ids)
            window = _Window.of(segments, starts, counts)
        yield window
        starts = [start + count for start, count in zip(starts, counts, strict=True)]


def _counts_up_to(
    last_id: int,
    next_ids: Sequence[Array],
) -> list[int]:
    return [int(segment_ids.searchsorted(last_id, "right")) for segment_ids in next_ids]


def _term_ords_types(segments: Sequence[SegmentArrays]) -> dict[str, str]:
    """Return names and types of the arrays that `_write_term_ords` writes, one for each segment.

    Such an array has the ordinal in the merged lexicon of each term of the segment.
    """
    return {str(segment_index): "<u4" for segment_index in range(len(segments))}


def _write_term_ords(
    segments: Sequence[SegmentArrays],
    file: BinaryIO,
) -> tuple[int, int]:
    """Write the ordinal in the merged lexicon of each term of each segment to a file.

    Returns the number of terms of the merged lexicon, and the number of bytes of their spellings.
    """
    types = _term_ords_types(segments)
    sizes = {}
    for name, segment in zip(types, segments, strict=True):
        sizes[name] = segment["ids"].size
    writer = array_file.Writer(file, types, {}, sizes)
    n_terms = 0
    n_letters = 0
    for window in _windows(segments):
        term_ords = np.empty(window.order.size, np.uint32)
        term_ords[window.order] = np.cumsum(window.is_first) + (n_terms - 1)
        start = 0
        for entry_range in window.ranges:
            end = start + entry_range.size
            writer.extend(str(entry_range.segment_index), term_ords[start:end])
            start = end
        n_terms += int(window.is_first.sum())
        n_letters += int(window.sizes("spelling_first")[window.first_entries].sum())
    return n_terms, n_letters


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
        writer.extend("ids", window.ids()[first_entries])

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
        chunks: Iterable[Array] = (
            chunk + first_chunk[entry_range.segment_index]
            for entry_range, chunk in zip(
                window.ranges, window.elements("chunk", "first"), strict=True
            )
        )
        tfs: Iterable[Array] = window.elements("tf", "first")
        if first_entries.size > 1:
            # The postings of several terms fit in memory together; the postings of a single term
            # are copied range by range.
            posting_order = ragged_ranges(starts_of(df)[window.order], df[window.order])
            chunks = [np.concatenate([*chunks])[posting_order]]
            tfs = [np.concatenate([*tfs])[posting_order]]
        for array in chunks:
            writer.extend("chunk", array)
        for array in tfs:
            writer.extend("tf", array)
