"""Decode text files and web pages, and recognize binary files."""

from __future__ import annotations

import codecs
import re
from contextlib import suppress
from typing import Final

PROBED_BYTES: Final = 8192
"""A file with a NUL among this number of first bytes is binary, as in git, except in UTF-16 and
UTF-32."""
FALLBACK_ENCODING: Final = "cp1252"
"""Windows-1252, the most frequent of the older encodings, for files that are not UTF-8."""

_PRESCANNED_BYTES: Final = 1024
"""Number of first bytes in which a web page may declare its encoding, as in the HTML standard."""
_DECLARED_CHARSET: Final = re.compile(
    rb"""<meta\s[^>]*?charset\s*=\s*["']?\s*([-\w.:]+)""", re.IGNORECASE
)
_PAGE_ENCODINGS: Final = frozenset(
    """
    big5 big5hkscs cp1250 cp1251 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258 cp866 cp874 cp932 cp949 euc_jp
    euc_kr gb18030 gb2312 gbk iso2022_jp iso8859-10 iso8859-13 iso8859-14 iso8859-15 iso8859-16
    iso8859-2 iso8859-3 iso8859-4 iso8859-5 iso8859-6 iso8859-7 iso8859-8 iso8859-9 koi8-r koi8-u
    mac-cyrillic mac-roman shift_jis tis-620
    """.split()
)
"""Python's names of the encodings that a web page may declare, except UTF-8 and UTF-16, and
Windows-1252 and ISO 8859-1, which many pages in UTF-8 declare by mistake."""
_ENCODINGS_BY_MARK: Final = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",  # begins with the mark of UTF-16
    codecs.BOM_UTF32_BE: "utf-32",
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


def decode_page(content: bytes) -> str:
    """Decode a web page by its byte-order mark, by the encoding that it declares, or as `decode`.

    Source: https://html.spec.whatwg.org/multipage/parsing.html#determining-the-character-encoding,
    simplified: a declaration of an encoding that is not in `_PAGE_ENCODINGS` is ignored.
    """
    declaration = _DECLARED_CHARSET.search(content[:_PRESCANNED_BYTES])
    if declaration is not None and encoding_of(content) == "utf-8":
        with suppress(LookupError):
            codec = codecs.lookup(declaration[1].decode("ascii"))
            if codec.name in _PAGE_ENCODINGS:
                return content.decode(codec.name, "replace")
    return decode(content) or ""
