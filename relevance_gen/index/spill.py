"""Write segments out as they are built, and merge them into the file of one, without ever holding them in memory.

Terms are merged as in an external sort: of each segment the next few thousand are looked at, and those up to the least
of their last ids are complete. Everything else is copied, with numbers and offsets moved on by what stands before.
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
from relevance_gen.index import array_file as arrayfile
from relevance_gen.index import array_layout as layout
from relevance_gen.index import storage
from relevance_gen.index.array_layout import Array
from relevance_gen.index.segment import Segment
from relevance_gen.request_scope import raise_if_cancelled
from relevance_gen.types import Metadata

Part: TypeAlias = Mapping[str, Array]
"""The arrays of a segment, by the names that a file has for them."""

_STEP: Final = 1 << 17
"""About so many terms, postings or occurrences are merged at once."""
_OF_TERMS: Final = {"ids", "first", "chunk", "tf", "spelling", "spelling_first", "tokens"}


class Spill:
    """Chunks and segments in files without names, so that nothing is left of them, whatever becomes of the process."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._files = folder, ExitStack()
        self._file = self._open()
        self._ends = [0]
        self.content = storage.ContentWriter(self._open)
        self._n_chunks = 0
        self._kept: dict[int, Metadata] = {}

    def _open(self) -> BinaryIO:
        return self._files.enter_context(tempfile.TemporaryFile(dir=self._folder))

    def close(self) -> None:
        """Let go of the files."""
        self._files.close()

    def add(self, segment: Segment) -> None:
        """Write a segment without its chunks, which stand behind those of the segments before."""
        self._file.seek(self._ends[-1])
        self._ends.append(
            arrayfile.write(self._file, layout.TYPES, {}, storage.arrays_of(segment)).end
        )

    def add_with_chunks(self, segment: Segment) -> None:
        """Write a segment with its chunks, for `mapped`; metadata that is not JSON stays in memory."""
        self.add(segment)
        for number, chunk in enumerate(segment.chunks, self._n_chunks):
            try:
                self.content.add(chunk.text, chunk.metadata, chunk.title)
            except InvalidRequestError:
                self._kept[number] = chunk.metadata
                self.content.add(chunk.text, {}, chunk.title)
        self._n_chunks += segment.size

    def open_mapped(self) -> Segment:
        """Return one segment of all that `add_with_chunks` wrote, mapped from a file that is gone when the segment is."""
        file = self._open()
        self.merge(file, {})
        content = arrayfile.map_file(file)
        chunks = storage.chunks_in(arrayfile.read(content, layout.TYPES)[1])
        if self._kept:
            chunks = evolve(chunks, metadata=ChainMap(self._kept, chunks.metadata))  # type: ignore[arg-type]
        return storage.read_arrays(content, chunks)

    def merge(self, file: BinaryIO, settings: Mapping[str, Any]) -> None:
        """Write the chunks and all segments, of which there must be one or more, to a file as one segment."""
        every, bounds = arrayfile.map_file(self._file), itertools.pairwise(self._ends)
        parts = [arrayfile.read(every[start:end], layout.TYPES)[1] for start, end in bounds]
        content = self.content.finish(arrayfile.map_file)
        sizes = [layout.sizes_of(part) for part in parts]
        numbers_file = self._open()
        n_terms, n_letters = _number_terms(parts, numbers_file)
        total = {axis: sum(size[axis] for size in sizes) for axis in sizes[0]}
        total |= layout.sizes_of(content) | {"term": n_terms, "letter": n_letters}
        is_there = {
            row.name: not row.path or any(part[row.name].size for part in parts)
            for row in layout.STORED
        }
        elements = {
            row.name: (total[row.axis] + row.is_bounds) * is_there[row.name]
            for row in layout.STORED
        }
        writer = arrayfile.Writer(file, layout.TYPES, settings, elements)
        for name, array in content.items():
            for some in batch_slices(array.size, _STEP):
                writer.extend(name, array[some])
        _copy(parts, sizes, writer)
        _merge_terms(parts, [size["chunk"] for size in sizes], writer)
        _, number_of = arrayfile.read(arrayfile.map_file(numbers_file), _numbers(parts))
        for name, part in zip(number_of, parts, strict=True):
            for some in batch_slices(part["tokens"].size, _STEP):
                writer.extend("tokens", number_of[name][part["tokens"][some]])
        writer.seal()


def _copy(
    parts: Sequence[Part], sizes: Sequence[Mapping[str, int]], writer: arrayfile.Writer
) -> None:
    """Copy all that is not of terms, one segment behind the other."""
    for row in layout.STORED:
        if not row.path or row.name in _OF_TERMS:
            continue
        before = 0
        for number, (part, size) in enumerate(zip(parts, sizes, strict=True)):
            array = part[row.name][1:] if row.is_bounds and number else part[row.name]
            for some in batch_slices(array.size, _STEP):
                writer.extend(row.name, array[some] + before if row.into else array[some])
            before += size.get(row.into, 0)


