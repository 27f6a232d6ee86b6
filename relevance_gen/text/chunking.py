"""Split a long text into chunks at paragraphs and sentences, and within words only if necessary."""

from __future__ import annotations

import bisect
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from attrs import define, field

from relevance_gen.checks import check_integer, string
from relevance_gen.forks import LazyAttribute
from relevance_gen.text.sentences import sentence_ends
from relevance_gen.text.token_counting import Encoding, token_counter

_PARAGRAPH: Final = re.compile(r"\n[^\S\n]*\n")
_LINE: Final = re.compile(r"\n")
_SPACE: Final = re.compile(r"\s")
_TEXT: Final = re.compile(r"\S")
_WORD_START: Final = re.compile(r"(?<=\s)\S")
_MAX_CLUSTER_CHARS: Final = 32
"""Maximum number of code points of one visible character that are kept together."""
_DEFAULT_MAX_CHARS: Final = 1000
_MAX_SENTENCE_CHARS: Final = 500
_CHARS_PER_TOKEN: Final = 4
"""Initial estimate of the ratio by which a limit in tokens is converted to characters."""


def split(
    text: str,
    max_chars: int | None = None,
    *,
    overlap: int = 0,
    tokens: int | None = None,
    encoding: Encoding | None = None,
) -> list[str]:
    r"""Return chunks of `text` with at most `max_chars` characters or `tokens` tokens each.

    Each chunk ends at the last end of a paragraph in its second half; if there is none, at the last
    end of a sentence after its first quarter; then at the last end of a line or of a word in its
    second half; otherwise at `max_chars`. Only white space between chunks is dropped; the
    indentation of a chunk's first line is kept. Takes time proportional to the length of the text.

    Args:
        text: any string; a text of only white space gives no chunks.
        max_chars: maximum number of characters in a chunk, at least 1; 512 to 10,000 are sensible.
            By default 1,000, and with `tokens` no limit.
        overlap: maximum number of characters from the end of a chunk that the next chunk repeats,
            from the beginning of a sentence if possible, otherwise of a word; at least 0. Nothing
            is repeated if it would be more than half of the next chunk.
        tokens: maximum number of tokens in a chunk, counted separately, at least 1. One visible
            character can have more.
        encoding: the encoding that counts tokens, as for `token_counter`.

    Raises:
        InvalidRequestError: an argument is not allowed; the error names it.

    >>> split("One sentence. Another one.\n\nA new paragraph.", max_chars=30)
    ['One sentence. Another one.', 'A new paragraph.']
    >>> split("one two three four five", max_chars=13, overlap=5)
    ['one two three', 'three four', 'four five']
    """
    chunk_spans = spans(text, max_chars, overlap=overlap, tokens=tokens, encoding=encoding)
    return [text[start:end] for start, end in chunk_spans]


def spans(
    text: str,
    max_chars: int | None = None,
    *,
    overlap: int = 0,
    tokens: int | None = None,
    encoding: Encoding | None = None,
) -> Iterator[tuple[int, int]]:
    """Yield the start and end offset in `text` of each chunk that `split` returns.

    Arguments and errors are as for `split`.
    """
    string.check("text", text)
    if max_chars is None:
        max_chars = _DEFAULT_MAX_CHARS if tokens is None else max(len(text), 1)
    max_chars = check_integer("max_chars", max_chars, 1)
    overlap = check_integer("overlap", overlap, 0)
    if tokens is None:
        return _spans(text, overlap, _ChunkLimit(max_chars))
    tokens = check_integer("tokens", tokens, 1)
    return _spans(text, overlap, _ChunkLimit(max_chars, tokens, token_counter(encoding).count))


def spans_of_tokens(
    text: str,
    tokens: int,
    count: Callable[[str], int],
) -> Iterator[tuple[int, int]]:
    """Yield the start and end offset of chunks of at most `tokens` tokens; see `split`.

    Args:
        text: the text.
        tokens: maximum number of tokens, at least 1.
        count: returns the number of tokens of a text.
    """
    return _spans(text, 0, _ChunkLimit(max(len(text), 1), tokens, count))


