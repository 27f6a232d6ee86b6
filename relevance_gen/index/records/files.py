"""Read records from open files: JSON lines, compressed or not, and Parquet.

Records come in batches, so that few of them are in memory at once. Each comes with its location, as
"a.jsonl line 3".
"""

from __future__ import annotations

import gzip
import io
import itertools
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, Final, Literal, NamedTuple, TypeAlias

from relevance_gen.errors import InvalidRequestError, to_install

Batch: TypeAlias = list[tuple[str, Any]]
"""Records, each with its location: at most 256, and fewer if they are large."""

KINDS: Final = "JSON lines (.jsonl or .ndjson, also .gz and .zst), Parquet (.parquet)"
BUFFER_BYTES: Final = 1 << 20
"""Bytes of a file that are read at once."""
_MAX_BATCH_RECORDS: Final = 256
_ZSTD_READ_BYTES: Final = 512
"""Bytes of Zstandard data that are decompressed at once: 4 bytes can become 128 KiB, so at most 16
MiB are returned."""


class FileFormat(NamedTuple):
    """The format of a file, determined from the extensions of its name.

    Attributes:
        kind: the kind of records; None if the name is not that of a file of records.
        compression: ".gz", ".zst" or "".
    """

    kind: Literal["lines", "parquet"] | None
    compression: str


class RowGroup(NamedTuple):
    """A row group of a Parquet file: its number of rows, and its uncompressed size in bytes."""

    n_rows: int
    n_bytes: int


def kind_of(name: str) -> FileFormat:
    """Return the format of a file by the extensions of its name, in upper or lower case."""
    name = name.lower()
    compression = ""
    if name.endswith((".gz", ".zst")):
        compression = name[name.rindex(".") :]
    if name.removesuffix(compression).endswith((".jsonl", ".ndjson")):
        return FileFormat("lines", compression)
    return FileFormat("parquet" if name.endswith(".parquet") else None, compression)


# ── JSON lines ────────────────────────────────────────────────────────────────────────────────────


def lines(
    file: BinaryIO,
    name: str,
    max_bytes: int,
    compression: str = "",
    start: int = 0,
    stop: int = sys.maxsize,
) -> Iterator[Batch]:
    """Yield the JSON values of the lines of a file.

    Args:
        file: the file; its `readline` must accept a limit. Only a few blocks of it are held in
            memory.
        name: name of the file for locations.
        max_bytes: maximum bytes of a line, and of the lines of a batch together.
        compression: ".gz", ".zst" or "".
        start: yields the lines that begin at byte `start` or later; 0 for a compressed file.
        stop: yields the lines that begin before byte `stop`.

    Raises:
        InvalidRequestError: the file is damaged, or a line is too long or not JSON. The records
            before are yielded.
        OSError: the file cannot be read.
    """
    batch: Batch = []
    n_bytes = 0
    content = _decompressed(file, compression)
    try:
        for location, line in _raw_lines(content, name, max_bytes, start, stop):
            is_full = len(batch) == _MAX_BATCH_RECORDS or n_bytes + len(line) > max_bytes
            if batch and is_full:
                yield batch
                batch = []
                n_bytes = 0
            batch.append((location, _parse(line, location)))
            n_bytes += len(line)
    except InvalidRequestError:
        yield batch
        raise
    if batch:
        yield batch


def _raw_lines(
    content: Any,
    name: str,
    max_bytes: int,
    start: int,
    stop: int,
) -> Iterator[tuple[str, bytes]]:
    """Yield the location and the bytes of each line that is not blank; arguments as for `lines`."""
    offset = start
    if start:
        # Skip the rest of the line that contains the byte before.
        offset = content.seek(start - 1)
        while offset < stop and (part := content.readline(max_bytes)):
            offset += len(part)
            if part.endswith(b"\n"):
                break
    for line_number in itertools.count(1):
        location = f"{name} line at byte {offset}" if start else f"{name} line {line_number}"
        try:
            line = content.readline(max_bytes + 1) if offset < stop else b""
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InvalidRequestError(f"is damaged or truncated: {error}", location) from None
        if len(line) > max_bytes:
            raise InvalidRequestError(f"must be at most {max_bytes:,} bytes long", location)
        if not line:
            return
        if line.strip():
            yield location, line
        offset += len(line)


def _parse(line: bytes, location: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"must be JSON: {error}", location) from None


def _decompressed(file: Any, compression: str) -> Any:
    """Return a file object that reads the decompressed content of `file`.

    `compression` is ".gz", ".zst", or "" to return `file` itself.
    """
    if compression == ".gz":
        return gzip.open(file)
    if compression == ".zst":
        return io.BufferedReader(_ZstandardFile(file), BUFFER_BYTES)
    return file


