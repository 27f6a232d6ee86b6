"""Fold text: different spellings of a word that readers take as equal become the same bytes.

ASCII text needs no folding. For all other text a table, filled as characters occur, maps every
UTF-16 code unit to one code unit:

* compatibility characters become plain ones (NFKC: ``ﬁ`` → ``fi``, ``Ａ`` → ``A``), all letters
  except ASCII letters are case-folded, and decimal digits of every script become ``0``–``9``;
* accents are removed from Latin and Greek letters (``é`` → ``e``, ``ß`` → ``ss``, ``ł`` → ``l``),
  ``ё`` becomes ``е``; Arabic and Hebrew vowel points and tatweel are removed, and the Arabic letter
  variants ``أإآٱىة`` become ``اااايه``; other marks remain, because in Indic scripts they are
  vowels and in Cyrillic they distinguish ``й`` from ``и``, and there a letter and its mark are
  composed (NFC);
* Vietnamese letters with a tone, a horn or both remain, because they distinguish words; a word with
  such letters is repeated without them (``tiếng`` → ``tiếng tieng``), so that a query typed without
  tones matches it, too;
* joiners, soft hyphens and variation selectors are removed; every other character that is not a
  letter, mark, number or emoji becomes a space.

The result is UTF-8 in which the lead byte of a character determines how its script is tokenized:
see `relevance_gen.text.scripts`.

Source: Unicode Standard Annexes 15 (normalization) and 29 (text segmentation); case folding as
`str.casefold`.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.arrays import Offsets, unique
from relevance_gen.text.scripts import MOVED

_CodeUnits: TypeAlias = npt.NDArray[np.uint16]
"""UTF-16 code units."""

_BMP: Final = 0x10000

_UNKNOWN: Final = 0xFFFD
"""Table entry of a code unit that has not occurred yet: the replacement character, which is never
the result of folding."""
_DROP: Final = 0xFFFE
"""Table entry of a code unit that is removed: a noncharacter."""
_EXPAND: Final = 0xFFFF
"""Table entry of a code unit that folds to several characters, which replace it in the text before:
a noncharacter."""
_SEPARATOR: Final = 0xFDD0
"""Noncharacter between texts that are folded together; it becomes NUL, and nothing else becomes
NUL."""
_MAX_REPLACED_CHARACTERS: Final = 12
"""Up to this number of distinct characters to expand, one `str.replace` for each is faster than
`str.translate`."""

_VANISHING: Final = re.compile(
    "[\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670\u06d6-\u06ed"
    "\u00ad\u034f\u061c\u180b-\u180e\u200c-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff]"
)
"""Matches characters that folding removes: accents, vowel points, joiners, soft hyphen, direction
marks, variation selectors."""

_DECOMPOSED: Final = re.compile(
    "[A-Za-z\u00c0-\u01b0\u1ea0-\u1ef9][\u0300-\u036f]{1,3}"
    "|[\u0400-\u04ff\u0600-\u06ff\u0900-\u0dff\u1000-\u109f\u1b00-\u1b7f\u3040-\u30ff]"
    "[\u0300-\u036f\u0653-\u0655\u093c\u09be\u09d7\u0b3e\u0b56\u0b57\u0bbe\u0bd7\u0c56\u0cc2\u0cd5\u0cd6\u0d3e\u0d57"
    "\u0dca\u0dcf\u0ddf\u102e\u1b35\u3099\u309a]{1,3}"
    "|[\u1100-\u1112][\u1161-\u1175][\u11a8-\u11c2]?|[\uac00-\ud7a3][\u11a8-\u11c2]|[\uff66-\uff9d][\uff9e\uff9f]"
)
"""Matches letters followed by marks that remain, and decomposed Hangul. Each match is composed
separately: `unicodedata.normalize` sorts marks, which takes quadratic time for a text of only
marks."""

_JOINED: Final = re.compile(f"{_DECOMPOSED.pattern}|[\ud800-\udbff][\udc00-\udfff]")
"""Matches code points that are folded together: letters with their marks, and the surrogates of one
character."""

_VARIANTS: Final = str.maketrans(
    {"æ": "ae", "œ": "oe", "þ": "th"},
) | str.maketrans(
    "łđøħıŋðŧĸёأإآٱىةیک™℠",
    "ldohindtkеاااايهيك  ",
)
"""Letters that Unicode normalization distinguishes and readers take as equal."""

_UNCHANGED: Final = (
    (1, 128),
    (0x3400, 0x4DC0),
    (0x4E00, 0xA000),
    (0xAC00, 0xD7A4),
    (0xD800, 0xE000),
)
"""Blocks that folding does not change: ASCII, which keeps its case because identifiers are split at
capitals; unified Han, Hangul and surrogates, which have neither case nor variants nor accents."""

_TONED: Final = "\u01a0\u01a1\u01af\u01b0\u1ea0-\u1ef9"
"""Letters that only Vietnamese has."""
_TONED_LETTER: Final = re.compile(f"[{_TONED}]")
_LETTER: Final = r"[^\W_\u3000-\uefff]"
"""A letter or digit of a script that is written with spaces; adjacent Kana or Han begins another
term."""
_TONED_LEADS: Final = (
    "\u1ea0".encode()[:2],
    "\u1ec0".encode()[:2],
    "ơ".encode(),
    "ư".encode(),
)
"""Lead bytes of Vietnamese letters in folded UTF-8."""

_ASTRAL: Final = re.compile("[\U00010000-\U0010ffff]")


def fold_character(character: str) -> str:
    """Return the folded form of one character that is not an emoji.

    An emoji becomes a space; the callers must fold emoji separately. The code point of the result
    is not moved to another block: `_move` does that, see `relevance_gen.text.scripts`. The result
    is "" for a character that is removed, and can have several characters. Letters that become
    ASCII keep their case, as ASCII does: ``CAFÉ`` must not contain a camel-case boundary.

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
    folded = character.translate(_VARIANTS)
    if any(map(_is_latin_or_greek, unicodedata.normalize("NFKC", folded))):
        folded = _VANISHING.sub("", unicodedata.normalize("NFKD", folded))
    folded = unicodedata.normalize("NFKC", folded).casefold()
    folded = unicodedata.normalize("NFKC", folded)
    folded = _VANISHING.sub("", folded).translate(_VARIANTS)
    folded = "".join(map(_letter_or_space, folded))
    return folded.upper() if character.isupper() and folded.isascii() else folded


