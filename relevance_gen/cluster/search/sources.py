"""The chunks of each shard of a new index: chunks in memory, or parts of files that searchers read.

Files are listed once, in the order of their paths, and divided into shards of similar size: byte
ranges of JSON lines, row ranges of Parquet, and whole texts and compressed files. Positions follow
the order of the files, regardless of which process reads them.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Final, Protocol, TypeAlias

from attrs import frozen

from relevance_gen.arrays import batch_slices
from relevance_gen.errors import InvalidRequestError
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.records.files import (
    BUFFER_BYTES,
    KINDS,
    Batch,
    kind_of,
    lines,
    row_groups,
    rows,
)
from relevance_gen.index.records.validation import Blank, read_records
from relevance_gen.index.spill import CHUNKS_PER_BATCH, batches_of
from relevance_gen.shards.object_store import as_address, file_system
from relevance_gen.text.blocks import split_evenly
from relevance_gen.text.chunking import split

Paths: TypeAlias = str | PathLike[str] | Sequence[str | PathLike[str]]
"""A file, a folder, or a list of these: paths that all nodes share, or addresses that `fsspec`
supports."""

_TEXT_EXTENSIONS: Final = (".txt", ".md")
_KINDS: Final = f"{KINDS}, {' or '.join(_TEXT_EXTENSIONS)}"
_MAX_RECORD_BYTES: Final = 4 << 20
"""Maximum size of a line of JSON, and of Parquet rows that are read together; reading takes several
times that memory. The default of `relevance_gen.ChunkIndex.build` has the same limit."""
_MIN_SHARD_CHARS: Final = 256 << 20
"""Minimum size of the shards into which an index is divided by default: with smaller shards, the
messages between processes take more time than they save."""
_MAX_SHARD_CHARS: Final = 1 << 30
"""Maximum size of a shard by default: larger shards take long to fetch and to merge."""
_COMPRESSION_RATIO: Final = 4
"""Estimated size of a compressed file of JSON lines after decompression, relative to its size."""


@frozen
class SizedFile:
    """A file with its size."""

    address: str
    n_bytes: int  # approximate size, uncompressed


class ChunkSource(Protocol):
    """The chunks of one shard, in a form that can be sent to a searcher, which reads them."""

    def batches(self) -> Iterator[Chunks]:
        """Yield the chunks in batches, in order."""


@frozen(eq=False)
class ShardChunks:
    """Chunks in memory, which are sent with the request to build the shard."""

    chunks: Chunks

    def batches(self) -> Iterator[Chunks]:
        """Yield the chunks in batches, in order."""
        return batches_of(self.chunks)


def divide_chunks(chunks: Chunks, n_shards: int | None, n_cpus: int) -> list[ShardChunks]:
    """Divide chunks into parts of similar size, and return the parts in order.

    Args:
        chunks: the chunks.
        n_shards: maximum number of parts; None for the number that `_default_shard_count` returns.
        n_cpus: number of processors of the cluster.
    """
    n_parts = n_shards or _default_shard_count(sum(map(len, chunks.texts)), n_cpus)
    parts = [*split_evenly(chunks.texts, n_parts)] or [slice(0, 0)]
    return [ShardChunks(chunks.take(range(part.start, part.stop))) for part in parts]


@frozen
class Piece:
    """A file, or a range of its bytes or rows, that one searcher reads.

    Attributes:
        address: the address of the file.
        start: the first byte, or for Parquet the first row; 0 for a whole file.
        stop: the byte or row after the last one.
    """

    address: str
    start: int
    stop: int


@frozen(eq=False)
class FilePieces:
    """The chunks of one shard, as pieces of files.

    Attributes:
        pieces: the pieces, in order.
        text: the field or column with the text of a chunk.
        title: the field or column with its title; all other fields are metadata.
        blank: as for `read_chunks`.
    """

    pieces: Sequence[Piece]
    text: str
    title: str
    blank: Blank

    def batches(self) -> Iterator[Chunks]:
        """Yield the chunks in batches, in order.

        Raises:
            InvalidRequestError: a record is invalid; the error has its file and location.
        """
        for piece in self.pieces:
            for records in _read(piece):
                yield read_records(records, self.text, self.title, self.blank)


def plan_reading(
    source: Paths, n_shards: int | None, text: str, title: str, blank: Blank, n_cpus: int
) -> list[FilePieces]:
    """Divide files among shards of similar size, and return the pieces of each shard.

    Args:
        source: the files.
        n_shards: maximum number of shards; None for the number that `_default_shard_count` returns.
        text: the field or column with the text of a chunk.
        title: the field or column with its title.
        blank: as for `read_chunks`.
        n_cpus: number of processors of the cluster.

    Raises:
        InvalidRequestError: a path is invalid or does not exist, or has no file of a known kind.
    """
    paths = [source] if isinstance(source, str | PathLike) else source
    if not isinstance(paths, Sequence) or not paths:
        raise InvalidRequestError.must_be("source", "a file, a folder or a list of these", source)
    for path_ord, path in enumerate(paths):
        if not isinstance(path, str | PathLike) or not os.fspath(path):
            raise InvalidRequestError.must_be(f"source[{path_ord}]", "a file or a folder", path)
    files = [file for path in paths for file in _list_files(as_address(path))]
    n_bytes = sum(file.n_bytes for file in files)
    n_parts = n_shards or _default_shard_count(n_bytes, n_cpus)
    pieces_of_parts = _divide(files, n_parts) or [[]]  # there are no pieces if all files are empty
    return [FilePieces(pieces, text, title, blank) for pieces in pieces_of_parts]


@frozen
class _WholeFile:
    """A file that may be divided."""

    address: str
    stop: int | None  # number of its bytes or rows; None if it cannot be divided
    n_bytes: int  # approximate size, uncompressed, at least 1


def _list_files(address: str) -> list[SizedFile]:
    """Return the files at an address that can be read as chunks, in the order of their paths.

    A folder is searched recursively; files of unknown kinds are left out.

    Args:
        address: the address of a file or a folder.

    Raises:
        InvalidRequestError: nothing exists at the address, or no file of a known kind.
    """
    files, root = file_system(address)
    if not files.exists(root):
        raise InvalidRequestError(f"must exist: there is no file or folder at {address}", "source")
    scheme = address.split("://")[0] + "://" if "://" in address else ""
    if files.isdir(root):
        information_by_path = files.find(root, detail=True)
    else:
        information_by_path = {root: files.info(root)}
    listed = []
    for path, information in sorted(information_by_path.items()):
        kind, compression = kind_of(path)
        if kind is not None or path.lower().endswith(_TEXT_EXTENSIONS):
            ratio = _COMPRESSION_RATIO if compression else 1
            listed.append(SizedFile(scheme + path, int(information["size"]) * ratio))
    if not listed:
        allowed = f"{_KINDS}, or a folder that contains such files"
        raise InvalidRequestError.must_be("source", allowed, address)
    return listed


def _divide(files: Sequence[SizedFile], n_parts: int) -> list[list[Piece]]:
    """Divide files into at most `n_parts` parts of similar size; return the pieces of each part.

    JSON lines and Parquet are divided at the ends of the parts, as if all rows of a file had the
    same size. A file that cannot be divided belongs to the part in which its middle is.

    Args:
        files: the files.
        n_parts: maximum number of parts; parts without pieces are left out.
    """
    whole_files = [_whole_file(file) for file in files]
    total = sum(file.n_bytes for file in whole_files)
    parts: list[list[Piece]] = [[] for _ in range(n_parts)]
    first = 0  # offset of the file in the bytes of all files
    for file in whole_files:
        n_bytes = file.n_bytes
        if file.stop is None:
            middle = first + n_bytes // 2
            parts[middle * n_parts // total].append(Piece(file.address, 0, sys.maxsize))
        else:
            start = 0
            for part_ord in range(first * n_parts // total, n_parts):
                part_end = total * (part_ord + 1) // n_parts
                stop = min(file.stop * (part_end - first) // n_bytes, file.stop)
                if start < stop:
                    parts[part_ord].append(Piece(file.address, start, stop))
                start = stop
                if stop == file.stop:
                    break
        first += n_bytes
    return [part for part in parts if part]


def _whole_file(file: SizedFile) -> _WholeFile:
    """Return a file with the number of bytes or rows into which it can be divided."""
    kind, compression = kind_of(file.address)
    stop = None
    n_bytes = file.n_bytes
    if kind == "parquet":
        files, path = file_system(file.address)
        with files.open(path, "rb") as opened:
            groups = row_groups(opened, file.address)
        stop = sum(group.n_rows for group in groups)
        n_bytes = sum(group.n_bytes for group in groups)
    elif kind == "lines" and not compression:
        stop = n_bytes
    return _WholeFile(file.address, stop, max(n_bytes, 1))


def _read(piece: Piece) -> Iterator[Batch]:
    files, path = file_system(piece.address)
    kind, compression = kind_of(path)
    limits = (piece.start, piece.stop)
    with files.open(path, "rb") as file:
        if kind == "parquet":
            yield from rows(file, piece.address, _MAX_RECORD_BYTES, *limits)
        elif kind == "lines":
            # Files of fsspec read lines of any length, so they are buffered.
            buffered = io.BufferedReader(file, BUFFER_BYTES)
            yield from lines(buffered, piece.address, _MAX_RECORD_BYTES, compression, *limits)
        else:
            yield from _chunks_of_text(file.read(), piece.address)


def _chunks_of_text(content: bytes, address: str) -> Iterator[Batch]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        rule = f"must be UTF-8: byte {error.start} is not"
        raise InvalidRequestError(rule, address) from None
    records = [(f"{address} chunk {number}", part) for number, part in enumerate(split(text))]
    for batch in batch_slices(len(records), CHUNKS_PER_BATCH):
        yield records[batch]


def _default_shard_count(n_chars: int, n_cpus: int) -> int:
    """Return the default number of shards of an index, at least 1.

    The number is the largest number of shards that have at least `_MIN_SHARD_CHARS` characters each,
    but at most `n_cpus`. If shards would then have more than `_MAX_SHARD_CHARS` characters, it is
    the smallest number of shards that do not.

    Args:
        n_chars: number of characters of all texts.
        n_cpus: number of processors of the cluster.
    """
    n_min = -(-n_chars // _MAX_SHARD_CHARS)
    return max(1, min(n_cpus, n_chars // _MIN_SHARD_CHARS), n_min)
