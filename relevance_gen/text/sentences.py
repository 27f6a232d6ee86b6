r"""Find the ends of sentences in a text of any language, without detecting the language.

1. A sentence ends at a blank line; at the end of a line before a list item, a table row or a
   heading, or of a heading; at each line of code, tables and verse; and at a line that had space
   for the first word of the next line. Other line ends are taken as wrapping.
2. ``. ! ? …`` end a sentence before white space, unless a small letter follows or they are in a
   table row. After an abbreviation, an initial or a number of at most two digits, a full stop ends
   a sentence only before a word that begins sentences, as "The".
3. ``。！？।؟`` and similar marks always end a sentence, and in Thai and Lao a space does.

Closing quotes and brackets, and numbers of notes, belong to the sentence.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import Final

_CLOSING: Final = r"[\"'”’»›)\]}]*+(?:\[\d{1,3}\])*+"
_STOP: Final = re.compile(
    rf"[.!?…](?<![.!?…][.!?…])([.!?…]*+){_CLOSING}(?=\s++[\"'“‘«‹„([{{¿¡*_]*+(.?))", re.DOTALL
)
_WIDE_STOP: Final = re.compile(
    r"(?:[。！？｡।॥؟۔።։။།]|．(?!\d))[。！？｡।॥]*+[」』”’）》】)\"'»]*+(?!と)"
)
_WIDE_OR_THAI: Final = re.compile(r"[。！？｡।॥؟۔።։។．ก-\u0eff]")
_THAI_OR_LAO: Final = re.compile(r"[ก-\u0eff](?=[^\S\n]++[ก-\u0eff])")
_BLANK: Final = re.compile(r"\n(?:[^\S\n]*+\n)++")
_ITEM: Final = re.compile(
    r"[^\S\n]*+(?:(?:[-*+•‣◦▪●·–]|\(?\d{1,3}[.)]|\(?\w\)|#{1,6})[^\S\n]|[|>]|```)"
)
_INITIALS: Final = re.compile(r"[^\W\d]|\d\d?|(?:[^\W\d]{1,2}\.)+[^\W\d]{1,2}")
_MAX_ROW_CHARS: Final = 500
"""Maximum characters of a table row before a full stop that does not end a sentence."""
_FIRST_WORD: Final = re.compile(r"\s*+\S*+")
_CODE: Final = re.compile(r"[{}=<>_\\|\t(;,](?:(?<=[^(;,])|(?<=\w\()|(?<=;)$|(?<=,)[^\s\d])")
_OPENING: Final = " \t\"'“‘«‹„([{¿¡*_—-"

_STARTERS: Final = re.compile(
    "(?:The|Then|This|That|These|Those|It|Its|In|He|She|They|We|You|If|But|And|For|On|At|As|There|However|When|While|"
    "After|Although|Before|Our|Their|His|No|Not|What|Why|How|A|An|I|Der|Die|Ein|Eine|Es|Er|Sie|Wir|Im)(?=[\\s,'’])"
)
"""Words that begin sentences and are rarely part of a name."""

_ABBREVIATIONS: Final = frozenset(
    "adm approx apr assn asst aug ave avg blvd bros capt cf cmdr co col corp dec dept dr eds esp est etc feb gen gov "
    "hon inc incl jan jr jul jun llc lt ltd maj mr mrs ms mt mts nov oct pres prof rep rev sen sep sept sgt sr st univ "
    "vs abschn allg bd bes bspw bzgl bzw ca dipl evtl frl geb ggf hr hrsg ing inkl jh mio mrd od sog str tel usw vgl "
    "zzgl av bld env mgr mm mme mlle sra srta dra ud uds avv dott ecc г гг др им млн млрд напр обл просп проф ред руб "
    "см ср стр тов тыс ул".split()
)
_BEFORE_NUMBERS: Final = frozenset(
    "abb abs art arts ch chap eq eqs exh fig figs kap mar no nos nr nro núm pag pág par para pp sec sect tab vol vols "
    "гл рис табл".split()
)
"""Abbreviations, most of which are also words, that count as abbreviations only before a number."""

_MAX_ABBREVIATION_CHARS: Final = 16
_MAX_ITEM_NUMBER_DIGITS: Final = 3
"""Maximum number of digits of the number before a list item."""
_MAX_BROKEN_RATIO: Final = 0.8
"""A line was broken on purpose if it would have at most this fraction of the length of long lines
with the next word."""
_MIN_VERSE_LINES: Final = 4
_LAST_SPACED: Final = "\u2e7f"
"""Later characters are of the scripts of China and Japan, which are written without spaces between
words."""


def sentence_ends(
    text: str,
    *,
    is_lower_case: bool | None = None,
) -> list[int]:
    r"""Return the end of each sentence, ascending.

    This takes time proportional to the length of the text. The first sentence begins at 0 and every
    other sentence at the end of the sentence before it, with the white space between them; the last
    sentence ends with the text. A text of only white space is one sentence, an empty text none.

    Args:
        text: the text.
        is_lower_case: whether sentences can begin with a small letter, because the text is in lower
            case; by default `text.islower()`. Pass it for a part of a longer text.

    >>> sentence_ends("Dr. Who met\nMr. X. They spoke.\n\n- Tea\n- Milk")
    [18, 30, 37, 44]
    """
    if not text:
        return []
    if is_lower_case is None:
        is_lower_case = text.islower()
    unique_ends = set(_ends_of_lines(text))
    unique_ends.update(_ends_by_stops(text, is_lower_case=is_lower_case))
    if not text.isascii() and _WIDE_OR_THAI.search(text):
        for pattern in (_WIDE_STOP, _THAI_OR_LAO):
            unique_ends.update(match.end() for match in pattern.finditer(text))
    ends = sorted(unique_ends)
    if ends and not text[ends[-1] :].strip():
        ends.pop()
    return [*ends, len(text)]


def unwrapped(text: str) -> str:
    """Return a text in which the line breaks that do not end a sentence are removed.

    Each removed line break is replaced by a space, or by nothing after a character of Chinese or
    Japanese. White space at the end of the result is removed. A text should have neither blank
    lines nor white space at the end of lines: of two line breaks in succession, the second becomes
    a space; and a line break after white space is removed even if it ends a sentence.
    """
    ends = set(_ends_of_lines(text))
    parts = []
    line_end = -1
    for line in text.split("\n"):
        line_end += len(line) + 1
        separator = " "
        if line_end in ends:
            separator = "\n"
        elif line[-1:] > _LAST_SPACED:
            separator = ""
        parts += [line, separator]
    return "".join(parts).rstrip()


def _ends_by_stops(
    text: str,
    *,
    is_lower_case: bool,
) -> Iterator[int]:
    """Yield the ends of sentences that end with ``. ! ? …`` before white space.

    Args:
        text: the text.
        is_lower_case: whether sentences can begin with a small letter.
    """
    has_rows = "\n|" in text or text.startswith("|")
    for stop in _STOP.finditer(text):
        more_stops, next_character = stop.groups()
        if next_character.islower() and not is_lower_case:
            continue
        if has_rows and _is_in_row(text, stop.start()):
            continue
        is_full_stop = not more_stops and text[stop.start()] == "."
        if next_character and is_full_stop and not _ends_sentence(text, stop):
            continue
        yield stop.end()


def _is_in_row(text: str, position: int) -> bool:
    """Return whether a position is within `_MAX_ROW_CHARS` after the start of a table row."""
    low = max(position - _MAX_ROW_CHARS, 0)
    line_start = text.rfind("\n", low, position) + 1
    return text.startswith("|", max(line_start, low))


def _ends_sentence(
    text: str,
    stop: re.Match[str],
) -> bool:
    """Return whether a full stop ends a sentence, and not only an abbreviation or a number.

    Args:
        text: the text.
        stop: the match of `_STOP` for the full stop.
    """
    before = text[max(stop.start() - _MAX_ABBREVIATION_CHARS, 0) : stop.start()]
    word = ""
    if before and not before[-1].isspace():
        word = before.rsplit(None, 1)[-1].lstrip(_OPENING)
    is_short_number = len(word) <= _MAX_ITEM_NUMBER_DIGITS and word.isdecimal()
    if is_short_number and before.rpartition("\n")[2].strip(_OPENING) == word:
        return False  # the number of a list item
    if not _can_have_full_stop(word, stop[2].isdecimal()):
        return True
    return _STARTERS.match(text, stop.start(2)) is not None


@functools.lru_cache(maxsize=1 << 13)
def _can_have_full_stop(word: str, before_number: bool) -> bool:
    """Return whether a word before a full stop is an initial, a short number or an abbreviation.

    Args:
        word: the word; "" if white space is before the full stop.
        before_number: whether a digit follows the full stop.
    """
    if _INITIALS.fullmatch(word) is not None:
        return True
    lower = word.lower()
    return lower in _ABBREVIATIONS or (before_number and lower in _BEFORE_NUMBERS)


def _ends_of_lines(text: str) -> Iterator[int]:
    """Yield the ends of the lines that end a sentence, without white space at the line's end."""
    start = 0
    for blank in _BLANK.finditer(text):
        yield from _ends_in_paragraph(text[start : blank.start()], start)
        start = blank.end()
    yield from _ends_in_paragraph(text[start:], start)


