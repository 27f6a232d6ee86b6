"""Fold text so that what a reader takes for the same word is the same bytes, and each script shows in its lead byte.

ASCII text needs no folding. For all other text a table, filled as characters turn up, maps every UTF-16 code unit to
one code unit:

* compatibility forms to plain ones (NFKC: ``ﬁ`` → ``fi``, ``Ａ`` → ``A``), all cases but ASCII's to one (case folding),
  decimal digits of every script to ``0``–``9``;
* accents off Latin and Greek letters (``é`` → ``e``, ``ß`` → ``ss``, ``ł`` → ``l``), ``ё`` to ``е``; Arabic and Hebrew
  vowel points and tatweel off, the Arabic letter variants ``أإآٱىة`` to ``اااايه``; other marks stay: in Indic scripts
  they are vowels, in Cyrillic they tell ``й`` from ``и``, and there a letter and its mark are composed (NFC);
* Vietnamese letters that carry a tone, a horn or both stay, for there they tell words apart; a word with any comes out
  twice, the second time without (``tiếng`` → ``tiếng tieng``), so that what is typed without tones finds it, too;
* joiners, soft hyphens and variation selectors to nothing, whatever is no letter, mark, number or emoji to a space.

The result is UTF-8 in which the lead byte of a character tells how its script is cut into terms: see
`relevance_gen.text.scripts`.

Source: Unicode Standard Annexes 15 (normalization) and 29 (text segmentation); case folding as `str.casefold`.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from relevance_gen.text.scripts import MOVED

_BMP: Final = 0x10000

_UNKNOWN: Final = 0xFFFD
"""The replacement character, which no character folds to, stands for one that has not turned up."""
_DROP: Final = 0xFFFE
"""Noncharacter that stands for "nothing" in the table; it is removed at the end."""
_EXPAND: Final = 0xFFFF
"""Noncharacter that stands for "more than one character"; such characters are replaced in the text beforehand."""
_SEPARATOR: Final = 0xFDD0
"""Noncharacter between texts that are folded together; it becomes NUL, which nothing else does."""
_FEW: Final = 12
"""With at most so many different characters to expand, one `str.replace` for each is faster than `str.translate`."""

_VANISHING: Final = re.compile(
    "[\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06ed"
    "\u00ad\u034f\u061c\u180b-\u180e\u200c-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]"
)
"""Accents, vowel points, joiners, soft hyphen, direction marks, variation selectors."""

_DECOMPOSED: Final = re.compile(
    "[A-Za-z\u00c0-\u01b0\u1ea0-\u1ef9][\u0300-\u036f]{1,3}"
    "|[\u0400-\u04ff\u0600-\u06ff\u0900-\u0dff\u1000-\u109f\u1b00-\u1b7f\u3040-\u30ff]"
    "[\u0300-\u036f\u0653-\u0655\u093c\u09be\u09d7\u0b3e\u0b56\u0b57\u0bbe\u0bd7\u0c56\u0cc2\u0cd5\u0cd6\u0d3e\u0d57"
    "\u0dca\u0dcf\u0ddf\u102e\u1b35\u3099\u309a]{1,3}"
    "|[\u1100-\u1112][\u1161-\u1175][\u11a8-\u11c2]?|[\uac00-\ud7a3][\u11a8-\u11c2]|[\uff66-\uff9d][\uff9e\uff9f]"
)
"""Letters apart from marks that stay, and Hangul in pieces. Composed one by one: `unicodedata.normalize` sorts marks,
in quadratic time where a text is nothing but marks."""

_JOINED: Final = re.compile(f"{_DECOMPOSED.pattern}|[\ud800-\udbff][\udc00-\udfff]")
"""Code points that are folded together: letters apart from their marks, and halves of one character."""

_VARIANTS: Final = str.maketrans({"æ": "ae", "œ": "oe", "þ": "th"}) | str.maketrans(
    "łđøħıŋðŧĸёأإآٱىةیک™℠",
    "ldohindtkеاااايهيك  ",
)
"""Letters that normalization leaves apart and readers take for one."""

_UNCHANGED: Final = ((0x3400, 0x4DC0), (0x4E00, 0xA000), (0xAC00, 0xD7A4), (0xD800, 0xE000))
"""Blocks without any case, variant or accent: unified Han, Hangul, and the halves of surrogate pairs."""

_TONED: Final = "\u01a0\u01a1\u01af\u01b0\u1ea0-\u1ef9"
"""Vietnamese letters that other languages do not have."""
_TONED_LETTER: Final = re.compile(f"[{_TONED}]")
_LETTER: Final = r"[^\W_\u3000-\uefff]"
"""A letter or digit of a script that is written with spaces; Kana or Han beside it begin another term."""
_TONED_LEADS: Final = ("\u1ea0".encode()[:2], "\u1ec0".encode()[:2], "ơ".encode(), "ư".encode())
"""What such letters begin with in folded UTF-8."""

_ASTRAL: Final = re.compile("[\U00010000-\U0010ffff]")


def fold_character(character: str) -> str:
    """Fold one character to the string that stands for it, before scripts are moved.

    Letters that become ASCII keep their case, as ASCII does: ``CAFÉ`` has no hump.

    >>> [fold_character(c) for c in "éÉßЙ、٣"]
    ['e', 'E', 'ss', 'й', ' ', '3']
    """
    if character.isdecimal():
        return str(unicodedata.decimal(character))
    if _VANISHING.match(character):
        return ""
    if _TONED_LETTER.match(character):
        return character.lower()
    return _fold_plainly(character)


@functools.lru_cache(maxsize=1 << 10)
def _fold_plainly(character: str) -> str:
    plain = character.translate(_VARIANTS)
    if any(
        ord(c) < 0x400 or 0x1E00 <= ord(c) < 0x2000 for c in unicodedata.normalize("NFKC", plain)
    ):  # Latin, Greek
        plain = _VANISHING.sub("", unicodedata.normalize("NFKD", plain))
    plain = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", plain).casefold())
    plain = _VANISHING.sub("", plain).translate(_VARIANTS)
    folded = "".join(c if unicodedata.category(c)[0] in "LMN" else " " for c in plain)
    return folded.upper() if character.isupper() and folded.isascii() else folded


def add_toneless(folded: str) -> str:
    """Write every Vietnamese word with a tone a second time without.

    >>> add_toneless("tiếng Việt nam")
    'tiếng tieng Việt viet nam'
    """
    return _toned_word().sub(lambda match: f"{match[0]} {without_tones(match[0]).lower()}", folded)


@functools.cache
def _toned_word() -> re.Pattern[str]:
    """Return the pattern of a Vietnamese word with a tone; it is compiled when first needed, which takes 15 ms.

    A word is looked at from its first letter only: from each in turn would take quadratic time.
    """
    return re.compile(rf"(?<!{_LETTER}){_LETTER}*[{_TONED}]{_LETTER}*")


def without_tones(text: str) -> str:
    """Return a text with plain letters for those that only Vietnamese has, as many code points as before."""
    return _TONED_LETTER.sub(lambda match: _fold_plainly(match[0]), text)


def _is_emoji(character: str) -> bool:
    return unicodedata.category(character) == "So" and (
        "\u2600" <= character <= "\u27bf" or character >= "\U0001f000"
    )


def _fold_astral(match: re.Match[str]) -> str:
    """Fold a character beyond the BMP; emoji and rare Han stand alone, as terms of their own."""
    character = match[0]
    if _is_emoji(character):
        return f" {character} "
    folded = fold_character(character)
    return f" {folded} " if "\U00020000" <= folded < "\U00040000" else folded


class _FoldTable:
    """The map from UTF-16 code unit to folded code unit, filled as they turn up."""

    def __init__(self) -> None:
        self.units = np.full(_BMP, _UNKNOWN, np.uint16)
        self.units[1:128] = np.arange(1, 128)  # ASCII keeps its case: identifiers are cut at humps
        self.units[0] = ord(" ")
        self.units[_SEPARATOR] = 0
        self.expansions: dict[int, str] = {}
        for first, end in _UNCHANGED:
            self.units[first:end] = np.arange(first, end)

    def fold(self, codes: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
        """Map every code unit to its fold, `_DROP` or `_EXPAND`."""
        folded = self.units.take(codes)
        unknown = codes[folded == _UNKNOWN]
        if unknown.size:
            is_unknown = np.zeros(_BMP, bool)
            is_unknown[unknown] = True
            for code in np.flatnonzero(is_unknown).tolist():
                self.units[code] = self._unit(code)
            folded = self.units.take(codes)
        return folded

    def _unit(self, code: int) -> int:
        """Fold one code unit to one; note its expansion if it takes more than one."""
        character = chr(code)
        folded = (
            character
            if _is_emoji(character)
            else _ASTRAL.sub(_fold_astral, fold_character(character))
        )
        if len(folded) == 1:
            for first, end, target in MOVED:
                if first <= ord(folded) < end:
                    return ord(folded) - first + target
            return ord(folded)
        if not folded:
            return _DROP
        if folded.isspace():
            return ord(" ")
        self.expansions[code] = folded
        return _EXPAND


def fold(texts: Sequence[str], *, toneless: bool = True) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Fold texts, whatever is in them, as the module's docstring says; with `toneless` Vietnamese words come twice.

    Returns:
        UTF-8 of all texts, each followed by one byte that is part of no term; it keeps ASCII's case and punctuation.
        And the offset of that byte for every text, shape (len(texts),), ascending.
    """
    joined = "\n".join(texts)
    if joined.isascii():
        ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + 1) - 1
        return joined.encode("ascii") + b"\n", ends
    separator = chr(_SEPARATOR)
    folded = _fold_text("".join(text.replace(separator, " ") + separator for text in texts))
    if toneless and any(lead in folded for lead in _TONED_LEADS):
        folded = add_toneless(folded.decode()).encode()
    return folded, np.flatnonzero(np.frombuffer(folded, np.uint8) == 0)


