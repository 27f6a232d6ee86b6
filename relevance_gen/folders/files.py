"""Records of the files of a folder: their fingerprints, and the locations of their chunks."""

from __future__ import annotations

import codecs
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import IO, Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import define, evolve, field, frozen

from relevance_gen.documents.charset import FALLBACK_ENCODING, PROBED_BYTES, encoding_of
from relevance_gen.documents.extraction import BINARY, MAX_BYTES, Extracted
from relevance_gen.documents.office import PartLocation
from relevance_gen.documents.reading import ChunkLocation, chunk_metadata, split_parts
from relevance_gen.documents.walker import open_regular_file
from relevance_gen.errors import pluralize
from relevance_gen.folders.cache import Fingerprint, fingerprint
from relevance_gen.request_scope import raise_if_cancelled, reserve
from relevance_gen.types import Metadata

ChunkLocations: TypeAlias = npt.NDArray[np.int32]
"""A row of `ChunkLocation` for each chunk, shape (n, 5)."""

_NO_LOCATIONS: Final[ChunkLocations] = np.zeros((0, 5), np.int32)
_TICK_NS: Final = 50_000_000
"""Nanoseconds in which two changes of a file may get the same time: a few ticks of the kernel."""
_COARSE_TICK_NS: Final = 2_000_000_000
"""`_TICK_NS` for file systems with a coarse clock; FAT counts in steps of two seconds."""
_COARSE_NS: Final = 1_000_000
"""A file time that is a multiple of this is treated as from a coarse clock; with a fine clock this
has a probability of 1e-6."""
_BLOCK_BYTES: Final = 1 << 20
"""Bytes of a file that are read and decoded in one step."""


class FileRecord(NamedTuple):
    """The state of a file when it was read, without its text.

    Attributes:
        fingerprint: identifies the content; None if a later change might not alter the fingerprint.
        locations: the location of each of n chunks, shape (n, 5); the columns are the fields of
            `ChunkLocation`.
        part_locations: the page, slide or sheet of each part of the file; the part of a chunk is an
            index in this tuple.
        warning: why the text is missing or incomplete; None if it is complete.
        skipped_kind: the kind of the file, if files of that kind are not read at all; `warning` is
            the reason.
    """

    fingerprint: Fingerprint | None
    locations: ChunkLocations = _NO_LOCATIONS
    part_locations: tuple[PartLocation, ...] = ()
    warning: str | None = None
    skipped_kind: str | None = None

    def metadata(self, path: str, chunk_ord: int) -> Metadata:
        """Return the metadata of the chunk with the index `chunk_ord` in the file.

        `path` is the path in the metadata.
        """
        location = ChunkLocation(*self.locations[chunk_ord].tolist())
        return chunk_metadata(path, self.part_locations[location.part], location, self.warning)


@frozen
class ReadFile:
    """The record of a file that was read, and the text and the headings of each chunk."""

    record: FileRecord
    texts: list[str] = field(factory=list)
    headings: list[str] = field(factory=list)

    @classmethod
    def from_text(
        cls, extracted: Extracted, file_fingerprint: Fingerprint | None, max_chars: int
    ) -> ReadFile:
        """Return the record and the chunks of a file, given its extracted text.

        Chunks have at most `max_chars` characters. `file_fingerprint` is as for `FileRecord`.
        """
        chunks = list(split_parts(extracted, max_chars))
        rows = [chunk.location for chunk in chunks]
        record = FileRecord(
            file_fingerprint,
            np.array(rows, np.int32).reshape(-1, 5),
            tuple(location for location, _ in extracted.parts),
            extracted.warning,
            extracted.skipped_kind,
        )
        return cls(record, [chunk.text for chunk in chunks], [chunk.headings for chunk in chunks])


@frozen
class FileContent:
    """The bytes of a file and its fingerprint.

    Attributes:
        content: the bytes; None if they cannot be read.
        fingerprint: the fingerprint of the file; None if it does not identify the content, see
            `read_file`.
        warning: the reason why the bytes cannot be read; None if `content` is not None.
    """

    content: bytes | None
    fingerprint: Fingerprint | None = None
    warning: str | None = None


def read_file(path: str, *, follow: bool) -> FileContent:
    """Return the content of a file; a symbolic link is followed only if `follow` is true.

    If the file is larger than `MAX_BYTES` or cannot be read, the result has no content and a
    warning. The fingerprint is None if the file was changed during the read, or within one tick of
    the kernel's clock before it: a second change within the same tick would not alter the time of
    the last change, and so the fingerprint would not identify the content.
    """
    now_ns = time.time_ns()
    try:
        with open(open_regular_file(path, follow=follow), "rb") as file:
            stat_before = os.fstat(file.fileno())
            if stat_before.st_size > MAX_BYTES:
                warning = f"is larger than {MAX_BYTES >> 20} MiB"
                return FileContent(None, fingerprint(stat_before), warning)
            content = file.read()
            stat_after = os.fstat(file.fileno())
    except OSError as error:
        return FileContent(None, warning=error.strerror or str(error))
    tick_ns = _TICK_NS if stat_after.st_ctime_ns % _COARSE_NS else _COARSE_TICK_NS
    is_settled = stat_after.st_ctime_ns + tick_ns < now_ns
    is_unchanged = fingerprint(stat_before) == fingerprint(stat_after)
    return FileContent(content, fingerprint(stat_after) if is_settled and is_unchanged else None)


# ── Lines ────────────────────────────────────────────────────────────────────────────────────────


