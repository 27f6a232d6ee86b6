"""Read what an index is built of, record by record: JSON lines, Parquet, a folder, a table or any iterable."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sized
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeAlias, get_args

import numpy as np
from attrs import define, field

from relevance_gen.arrays import Offsets
from relevance_gen.checks import check_path, integer, must_be, string, to_python_scalar
from relevance_gen.documents import extraction
from relevance_gen.documents.reading import chunks_of
from relevance_gen.documents.walker import Selection, Walker
from relevance_gen.errors import InvalidRequestError
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.records.files import KINDS, kind_of, lines, row_groups, rows
from relevance_gen.index.records.tables import is_table, rows_of
from relevance_gen.index.records.validation import Blank, missing_field_error, read_records
from relevance_gen.index.storage import ContentWriter

Source: TypeAlias = "str | PathLike[str] | Iterable[Any]"
"""A file of JSON lines (``.jsonl``, ``.ndjson``, also with ``.gz`` or ``.zst``) or Parquet (``.parquet``), a folder of
documents, a table, or an iterable of texts, mappings, `Chunk` objects and, as ``pathlib.Path``, files and folders."""

_KINDS: Final = f"{KINDS}, a folder, or an iterable"
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

_log: Final = logging.getLogger(__name__)


@define
class Records:
    """The records of a source, in its order, as chunks.

    What is made of them may take about so many bytes of memory, at least 16 MiB.
    """

    source: Source
    text: str = field(validator=string)  # the field that has a record's text
    title: str = field(validator=string)  # the field that has its title, if any
    blank: Blank = field(
        validator=must_be('"error" or "skip"', lambda value: value in get_args(Blank))
    )
    memory_bytes: int = field(converter=to_python_scalar, validator=integer(_LEAST_MEMORY_BYTES))
    share: float = field(
        default=1.0, init=False
    )  # about which part of all was read, in (0, 1]; 1 if nobody knows
    n_read: int = field(
        default=0, init=False
    )  # records that were read: each has a position, blank ones too

    def blocks(self, content: ContentWriter) -> Iterator[tuple[Chunks, Offsets]]:
        """Write the chunks, and yield them without metadata: as many together as may be made searchable at once.

        They come with their positions; at the end perhaps there are none.

        Raises:
            InvalidRequestError: something is no chunk, or no such file; the error names file and place. Or a title is
                named that no record has.
            OSError: a file cannot be read.
        """
        texts: list[str] = []
        titles: dict[int, str] = {}
        positions: list[int] = []
        n_bytes = 0
        is_missing, seen = self.title not in ("", "title"), None
        for place, record in self._records():
            if is_missing and isinstance(record, Mapping):
                is_missing, seen = self.title not in record, record
            one = read_records([(place, record)], self.text, self.title, self.blank)
            try:
                text, title = one.texts[0], one.title_of(0)
                n_encoded = content.add(text, one.metadata_of(0), title) if text else 0
                size = (
                    sys.getsizeof(text)
                    + sys.getsizeof(title)
                    + _CHUNK_BYTES
                    + _WIDE_BYTES * (n_encoded - len(text))
                )
                if _TIMES_LARGEST * size > self.memory_bytes:
                    taken = f"takes {_TIMES_LARGEST * size:,} bytes to be made searchable, beyond memory_bytes"
                    raise InvalidRequestError(
                        f"{taken}; cut it into chunks, or give more", self.text
                    )
            except InvalidRequestError as error:
                raise error.with_field(f"{place}: {error.field}") from None
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
        if is_missing and seen is not None:
            raise missing_field_error(seen, self.title, "title", "a record of the source")
        yield Chunks(texts, {}, titles), np.array(positions, np.int64)

    def _records(self) -> Iterator[tuple[str, Any]]:
        """Yield each record with the words for where it stands."""
        source = self.source
        if isinstance(source, str | PathLike):
            yield from self._in_file(source, "source")
        elif is_table(source) or (
            isinstance(source, Iterable) and not isinstance(source, bytes | dict)
        ):
            size = len(source) if isinstance(source, Sized) else 0
            for number, value in enumerate(rows_of(source) if is_table(source) else source):
                place, done, part = f"source[{number}]", number / max(size, 1), 1 / max(size, 1)
                if number >= size:
                    done, part = 1.0, 0.0
                if isinstance(value, PathLike):
                    yield from self._in_file(value, place, done, part)
                    continue
                if number == 0 and isinstance(value, str) and holds_records(value):
                    remedy = f"Path({value!a}) is read, and {{{self.text!a}: {value!a}}} is a text"
                    raise InvalidRequestError.must_be(
                        place, "a text, and not the name of a file", value, remedy=remedy
                    )
                self.share = done + part
                yield place, value
        else:
            raise InvalidRequestError.must_be("source", _KINDS, source)

    def _in_file(
        self, source: str | PathLike[str], place: str, done: float = 0.0, part: float = 1.0
    ) -> Iterator[tuple[str, Any]]:
        """Yield the records of a file or a folder, which is that part of all, behind what is done."""
        path = Path(check_path(place, source, takes_addresses="ClusterIndex(source=…)"))
        n_bytes, first = max(path.stat().st_size, 1), self.n_read  # raises where there is nothing
        kind, packing = kind_of(path.name)
        if path.is_dir():
            yield from _documents(path)
        elif kind is None:
            raise InvalidRequestError.must_be(
                place, _KINDS, str(path), remedy="read_documents() reads documents"
            )
        else:
            name, longest = str(path), self.memory_bytes // _LINES_IN_MEMORY
            with path.open("rb") as file:
                n_rows = sum(n for n, _ in row_groups(file, name)) if kind == "parquet" else 0
                for batch in (
                    lines(file, name, longest, packing)
                    if kind == "lines"
                    else rows(file, name, longest)
                ):
                    read = (
                        (self.n_read - first + len(batch)) / n_rows
                        if n_rows
                        else file.tell() / n_bytes
                    )
                    self.share = done + part * read
                    yield from batch


def holds_records(path: str) -> bool:
    """Tell whether a path is that of a file that is read record by record, by its name."""
    return kind_of(path)[0] is not None and os.path.isfile(path)  # noqa: PTH113 - a text may be too long for a path


def _documents(folder: Path) -> Iterator[tuple[str, Any]]:
    """Yield the chunks of the documents in a folder, chosen and cut as `FolderIndex` does; say what cannot be read."""
    walker = Walker(Selection(), lambda path, why: _log.warning("%s: %s", path, why))
    for path in walker.files(str(folder)):
        try:
            with Path(path).open("rb") as file:
                content = file.read(extraction.MAX_BYTES + 1)
            if len(content) > extraction.MAX_BYTES:
                raise OSError(f"is larger than {extraction.MAX_BYTES >> 20} MiB")
            found = extraction.read(path, content)
        except OSError as error:  # it is another's, too large, or was removed meanwhile
            _log.warning("%s: %s", path, error.strerror or error)
            continue
        if found.warning is not None:
            _log.warning("%s: %s", path, found.warning)
        yield from ((path, chunk) for chunk in chunks_of(path, found, _DOCUMENT_CHARS))
