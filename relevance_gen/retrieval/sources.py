"""Read what an index is built of, record by record: JSON lines, Parquet, a folder, a table or any iterable."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import logging
import sys
import zlib
from collections.abc import Iterable, Iterator, Sized
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias, get_args

import numpy as np
from attrs import define, field

from relevance_gen.checks import check_path, integer, must_be, plain, string
from relevance_gen.documents import extraction
from relevance_gen.documents.reading import chunks_of
from relevance_gen.documents.walker import Selection, Walker
from relevance_gen.errors import InvalidRequestError, to_install
from relevance_gen.retrieval.arrays import Offsets
from relevance_gen.retrieval.segment.chunks import Blank, Chunks, is_table, of_record, record_chunk, rows_of
from relevance_gen.retrieval.segment.storage import ContentWriter

Source: TypeAlias = "str | PathLike[str] | Iterable[Any]"
"""A file of JSON lines (``.jsonl``, ``.ndjson``, also with ``.gz`` or ``.zst``) or Parquet (``.parquet``), a folder of
documents, a table, or an iterable of texts, mappings and `Chunk` objects."""

_KINDS: Final = "JSON lines (.jsonl or .ndjson, also .gz and .zst), Parquet (.parquet), a folder, or an iterable"
_BATCH: Final = 256
"""Most rows that are made into Python's objects together: fewer, where together they would be more than a line may."""
_LEAST_MEMORY_BYTES: Final = 16 << 20
_LINES_IN_MEMORY: Final = 64
"""A line may be as long as the memory divided by this: what is made of one takes several times its length."""
_TIMES_TEXT: Final = 5
"""Texts and what is made of them take at most so many times the bytes of the texts, and of `_CHUNK_BYTES` for each."""
_TIMES_LARGEST: Final = 5
"""Likewise for a text that is made searchable alone: beyond the memory it is refused."""
_CHUNK_BYTES: Final = 128
_WIDE_BYTES: Final = 11
"""Likewise for each byte that a letter has beyond one: scripts without spaces have a term for each letter."""
_DOCUMENT_CHARS: Final = 1000
_ZSTD_STEP: Final = 512
"""Bytes of Zstandard that are undone together: 4 may become 128 KiB, so at most 16 MiB come out."""
_BUFFER_BYTES: Final = 1 << 20

_log: Final = logging.getLogger(__name__)


