"""Say how each script is cut into terms: one table for folding, cutting, matching and highlighting.

Folding moves some blocks of characters, so that in folded UTF-8 the lead byte of a character tells its kind:

=========  ==================================================  ==========================================
lead byte  characters                                          terms
=========  ==================================================  ==========================================
E3–ED      Han, Kana, Bopomofo, Yi, Hangul                     overlapping pairs of characters
EE         Thai, Lao, Burmese, Khmer, moved to U+E000–U+E3FF   overlapping triples of characters
other      every other script                                  words
=========  ==================================================  ==========================================
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

MOVED: Final = (
    (0x0E00, 0x0F00, 0xE000),  # Thai, Lao
    (0x1000, 0x10A0, 0xE100),  # Burmese
    (0x1780, 0x1800, 0xE200),  # Khmer
    (0xA490, 0xAC00, 0xF000),  # alphabets that would share Hangul's lead byte
    (0x2600, 0x27C0, 0xA490),  # emoji: each stands alone, or in pairs with its neighbours
)
"""Blocks that folding moves: first code point, end, new first."""

FIRST_NGRAM_LEAD: Final = 0xE3
TRIPLE_LEAD: Final = 0xEE
"""Lead bytes from `FIRST_NGRAM_LEAD` up to `TRIPLE_LEAD` begin characters that are cut into n-grams."""
NGRAM_CHARACTER_BYTES: Final = 3

_THAI, _HAN = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff", "\u2e80-\ud7ff\uf900-\ufaff"
_LETTER: Final = r"[\w\u0300-\u036f\u0900-\u0dff\u200c\u200d]"
_RUN: Final = re.compile(rf"([{_THAI}]+)|([{_HAN}]+)|(?:(?![{_THAI}{_HAN}]){_LETTER})+")
"""Runs of the scripts of triples, of those of pairs, and words, in text that is not folded."""


def ngram_size(folded: str) -> int:
    """Return how many characters the n-grams of a folded term's script have; 0 for words.

    >>> ngram_size("猫"), ngram_size("cat")
    (2, 0)
    """
    if "\u3000" <= folded[0] < "\ue000":
        return 2
    return 3 if "\ue000" <= folded[0] < "\uf000" else 0


def spans_of_words(text: str) -> Iterator[tuple[int, int]]:
    """Yield where the words of a text that is not folded stand; of scripts cut into n-grams, all n-grams.

    >>> list(spans_of_words("a 黒猫が"))
    [(0, 1), (2, 4), (3, 5)]
    """
    for match in _RUN.finditer(text):
        start, end = match.span()
        size = 3 if match[1] else 2 if match[2] else end - start
        yield from ((at, min(at + size, end)) for at in range(start, max(end - size, start) + 1))
