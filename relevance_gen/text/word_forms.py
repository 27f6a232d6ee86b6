"""Stem English words, and determine which terms can be inflected and which are numbers.

Only terms that can be inflected are compared with other terms by stem, prefix and misspelling.
Numbers have less weight in the length of a chunk.
"""

from __future__ import annotations

import functools
import re
import threading
from typing import Any, Final

from attrs import frozen

from relevance_gen.arrays import Bytes, Flags, Offsets
from relevance_gen.text.scripts import ngram_size
from relevance_gen.text.term_hashes import MAX_SPELLING_BYTES

MIN_LETTERS: Final = 3
"""Minimum number of letters of a word that can be inflected."""

_PLURAL_ACRONYM: Final = re.compile("[b-df-hj-np-tv-xz]{2,}[aeiou]?s")
"""Matches plurals of acronyms without a vowel inside, of which Porter2 keeps the s: ``llms``,
``gpus``."""
_MIN_PLURAL_LETTERS: Final = 4
_NINE: Final = ord("9")
"""Greatest byte of a digit; all letters and the underscore are greater."""
_YEAR_DIGITS: Final = 4

_stemmers = threading.local()


@frozen
class WordForm:
    """Properties of a folded word."""

    stem: str  # its English stem, as `stem` returns it
    inflection_stem: str | None  # the same; None if the word cannot be inflected
    is_number: bool  # as `is_number` returns it


def word_form(word: str) -> WordForm:
    """Return the properties of a folded word."""
    word_stem = stem(word)
    return WordForm(word_stem, word_stem if can_inflect(word) else None, is_number(word))


@functools.lru_cache(maxsize=1 << 14)
def stem(word: str) -> str:
    """Return the English stem of a folded word: Porter2, and ``llm`` for ``llms``.

    A word that is not ASCII, or has `MAX_SPELLING_BYTES` bytes or more, is returned unchanged.

    >>> stem("connections"), stem("связь")
    ('connect', 'связь')
    """
    if not word.isascii() or len(word) >= MAX_SPELLING_BYTES:
        return word
    return _without_plural(str(_stemmer().stemWord(word)))


def stem_all(words: list[str]) -> list[str]:
    """Return the English stem of each word, in order; words that are not ASCII are unchanged.

    Unlike `stem`, does not check the length: every word must satisfy `can_inflect`.
    """
    stems: list[str] = _stemmer().stemWords(words)
    pairs = zip(words, stems, strict=True)
    return [_without_plural(root) if word.isascii() else word for word, root in pairs]


def _without_plural(root: str) -> str:
    """Return a stem, without the final s if it looks like an acronym in the plural (``llms``).

    Such a stem has no vowel except one directly before the s; other stems are unchanged.
    """
    if root[-1:] == "s" and len(root) >= _MIN_PLURAL_LETTERS and _PLURAL_ACRONYM.fullmatch(root):
        return root[:-1]
    return root


def _stemmer() -> Any:
    """Return this thread's stemmer, created on first use: stemmers are not thread-safe."""
    if not hasattr(_stemmers, "english"):
        import Stemmer

        _stemmers.english = Stemmer.Stemmer("english", 0)
    return _stemmers.english


def can_inflect(word: str) -> bool:
    """Return whether a folded word can be inflected.

    Such a word has three letters or more and at most 63 bytes, no digit or underscore, and its
    script is not tokenized as n-grams.
    """
    if len(word) < MIN_LETTERS or len(word.encode()) >= MAX_SPELLING_BYTES:
        return False
    if not word.isascii() and ngram_size(word):
        return False
    return word.isalpha() or not any(character in "0123456789_" for character in word)


def is_partial_ngram(word: str) -> bool:
    """Return whether a folded term is shorter than the n-grams of its script.

    False for terms of scripts that are tokenized as words.
    """
    return not word.isascii() and len(word) < ngram_size(word)


def is_number(word: str) -> bool:
    """Return whether a folded word begins and ends with a digit, and does not look like a year.

    A word of four characters that begins with 19 or 20 looks like a year.

    >>> [is_number(word) for word in ("7", "1250", "3x4", "1999", "2b")]
    [True, True, True, False, False]
    """
    if word[0] > "9" or word[-1] > "9":
        return False
    return len(word) != _YEAR_DIGITS or word[:2] not in ("19", "20")


def number_flags(
    letters: Bytes,
    start: Offsets,
    length: Offsets,
) -> Flags:
    """Return for each of n words `is_number` of the word, shape (n,).

    Args:
        letters: folded text.
        start: offset of each word, shape (n,).
        length: bytes of each word, shape (n,).
    """
    first = letters.take(start)
    second = letters.take(start + 1, mode="clip")
    is_year = (first == ord("1")) & (second == ord("9"))
    is_year |= (first == ord("2")) & (second == ord("0"))
    is_year &= length == _YEAR_DIGITS
    flags: Flags = (first <= _NINE) & ~is_year
    flags &= letters.take(start + length - 1) <= _NINE
    return flags
