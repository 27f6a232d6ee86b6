"""Read the chunks of an index from a source.

A source is JSON lines, Parquet, a folder of documents, a table or any iterable.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sized
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeAlias, get_args

import numpy as np
from attrs import define, field

from relevance_gen.arrays import Offsets
from relevance_gen.checks import check_path, integer, one_of, string, to_python_scalar
from relevance_gen.documents import extraction
from relevance_gen.documents.reading import document_chunks
from relevance_gen.documents.walker import Selection, Walker
from relevance_gen.errors import InvalidRequestError
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.records.files import KINDS, Batch, kind_of, lines, row_groups, rows
from relevance_gen.index.records.validation import (
    Blank,
    is_table,
    missing_field_error,
    read_records,
    rows_of,
)
from relevance_gen.index.storage import ContentWriter

Source: TypeAlias = "str | PathLike[str] | Iterable[Any]"
"""A file of JSON lines (``.jsonl``, ``.ndjson``, also with ``.gz`` or ``.zst``) or Parquet
(``.parquet``), a folder of documents, a table, or an iterable of texts, mappings, `Chunk` objects
and, as ``pathlib.Path``, files and folders."""

_SOURCE_KINDS: Final = f"{KINDS}, a folder, or an iterable"
_MIN_MEMORY_BYTES: Final = 16 << 20
_MEMORY_PER_LINE: Final = 64
"""Ratio of the memory to the maximum length of a line: the parsed line takes several times its
length."""
_MEMORY_PER_TEXT: Final = 5
"""Maximum ratio of the memory for indexing a block of texts to the size of the texts with their
overhead."""
_MEMORY_PER_LARGEST_TEXT: Final = 5
"""Ratio of the memory for indexing a single text to its size with overhead; a text that needs more
than the memory is refused."""
_CHUNK_OVERHEAD_BYTES: Final = 128
_BYTES_PER_WIDE_BYTE: Final = 11
"""Extra memory for each byte of a character after the first: scripts without spaces have a term for
each character."""
_DOCUMENT_CHUNK_CHARS: Final = 1000

_log: Final = logging.getLogger(__name__)


@define
class Records:
    """The records of a source, read in order as chunks.

    Args:
        source: the source.
        text: name of the field that has the text of a record.
        title: name of the field that has the title of a record; a record may lack it.
        blank: "error" to refuse records with a blank text, "skip" to leave them out.
        memory_bytes: approximate memory that may be used to index the chunks of a block, at least
            16 MiB.

    Attributes:
        read_fraction: approximate fraction of the source that has been read, in (0, 1]; 1 if it is
            unknown.
        n_read: number of records that have been read. Each record has a position, even if it is
            blank.
    """

    source: Source
    text: str = field(validator=string)
    title: str = field(validator=string)
    blank: Blank = field(validator=one_of(*get_args(Blank)))
    memory_bytes: int = field(converter=to_python_scalar, validator=integer(_MIN_MEMORY_BYTES))
    read_fraction: float = field(default=1.0, init=False)
    n_read: int = field(default=0, init=False)

    def blocks(self, content: ContentWriter) -> Iterator[tuple[Chunks, Offsets]]:
        """Read the records, write their chunks to `content`, and yield the chunks in blocks.

        A block has n chunks without metadata, and their positions, shape (n,). Its size is limited
        by the memory for indexing it. The last block can be empty.

        Raises:
            InvalidRequestError: a record is not a chunk, or a file does not exist; the error names
                file and line. Or no record has the field that `title` names.
            OSError: a file cannot be read.
        """
        texts: list[str] = []
        titles: dict[int, str] = {}
        positions: list[int] = []
        n_bytes = 0
        # Whether no record so far has the named field.
        lacks_title = self.title not in ("", "title")
        last_mapping = None
        for location, record in self._records():
            if lacks_title and isinstance(record, Mapping):
                lacks_title = self.title not in record
                last_mapping = record
            chunk = read_records([(location, record)], self.text, self.title, self.blank)
            text = chunk.texts[0]
            title = chunk.title_of(0)
            if text:
                try:
                    n_encoded_bytes = content.add(text, chunk.metadata_of(0), title)
                    size = self._checked_size(text, title, n_encoded_bytes)
                except InvalidRequestError as error:
                    raise error.with_field(f"{location}: {error.field}") from None
                if texts and _MEMORY_PER_TEXT * (n_bytes + size) > self.memory_bytes:
                    yield Chunks(texts, {}, titles), np.array(positions, np.int64)
                    texts, titles, positions = [], {}, []
                    n_bytes = 0
                if title:
                    titles[len(texts)] = title
                texts.append(text)
                positions.append(self.n_read)
                n_bytes += size
            self.n_read += 1
        if lacks_title and last_mapping is not None:
            raise missing_field_error(last_mapping, self.title, "title", "a record of the source")
        yield Chunks(texts, {}, titles), np.array(positions, np.int64)

    def _checked_size(
        self,
        text: str,
        title: str,
        n_encoded_bytes: int,
    ) -> int:
        """Return the memory that a text and its title take, with their overhead, in bytes.

        `n_encoded_bytes` is the size of the text in UTF-8.

        Raises:
            InvalidRequestError: indexing the text alone takes more than `memory_bytes`.
        """
        size = sys.getsizeof(text) + sys.getsizeof(title) + _CHUNK_OVERHEAD_BYTES
        size += _BYTES_PER_WIDE_BYTE * (n_encoded_bytes - len(text))
        n_required = _MEMORY_PER_LARGEST_TEXT * size
        if n_required > self.memory_bytes:
            raise InvalidRequestError(
                f"takes {n_required:,} bytes to index, more than memory_bytes; cut it into chunks, or increase memory_bytes",
                self.text,
            )
        return size

    def _records(self) -> Iterator[tuple[str, Any]]:
        """Yield the location and the value of each record of the source, not yet checked."""
        source = self.source
        if isinstance(source, str | PathLike):
            yield from self._records_of_file(source, "source")
        elif is_table(source):
            yield from self._records_of_iterable(rows_of(source))
        elif isinstance(source, Iterable) and not isinstance(source, bytes | dict):
            yield from self._records_of_iterable(source)
        else:
            raise InvalidRequestError.must_be("source", _SOURCE_KINDS, source)

    def _records_of_iterable(self, values: Iterable[Any]) -> Iterator[tuple[str, Any]]:
        size = len(self.source) if isinstance(self.source, Sized) else 0
        for index, value in enumerate(values):
            location = f"source[{index}]"
            fraction_before, fraction = 1.0, 0.0
            if index < size:
                fraction_before, fraction = index / size, 1 / size
            if isinstance(value, PathLike):
                yield from self._records_of_file(value, location, fraction_before, fraction)
                continue
            if index == 0 and isinstance(value, str) and is_record_file(value):
                remedy = f"Path({value!a}) is read, and {{{self.text!a}: {value!a}}} is a text"
                raise InvalidRequestError.must_be(
                    location, "a text, and not the name of a file", value, remedy=remedy
                )
            self.read_fraction = fraction_before + fraction
            yield location, value

    def _records_of_file(
        self,
        source: str | PathLike[str],
        location: str,
        fraction_before: float = 0.0,
        fraction: float = 1.0,
    ) -> Iterator[tuple[str, Any]]:
        """Yield the location and the value of each record of a file or a folder.

        Sets `read_fraction`.

        Args:
            source: path of the file or folder.
            location: where the path is in the source, as ``source[3]``, for errors about the path.
            fraction_before: fraction of the whole source that is before the file, in [0, 1].
            fraction: fraction of the whole source that the file is, in [0, 1].
        """
        path = Path(check_path(location, source, takes_addresses="ClusterIndex(source=…)"))
        n_bytes = max(path.stat().st_size, 1)  # raises an error if the path does not exist
        file_format = kind_of(path.name)
        if path.is_dir():
            yield from _document_chunks(path)
            return
        if file_format.kind is None:
            raise InvalidRequestError.must_be(
                location,
                _SOURCE_KINDS,
                str(path),
                remedy="read_documents() reads documents",
            )
        n_before = self.n_read
        n_rows = 0
        name = str(path)
        max_bytes = self.memory_bytes // _MEMORY_PER_LINE
        with path.open("rb") as file:
            batches: Iterator[Batch]
            if file_format.kind == "parquet":
                n_rows = sum(group.n_rows for group in row_groups(file, name))
                batches = rows(file, name, max_bytes)
            else:
                batches = lines(file, name, max_bytes, file_format.compression)
            for batch in batches:
                file_fraction = file.tell() / n_bytes
                if n_rows:
                    file_fraction = (self.n_read - n_before + len(batch)) / n_rows
                self.read_fraction = fraction_before + fraction * file_fraction
                yield from batch


def is_record_file(path: str) -> bool:
    """Return whether a file exists at a path and its name is that of JSON lines or Parquet.

    JSON lines may be compressed, as in ``a.jsonl.gz``.
    """
    if kind_of(path).kind is None:
        return False
    # Path raises an error for a text that is too long for a path.
    return os.path.isfile(path)  # noqa: PTH113


def _document_chunks(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the path and each chunk of the documents in a folder, divided as `FolderIndex` does.

    Files that cannot be read are logged and skipped.
    """
    warn = partial(_log.warning, "%s: %s")
    walker = Walker(Selection(), warn)
    for path in walker.files(str(folder)):
        try:
            with Path(path).open("rb") as file:
                content = file.read(extraction.MAX_BYTES + 1)
            if len(content) > extraction.MAX_BYTES:
                raise OSError(f"is larger than {extraction.MAX_BYTES >> 20} MiB")
            document = extraction.read(path, content)
        except OSError as error:  # no permission, too large, or removed after it was listed
            warn(path, error.strerror or error)
            continue
        if document.warning is not None:
            warn(path, document.warning)
        for chunk in document_chunks(path, document, _DOCUMENT_CHUNK_CHARS):
            yield path, chunk