def _is_latin_or_greek(character: str) -> bool:
    return character < "\u0400" or "\u1e00" <= character < "\u2000"


def _letter_or_space(character: str) -> str:
    return character if unicodedata.category(character)[0] in "LMN" else " "


def add_toneless(folded: str) -> str:
    """Return a folded text with a toneless copy after each Vietnamese word that has tones.

    >>> add_toneless("tiếng Việt nam")
    'tiếng tieng Việt viet nam'
    """
    return _toned_word().sub(lambda match: f"{match[0]} {without_tones(match[0]).lower()}", folded)


@functools.cache
def _toned_word() -> re.Pattern[str]:
    """Return the pattern of a word with a letter that only Vietnamese has, such as ``ơ`` or ``ế``.

    A match starts only at the first letter of a word: trying each letter would take quadratic time. The
    pattern is compiled on first use, which takes 15 ms.
    """
    return re.compile(rf"(?<!{_LETTER}){_LETTER}*[{_TONED}]{_LETTER}*")


def without_tones(text: str) -> str:
    """Return a text with its Vietnamese letters replaced by plain letters.

    The number of code points does not change.
    """
    return _TONED_LETTER.sub(lambda match: _fold_plainly(match[0]), text)


def _is_emoji(character: str) -> bool:
    if unicodedata.category(character) != "So":
        return False
    return "\u2600" <= character <= "\u27bf" or character >= "\U0001f000"


def _fold_astral(match: re.Match[str]) -> str:
    """Return the folded form of the matched character, which is outside the BMP.

    Emoji and rare Han get spaces around them, so that each is a term.
    """
    character = match[0]
    if _is_emoji(character):
        return f" {character} "
    folded = fold_character(character)
    return f" {folded} " if "\U00020000" <= folded < "\U00040000" else folded


class _FoldTable:
    """The folded code unit of each UTF-16 code unit, computed when a code unit first occurs.

    Attributes:
        units: the entry of each code unit, shape (65536,): its folded code unit; `_UNKNOWN` if it
            has not occurred yet; `_DROP` if folding removes it; `_EXPAND` if it folds to several
            characters.
        expansions: the string that replaces each code unit whose entry is `_EXPAND`.
    """

    def __init__(self) -> None:
        self.units = np.full(_BMP, _UNKNOWN, np.uint16)
        self.units[0] = ord(" ")
        self.units[_SEPARATOR] = 0
        self.expansions: dict[int, str] = {}
        for first, end in _UNCHANGED:
            self.units[first:end] = np.arange(first, end)

    def fold(self, codes: _CodeUnits) -> _CodeUnits:
        """Return for each code unit its folded code unit, or `_DROP` or `_EXPAND`."""
        folded = self.units.take(codes)
        unknown = codes[folded == _UNKNOWN]
        if not unknown.size:
            return folded
        for code in unique(unknown).tolist():
            self.units[code] = self._fold_code(code)
        return self.units.take(codes)

    def _fold_code(self, code: int) -> int:
        """Return the folded code unit of one code unit, or `_DROP` or `_EXPAND`.

        If it folds to several code units, they are stored in `expansions`.
        """
        character = chr(code)
        folded = character
        if not _is_emoji(character):
            folded = _ASTRAL.sub(_fold_astral, fold_character(character))
        if not folded:
            return _DROP
        if len(folded) == 1:
            return _move(ord(folded))
        if folded.isspace():
            return ord(" ")
        self.expansions[code] = folded
        return _EXPAND


