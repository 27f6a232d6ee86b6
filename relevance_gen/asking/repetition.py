"""Detect text that repeats itself, as small models generate it until the token limit."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Final

from relevance_gen.types import CitedSentence

LOOP_CHARS: Final = 400
"""Characters at the end of a text that `is_loop` compares: two and a half of the longest copies."""
_MIN_LOOP_CHARS: Final = 40
_MAX_PERIOD: Final = 160
_MIN_SENTENCE_CHARS: Final = 20
"""Minimum length of a repeated sentence; answers may repeat shorter ones, such as list items."""


def is_loop(text: str) -> bool:
    """Return whether a text ends with at least two and a half adjacent copies of one string.

    The string has at most 160 characters. Its copies have together at least 40 characters, with at
    least one letter or digit.

    >>> is_loop("It says: " + "what others do better; " * 3), is_loop("What others do better; " * 2)
    (True, False)
    """
    for period in range(1, _MAX_PERIOD + 1):
        n_chars = max(_MIN_LOOP_CHARS, 5 * period // 2)
        if n_chars > len(text):
            break
        tail = text[-n_chars:]
        is_periodic = tail[period:] == tail[:-period]
        if is_periodic and any(map(str.isalnum, tail)):
            return True
    return False


def until_repetition(
    parts: Iterable[str | CitedSentence],
) -> Generator[str | CitedSentence, None, bool]:
    """Yield the parts of a text and its sentences, and stop before a repeated sentence.

    The beginning of a sentence is not yielded while it equals the beginning of an earlier sentence.
    A last sentence that is the beginning of an earlier sentence counts as repeated. Sentences with
    fewer than 20 characters never count as repeated.

    Returns:
        Whether a sentence was repeated.
    """
    earlier: set[str] = set()
    text = pending_text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
            pending_text += part
            sentence = " ".join(text.split())
            if not any(earlier_sentence.startswith(sentence) for earlier_sentence in earlier):
                yield pending_text
                pending_text = ""
            continue
        sentence = " ".join(text.split())
        if len(sentence) >= _MIN_SENTENCE_CHARS:
            if pending_text:
                return True
            earlier.add(sentence)
        yield pending_text
        yield part
        text = pending_text = ""
    yield pending_text
    return False
