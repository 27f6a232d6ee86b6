"""Write named arrays to one file, with settings and a checksum, and read them back where they lie.

The file, all numbers little-endian::

    8 bytes   magic, "RelGenIx"
    4 bytes   format version
    4 bytes   CRC-32 of everything that follows
    8 bytes   length of the header
    header    JSON: settings, and for each array its name, type, shape and offset behind the header's end
    arrays    in the header's order, each at the next multiple of 64 bytes

Nothing in it is code: numbers and JSON.
"""

from __future__ import annotations

import json
import mmap
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from relevance_gen.arrays import batch_slices
from relevance_gen.checks import is_integer
from relevance_gen.errors import IndexFormatError

Types: TypeAlias = Mapping[str, str]
"""The arrays of a file, in their order, and their numpy types."""

MAGIC: Final = b"RelGenIx"
PREFIX_BYTES: Final = 24
VERSION: Final = 6
_ALIGNMENT: Final = 64
_CRC_AT: Final = 12
_CRC_STEP: Final = 1 << 20


class Writer:
    """Writes arrays to a file: each from its beginning to its end, in parts, while others are written, too.

    The file is open for reading and writing; what is written begins where it stands, and `seal` ends it. The settings
    are JSON, none of it called ``arrays``, and the sizes numbers of elements.
    """

    def __init__(
        self, file: BinaryIO, types: Types, settings: Mapping[str, Any], sizes: Mapping[str, int]
    ) -> None:
        self._file, self._types, self._start = file, types, file.tell()
        layout = _layout(types, sizes)
        header = json.dumps({**settings, "arrays": layout}).encode("ascii")
        header += b" " * (-(PREFIX_BYTES + len(header)) % _ALIGNMENT)
        file.write(
            MAGIC
            + VERSION.to_bytes(4, "little")
            + bytes(4)
            + len(header).to_bytes(8, "little")
            + header
        )
        body = file.tell()
        self._at = {name: body + layout[name]["offset"] for name in types}
        last = list(types)[-1]
        self.end = self._at[last] + padded(sizes[last] * np.dtype(types[last]).itemsize)
        if self.end > body:
            file.seek(self.end - 1)
            file.write(b"\0")

    def extend(self, name: str, values: npt.NDArray[Any]) -> None:
        """Write some more elements of an array."""
        array = np.ascontiguousarray(values, self._types[name])
        if array.size:
            self._file.seek(self._at[name])
            self._file.write(array.data.cast("B"))
            self._at[name] += array.nbytes

    def seal(self) -> None:
        """Write the checksum of all that is written, for which it is read."""
        self._file.seek(self._start + _CRC_AT + 4)
        crc = 0
        while part := self._file.read(_CRC_STEP):
            crc = zlib.crc32(part, crc)
        self._file.seek(self._start + _CRC_AT)
        self._file.write(crc.to_bytes(4, "little"))


def write(
    file: BinaryIO,
    types: Types,
    settings: Mapping[str, Any],
    arrays: Mapping[str, npt.NDArray[Any]],
) -> Writer:
    """Write the arrays that `types` names; the arguments are those of `Writer`, which is returned unsealed."""
    writer = Writer(file, types, settings, {name: arrays[name].size for name in types})
    for name in types:
        writer.extend(name, arrays[name])
    return writer


def map_file(file: BinaryIO) -> npt.NDArray[np.uint8]:
    """Return what is written to a file, mapped into memory; it stays when the file is closed."""
    file.flush()
    if not file.tell():  # nothing was written, and nothing can be mapped
        return np.zeros(0, np.uint8)
    return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ), np.uint8)


def is_index_or_empty(path: Path) -> bool:
    """Tell whether a file is one that `write` wrote, whatever the version, or empty."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) in (MAGIC, b"")


def _layout(types: Types, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return what the header says of arrays of these sizes."""
    layout, offset = {}, 0
    for name, kind in types.items():
        layout[name] = {"type": kind, "shape": [sizes[name]], "offset": offset}
        offset += padded(sizes[name] * np.dtype(kind).itemsize)
    return layout


def padded(n_bytes: int) -> int:
    """Return how many bytes an array of so many takes with those behind it, so that the next one is aligned."""
    return n_bytes + -n_bytes % _ALIGNMENT


def check(content: npt.NDArray[np.uint8], name: object, *, content_too: bool = True) -> None:
    """Check that a file is one of these, of this version, and, with its content too, as it was written.

    Raises:
        IndexFormatError: it is not; the error calls it `name`.
    """
    if content[:8].tobytes() != MAGIC:
        raise IndexFormatError(f"{name} is not a saved index: it does not begin as one")
    version = int.from_bytes(content[8:_CRC_AT].tobytes(), "little")
    if version != VERSION:
        raise IndexFormatError(
            f"{name} has format version {version}, and this version of relevance_gen reads {VERSION}; build it again"
        )
    if content_too:
        crc, rest = 0, content[_CRC_AT + 4 :]
        for some in batch_slices(rest.size, _CRC_STEP):
            crc = zlib.crc32(rest[some].data, crc)
        if crc != int.from_bytes(content[_CRC_AT : _CRC_AT + 4].tobytes(), "little"):
            raise IndexFormatError(
                f"{name} is damaged: its checksum does not match; build it again"
            )


def read(content: npt.NDArray[np.uint8], types: Types) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the header, and the arrays of the file in their places.

    Raises:
        TypeError, ValueError, LookupError: the header is not as `write` writes it.
    """
    header_bytes = int.from_bytes(content[_CRC_AT + 4 : PREFIX_BYTES].tobytes(), "little")
    body = PREFIX_BYTES + header_bytes
    header = json.loads(content[PREFIX_BYTES:body].tobytes())
    layout = header["arrays"]
    sizes = {name: layout[name]["shape"][0] for name in types}
    # Compared as JSON, because Python says that False == 0 and 1.0 == 1.
    if not all(map(is_integer, sizes.values())) or json.dumps(layout) != json.dumps(
        _layout(types, sizes)
    ):
        raise ValueError("its arrays do not lie as they are written")
    return header, {
        name: np.ndarray(sizes[name], kind, content.data, body + layout[name]["offset"])
        for name, kind in types.items()
    }
