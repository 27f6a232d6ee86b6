"""Define how each script is tokenized: one table for folding, tokenization and matching.

Folding moves some blocks of characters, so that in folded UTF-8 the lead byte of a character
determines its kind:

=========  ==================================================  ===============================
lead byte  characters                                          terms
=========  ==================================================  ===============================
E3–ED      Han, Kana, Bopomofo, Yi, Hangul; the emoji of       overlapping pairs of characters
           U+2600–U+27BF, moved to U+A490–U+A64F
EE         Thai, Lao, Burmese, Khmer, moved to U+E000–U+E3FF   overlapping triples of characters
other      every other script; U+A490–U+ABFF is moved to       words
           U+F000–U+F76F, because it has lead bytes of Hangul
=========  ==================================================  ===============================
"""

from __future__ import annotations

from typing import Final

MOVED: Final = (
    (0x0E00, 0x0F00, 0xE000),  # Thai, Lao
    (0x1000, 0x10A0, 0xE100),  # Burmese
    (0x1780, 0x1800, 0xE200),  # Khmer
    (0xA490, 0xAC00, 0xF000),  # alphabets that would share Hangul's lead byte
    (0x2600, 0x27C0, 0xA490),  # emoji: each is a term, or forms pairs with its neighbors
)
"""Blocks that folding moves: first code point, end, new first code point."""

FIRST_NGRAM_LEAD: Final = 0xE3
TRIPLE_LEAD: Final = 0xEE
"""Characters with lead bytes from `FIRST_NGRAM_LEAD` to `TRIPLE_LEAD` are tokenized as n-grams:
triples for `TRIPLE_LEAD`, pairs for the others."""
NGRAM_CHARACTER_BYTES: Final = 3

PAIRED: Final = "\u3041-\u3096\u30a1-\u30fa\u30fc\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3"
TRIPLED: Final = "\u0e01-\u0e32\u0e34-\u0e3a\u0e40-\u0e4e\u1000-\u1020\u1780-\u17a2"
"""The frequent characters that are tokenized as pairs (`PAIRED`) and as triples (`TRIPLED`), before
folding, for the brackets of a regular expression: a long text is split into pieces between them."""


def ngram_size(folded: str) -> int:
    """Return the number of characters in the n-grams of a folded term's script.

    0 for a script that is tokenized as words.

    >>> ngram_size("猫"), ngram_size("cat")
    (2, 0)
    """
    if "\u3000" <= folded[0] < "\ue000":
        return 2
    return 3 if "\ue000" <= folded[0] < "\uf000" else 0