def folded_sizes(text: str) -> npt.NDArray[np.int64]:
    """Return how many bytes each code point of a text folds to, shape (len(text),).

    Vietnamese words come once. Of code points that are folded together the first has all the bytes.
    """
    if text.isascii():
        return np.ones(len(text), np.int64)
    codes, which = np.unique(
        np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4"), return_inverse=True
    )
    joined = list(_JOINED.finditer(text))
    _, ends = fold([*map(chr, codes.tolist()), *(match[0] for match in joined)], toneless=False)
    n_bytes = np.diff(ends, prepend=-1) - 1
    sizes = n_bytes[which]
    for match, size in zip(joined, n_bytes[codes.size :].tolist(), strict=True):
        sizes[match.start() : match.end()] = 0
        sizes[match.start()] = size
    return sizes


def _fold_text(text: str) -> bytes:
    table = _the_table()
    if "\uff9e" in text or "\uff9f" in text or not unicodedata.is_normalized("NFC", text):
        text = _DECOMPOSED.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    codes = _code_units(text)
    if ((codes & 0xF800) == 0xD800).any():
        # Join surrogate pairs. A lone surrogate becomes a space: decoders refuse it, and readers see nothing.
        text = (
            text.encode("utf-16-le", "surrogatepass")
            .decode("utf-16-le", "replace")
            .replace("\ufffd", " ")
        )
        text = _ASTRAL.sub(_fold_astral, text)
        codes = _code_units(text)
    folded = table.fold(codes)
    expanding = np.flatnonzero(folded == _EXPAND)
    if expanding.size:
        text = _expand(text, set(codes[expanding].tolist()), table.expansions)
        folded = table.fold(_code_units(text))
    if (folded == _DROP).any():
        folded = folded[folded != _DROP]
    return folded.tobytes().decode("utf-16-le").encode("utf-8")


@functools.cache
def _the_table() -> _FoldTable:
    return _FoldTable()


def _code_units(text: str) -> npt.NDArray[np.uint16]:
    return np.frombuffer(text.encode("utf-16-le", "surrogatepass"), np.dtype("<u2"))


def _expand(text: str, codes: set[int], expansions: dict[int, str]) -> str:
    """Replace the characters whose fold is longer than one code unit."""
    if len(codes) > _FEW:
        return text.translate({code: expansions[code] for code in codes})
    for code in sorted(codes):
        text = text.replace(chr(code), expansions[code])
    return text