@define
class LineReader:
    """Collects a range of lines from text that arrives block by block.

    Args:
        first_line: number of the first line to collect, from 1.
        last_line: number of the last line to collect; None for the last line of the text.
        max_chars: maximum number of characters to collect.

    Attributes:
        n_chars: characters collected so far.
    """

    first_line: int
    last_line: int | None
    max_chars: int
    n_chars: int = field(default=0, init=False)
    _line: int = field(default=1, init=False)
    _pieces: list[str] = field(factory=list, init=False)
    _ends_with_newline: bool = field(default=True, init=False)

    def add(self, block: str) -> None:
        """Count the lines of the next block, and collect its lines within the range."""
        if not block:
            return
        last_line_of_block = self._line + block.count("\n")
        if last_line_of_block >= self.first_line:
            self._collect(block)
        self._line = last_line_of_block
        self._ends_with_newline = block.endswith("\n")

    def _collect(self, block: str) -> None:
        start = _start_of_line(block, self.first_line - self._line)
        end = len(block)
        if self.last_line is not None:
            end = _start_of_line(block, self.last_line - self._line + 1)
        end = min(end, start + self.max_chars - self.n_chars)
        reserve("result_char", max(end - start, 0))
        piece = block[start:end]
        self.n_chars += len(piece)
        self._pieces.append(piece)

    @property
    def n_lines(self) -> int:
        """The number of lines of the whole text."""
        return self._line - self._ends_with_newline

    @property
    def text(self) -> str:
        """The collected lines, without the newline after the last line."""
        return "".join(self._pieces).removesuffix("\n")


def _start_of_line(block: str, n_newlines: int) -> int:
    """Return the index after the n-th newline of a block; its length if there are fewer."""
    start = 0
    for _ in range(n_newlines):
        start = block.find("\n", start) + 1
        if not start:
            return len(block)
    return start


def read_lines(file: IO[bytes], requested: LineReader) -> LineReader | None:
    """Read a range of lines of a text file block by block, in memory bounded by its `max_chars`.

    Lines beyond `max_chars` characters are left out. The rest of the file is read to count its
    lines.

    Args:
        file: the file.
        requested: a reader of the range, which has read nothing; it is not changed.

    Returns:
        A copy of `requested` that has read the file; None if the file is binary.

    Raises:
        RequestCancelledError: the request was cancelled.
        TooLargeError: the request may not hold the lines in memory.
    """
    encoding = encoding_of(file.read(PROBED_BYTES))
    if encoding is None:
        return None
    try:
        return _decode_lines(file, encoding, requested)
    except UnicodeDecodeError:
        return _decode_lines(file, FALLBACK_ENCODING, requested)


def _decode_lines(file: IO[bytes], encoding: str, requested: LineReader) -> LineReader:
    reader = evolve(requested)
    file.seek(0)
    errors = "strict" if encoding == "utf-8" else "replace"
    decoder = codecs.getincrementaldecoder(encoding)(errors)
    while block := file.read(_BLOCK_BYTES):
        raise_if_cancelled()
        reader.add(decoder.decode(block))
    reader.add(decoder.decode(b"", final=True))
    return reader


# ── Skipped files ────────────────────────────────────────────────────────────────────────────────


@frozen
class Skipped:
    """The files of a folder that are not searched, or not completely.

    Attributes:
        failures: by path, the reason why the file or folder could not be read, or not completely.
        by_kind: for each pair of a kind of files that is not read and the reason, the number of
            these files.
        n_links: the number of symbolic links that were not followed.
    """

    failures: dict[str, str] = field(factory=dict)
    by_kind: Counter[tuple[str, str]] = field(factory=Counter)
    n_links: int = 0

    def messages(self) -> Iterator[str]:
        """Yield a sentence for each path, for each kind, and for the links.

        >>> binary_files = Counter({("binary", "is binary, not text"): 2})
        >>> list(Skipped({"big.txt": "is larger than 256 MiB"}, binary_files).messages())
        ['big.txt: is larger than 256 MiB', 'skipped 2 binary files']
        >>> list(Skipped(n_links=1).messages())
        ['skipped 1 symbolic link; --follow follows them']
        """
        for path, reason in self.failures.items():
            yield f"{path}: {reason}"
        for (kind, reason), n_files in self.by_kind.items():
            message = f"skipped {pluralize(n_files, f'{kind} file')}"
            yield message if kind == BINARY else f"{message}: each {reason}"
        if self.n_links:
            yield f"skipped {pluralize(self.n_links, 'symbolic link')}; --follow follows them"


# ── Cached records ───────────────────────────────────────────────────────────────────────────────


def to_json(files: Mapping[str, FileRecord]) -> list[Any]:
    """Return a JSON list with one row for each file: its path and its record.

    A row has the number of chunks in place of the locations of the chunks.
    """
    return [
        [path, record.fingerprint, len(record.locations), *record[2:]]
        for path, record in files.items()
    ]


def concat_locations(files: Mapping[str, FileRecord]) -> ChunkLocations:
    """Return the locations of the chunks of all files, shape (n, 5), in the order of `files`."""
    return np.concatenate([_NO_LOCATIONS, *(file.locations for file in files.values())])


def from_json(rows: list[Any], locations: ChunkLocations) -> dict[str, FileRecord]:
    """Return the records of files by path.

    Args:
        rows: the result of `to_json`.
        locations: the result of `concat_locations` for the same files.

    Raises:
        LookupError, TypeError, ValueError: `rows` is not a result of `to_json`.
    """
    locations = locations.reshape(-1, 5)
    ends = accumulate(n_chunks for _, _, n_chunks, *_ in rows)
    files = {}
    for row, end in zip(rows, ends, strict=True):
        path, file_fingerprint, n_chunks, part_locations, warning, skipped_kind = row
        files[path] = FileRecord(
            tuple(file_fingerprint) if file_fingerprint else None,
            locations[end - n_chunks : end],
            tuple(part_locations),
            warning,
            skipped_kind,
        )
    return files
