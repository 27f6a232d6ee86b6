"""Read records out of a file that somebody has opened, wherever it lies: JSON lines, packed or not, and Parquet.

Records come in batches, so that little is in memory at once; each comes with the words for where it stands.
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
from typing import Any, BinaryIO, Final, Literal, TypeAlias

from relevance_gen.errors import InvalidRequestError, to_install

Batch: TypeAlias = list[tuple[str, Any]]
"""Records that are held together, each with the words for where it stands: at most 256, and fewer large ones."""

KINDS: Final = "JSON lines (.jsonl or .ndjson, also .gz and .zst), Parquet (.parquet)"
BUFFER_BYTES: Final = 1 << 20
"""How much of a file is read at once."""
_MOST_TOGETHER: Final = 256
_ZSTD_STEP: Final = 512
"""Bytes of Zstandard that are undone together: 4 may become 128 KiB, so at most 16 MiB come out."""


def kind_of(name: str) -> tuple[Literal["lines", "parquet"] | None, str]:
    """Return what the name of a file says that it holds, None for no records, and how that is packed."""
    name = name.lower()
    packing = next((one for one in (".gz", ".zst") if name.endswith(one)), "")
    if name.removesuffix(packing).endswith((".jsonl", ".ndjson")):
        return "lines", packing
    return "parquet" if name.endswith(".parquet") else None, packing


# ── JSON lines ───────────────────────────────────────────────────────────────────────────────────────────────────────


def lines(
    file: BinaryIO,
    name: str,
    longest: int,
    packing: str = "",
    start: int = 0,
    stop: int = sys.maxsize,
) -> Iterator[Batch]:
    """Yield what the lines of a file hold, or those that begin at a byte in [start, stop) of one that is not packed.

    A line may have `longest` bytes, and so may the lines of a batch together. The file's `readline` has to take a
    limit; nothing of it is held but a few blocks.

    Raises:
        InvalidRequestError: the file is damaged, or a line is too long or no JSON; what stands before was yielded.
        OSError: the file cannot be read.
    """
    batch: Batch = []
    n_bytes = 0
    try:
        for place, line in _raw_lines(_unpacked(file, packing), name, longest, start, stop):
            if batch and (len(batch) == _MOST_TOGETHER or n_bytes + len(line) > longest):
                yield batch
                batch, n_bytes = [], 0
            batch.append((place, _parsed(line, place)))
            n_bytes += len(line)
    except InvalidRequestError:
        yield batch
        raise
    if batch:
        yield batch


def _raw_lines(
    content: Any, name: str, longest: int, start: int, stop: int
) -> Iterator[tuple[str, bytes]]:
    """Yield the lines that are not blank."""
    at = start
    if start:  # the line before may end here
        at = content.seek(start - 1)
        while at < stop and (part := content.readline(longest)):
            at += len(part)
            if part.endswith(b"\n"):
                break
    for number in itertools.count(1):
        place = f"{name} line at byte {at}" if start else f"{name} line {number}"
        try:
            line = content.readline(longest + 1) if at < stop else b""
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise InvalidRequestError(f"is damaged or cut short: {error}", place) from None
        if len(line) > longest:
            raise InvalidRequestError(f"must be at most {longest:,} bytes long", place)
        if not line:
            return
        if line.strip():
            yield place, line
        at += len(line)


def _parsed(line: bytes, place: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InvalidRequestError(f"must be JSON: {error}", place) from None


def _unpacked(file: Any, packing: str) -> Any:
    """Return what a file holds, as a file."""
    if packing == ".gz":
        return gzip.open(file)
    return io.BufferedReader(_Zstandard(file), BUFFER_BYTES) if packing == ".zst" else file


class _Zstandard(io.RawIOBase):
    """What a file of Zstandard frames holds."""

    def __init__(self, file: BinaryIO) -> None:
        try:
            import zstandard
        except ImportError:
            raise InvalidRequestError(f".zst needs zstandard: {to_install('data')}") from None
        self._file, self._frames, self._error = (
            file,
            zstandard.ZstdDecompressor(),
            zstandard.ZstdError,
        )
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


# ── Parquet ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def row_groups(file: BinaryIO, name: str) -> list[tuple[int, int]]:
    """Return of each row group of a Parquet file how many rows it has, and how many bytes they are unpacked.

    Raises:
        InvalidRequestError: it is no Parquet, which the error calls `name`; or pyarrow is not installed.
    """
    with _parquet(file, lambda: name) as table:
        groups = map(table.metadata.row_group, range(table.metadata.num_row_groups))
        return [(group.num_rows, group.total_byte_size) for group in groups]


def rows(
    file: BinaryIO, name: str, most_bytes: int, start: int = 0, stop: int = sys.maxsize
) -> Iterator[Batch]:
    """Yield the rows of a Parquet file, or those in [start, stop), about so many bytes of them together at most.

    Row groups without any of these are not read; of the first that has some, the rows before are read and dropped.

    Raises:
        InvalidRequestError: as for `row_groups`, or a row has what Python cannot hold; the error names the first
            that was read with it.
        OSError: the file cannot be read.
    """
    groups = row_groups(file, name)
    firsts = list(itertools.accumulate((n_rows for n_rows, _ in groups), initial=0))
    wanted = [one for one in range(len(groups)) if firsts[one] < stop and firsts[one + 1] > start]
    row_bytes = max((groups[one][1] // max(groups[one][0], 1) for one in wanted), default=0)
    together = min(max(most_bytes // max(row_bytes, 1), 1), _MOST_TOGETHER)
    at = firsts[wanted[0]] if wanted else start
    with _parquet(file, lambda: f"{name} row {max(at, start)}") as table:
        for read in table.iter_batches(together, row_groups=wanted, use_threads=False):
            skipped = max(start - at, 0)
            values = read.slice(skipped, stop - at - skipped).to_pylist()
            if values:
                yield [
                    (f"{name} row {number}", row) for number, row in enumerate(values, at + skipped)
                ]
            at += read.num_rows
            if at >= stop:
                return


@contextmanager
def _parquet(file: BinaryIO, place: Callable[[], str]) -> Iterator[Any]:
    """Open a Parquet file; an error of what is wrong in it names the place, where reading it is then."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InvalidRequestError(f"Parquet needs pyarrow: {to_install('data')}") from None
    try:
        # Row groups may be large: without these options they are read whole.
        with pyarrow.parquet.ParquetFile(file, buffer_size=BUFFER_BYTES, pre_buffer=False) as table:
            yield table
    except (
        pyarrow.ArrowException,
        OSError,
        OverflowError,
        ValueError,
    ) as error:  # and values that Python lacks
        if (
            isinstance(error, OSError) and error.errno is not None
        ):  # of the system or a store, and not of Arrow
            raise
        raise InvalidRequestError(f"must be Parquet: {error}", place()) from None
