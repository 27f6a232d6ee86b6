"""Make text of the bytes of a file, in any encoding, and never of a binary by mistake."""

from __future__ import annotations

import codecs
from typing import Final

_PROBED_BYTES: Final = 8192
"""A NUL among so many first bytes makes a file binary: git's rule."""

_BYTE_ORDER_MARKS: Final = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def decode(content: bytes) -> str | None:
    """Decode the content of a text file; ``None`` if it is binary.

    By its byte-order mark, else as UTF-8, else as Windows-1252, the most frequent of the older encodings: words in it
    come out right, and words in another are unreadable with either.
    """
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if content.startswith(mark):
            return content.decode(encoding, "replace")
    if b"\0" in content[:_PROBED_BYTES]:
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("cp1252", "replace")