_fold_table: Final = functools.cache(_FoldTable)


def _move(code: int) -> int:
    """Return the code point to which the table `MOVED` moves a folded character.

    A character outside the blocks of the table is unchanged; see `relevance_gen.text.scripts`.
    """
    for first, end, new_first in MOVED:
        if first <= code < end:
            return code - first + new_first
    return code


@frozen(eq=False)
class FoldedTexts:
    """The result of folding n texts.

    Attributes:
        content: UTF-8 of all texts, each followed by one byte that is not part of a term; ASCII
            keeps its case and punctuation.
        ends: offset of that byte for each of n texts, ascending, shape (n,).
    """

    content: bytes
    ends: Offsets


def fold(
    texts: Sequence[str],
    *,
    toneless: bool = True,
) -> FoldedTexts:
    """Return texts, which can be any strings, folded by the rules of this module's docstring.

    Args:
        texts: the texts.
        toneless: whether Vietnamese words with tones are repeated without tones.
    """
    joined = "\n".join(texts)
    if joined.isascii():
        n_bytes = np.fromiter(map(len, texts), np.int64, len(texts)) + 1
        return FoldedTexts(joined.encode("ascii") + b"\n", np.cumsum(n_bytes) - 1)
    separator = chr(_SEPARATOR)
    terminated = [text.replace(separator, " ") + separator for text in texts]
    folded = _fold_text("".join(terminated))
    if toneless and any(lead in folded for lead in _TONED_LEADS):
        folded = add_toneless(folded.decode()).encode()
    return FoldedTexts(folded, np.flatnonzero(np.frombuffer(folded, np.uint8) == 0))


def folded_sizes(text: str) -> Offsets:
    """Return the number of bytes that each code point of a text folds to, shape (len(text),).

    Vietnamese words are not repeated. If code points are folded together, all their bytes are
    counted for the first, and 0 for the rest.
    """
    if text.isascii():
        return np.ones(len(text), np.int64)
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    unique_codes, code_index = np.unique(codes, return_inverse=True)
    sequences = list(_JOINED.finditer(text))
    characters = list(map(chr, unique_codes.tolist()))
    joined = [match[0] for match in sequences]
    ends = fold(characters + joined, toneless=False).ends
    n_bytes = np.diff(ends, prepend=-1) - 1
    sizes = n_bytes[code_index]
    sequence_bytes = n_bytes[len(characters) :].tolist()
    for match, size in zip(sequences, sequence_bytes, strict=True):
        sizes[match.start() : match.end()] = 0
        sizes[match.start()] = size
    return sizes


def _fold_text(text: str) -> bytes:
    table = _fold_table()
    has_halfwidth_marks = "\uff9e" in text or "\uff9f" in text
    if has_halfwidth_marks or not unicodedata.is_normalized("NFC", text):
        text = _DECOMPOSED.sub(lambda match: unicodedata.normalize("NFKC", match[0]), text)
    codes = _code_units(text)
    if ((codes & 0xF800) == 0xD800).any():
        text = _ASTRAL.sub(_fold_astral, _join_surrogates(text))
        codes = _code_units(text)
    folded = table.fold(codes)
    is_expanded = folded == _EXPAND
    if is_expanded.any():
        expanded_codes = set(codes[is_expanded].tolist())
        text = _expand(text, expanded_codes, table.expansions)
        folded = table.fold(_code_units(text))
    is_dropped = folded == _DROP
    if is_dropped.any():
        folded = folded[~is_dropped]
    return folded.tobytes().decode("utf-16-le").encode("utf-8")


def _join_surrogates(text: str) -> str:
    """Return a text with its surrogate pairs joined and each lone surrogate replaced by a space.

    Decoders refuse a lone surrogate, and it has no visible form.
    """
    code_units = text.encode("utf-16-le", "surrogatepass")
    return code_units.decode("utf-16-le", "replace").replace("\ufffd", " ")


def _code_units(text: str) -> _CodeUnits:
    return np.frombuffer(text.encode("utf-16-le", "surrogatepass"), np.dtype("<u2"))


def _expand(
    text: str,
    codes: set[int],
    expansions: dict[int, str],
) -> str:
    """Return a text with some characters replaced by their expansions.

    Args:
        text: the text.
        codes: the code units to replace.
        expansions: the string that replaces each code unit.
    """
    if len(codes) > _MAX_REPLACED_CHARACTERS:
        return text.translate({code: expansions[code] for code in codes})
    for code in sorted(codes):
        text = text.replace(chr(code), expansions[code])
    return text
