"""Write named arrays to one file, with settings and a checksum, and map them back without copying.

The file, all numbers little-endian::

    8 bytes   magic, "RelGenIx"
    4 bytes   format version
    4 bytes   CRC-32 of everything that follows
    8 bytes   length of the header
    header    JSON: settings, and for each array its name, type, shape,
              and offset from the header's end
    arrays    in the header's order, each at the next multiple of 64 bytes

The file has only numbers and JSON, no code.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.arrays import Bytes, batch_slices
from relevance_gen.checks import is_integer
from relevance_gen.errors import IndexFormatError

Array: TypeAlias = npt.NDArray[Any]
Types: TypeAlias = Mapping[str, str]
"""The numpy type of each array of a file, in the file's order."""

MAGIC: Final = b"RelGenIx"
VERSION: Final = 7
PREAMBLE: Final = struct.Struct("<8sIIQ")
"""What precedes the header: magic, format version, checksum and length of the header."""
_ALIGNMENT_BYTES: Final = 64
_CRC_OFFSET: Final = 12
_CRC_END: Final = 16
_CRC_BATCH_BYTES: Final = 1 << 20


@frozen(eq=False)
class StoredArrays:
    """The content of a file of arrays.

    Attributes:
        settings: the settings.
        arrays: the arrays by name, views of the file's bytes.
    """

    settings: Mapping[str, Any]
    arrays: Mapping[str, Array]


class Writer:
    """Writes arrays to a file in batches; the batches of several arrays can alternate.

    Writing starts at the file's current position. `seal` completes the file.

    Args:
        file: a file open for reading and writing.
        types: names and types of the arrays.
        settings: JSON values to store in the header of the file; the key ``arrays`` is reserved.
        sizes: number of elements of each array.
    """

    def __init__(
        self,
        file: BinaryIO,
        types: Types,
        settings: Mapping[str, Any],
        sizes: Mapping[str, int],
    ) -> None:
        self._file = file
        self._types = types
        self._start = file.tell()
        layout = _layout(types, sizes)
        header = json.dumps({**settings, "arrays": layout}).encode("ascii")
        header += b" " * (-(PREAMBLE.size + len(header)) % _ALIGNMENT_BYTES)
        # `seal` writes the checksum.
        file.write(PREAMBLE.pack(MAGIC, VERSION, 0, len(header)) + header)
        body = file.tell()
        self._offsets = {name: body + layout[name]["offset"] for name in types}
        last = list(types)[-1]
        self.end = self._offsets[last] + _stored_bytes(sizes[last], types[last])
        if self.end > body:
            file.seek(self.end - 1)
            file.write(b"\0")

    def extend(
        self,
        name: str,
        values: Array,
    ) -> None:
        """Write the next elements of the array with this name, converted to its type."""
        array = np.ascontiguousarray(values, self._types[name])
        if array.size:
            self._file.seek(self._offsets[name])
            self._file.write(array.data.cast("B"))
            self._offsets[name] += array.nbytes

    def seal(self) -> None:
        """Read what was written, and write its checksum; call this after the last `extend`."""
        self._file.seek(self._start + _CRC_END)
        crc = 0
        while batch := self._file.read(_CRC_BATCH_BYTES):
            crc = zlib.crc32(batch, crc)
        self._file.seek(self._start + _CRC_OFFSET)
        self._file.write(crc.to_bytes(4, "little"))


def write(
    file: BinaryIO,
    types: Types,
    settings: Mapping[str, Any],
    arrays: Mapping[str, Array],
) -> Writer:
    """Write the arrays that `types` names, and return the `Writer`, not yet sealed.

    Args:
        file: a file open for reading and writing.
        types: names and types of the arrays, in the order of the file.
        settings: JSON values to store in the header of the file; the key ``arrays`` is reserved.
        arrays: at least the arrays that `types` names.
    """
    sizes = {name: arrays[name].size for name in types}
    writer = Writer(file, types, settings, sizes)
    for name in types:
        writer.extend(name, arrays[name])
    return writer


