"""Cut a long text into chunks to search: at paragraphs and sentences, never inside a word unless it must be."""

from __future__ import annotations

import bisect
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property

from relevance_gen.checks import check_integer
from relevance_gen.errors import InvalidRequestError
from relevance_gen.text.sentences import sentence_ends
from relevance_gen.text.token_counting import Encoding, token_counter

_PARAGRAPH = re.compile(r"\n[^\S\n]*\n")
_LINE = re.compile(r"\n")
_SPACE = re.compile(r"\s")

_TEXT = re.compile(r"\S")
_WORD_START = re.compile(r"(?<=\s)\S")
_LONGEST_CLUSTER = 32
"""Most code points of one visible character; a longer one is cut."""
_MAX_CHARS = 1000
_LONGEST_SENTENCE = 500
_CHARS_PER_TOKEN = 4
"""Where the search for the length of a chunk of so many tokens begins."""


def split(
    text: str,
    max_chars: int | None = None,
    *,
    overlap: int = 0,
    tokens: int | None = None,
    encoding: Encoding | None = None,
) -> list[str]:
    r"""Cut `text` into chunks of at most `max_chars` characters, or of at most so many tokens.

    Each chunk ends at the last end of a paragraph in its second half; if there is none, at the last end of a sentence
    behind its first quarter; then at the last end of a line or of a word in its second half, and only else at
    `max_chars`. No character is lost but white space between the chunks; the indentation of a chunk's first line
    stays. Takes time in proportion to the text.

    Args:
        text: any string; one of only white space gives no chunks.
        max_chars: most characters in a chunk, at least 1; 512 to 10,000 are sensible. By default 1,000, and with
            `tokens` no limit.
        overlap: most characters of the end of a chunk that the next repeats, from the beginning of a sentence where
            there is one, else of a word; at least 0. Left out where it would be more than half of the next.
        tokens: most tokens in a chunk, counted alone, at least 1. One visible character may have more.
        encoding: what tokens are counted in, as `token_counter` takes it.

    Raises:
        InvalidRequestError: an argument is not allowed; the error names it.

    >>> split("One sentence. Another one.\n\nA new paragraph.", max_chars=30)
    ['One sentence. Another one.', 'A new paragraph.']
    >>> split("one two three four five", max_chars=13, overlap=5)
    ['one two three', 'three four', 'four five']
    """
    return [
        text[start:end]
        for start, end in spans(text, max_chars, overlap=overlap, tokens=tokens, encoding=encoding)
    ]


def spans(
    text: str,
    max_chars: int | None = None,
    *,
    overlap: int = 0,
    tokens: int | None = None,
    encoding: Encoding | None = None,
) -> Iterator[tuple[int, int]]:
    """Yield the first position of each chunk of `text` and the one behind its last, by the rule of `split`."""
    if not isinstance(text, str):
        raise InvalidRequestError.must_be("text", "a string", text)
    if max_chars is None:
        max_chars = _MAX_CHARS if tokens is None else max(len(text), 1)
    max_chars, overlap = (
        check_integer("max_chars", max_chars, 1),
        check_integer("overlap", overlap, 0),
    )
    if tokens is None:
        return _spans(text, overlap, _Limit(max_chars))
    tokens = check_integer("tokens", tokens, 1)
    return _spans(text, overlap, _Limit(max_chars, tokens, token_counter(encoding).count))


def spans_of_tokens(
    text: str, tokens: int, count: Callable[[str], int]
) -> Iterator[tuple[int, int]]:
    """Yield those of chunks of at most so many tokens, at least 1, as `count` counts them, by the rule of `split`."""
    return _spans(text, 0, _Limit(max(len(text), 1), tokens, count))


def sentences(text: str, ends: Iterable[int] | None = None) -> Iterator[tuple[int, int]]:
    r"""Yield where each sentence of `text` begins and ends, without the white space between them.

    What is longer than 500 characters, as a table or a program may be, is cut as `split` cuts. They end at `ends`, as
    `sentence_ends` tells them, if these are given.

    >>> [" One. Two!\n\nA title"[start:end] for start, end in sentences(" One. Two!\n\nA title")]
    ['One.', 'Two!', 'A title']
    """
    first = 0
    for last in sentence_ends(text) if ends is None else ends:
        for start, end in _spans(text[first:last], 0, _Limit(_LONGEST_SENTENCE)):
            indented = text[first + start : first + end]
            yield first + end - len(indented.lstrip()), first + end
        first = last


