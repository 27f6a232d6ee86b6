"""Read chunks from files, each node its own part: JSON lines, packed or not, Parquet, and plain texts.

Files are listed once, in the order of their paths, and cut into pieces of about equal size: runs of bytes of JSON
lines, runs of rows of Parquet, whole texts and whole files that are packed. A shard is made of a run of pieces, so its
node reads nothing else, then or when it is made again; and positions follow the order of the files, whoever reads them.
"""

from __future__ import annotations

import io
import itertools
import os
import sys
from collections.abc import Iterator, Sequence
from os import PathLike
from typing import Final, TypeAlias

import numpy as np
from attrs import evolve, frozen

from relevance_gen.arrays import batch_slices
from relevance_gen.cluster.parts import BATCH, Product, make
from relevance_gen.cluster.placing import optional_count
from relevance_gen.cluster.runs import NO_POSITIONS, PositionRuns
from relevance_gen.errors import InvalidRequestError
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
from relevance_gen.progress import Progress
from relevance_gen.shards.object_store import as_address, file_system
from relevance_gen.text.chunking import split
from relevance_gen.text.token_counting import TokenCounter

Paths: TypeAlias = str | PathLike[str] | Sequence[str | PathLike[str]]
"""A file, a folder, or several of both; paths that all nodes share, or addresses that `fsspec` knows."""

_TEXTS: Final = (".txt", ".md")
_KINDS: Final = f"{KINDS}, {' or '.join(_TEXTS)}"
_PIECE_BYTES: Final = 16 << 20
_MOST_RUNS: Final = 4096
"""Most pieces of a row group, whatever the file says of its size."""
_LONGEST: Final = 4 << 20
"""Most bytes of a line, and of lines and rows that are read together, which take several times as much: a quarter of a
block of text, and what `relevance_gen.ChunkIndex.build` takes by default."""
_TIMES_PACKED: Final = 4
"""About how many times as large JSON lines are when they are unpacked."""


@frozen
class Piece:
    """A part of a file that is read at once."""

    address: str
    start: int  # the first byte, or row of Parquet; 0 for what is read whole
    stop: int  # the byte, or row, behind the last
    n_bytes: int  # about how large it is, unpacked


@frozen(eq=False)
class FilePieces:
    """Chunks in some pieces of files."""

    pieces: tuple[Piece, ...]  # in order
    text: str  # the field, or column, that holds a chunk's text
    title: str  # that of its title; all others are its metadata
    blank: Blank

    @property
    def n_chars(self) -> int:
        """About how much text they are."""
        return sum(piece.n_bytes for piece in self.pieces)

    def make(
        self, counter: TokenCounter, progress: Progress | None, removed: PositionRuns = NO_POSITIONS
    ) -> Product:
        """Read the chunks and make them searchable; the error of something that is no chunk names file and place."""
        batches = itertools.chain.from_iterable(map(_read, self.pieces))
        chunks = (read_records(batch, self.text, self.title, self.blank) for batch in batches)
        return make(chunks, counter, progress, removed)


