"""What a JSON text is made of, found before it is parsed: parsing then has a known cost."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from attrs import frozen

_BYTES_PER_MARK = {b"[": 128, b"{": 256, b",": 80, b":": 160}
"""What Python needs at most for each mark of JSON, beside the text itself: a list, an object, an item, a field."""
_NO_MARKS = bytes(set(range(256)) - set(b"[{,:"))

_DENSE = 4
"""A text whose marks seem to need more than this many bytes for each of its own is looked at more closely."""

_BLOCK_BYTES = 1 << 20
_NO_BACKSLASH = re.compile(rb"[^\\]")


@frozen
class JsonStats:
    """Upper bounds of what parsing one text makes: values of JSON, their memory, and that of parsing at its peak.

    The peak has the values in it, and not the text itself.
    """

    n_values: int
    kept_bytes: int
    peak_bytes: int


def shape_of(text: bytes, most_values: int) -> JsonStats:
    """Return the bounds of the JSON `text`.

    All marks are counted, those in strings too, which is quick. Only where that looks dense, or like more than
    `most_values`, the marks outside strings are counted, which is exact and takes a few milliseconds for each MiB.
    """
    marks = text.translate(None, _NO_MARKS)
    if _n_values(marks) > most_values or _marks_bytes(marks) > _DENSE * len(text):
        marks = b"".join(_marks_outside_strings(text))
    widest = 1 if text.isascii() and b"\\u" not in text else 4  # bytes of a character
    # All of it is one string while it is parsed, and then, at most, the strings in it.
    kept_bytes = widest * len(text) + _marks_bytes(marks)
    return JsonStats(_n_values(marks), kept_bytes, kept_bytes + widest * len(text))


def _n_values(marks: bytes) -> int:
    """Every value is the first of all, or the first of its container, or follows a comma."""
    return 1 + marks.count(b",") + marks.count(b"[") + marks.count(b"{")


def _marks_bytes(marks: bytes) -> int:
    return sum(n_bytes * marks.count(mark) for mark, n_bytes in _BYTES_PER_MARK.items())


def _marks_outside_strings(text: bytes) -> Iterator[bytes]:
    """Yield the marks outside strings, block by block, so that other threads go on in between."""
    start, inside = 0, 0
    while start < len(text):
        end = min(len(text), start + _BLOCK_BYTES)
        # No block ends between a backslash and what it escapes.
        found = _NO_BACKSLASH.search(text, end - 1)
        end = found.end() if found else len(text)
        block = text[start:end]
        if b"\\" in block:
            block = block.replace(rb"\\", b"  ").replace(rb"\"", b"  ")
        array = np.frombuffer(block, np.uint8)
        # The number of quotes up to a byte is odd inside a string; sums that wrap at 256 stay odd or even.
        quoted = np.cumsum(array == ord('"'), dtype=np.uint8)
        quoted += np.uint8(inside)
        quoted &= 1
        inside = int(quoted[-1])
        yield array[quoted == 0].tobytes().translate(None, _NO_MARKS)
        start = end