class _ZstandardFile(io.RawIOBase):
    """The decompressed content of a file of Zstandard frames."""

    def __init__(self, file: BinaryIO) -> None:
        try:
            import zstandard
        except ImportError:
            raise InvalidRequestError(f".zst needs zstandard: {to_install('data')}") from None
        self._file = file
        self._decompressor = zstandard.ZstdDecompressor()
        self._error_type = zstandard.ZstdError
        self._frame: Any = None
        self._compressed = b""
        self._content = memoryview(b"")

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read at least one byte; return 0 at the end of the last frame.

        Raises:
            EOFError: a frame is damaged or incomplete.
        """
        while not self._content:
            self._compressed = self._compressed or self._file.read(_ZSTD_READ_BYTES)
            if not self._compressed:
                if self._frame is not None:
                    raise EOFError("its last frame is incomplete")
                return 0
            self._frame = self._frame or self._decompressor.decompressobj()
            try:
                self._content = memoryview(self._frame.decompress(self._compressed))
            except self._error_type as error:
                raise EOFError(str(error)) from None
            self._compressed = self._frame.unused_data
            if self._frame.eof:
                self._frame = None
        n_bytes = min(len(buffer), len(self._content))
        buffer[:n_bytes] = self._content[:n_bytes]
        self._content = self._content[n_bytes:]
        return n_bytes


# ── Parquet ───────────────────────────────────────────────────────────────────────────────────────


def row_groups(
    file: BinaryIO,
    name: str,
) -> list[RowGroup]:
    """Return the row groups of a Parquet file.

    Raises:
        InvalidRequestError: the file is not Parquet, or pyarrow is not installed; the error calls
            the file `name`.
    """
    with _open_parquet(file, lambda: name) as table:
        groups = map(table.metadata.row_group, range(table.metadata.num_row_groups))
        return [RowGroup(group.num_rows, group.total_byte_size) for group in groups]


def rows(
    file: BinaryIO,
    name: str,
    max_bytes: int,
    start: int = 0,
    stop: int = sys.maxsize,
) -> Iterator[Batch]:
    """Yield the rows [start, stop) of a Parquet file in batches.

    A batch is a list of at most 256 pairs of a location and a row. Row groups without any of these
    rows are not read; in the first other group the rows before `start` are dropped.

    Args:
        file: the file.
        name: name of the file for locations.
        max_bytes: approximate maximum of the uncompressed bytes of a batch.
        start: index in the file of the first row.
        stop: index in the file of the row after the last.

    Raises:
        InvalidRequestError: as for `row_groups`, or a row has a value that Python cannot represent;
            the error names the first row of the batch.
        OSError: the file cannot be read.
    """
    group_ords: list[int] = []
    row = start
    row_bytes = 1
    end_row = 0
    for group_ord, group in enumerate(row_groups(file, name)):
        first_row = end_row
        end_row += group.n_rows
        if first_row >= stop or end_row <= start:
            continue
        if not group_ords:
            row = first_row
        group_ords.append(group_ord)
        row_bytes = max(row_bytes, group.n_bytes // max(group.n_rows, 1))
    n_batch_rows = min(max(max_bytes // row_bytes, 1), _MAX_BATCH_RECORDS)
    with _open_parquet(file, lambda: f"{name} row {max(row, start)}") as table:
        batches = table.iter_batches(n_batch_rows, row_groups=group_ords, use_threads=False)
        for batch in batches:
            n_skipped = max(start - row, 0)
            records = batch.slice(n_skipped, stop - row - n_skipped).to_pylist()
            if records:
                numbered = enumerate(records, row + n_skipped)
                yield [(f"{name} row {row_number}", record) for row_number, record in numbered]
            row += batch.num_rows
            if row >= stop:
                return


@contextmanager
def _open_parquet(
    file: BinaryIO,
    location: Callable[[], str],
) -> Iterator[Any]:
    """Yield an open Parquet file; convert errors of its content to an `InvalidRequestError`.

    Args:
        file: the file.
        location: returns the location for the error, as ``a.parquet row 3``; called only after an
            error.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InvalidRequestError(f"Parquet needs pyarrow: {to_install('data')}") from None
    try:
        # Without these options row groups, which can be large, are read at once.
        with pyarrow.parquet.ParquetFile(file, buffer_size=BUFFER_BYTES, pre_buffer=False) as table:
            yield table
    except (pyarrow.ArrowException, OSError, OverflowError, ValueError) as error:
        # Errors of the operating system or a store have a number; errors of Arrow and of conversion
        # do not.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InvalidRequestError(f"must be Parquet: {error}", location()) from None