def plan_reading(
    source: Paths, n_shards: int | None, text: str, title: str, blank: Blank, n_cpus: int
) -> list[FilePieces]:
    """Say which shard reads which pieces, for at most so many shards; None for as many as `optional_count` says.

    An `InvalidRequestError` says that there is nothing to read, or no way to read it.
    """
    listed = [source] if isinstance(source, str | PathLike) else source
    if not isinstance(listed, Sequence) or not listed:
        raise InvalidRequestError.must_be("source", "a file, a folder or a list of these", source)
    for number, one in enumerate(listed):
        if not isinstance(one, str | PathLike) or not os.fspath(one):
            raise InvalidRequestError.must_be(f"source[{number}]", "a file or a folder", one)
    found = [file for one in listed for file in _files(as_address(one))]
    n_bytes = sum(size for _, size in found)
    wanted = n_shards or optional_count(n_bytes, n_cpus)
    # Pieces of half a shard or less make shards that differ by little.
    piece_bytes = min(_PIECE_BYTES, n_bytes // (2 * wanted) + 1)
    pieces = [piece for address, size in found for piece in _cut(address, size, piece_bytes)]
    if not pieces:  # of files without a byte or a row: an index without a chunk
        return [FilePieces((), text, title, blank)]
    sizes = np.array([max(piece.n_bytes, 1) for piece in pieces])
    middles = 2 * np.cumsum(sizes) - sizes
    shard_of = (middles * wanted // (2 * sizes.sum())).tolist()
    numbered = itertools.groupby(zip(shard_of, pieces, strict=True), key=lambda pair: pair[0])
    return [
        FilePieces(_joined(piece for _, piece in some), text, title, blank) for _, some in numbered
    ]


def _joined(pieces: Iterator[Piece]) -> tuple[Piece, ...]:
    """Return pieces of which those that follow each other in a file are one: the file is opened once."""
    joined = [next(pieces)]
    for piece in pieces:
        last = joined[-1]
        if (last.address, last.stop) == (piece.address, piece.start):
            joined[-1] = evolve(last, stop=piece.stop, n_bytes=last.n_bytes + piece.n_bytes)
        else:
            joined.append(piece)
    return tuple(joined)


# ── Which files ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _files(address: str) -> list[tuple[str, int]]:
    """Return the files that can be read, and about how large they are, in the order of their paths."""
    files, root = file_system(address)
    if not files.exists(root):
        raise InvalidRequestError(f"must be there: no file or folder at {address}", "source")
    scheme = address.split("://")[0] + "://" if "://" in address else ""
    found = files.find(root, detail=True) if files.isdir(root) else {root: files.info(root)}
    sizes = [(path, int(one["size"])) for path, one in sorted(found.items()) if _is_readable(path)]
    if not sizes:
        raise InvalidRequestError.must_be("source", f"{_KINDS}, or a folder that has some", address)
    return [
        (scheme + path, n_bytes * (_TIMES_PACKED if kind_of(path)[1] else 1))
        for path, n_bytes in sizes
    ]


def _is_readable(path: str) -> bool:
    return kind_of(path)[0] is not None or path.lower().endswith(_TEXTS)


def _cut(address: str, n_bytes: int, piece_bytes: int) -> Iterator[Piece]:
    kind, packing = kind_of(address)
    if kind == "parquet":
        files, path = file_system(address)
        with files.open(path, "rb") as file:
            groups = row_groups(file, address)
        first = 0
        for n_rows, size in groups:
            n_runs = max(min(-(-size // piece_bytes), n_rows, _MOST_RUNS), 1)
            for start, stop in itertools.pairwise(
                first + n_rows * run // n_runs for run in range(n_runs + 1)
            ):
                yield Piece(address, start, stop, size // n_runs)
            first += n_rows
    elif kind == "lines" and not packing:
        for start in range(0, n_bytes, piece_bytes):
            stop = min(start + piece_bytes, n_bytes)
            yield Piece(address, start, stop, stop - start)
    else:
        yield Piece(address, 0, sys.maxsize, n_bytes)


# ── What is in them ──────────────────────────────────────────────────────────────────────────────────────────────────


def _read(piece: Piece) -> Iterator[Batch]:
    files, path = file_system(piece.address)
    kind, packing = kind_of(path)
    with files.open(path, "rb") as file:
        if kind == "parquet":
            yield from rows(file, piece.address, _LONGEST, piece.start, piece.stop)
        elif kind == "lines":  # files of fsspec read lines of any length
            buffered = io.BufferedReader(file, BUFFER_BYTES)
            yield from lines(buffered, piece.address, _LONGEST, packing, piece.start, piece.stop)
        else:
            yield from _chunks_of(file.read(), piece.address)


def _chunks_of(content: bytes, address: str) -> Iterator[Batch]:
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"must be UTF-8: byte {error.start} is not", address) from None
    numbered = [(f"{address} chunk {number}", part) for number, part in enumerate(split(text))]
    yield from (numbered[some] for some in batch_slices(len(numbered), BATCH))