# ── Terms ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(eq=False)
class _Window:
    """Terms that follow each other by their ids, with all that any segment has of each.

    `slices` has of each segment that has any its number, and the entries in its lexicon; `order` all of these by id,
    of one id by segment; and `leads`, in that order, which are the first of their term.
    """

    parts: Sequence[Part]
    slices: Sequence[tuple[int, slice]]
    order: Offsets
    leads: Flags

    @property
    def heads(self) -> Offsets:
        """The first entry of each term."""
        return self.order[self.leads]

    def gather(self, name: str) -> Array:
        """Return an array of the lexicons' entries, shape (n,)."""
        return np.concatenate([self.parts[number][name][some] for number, some in self.slices])

    def sizes(self, bounds: str) -> Offsets:
        """Return how much each entry has between some bounds, shape (n,)."""
        return np.concatenate(
            [
                np.diff(self.parts[number][bounds][some.start : some.stop + 1])
                for number, some in self.slices
            ]
        )

    def inner(self, name: str, bounds: str) -> Iterator[tuple[int, Array]]:
        """Yield what lies between some bounds in each segment, entry after entry, with the segment's number."""
        for number, some in self.slices:
            first = self.parts[number][bounds]
            yield number, self.parts[number][name][first[some.start] : first[some.stop]]


def _windows(parts: Sequence[Part]) -> Iterator[_Window]:
    """Yield the terms of all segments: a few at a time, fewer that have many postings, of very many one alone."""
    at = [0] * len(parts)
    n_ahead = max(_STEP // len(parts), 1)
    while True:
        ahead = [
            part["ids"][start : start + n_ahead] for part, start in zip(parts, at, strict=True)
        ]
        lasts = [
            ids[-1]
            for ids, part, start in zip(ahead, parts, at, strict=True)
            if start + n_ahead < len(part["ids"])
        ]
        if not lasts and not any(ids.size for ids in ahead):
            return
        counts = [
            int(ids.searchsorted(min(lasts), "right")) if lasts else ids.size for ids in ahead
        ]
        window = _window(parts, at, counts)
        ids, n_postings = (
            values[window.order] for values in (window.gather("ids"), window.sizes("first"))
        )
        n_fit = int(np.cumsum(n_postings).searchsorted(_STEP, "right"))
        if n_fit < ids.size:
            last = ids[max(int(ids.searchsorted(ids[n_fit])) - 1, 0)]
            counts = [int(some.searchsorted(last, "right")) for some in ahead]
            window = _window(parts, at, counts)
        yield window
        at = [start + n for start, n in zip(at, counts, strict=True)]


def _window(parts: Sequence[Part], at: Sequence[int], counts: Sequence[int]) -> _Window:
    slices = [
        (number, slice(start, start + n))
        for number, (start, n) in enumerate(zip(at, counts, strict=True))
        if n
    ]
    ids = np.concatenate([parts[number]["ids"][some] for number, some in slices])
    order = ids.argsort(kind="stable")
    return _Window(parts, slices, order, run_starts(ids[order]))


def _numbers(parts: Sequence[Part]) -> dict[str, str]:
    """Return the arrays, and their types, of the numbers that each segment's terms have among the terms of all."""
    return {str(number): "<u4" for number in range(len(parts))}


def _number_terms(parts: Sequence[Part], file: BinaryIO) -> tuple[int, int]:
    """Write the number of each segment's terms among all; return how many terms there are, and letters in them."""
    names = _numbers(parts)
    sizes = {name: part["ids"].size for name, part in zip(names, parts, strict=True)}
    writer = arrayfile.Writer(file, names, {}, sizes)
    n_terms = n_letters = 0
    for window in _windows(parts):
        numbers = np.empty(window.order.size, np.uint32)
        numbers[window.order] = np.cumsum(window.leads) + (n_terms - 1)
        start = 0
        for number, some in window.slices:
            stop = start + some.stop - some.start
            writer.extend(str(number), numbers[start:stop])
            start = stop
        n_terms += int(window.leads.sum())
        n_letters += int(window.sizes("spelling_first")[window.heads].sum())
    return n_terms, n_letters


def _merge_terms(parts: Sequence[Part], n_chunks: Sequence[int], writer: arrayfile.Writer) -> None:
    """Merge lexicons and postings; the chunks of one segment stand behind those of the segments before."""
    first_chunk = starts_of(np.array(n_chunks)).astype(np.uint32)
    n_postings = n_letters = 0
    for name in ("first", "spelling_first"):
        writer.extend(name, np.zeros(1, np.int64))
    for window in _windows(parts):
        raise_if_cancelled()
        heads, n_bytes, df = window.heads, window.sizes("spelling_first"), window.sizes("first")
        writer.extend("ids", window.gather("ids")[heads])
        letters = np.concatenate([some for _, some in window.inner("spelling", "spelling_first")])
        writer.extend("spelling", letters[ragged_ranges(starts_of(n_bytes)[heads], n_bytes[heads])])
        ends = n_letters + np.cumsum(n_bytes[heads])
        writer.extend("spelling_first", ends)
        n_letters = int(ends[-1])
        ends = n_postings + np.cumsum(np.add.reduceat(df[window.order], window.leads.nonzero()[0]))
        writer.extend("first", ends)
        n_postings = int(ends[-1])
        chunks: Iterable[Array] = (
            some + first_chunk[number] for number, some in window.inner("chunk", "first")
        )
        tfs: Iterable[Array] = (some for _, some in window.inner("tf", "first"))
        if heads.size > 1:
            in_order = ragged_ranges(starts_of(df)[window.order], df[window.order])
            chunks, tfs = ([np.concatenate([*some])[in_order]] for some in (chunks, tfs))
        for name, arrays in (("chunk", chunks), ("tf", tfs)):
            for array in arrays:
                writer.extend(name, array)
