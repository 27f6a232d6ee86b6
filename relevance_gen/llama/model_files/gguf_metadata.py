"""Read the metadata of GGUF files without llama.cpp.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
"""

from __future__ import annotations

import mmap
import struct
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from attrs import define

_HEADER: Final = "4sIQQ"
"""Format of the header: magic, version, number of tensors, number of metadata values."""
_FORMATS: Final = dict(enumerate("BbHhIif?")) | dict(enumerate("Qqd", start=10))
"""Types of numbers to their formats in `struct`."""
_STRING: Final = 8
_ARRAY: Final = 9


@lru_cache(maxsize=64)
def read_metadata(path: Path, modified_ns: int) -> dict[str, Any]:  # noqa: ARG001
    """Return the numbers, flags and strings in the metadata of a GGUF file; arrays are left out.

    Args:
        path: the file, or the first part of it.
        modified_ns: the file's modification time in nanoseconds, a part of the cache's key.

    Returns:
        The values by key; empty if the file is not a complete GGUF file.
    """
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return _Reader(content).read()
    except (KeyError, OSError, ValueError, struct.error):
        return {}


@define
class _Reader:
    content: mmap.mmap
    offset: int = 0

    def read(self) -> dict[str, Any]:
        _, _, _, n_values = self._unpack(_HEADER)
        metadata = {}
        for _ in range(n_values):
            key = self._string()
            (kind,) = self._unpack("I")
            if kind == _ARRAY:
                self._skip_array()
            else:
                metadata[key] = self._value(kind)
        return metadata

    def _unpack(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(f"<{layout}", self.content, self.offset)
        self.offset += struct.calcsize(f"<{layout}")
        return values

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        (value,) = self._unpack(_FORMATS[kind])
        return value

    def _string(self) -> str:
        (n_bytes,) = self._unpack("Q")
        text = self.content[self.offset : self.offset + n_bytes]
        self.offset += n_bytes
        return text.decode(errors="replace")

    def _skip_array(self) -> None:
        kind, n_items = self._unpack("IQ")
        if kind in _FORMATS:
            self.offset += n_items * struct.calcsize(f"<{_FORMATS[kind]}")
            return
        for _ in range(n_items):
            self._skip_array() if kind == _ARRAY else self._string()