@define
class Records:
    """The records of a source, in its order, as chunks.

    What is made of them may take about so many bytes of memory, at least 16 MiB.
    """

    source: Source
    text: str = field(validator=string)  # the field that has a record's text
    title: str = field(validator=string)  # the field that has its title, if any
    blank: Blank = field(validator=must_be('"error" or "skip"', lambda value: value in get_args(Blank)))
    memory_bytes: int = field(converter=plain, validator=integer(_LEAST_MEMORY_BYTES))
    share: float = field(default=1.0, init=False)  # about which part of all was read, in (0, 1]; 1 if nobody knows
    n_read: int = field(default=0, init=False)  # records that were read: each has a position, blank ones too

    def blocks(self, content: ContentWriter) -> Iterator[tuple[Chunks, Offsets]]:
        """Write the chunks, and yield them without metadata: as many together as may be made searchable at once.

        They come with their positions; at the end perhaps there are none.

        Raises:
            InvalidRequestError: something is no chunk, or no such file; the error names file and place.
            OSError: a file cannot be read.
        """
        texts: list[str] = []
        titles: dict[int, str] = {}
        positions: list[int] = []
        n_bytes = 0
        for place, record in self._records():
            value = record_chunk(record, self.text, place, title=self.title)
            try:
                one = Chunks.read([value], blank=self.blank)
                text, title = one.texts[0], one.title_of(0)
                n_encoded = content.add(text, one.metadata_of(0), title) if text else 0
                size = sys.getsizeof(text) + sys.getsizeof(title) + _CHUNK_BYTES + _WIDE_BYTES * (n_encoded - len(text))
                if _TIMES_LARGEST * size > self.memory_bytes:
                    taken = f"takes {_TIMES_LARGEST * size:,} bytes to be made searchable, beyond memory_bytes"
                    raise InvalidRequestError(f"{taken}; cut it into chunks, or give more", "text")  # noqa: TRY301
            except InvalidRequestError as error:
                raise of_record(error, place, {"text": self.text, "title": self.title}) from None
            if text:
                if texts and _TIMES_TEXT * (n_bytes + size) > self.memory_bytes:
                    yield Chunks(texts, {}, titles), np.array(positions, np.int64)
                    texts, titles, positions, n_bytes = [], {}, [], 0
                if title:
                    titles[len(texts)] = title
                texts.append(text)
                positions.append(self.n_read)
                n_bytes += size
            self.n_read += 1
        yield Chunks(texts, {}, titles), np.array(positions, np.int64)

    def _records(self) -> Iterator[tuple[str, Any]]:
        """Yield each record with the words for where it stands."""
        source = self.source
        if isinstance(source, str | PathLike):
            yield from self._in_files(Path(check_path("source", source)))
        elif is_table(source) or (isinstance(source, Iterable) and not isinstance(source, bytes | dict)):
            size = len(source) if isinstance(source, Sized) else 0
            for number, value in enumerate(rows_of(source) if is_table(source) else source):
                self.share = (number + 1) / size if size > number else 1.0
                yield f"source[{number}]", value
        else:
            raise InvalidRequestError.must_be("source", _KINDS, source)

    def _in_files(self, path: Path) -> Iterator[tuple[str, Any]]:
        path.stat()  # raises where there is nothing
        kind, packing = _kind_of(path)
        if path.is_dir():
            yield from _documents(path)
        elif kind == "parquet":
            yield from self._rows(path)
        elif kind == "lines":
            yield from self._lines(path, packing)
        else:
            raise InvalidRequestError.must_be("source", _KINDS, str(path), remedy="read_documents() reads documents")

    def _lines(self, path: Path, packing: str) -> Iterator[tuple[str, Any]]:
        n_bytes, longest = max(path.stat().st_size, 1), self.memory_bytes // _LINES_IN_MEMORY
        with path.open("rb") as packed:
            lines = _unpacked(packed, packing)
            for number in itertools.count(1):
                place = f"{path} line {number}"
                try:
                    line = lines.readline(longest + 1)
                except (EOFError, gzip.BadGzipFile, zlib.error) as error:
                    raise InvalidRequestError(f"is damaged or cut short: {error}", place) from None
                if len(line) > longest:
                    raise InvalidRequestError(f"must be at most {longest:,} bytes long", place)
                if not line:
                    return
                if line.strip():
                    try:
                        value = json.loads(line)
                    except (ValueError, RecursionError) as error:
                        raise InvalidRequestError(f"must be JSON: {error}", place) from None
                    self.share = packed.tell() / n_bytes
                    yield place, value

    def _rows(self, path: Path) -> Iterator[tuple[str, Any]]:
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise InvalidRequestError(f"Parquet needs pyarrow: {to_install('data')}") from None
        number = 0
        try:
            # Row groups may be large: without these options they are read whole.
            with pyarrow.parquet.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False) as file:
                groups = [file.metadata.row_group(one) for one in range(file.metadata.num_row_groups)]
                row_bytes = max((one.total_byte_size // max(one.num_rows, 1) for one in groups), default=0)
                n_rows = min(max(self.memory_bytes // _LINES_IN_MEMORY // max(row_bytes, 1), 1), _BATCH)
                for batch in file.iter_batches(n_rows, use_threads=False):
                    for row in batch.to_pylist():
                        self.share = (number + 1) / file.metadata.num_rows
                        yield f"{path} row {number}", row
                        number += 1
        except (pyarrow.ArrowException, OSError, OverflowError, ValueError) as error:  # and values that Python lacks
            raise InvalidRequestError(f"must be Parquet: {error}", f"{path} row {number}") from None


def _kind_of(path: Path) -> tuple[str | None, str]:
    """Return what a file's name says that it holds, and how that is packed."""
    name = path.name.lower()
    packing = next((one for one in (".gz", ".zst") if name.endswith(one)), "")
    lines = name.removesuffix(packing).endswith((".jsonl", ".ndjson"))
    return "lines" if lines else "parquet" if name.endswith(".parquet") else None, packing


def holds_records(path: Path) -> bool:
    """Tell whether a file is read record by record, by its name."""
    return _kind_of(path)[0] is not None and not path.is_dir()


def _documents(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the chunks of the documents in a folder, chosen and cut as `FolderIndex` does; say what cannot be read."""
    walker = Walker(Selection(), lambda path, why: _log.warning("%s: %s", path, why))
    for path in walker.files(str(folder)):
        try:
            with Path(path).open("rb") as file:
                content = file.read(extraction.MAX_BYTES + 1)
            if len(content) > extraction.MAX_BYTES:
                raise OSError(f"is larger than {extraction.MAX_BYTES >> 20} MiB")  # noqa: TRY301
            found = extraction.read(path, content)
        except OSError as error:  # it is another's, too large, or was removed meanwhile
            _log.warning("%s: %s", path, error.strerror or error)
            continue
        if found.trouble is not None:
            _log.warning("%s: %s", path, found.trouble)
        yield from ((path, chunk) for chunk in chunks_of(path, found, _DOCUMENT_CHARS))


def _unpacked(file: BinaryIO, packing: str) -> io.BufferedIOBase | BinaryIO:
    """Return what a file holds, as a file; nothing of it is held but a few blocks."""
    if packing == ".gz":
        return gzip.open(file)
    return io.BufferedReader(_Zstandard(file), _BUFFER_BYTES) if packing == ".zst" else file


class _Zstandard(io.RawIOBase):
    """What a file of Zstandard frames holds."""

    def __init__(self, file: BinaryIO) -> None:
        try:
            import zstandard
        except ImportError:
            raise InvalidRequestError(f".zst needs zstandard: {to_install('data')}") from None
        self._file, self._frames, self._error = file, zstandard.ZstdDecompressor(), zstandard.ZstdError
        self._frame: Any = None
        self._packed, self._plain = b"", memoryview(b"")

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read some bytes; none at the end of the last frame.

        Raises:
            EOFError: a frame is damaged, or has no end.
        """
        while not self._plain:
            self._packed = self._packed or self._file.read(_ZSTD_STEP)
            if not self._packed:
                if self._frame is not None:
                    raise EOFError("its last frame has no end")
                return 0
            self._frame = self._frame or self._frames.decompressobj()
            try:
                self._plain = memoryview(self._frame.decompress(self._packed))
            except self._error as error:
                raise EOFError(str(error)) from None
            self._packed = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        n_bytes = min(len(buffer), len(self._plain))
        buffer[:n_bytes], self._plain = self._plain[:n_bytes], self._plain[n_bytes:]
        return n_bytes
