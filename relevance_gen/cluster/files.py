"""Read chunks from files, each node its own part: JSON lines, Parquet, and plain texts.

Files are listed once, in the order of their paths, and cut into pieces of about equal size: runs of bytes of JSON
lines, row groups of Parquet, whole texts. A shard is made of a run of pieces, so its node reads nothing else, then or
when it is made again; and positions follow the order of the files, whoever reads them.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from attrs import frozen

from relevance_gen.chunking import split
from relevance_gen.cluster.folder import as_address
from relevance_gen.cluster.parts import BATCH, Product, make
from relevance_gen.cluster.placing import how_many
from relevance_gen.cluster.runs import NO_POSITIONS, PositionRuns
from relevance_gen.cluster.store import file_system
from relevance_gen.errors import InvalidRequestError
from relevance_gen.progress import Progress
from relevance_gen.retrieval.segment.chunks import Blank, Chunks, metadata_of, of_record
from relevance_gen.tokens import TokenCounter

Paths: TypeAlias = str | PathLike[str] | Sequence[str | PathLike[str]]
"""A file, a folder, or several of both; paths that all nodes share, or addresses that `fsspec` knows."""

Kind: TypeAlias = Literal["lines", "parquet", "text"]

_KINDS: Final[dict[str, Kind]] = {
    ".jsonl": "lines",
    ".ndjson": "lines",
    ".parquet": "parquet",
    ".txt": "text",
    ".md": "text",
}
_PIECE_BYTES: Final = 16 << 20
_BUFFER_BYTES: Final = 1 << 20


@frozen
class Piece:
    """A part of a file that is read at once."""

    address: str
    kind: Kind
    start: int  # the first byte, or row group
    stop: int  # the byte, or row group, behind the last
    n_bytes: int  # about how large it is


@frozen(eq=False)
class FilePieces:
    """Chunks in some pieces of files."""

    pieces: tuple[Piece, ...]  # in order
    text_field: str  # the field, or column, that holds a chunk's text; all others are its metadata
    blank: Blank

    @property
    def n_chars(self) -> int:
        """About how much text they are."""
        return sum(piece.n_bytes for piece in self.pieces)

    def make(self, counter: TokenCounter, progress: Progress | None, removed: PositionRuns = NO_POSITIONS) -> Product:
        """Read the chunks and make them searchable; the error of something that is no chunk names file and place."""
        return make(self._batches(), counter, progress, removed)

    def _batches(self) -> Iterator[Chunks]:
        for piece in self.pieces:
            values = _READERS[piece.kind](piece)
            while read := [(place, self._chunk(value)) for place, value in itertools.islice(values, BATCH)]:
                yield self._checked(piece.address, read)

    def _checked(self, address: str, read: Sequence[tuple[str, Any]]) -> Chunks:
        try:
            return Chunks.read([value for _, value in read], blank=self.blank)
        except InvalidRequestError:
            for place, value in read:  # one by one, so that the error names the place
                try:
                    Chunks.read([value], blank=self.blank)
                except InvalidRequestError as error:
                    raise of_record(error, f"{address} {place}", {"text": self.text_field}) from None
            raise

    def _chunk(self, value: Any) -> Any:
        """Return what a file holds in one place as what may be a chunk."""
        if not isinstance(value, Mapping):
            return value
        return {"text": value.get(self.text_field), "metadata": metadata_of(value, self.text_field)}


def plan_reading(source: Paths, n_shards: int | None, text_field: str, blank: Blank, n_cpus: int) -> list[FilePieces]:
    """Say which shard reads which pieces, for at most so many shards; None for as many as `how_many` says.

    An `InvalidRequestError` says that there is nothing to read, or no way to read it.
    """
    if not isinstance(text_field, str) or not text_field:
        raise InvalidRequestError.must_be("text_field", "a string that is not empty", text_field)
    listed = [source] if isinstance(source, str | PathLike) else source
    if not isinstance(listed, Sequence) or not listed or not all(map(_is_path, listed)):
        raise InvalidRequestError.must_be("source", "a file, a folder or a list of these", source)
    found = [file for one in listed for file in _files(as_address(one))]
    n_bytes = sum(size for _, size in found)
    wanted = n_shards or how_many(n_bytes, n_cpus)
    # Pieces of half a shard or less make shards that differ by little.
    piece_bytes = min(_PIECE_BYTES, n_bytes // (2 * wanted) + 1)
    pieces = [piece for address, size in found for piece in _cut(address, size, piece_bytes)]
    if not pieces:  # of files without a byte or a row: an index without a chunk
        return [FilePieces((), text_field, blank)]
    sizes = np.array([max(piece.n_bytes, 1) for piece in pieces])
    middles = 2 * np.cumsum(sizes) - sizes
    shard_of = (middles * wanted // (2 * sizes.sum())).tolist()
    numbered = itertools.groupby(zip(shard_of, pieces, strict=True), key=lambda pair: pair[0])
    return [FilePieces(tuple(piece for _, piece in some), text_field, blank) for _, some in numbered]


def _is_path(value: object) -> bool:
    return isinstance(value, str | PathLike) and bool(os.fspath(value))


# ── Which files ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _files(address: str) -> list[tuple[str, int]]:
    """Return the files that can be read, and their sizes, in the order of their paths."""
    files, root = file_system(address)
    if not files.exists(root):
        raise InvalidRequestError(f"must be there: no file or folder at {address}", "source")
    scheme = address.split("://")[0] + "://" if "://" in address else ""
    if not files.isdir(root):
        if _kind(root) is None:
            raise InvalidRequestError(f"must be one of {', '.join(_KINDS)}, or a folder of such", "source", address)
        return [(scheme + root, int(files.size(root)))]
    found = files.find(root, detail=True)
    readable = [(scheme + path, int(one["size"])) for path, one in sorted(found.items()) if _kind(path) is not None]
    if not readable:
        raise InvalidRequestError(f"must hold files of {', '.join(_KINDS)}: {address} has none", "source")
    return readable


def _kind(path: str) -> Kind | None:
    return _KINDS.get(os.path.splitext(path)[1].lower())  # noqa: PTH122 an address is no path


def _cut(address: str, n_bytes: int, piece_bytes: int) -> Iterator[Piece]:
    kind = _kind(address)
    if kind == "lines":
        for start in range(0, n_bytes, piece_bytes):
            stop = min(start + piece_bytes, n_bytes)
            yield Piece(address, kind, start, stop, stop - start)
    elif kind == "parquet":
        with _parquet(address) as file:
            for number in range(file.metadata.num_row_groups):
                yield Piece(address, kind, number, number + 1, file.metadata.row_group(number).total_byte_size)
    else:
        yield Piece(address, "text", 0, n_bytes, n_bytes)


# ── What is in them ──────────────────────────────────────────────────────────────────────────────────────────────────


def _lines(piece: Piece) -> Iterator[tuple[str, Any]]:
    """Yield the lines that begin in a piece."""
    files, path = file_system(piece.address)
    with files.open(path, "rb") as file:
        at = piece.start
        if at:
            file.seek(at - 1)
            at += len(file.readline()) - 1
        while at < piece.stop and (line := file.readline()):
            place = f"at byte {at}"
            at += len(line)
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InvalidRequestError(f"must hold a JSON value {place}: {error}", piece.address) from None
            yield place, value


def _rows(piece: Piece) -> Iterator[tuple[str, Any]]:
    with _parquet(piece.address) as file:
        for number in range(piece.start, piece.stop):
            batches = file.iter_batches(BATCH, row_groups=[number], use_threads=False)  # a group may be large
            rows = (row for batch in batches for row in batch.to_pylist())
            yield from ((f"row {place} of group {number}", row) for place, row in enumerate(rows))


def _parquet(address: str) -> Any:
    import pyarrow.parquet

    files, path = file_system(address)
    try:
        return pyarrow.parquet.ParquetFile(files.open(path, "rb"), buffer_size=_BUFFER_BYTES, pre_buffer=False)
    except pyarrow.ArrowInvalid as error:
        raise InvalidRequestError(f"must be Parquet: {error}", address) from None


def _texts(piece: Piece) -> Iterator[tuple[str, Any]]:
    files, path = file_system(piece.address)
    try:
        text = files.cat_file(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"must be UTF-8: byte {error.start} is not", piece.address) from None
    for number, part in enumerate(split(text)):
        yield f"chunk {number}", part


_READERS: Final[Mapping[Kind, Any]] = {"lines": _lines, "parquet": _rows, "text": _texts}
