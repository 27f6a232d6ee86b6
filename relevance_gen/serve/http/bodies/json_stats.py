"""Size estimates of JSON: upper bounds on values and memory, computed before parsing."""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np
from attrs import frozen

_BYTES_PER_MARK = {b"[": 128, b"{": 256, b",": 80, b":": 160}
"""Maximum memory in Python for each structural character: of a list, an object, an item, a field.

The text of strings is counted separately.
"""
_OTHER_BYTES = bytes(set(range(256)) - set(b"[{,:"))

_MAX_RATIO = 4
"""If the first estimate exceeds this ratio of bytes to bytes of text, the second one follows."""

_BLOCK_BYTES = 1 << 20
_NO_BACKSLASH = re.compile(rb"[^\\]")


@frozen
class JsonStats:
    """Upper bounds for parsing one JSON text.

    Attributes:
        n_values: number of JSON values.
        parsed_bytes: memory of the parsed values.
        peak_bytes: memory during parsing: the parsed values and temporary objects, without the
            text itself.
    """

    n_values: int
    parsed_bytes: int
    peak_bytes: int


def measure_json(text: bytes, max_values: int) -> JsonStats:
    """Return upper bounds for the values and the memory of the JSON `text`.

    The first estimate also counts structural characters in strings, which is fast. If it is high
    in relation to the text, or exceeds `max_values`, a second estimate counts only the structural
    characters outside strings, which takes a few milliseconds per MiB.
    """
    marks = text.translate(None, _OTHER_BYTES)
    if _n_values(marks) > max_values or _marks_bytes(marks) > _MAX_RATIO * len(text):
        marks = b"".join(_marks_outside_strings(text))
    # Bytes per character: 1 in a string of ASCII, at most 4 in any other.
    char_bytes = 1 if text.isascii() and b"\\u" not in text else 4
    # During parsing the whole text is one string; the parsed strings are not longer.
    text_bytes = char_bytes * len(text)
    parsed_bytes = text_bytes + _marks_bytes(marks)
    return JsonStats(_n_values(marks), parsed_bytes, parsed_bytes + text_bytes)


def _n_values(marks: bytes) -> int:
    """Return an upper bound on the number of JSON values: 1, plus 1 per ``[``, ``{`` and ``,``.

    An empty container counts as if it had one value. `marks` are the structural characters of a
    JSON text.
    """
    return 1 + marks.count(b",") + marks.count(b"[") + marks.count(b"{")


def _marks_bytes(marks: bytes) -> int:
    return sum(n_bytes * marks.count(mark) for mark, n_bytes in _BYTES_PER_MARK.items())


def _marks_outside_strings(text: bytes) -> Iterator[bytes]:
    """Yield the structural characters outside strings, block by block.

    Other threads can run between two blocks.
    """
    start = 0
    is_in_string = 0
    while start < len(text):
        # Do not split a backslash from the character that it escapes.
        block_end = _NO_BACKSLASH.search(text, min(len(text), start + _BLOCK_BYTES) - 1)
        end = block_end.end() if block_end else len(text)
        block = text[start:end]
        if b"\\" in block:
            block = block.replace(rb"\\", b"  ").replace(rb"\"", b"  ")
        # (n,) uint8: the bytes of the block
        array = np.frombuffer(block, np.uint8)
        # (n,) uint8: number of quotes up to each byte, modulo 256; odd inside a string
        quoted = np.cumsum(array == ord('"'), dtype=np.uint8)
        quoted += np.uint8(is_in_string)
        quoted &= 1
        is_in_string = int(quoted[-1])
        yield array[quoted == 0].tobytes().translate(None, _OTHER_BYTES)
        start = end