def _ends_in_paragraph(
    paragraph: str,
    start: int,
) -> Iterator[int]:
    """Yield the end, in the text, of each line of a paragraph that ends a sentence.

    The last line always ends a sentence. If it is only white space, nothing is yielded for it, and
    the line before it is judged as any other line.

    Args:
        paragraph: the paragraph.
        start: its offset in the text.
    """
    lines = paragraph.split("\n")
    if len(lines) == 1:
        if line := paragraph.rstrip():
            yield start + len(line)
        return
    # The 90 % quantile, and not a single long line, for example with an address.
    line_width = sorted(map(len, lines))[9 * len(lines) // 10]
    has_fixed_lines = _are_mostly_code(lines) or _are_verse(lines)
    for line, next_line in zip(lines, [*lines[1:], ""], strict=True):
        is_end = (
            has_fixed_lines
            or not next_line
            or line.startswith("#")
            or _ITEM.match(next_line)
            or _had_space(line, next_line, line_width)
        )
        if is_end and line and not line.isspace():
            yield start + len(line.rstrip())
        start += len(line) + 1


def _are_mostly_code(lines: list[str]) -> bool:
    """Return whether at least half of the lines of a paragraph look like code or a table."""
    n_other = 0
    for line in lines:
        n_other += _CODE.search(line) is None
        if 2 * n_other > len(lines):
            return False
    return True


def _are_verse(lines: list[str]) -> bool:
    """Return whether a paragraph looks like verse: four or more lines that begin with a capital."""
    if len(lines) < _MIN_VERSE_LINES:
        return False
    return all(line.lstrip(_OPENING)[:1].isupper() for line in lines)


def _had_space(
    line: str,
    next_line: str,
    line_width: int,
) -> bool:
    """Return whether a line had space for the first word of the next line.

    Then the line was not wrapped there, but ends on purpose.

    Args:
        line: the line.
        next_line: the line after it.
        line_width: the usual width of the paragraph's long lines.
    """
    if len(line) + 1 > _MAX_BROKEN_RATIO * line_width:
        return False
    word = _FIRST_WORD.match(next_line)
    n_chars = len(line) + 1 + (word.end() if word else 0)
    max_ratio = _MAX_BROKEN_RATIO
    if next_line.lstrip()[:1].islower():
        max_ratio = _MAX_BROKEN_RATIO / 2
    return n_chars <= max_ratio * line_width
