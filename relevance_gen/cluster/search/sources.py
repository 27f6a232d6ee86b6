"""Divide files among the processes that build an index; read JSON lines, Parquet and plain text.

Files are listed once, in the order of their paths, and divided into pieces of similar size: byte
ranges of JSON lines, row ranges of Parquet, and whole texts and compressed files. A shard is built
from a run of pieces. Positions follow the order of the files, regardless of which process reads
them.
"""

from __future__ import annotations

import io
import itertools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from typing import Any, Final, Protocol, TypeAlias

import numpy as np
from attrs import evolve, frozen

from relevance_gen.arrays import batch_slices
from relevance_gen.cluster.actors import get
from relevance_gen.cluster.placing import default_shard_count
from relevance_gen.errors import InvalidRequestError
from relevance_gen.index.bounded_build import CHUNKS_PER_BATCH, batches_of
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
from relevance_gen.shards.object_store import as_address, file_system
from relevance_gen.text.chunking import split

Paths: TypeAlias = str | PathLike[str] | Sequence[str | PathLike[str]]
"""A file, a folder, or a list of these: paths that all nodes share, or addresses that `fsspec`
supports."""

_TEXT_EXTENSIONS: Final = (".txt", ".md")
_KINDS: Final = f"{KINDS}, {' or '.join(_TEXT_EXTENSIONS)}"
_MAX_PIECE_BYTES: Final = 16 << 20
_MAX_PIECES_PER_ROW_GROUP: Final = 4096
_MAX_RECORD_BYTES: Final = 4 << 20
"""Maximum size of a line of JSON, and of Parquet rows that are read together; reading takes several
times that memory. The default of `relevance_gen.ChunkIndex.build` has the same limit."""
_COMPRESSION_RATIO: Final = 4
"""Estimated size of a compressed file of JSON lines after decompression, relative to its size."""
_FETCH_TIMEOUT_S: Final = 60.0


class ChunkSource(Protocol):
    """The chunks of one shard, in a form that can be sent to a searcher, which reads them."""

    def batches(self) -> Iterator[Chunks]:
        """Yield the chunks in batches, in order."""


@frozen(eq=False)
class StoredChunks:
    """Chunks in Ray's object store."""

    # the reference in a list: Ray replaces a bare argument by the object, which copies the chunks
    # to every process
    reference: list[Any]

    def batches(self) -> Iterator[Chunks]:
        """Fetch all chunks from the object store, and yield them in batches, in order."""
        (chunks,) = get(self.reference, _FETCH_TIMEOUT_S)
        return batches_of(chunks)


@frozen
class Piece:
    """A file, or a range of its bytes or rows, that one searcher reads.

    Attributes:
        address: the address of the file.
        start: the first byte, or for Parquet the first row; 0 for a whole file.
        stop: the byte or row after the last one.
        n_bytes: approximate size without compression.
    """

    address: str
    start: int  # first byte, or row of Parquet; 0 for a whole file
    stop: int  # byte or row after the last
    n_bytes: int  # approximate size without compression


@frozen(eq=False)
class FilePieces:
    """The chunks of one shard, as pieces of files."""

    pieces: tuple[Piece, ...]  # in order
    text: str  # field or column with the text of a chunk
    title: str  # field or column with its title; all other fields are metadata
    blank: Blank

    @property
    def n_bytes(self) -> int:
        """Approximate size of all pieces without compression."""
        return sum(piece.n_bytes for piece in self.pieces)

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
        n_shards: maximum number of shards; None for the number that `default_shard_count` returns.
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
    n_bytes = sum(size for _, size in files)
    n_parts = n_shards or default_shard_count(n_bytes, n_cpus)
    # Pieces of at most half a shard make shards of similar size.
    piece_bytes = min(_MAX_PIECE_BYTES, n_bytes // (2 * n_parts) + 1)
    pieces = [piece for address, size in files for piece in _divide(address, size, piece_bytes)]
    if not pieces:  # all files are empty
        return [FilePieces((), text, title, blank)]
    # A piece belongs to the shard in which the middle of its bytes is.
    sizes = np.array([max(piece.n_bytes, 1) for piece in pieces])
    double_middles = 2 * np.cumsum(sizes) - sizes
    part_ords = (double_middles * n_parts // (2 * sizes.sum())).tolist()
    pairs = zip(part_ords, pieces, strict=True)
    groups = itertools.groupby(pairs, key=lambda pair: pair[0])
    parts = []
    for _, group in groups:
        merged = _merge_adjacent(piece for _, piece in group)
        parts.append(FilePieces(merged, text, title, blank))
    return parts


def _merge_adjacent(pieces: Iterable[Piece]) -> tuple[Piece, ...]:
    """Merge pieces that follow each other in one file, so that the file is opened once."""
    merged: list[Piece] = []
    for piece in pieces:
        last = merged[-1] if merged else None
        is_adjacent = last is not None and last.address == piece.address
        if last is not None and is_adjacent and last.stop == piece.start:
            n_bytes = last.n_bytes + piece.n_bytes
            merged[-1] = evolve(last, stop=piece.stop, n_bytes=n_bytes)
        else:
            merged.append(piece)
    return tuple(merged)


def _list_files(address: str) -> list[tuple[str, int]]:
    """Return the files at an address that can be read as chunks, in the order of their paths.

    A folder is searched recursively; files of unknown kinds are left out.

    Args:
        address: the address of a file or a folder.

    Returns:
        For each file, its address and its approximate uncompressed size in bytes.

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
            listed.append((scheme + path, int(information["size"]) * ratio))
    if not listed:
        raise InvalidRequestError.must_be(
            "source", f"{_KINDS}, or a folder that contains such files", address
        )
    return listed


def _divide(address: str, n_bytes: int, piece_bytes: int) -> Iterator[Piece]:
    """Yield the pieces of a file; a single piece if the file cannot be divided.

    Args:
        address: the address of the file.
        n_bytes: the approximate uncompressed size of the file.
        piece_bytes: the approximate size of a piece.
    """
    kind, compression = kind_of(address)
    if kind == "parquet":
        yield from _divide_rows(address, piece_bytes)
    elif kind == "lines" and not compression:
        for start in range(0, n_bytes, piece_bytes):
            stop = min(start + piece_bytes, n_bytes)
            yield Piece(address, start, stop, stop - start)
    else:
        yield Piece(address, 0, sys.maxsize, n_bytes)


def _divide_rows(address: str, piece_bytes: int) -> Iterator[Piece]:
    files, path = file_system(address)
    with files.open(path, "rb") as file:
        groups = row_groups(file, address)
    first = 0
    for n_rows, n_bytes in groups:
        n_wanted = -(-n_bytes // piece_bytes)
        n_pieces = max(min(n_wanted, n_rows, _MAX_PIECES_PER_ROW_GROUP), 1)
        ends = [first + n_rows * piece_ord // n_pieces for piece_ord in range(n_pieces + 1)]
        for start, stop in itertools.pairwise(ends):
            yield Piece(address, start, stop, n_bytes // n_pieces)
        first += n_rows


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
