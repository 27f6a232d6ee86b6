"""Decode text files in any encoding, and recognize binary files."""

from __future__ import annotations

import codecs
from contextlib import suppress
from typing import Final

PROBED_BYTES: Final = 8192
"""A file with a NUL among this number of first bytes is binary, as in git, except in UTF-16."""
FALLBACK_ENCODING: Final = "cp1252"
"""Windows-1252, the most frequent of the older encodings, for files that are not UTF-8."""

_ENCODINGS_BY_MARK: Final = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


def encoding_of(content: bytes) -> str | None:
    """Return the encoding that a byte-order mark names; without a mark, "utf-8".

    None means that the file is binary.
    """
    for mark, encoding in _ENCODINGS_BY_MARK.items():
        if content.startswith(mark):
            return encoding
    return None if b"\0" in content[:PROBED_BYTES] else "utf-8"


def decode(content: bytes) -> str | None:
    """Decode a text file by its byte-order mark, as UTF-8, or else as `FALLBACK_ENCODING`.

    Returns:
        The text, in which U+FFFD replaces bytes that cannot be decoded; None if the file is binary.
    """
    encoding = encoding_of(content)
    if encoding is None:
        return None
    if encoding == "utf-8":
        with suppress(UnicodeDecodeError):
            return content.decode()
        encoding = FALLBACK_ENCODING
    return content.decode(encoding, "replace")