def map_file(file: BinaryIO) -> Bytes:
    """Return the memory-mapped content of a file, which remains valid after the file is closed."""
    file.flush()
    if not os.fstat(file.fileno()).st_size:  # an empty file cannot be mapped
        return np.zeros(0, np.uint8)
    mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(mapped, np.uint8)


def is_index_or_empty(path: Path) -> bool:
    """Return whether a file was written by `write`, in any format version, or is empty."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) in (MAGIC, b"")


def _layout(
    types: Types,
    sizes: Mapping[str, int],
) -> dict[str, Any]:
    """Return the description of arrays for the header of a file, by the names of the arrays.

    Each description has the keys ``type``, ``shape`` and ``offset``; the offset is in bytes from
    the header's end.

    Args:
        types: names and types of the arrays.
        sizes: number of elements of each array.
    """
    layout = {}
    offset = 0
    for name, dtype in types.items():
        layout[name] = {"type": dtype, "shape": [sizes[name]], "offset": offset}
        offset += _stored_bytes(sizes[name], dtype)
    return layout


def _stored_bytes(size: int, dtype: str) -> int:
    """Return the bytes of an array, rounded up to a multiple of 64 to align the next array."""
    n_bytes = size * np.dtype(dtype).itemsize
    return n_bytes + -n_bytes % _ALIGNMENT_BYTES


def check(
    content: Bytes,
    name: object,
    *,
    verify_checksum: bool = True,
) -> None:
    """Check that the content of a file is an index of this format version.

    Args:
        content: the bytes of the file.
        name: name of the file for errors.
        verify_checksum: whether to read the whole content and compare its checksum.

    Raises:
        IndexFormatError: the content is of another kind or version, or damaged.
    """
    if content.size < PREAMBLE.size:
        raise IndexFormatError(f"{name} is not a saved index: it is too short")
    magic, version, checksum, _ = PREAMBLE.unpack_from(content.data)
    if magic != MAGIC:
        raise IndexFormatError(f"{name} is not a saved index: its first bytes are not {MAGIC!r}")
    if version != VERSION:
        raise IndexFormatError(
            f"{name} has format version {version}, but this version of relevance_gen reads {VERSION}; build it again"
        )
    if not verify_checksum:
        return
    crc = 0
    rest = content[_CRC_END:]
    for batch in batch_slices(rest.size, _CRC_BATCH_BYTES):
        crc = zlib.crc32(rest[batch].data, crc)
    if crc != checksum:
        raise IndexFormatError(f"{name} is damaged: its checksum does not match; build it again")


def read(content: Bytes, types: Types) -> StoredArrays:
    """Return the settings and arrays of a file; the arrays are views of `content`.

    This function does not compare the magic, the format version and the checksum; see `check`.

    Args:
        content: the bytes of the file.
        types: names and types of the arrays, as they were passed to `write`.

    Raises:
        TypeError, ValueError, LookupError: the header differs from what `write` writes.
    """
    *_, header_bytes = PREAMBLE.unpack_from(content.data)
    body = PREAMBLE.size + header_bytes
    settings = json.loads(content[PREAMBLE.size : body].tobytes())
    layout = settings["arrays"]
    del settings["arrays"]
    sizes = {name: layout[name]["shape"][0] for name in types}
    has_sizes = all(map(is_integer, sizes.values()))
    # Compared as JSON, because in Python False == 0 and 1.0 == 1.
    if not has_sizes or json.dumps(layout) != json.dumps(_layout(types, sizes)):
        raise ValueError("the layout of its arrays is not as this library writes it")
    arrays: dict[str, Array] = {}
    for name, dtype in types.items():
        offset = body + layout[name]["offset"]
        arrays[name] = np.ndarray(sizes[name], dtype, content.data, offset)
    return StoredArrays(settings, arrays)
