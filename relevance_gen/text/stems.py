"""Stem English words, and determine which terms can be inflected.

Only terms that can be inflected are compared with other terms by stem, prefix and misspelling.
"""

from __future__ import annotations

import functools
import re
import threading
from typing import Any, Final

from relevance_gen.text.scripts import ngram_size
from relevance_gen.text.term_hashes import MAX_SPELLING_BYTES

MIN_LETTERS: Final = 3
"""Minimum number of letters of a word that can be inflected."""

_PLURAL_ACRONYM: Final = re.compile("[b-df-hj-np-tv-xz]{2,}[aeiou]?s")
"""Matches plurals of acronyms without a vowel inside, of which Porter2 keeps the s: ``llms``,
``gpus``."""
_MIN_PLURAL_LETTERS: Final = 4

_stemmers = threading.local()


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