def sentences(
    text: str,
    ends: Iterable[int] | None = None,
) -> Iterator[tuple[int, int]]:
    r"""Yield the start and end offset of each sentence of `text`, without white space around it.

    A sentence of more than 500 characters, for example a table or code, is split as `split` does.

    Args:
        text: the text.
        ends: offset of each sentence's end, ascending; by default the result of `sentence_ends`.

    >>> [" One. Two!\n\nA title"[start:end] for start, end in sentences(" One. Two!\n\nA title")]
    ['One.', 'Two!', 'A title']
    """
    sentence_start = 0
    for sentence_end in sentence_ends(text) if ends is None else ends:
        sentence = text[sentence_start:sentence_end]
        for start, end in _spans(sentence, 0, _ChunkLimit(_MAX_SENTENCE_CHARS)):
            n_chars = len(sentence[start:end].lstrip())
            yield sentence_start + end - n_chars, sentence_start + end
        sentence_start = sentence_end


@define
class _ChunkLimit:
    """The limit of a chunk in characters, and also in tokens if `count` is given.

    Args:
        max_chars: maximum number of characters.
        max_tokens: maximum number of tokens; unused without `count`.
        count: returns the number of tokens of a text; None for a limit in characters only.
    """

    _max_chars: int
    _max_tokens: int = 0
    _count: Callable[[str], int] | None = None
    _last_size: int = field(init=False, default=0)

    def size(self, text: str, start: int) -> int:
        """Return how many characters of `text` from `start` are within the limit; at least 1.

        Without a limit in tokens, the result is the maximum number of characters, even if the text
        has fewer. With a limit in tokens, the result can be up to 1/32 less than the maximum, and a
        single character can exceed the limit. It is found by interpolation search, which starts at
        the size of the chunk before.
        """
        if self._count is None:
            return self._max_chars
        upper = min(self._max_chars, len(text) - start)
        max_fitting_chars = 0
        min_excess_chars = upper + 1
        n_tried_chars = min(self._last_size or self._max_tokens * _CHARS_PER_TOKEN, upper)
        while min_excess_chars - max_fitting_chars > max(1, max_fitting_chars // 32):
            n_tokens = self._count(text[start : start + n_tried_chars])
            # The size for the same number of characters per token.
            guess = n_tried_chars * self._max_tokens // max(n_tokens, 1)
            if n_tokens <= self._max_tokens:
                max_fitting_chars = n_tried_chars
            else:
                min_excess_chars = n_tried_chars
            if min_excess_chars > upper:
                n_tried_chars = min(max(guess, max_fitting_chars + 1), 2 * n_tried_chars, upper)
            else:
                margin = (min_excess_chars - max_fitting_chars) // 8
                lower_bound = max(guess, max_fitting_chars + margin, max_fitting_chars + 1)
                n_tried_chars = min(lower_bound, min_excess_chars - margin, min_excess_chars - 1)
        self._last_size = max(max_fitting_chars, 1)
        return self._last_size

    def allows(self, chunk: str) -> bool:
        """Return whether a chunk is within the limit in tokens; True without such a limit.

        A chunk is checked after it was shortened, because a shorter text can have more tokens.
        """
        return self._count is None or self._count(chunk) <= self._max_tokens


def _spans(
    text: str,
    overlap: int,
    limit: _ChunkLimit,
) -> Iterator[tuple[int, int]]:
    breaks = _Breaks(text)
    end = 0  # of the chunk before, with the white space after it
    stripped_end = 0  # without the white space
    while match := _TEXT.search(text, end):
        first = match.start()
        starts = [_line_start(text, end, first), first]
        if overlap and stripped_end:
            low = max(stripped_end - overlap, 0)
            starts.insert(0, breaks.first_start(low, stripped_end))
        for start in starts:
            size = limit.size(text, start)
            if first - start <= size // 2:
                chunk_end = breaks.last_end(start, size)
                while chunk_end > start + 1 and not limit.allows(text[start:chunk_end].rstrip()):
                    chunk_end = breaks.last_end(start, chunk_end - start - 1)
                if chunk_end > first:
                    break
        end = chunk_end
        stripped_end = start + len(text[start:end].rstrip())
        yield start, stripped_end


class _Breaks:
    """Finds the best positions to begin and end the chunks of a text."""

    def __init__(self, text: str) -> None:
        self._text = text

    @LazyAttribute
    def _sentence_ends(self) -> list[int]:
        """Ends of all sentences, ascending.

        They are computed on first use, so that a text that fits into one chunk is not searched for
        sentences.
        """
        return sentence_ends(self._text)

    def first_start(self, low: int, high: int) -> int:
        """Return the first start of a sentence in [low, high), else of a word, else of a character.

        Returns `high` if there is none.
        """
        index = bisect.bisect_left(self._sentence_ends, low)
        if self._sentence_ends[index] < high:
            low = self._sentence_ends[index]
        word = _WORD_START.search(self._text, low, high)
        if word:
            return word.start()
        for position in range(low, high):
            if _is_boundary(self._text, position):
                return position
        return high

    def last_end(self, start: int, max_chars: int) -> int:
        """Return the position in the text at which a chunk that begins at `start` should end.

        The chunk has at most `max_chars` characters. `split` describes which position is preferred.
        """
        limit = start + max_chars
        middle = start + max_chars // 2
        if limit >= len(self._text):
            return len(self._text)
        return (
            self._last_match(_PARAGRAPH, middle, limit)
            or self._last_sentence(start + max_chars // 4, limit)
            or self._last_match(_LINE, middle, limit)
            or self._last_match(_SPACE, middle, limit)
            or self._last_boundary(max(middle, limit - _MAX_CLUSTER_CHARS), limit)
        )

    def _last_match(
        self,
        pattern: re.Pattern[str],
        low: int,
        limit: int,
    ) -> int:
        """Return the end of the last match of `pattern` in [low, limit], at most `limit`.

        Returns 0 if there is no match.
        """
        # One character more, so that white space immediately after a full chunk counts as its end.
        matches = pattern.finditer(self._text, low, limit + 1)
        ends = [match.end() for match in matches]
        return min(ends[-1], limit) if ends else 0

    def _last_sentence(self, low: int, limit: int) -> int:
        """Return the last end of a sentence in (low, limit]; 0 if there is none."""
        index = bisect.bisect_right(self._sentence_ends, limit)
        if not index:
            return 0
        end = self._sentence_ends[index - 1]
        return end if end > low else 0

    def _last_boundary(self, low: int, limit: int) -> int:
        """Return the last position in (low, limit] between two visible characters, or `limit`."""
        for end in range(limit, low, -1):
            if _is_boundary(self._text, end):
                return end
        return limit


def _line_start(
    text: str,
    previous_end: int,
    first: int,
) -> int:
    """Return where a chunk begins so that it has the indentation of its first line.

    The result is the start of the line of the character at `first`, or `first` if the chunk before
    ends in that line.

    Args:
        text: the text.
        previous_end: the end of the chunk before, 0 for the first chunk.
        first: the first character after `previous_end` that is not white space.
    """
    line_start = text.rfind("\n", max(previous_end - 1, 0), first) + 1
    return line_start if line_start > 0 or previous_end == 0 else first


def _is_boundary(text: str, position: int) -> bool:
    """Return whether `position` is between two visible characters, and not within one of them."""
    return not _extends(text[position]) and text[position - 1] != "\u200d"


def _extends(char: str) -> bool:
    """Return whether `char` is part of the visible character before it.

    Such characters are marks, joiners, skin tones and low surrogates.
    """
    if unicodedata.category(char).startswith("M") or char == "\u200d":
        return True
    return "\U0001f3fb" <= char <= "\U0001f3ff" or "\udc00" <= char <= "\udfff"
