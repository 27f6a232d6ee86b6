"""Cut a long text into chunks to search: at paragraphs where possible, never inside a word unless it must be."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from relevance_gen.checks import check_integer
from relevance_gen.errors import InvalidRequestError

_BREAKS = (
    re.compile(r"\n[^\S\n]*\n"),  # between paragraphs
    re.compile(r"\n"),
    re.compile(r"[.!?…؟।۔][\"'”’»)\]]*\s|[。！？．][」』”’）]*"),  # after a sentence
    re.compile(r"\s"),
)
"""Where a chunk may end, best first. The chunk ends where the match ends."""

_TEXT = re.compile(r"\S")
_LONGEST_CLUSTER = 32
"""Characters that one visible character may take up before it is cut all the same."""


def split(text: str, max_chars: int = 1000) -> list[str]:
    r"""Cut `text` into chunks of at most `max_chars` characters.

    Each chunk ends at the last end of a paragraph in its second half; if there is none, at the last end of a line,
    then of a sentence, then of a word, and only else at `max_chars`. No character is lost but white space between
    the chunks; the indentation of a chunk's first line stays. Takes time in proportion to the text.

    Args:
        text: any string; one of only white space gives no chunks.
        max_chars: most characters in a chunk, at least 1; 512 to 10,000 are sensible.

    Raises:
        InvalidRequestError: `text` is no string, or `max_chars` no positive integer.

    >>> split("One sentence. Another one.\n\nA new paragraph.", max_chars=30)
    ['One sentence. Another one.', 'A new paragraph.']
    """
    return [text[start:end] for start, end in spans(text, max_chars)]


def spans(text: str, max_chars: int = 1000) -> Iterator[tuple[int, int]]:
    """Yield the first position of each chunk of `text` and the one behind its last, by the rule of `split`."""
    if not isinstance(text, str):
        raise InvalidRequestError.must_be("text", "a string", text)
    check_integer("max_chars", max_chars, 1)
    return _spans(text, max_chars)


def _spans(text: str, max_chars: int) -> Iterator[tuple[int, int]]:
    end = 0
    while found := _TEXT.search(text, end):
        start = _start_of_chunk(text, end, found.start(), max_chars)
        end = _end_of_chunk(text, start, max_chars)
        yield start, start + len(text[start:end].rstrip())


def _start_of_chunk(text: str, previous_end: int, first: int, max_chars: int) -> int:
    """Return the start of the line that holds the `first` character, if what stands between is an indentation."""
    line_start = text.rfind("\n", max(previous_end - 1, 0), first) + 1
    starts_line = line_start > 0 or previous_end == 0
    return line_start if starts_line and first - line_start <= max_chars // 2 else first


def _end_of_chunk(text: str, start: int, max_chars: int) -> int:
    limit, middle = start + max_chars, start + max_chars // 2
    if limit >= len(text):
        return len(text)
    for pattern in _BREAKS:
        # One character more, so that white space right behind a full chunk counts as its end.
        ends = [min(match.end(), limit) for match in pattern.finditer(text, middle, limit + 1)]
        if ends:
            return ends[-1]
    return next((end for end in range(limit, max(middle, limit - _LONGEST_CLUSTER), -1) if _parts(text, end)), limit)


def _parts(text: str, position: int) -> bool:
    """Tell whether a cut at `position` leaves every visible character whole."""
    return not _extends(text[position]) and text[position - 1] != "\u200d"


def _extends(char: str) -> bool:
    """Tell whether `char` is part of the visible character before it: mark, joiner, skin tone, low surrogate."""
    return (
        unicodedata.category(char).startswith("M")
        or char == "\u200d"
        or "\U0001f3fb" <= char <= "\U0001f3ff"
        or "\udc00" <= char <= "\udfff"
    )
