"""Say what the forms of an English word share, and which words have forms at all."""

from __future__ import annotations

import functools
import threading
from typing import Any, Final

from relevance_gen.text.scripts import ngram_size
from relevance_gen.text.term_hashes import MAX_SPELLING_BYTES

MIN_LETTERS: Final = 3
"""Fewest letters of a word that has other forms."""

_stemmers = threading.local()


@functools.lru_cache(maxsize=1 << 14)
def stem(word: str) -> str:
    """Return the English stem of a folded word; a word in another alphabet is its own.

    >>> stem("connections"), stem("связь")
    ('connect', 'связь')
    """
    return (
        str(_stemmer().stemWord(word))
        if word.isascii() and len(word) < MAX_SPELLING_BYTES
        else word
    )


def stem_all(words: list[str]) -> list[str]:
    """Return the stem of each of some words that may have other forms."""
    stems: list[str] = _stemmer().stemWords(words)
    return [root if word.isascii() else word for word, root in zip(words, stems, strict=True)]


def _stemmer() -> Any:
    if not hasattr(_stemmers, "english"):
        import Stemmer

        _stemmers.english = Stemmer.Stemmer(
            "english", 0
        )  # a stemmer is not safe to share: one for each thread
    return _stemmers.english


def can_inflect(word: str) -> bool:
    """Tell whether a folded word may have other forms: three letters to 63 bytes, no digit, no n-gram script."""
    return (
        len(word) >= MIN_LETTERS
        and len(word.encode()) < MAX_SPELLING_BYTES
        and not ngram_size(word)
        and (word.isalpha() or not any(character in "0123456789_" for character in word))
    )


def is_partial_ngram(word: str) -> bool:
    """Tell whether a folded term is of a script without spaces and shorter than its n-grams."""
    return len(word) < ngram_size(word)