class _Limit:
    """Chunks of at most so many characters, and of so many tokens where these are counted."""

    def __init__(
        self, max_chars: int, tokens: int = 0, count: Callable[[str], int] | None = None
    ) -> None:
        self._max_chars, self._tokens, self._count = max_chars, tokens, count
        self._n_chars = tokens * _CHARS_PER_TOKEN

    def size(self, text: str, start: int) -> int:
        """Return how many characters a chunk may have from `start` on: never too many, at most a 32nd too few."""
        if self._count is None:
            return self._max_chars
        most = min(self._max_chars, len(text) - start)
        fits, too_long, tried = 0, most + 1, min(self._n_chars, most)
        while too_long - fits > max(1, fits // 32):
            n = self._count(text[start : start + tried])
            guess = tried * self._tokens // max(n, 1)  # as many characters to a token as so far
            if n <= self._tokens:
                fits = tried
            else:
                too_long = tried
            if too_long > most:
                tried = min(max(guess, fits + 1), 2 * tried, most)
            else:
                margin = (too_long - fits) // 8
                tried = min(max(guess, fits + margin, fits + 1), too_long - margin, too_long - 1)
        self._n_chars = max(fits, 1)
        return self._n_chars

    def holds(self, chunk: str) -> bool:
        """Tell whether a chunk has few enough tokens, as it may have more than the longer text that was measured."""
        return self._count is None or self._count(chunk) <= self._tokens


def _spans(text: str, overlap: int, limit: _Limit) -> Iterator[tuple[int, int]]:
    breaks = _Breaks(text)
    end = written = 0  # of the chunk before, with and without the white space behind it
    while found := _TEXT.search(text, end):
        first = found.start()
        starts = [_start_of_line(text, end, first), first]
        if overlap and written:
            starts.insert(0, breaks.first_start(max(written - overlap, 0), written))
        for start in starts:
            size = limit.size(text, start)
            if first - start <= size // 2:
                chunk_end = breaks.last_end(start, size)
                while chunk_end > start + 1 and not limit.holds(text[start:chunk_end].rstrip()):
                    chunk_end = breaks.last_end(start, chunk_end - start - 1)
                if chunk_end > first:
                    break
        end = chunk_end
        written = start + len(text[start:end].rstrip())
        yield start, written


class _Breaks:
    """Where chunks of a text may begin and end."""

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def _sentences(self) -> list[int]:
        """Where sentences end; unknown until a chunk has to end before the text does."""
        return sentence_ends(self._text)

    def first_start(self, low: int, high: int) -> int:
        """Return where the first sentence begins between two positions, else a word, else the first character."""
        at = bisect.bisect_left(self._sentences, low)
        if self._sentences[at] < high:
            low = self._sentences[at]
        word = _WORD_START.search(self._text, low, high)
        if word:
            return word.start()
        return next((place for place in range(low, high) if _parts(self._text, place)), high)

    def last_end(self, start: int, max_chars: int) -> int:
        """Return the best end of a chunk that begins at `start` and has at most `max_chars` characters."""
        limit, middle = start + max_chars, start + max_chars // 2
        if limit >= len(self._text):
            return len(self._text)
        return (
            self._last(_PARAGRAPH, middle, limit)
            or self._last_sentence(start + max_chars // 4, limit)
            or self._last(_LINE, middle, limit)
            or self._last(_SPACE, middle, limit)
            or next(
                (
                    end
                    for end in range(limit, max(middle, limit - _LONGEST_CLUSTER), -1)
                    if _parts(self._text, end)
                ),
                limit,
            )
        )

    def _last(self, pattern: re.Pattern[str], low: int, limit: int) -> int:
        """Return where the last match between two positions ends, at most at the second; 0 if there is none."""
        # One character more, so that white space right behind a full chunk counts as its end.
        ends = [match.end() for match in pattern.finditer(self._text, low, limit + 1)]
        return min(ends[-1], limit) if ends else 0

    def _last_sentence(self, low: int, limit: int) -> int:
        """Return where the last sentence ends behind the first of two positions, at most at the second; 0 if none."""
        at = bisect.bisect_right(self._sentences, limit)
        return self._sentences[at - 1] if at and self._sentences[at - 1] > low else 0


def _start_of_line(text: str, previous_end: int, first: int) -> int:
    """Return the start of the line that holds the `first` character, if what stands between is an indentation."""
    line_start = text.rfind("\n", max(previous_end - 1, 0), first) + 1
    return line_start if line_start > 0 or previous_end == 0 else first


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
