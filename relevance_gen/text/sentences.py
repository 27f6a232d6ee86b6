r"""Where the sentences of a text end, in any language and without knowing which.

1. A blank line ends one. So does the end of a line before a list's item or a row of a table, or beside a heading; every
   line of code, of a table and of verse; and a line that had room for the first word of the next. Any other end of a
   line is only where running text was wrapped.
2. ``. ! ? …`` end one before white space, unless a small letter follows. Behind an abbreviation, an initial or a number
   of one or two digits a full stop does so only before a word that begins sentences, as "The".
3. ``。！？।؟`` and their like always do, and in Thai and Lao a space does.

Closing quotes and brackets, and numbers of notes, stay with the sentence.
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
_FIRST_WORD: Final = re.compile(r"\s*+\S*+")
_CODE: Final = re.compile(r"[{}=<>_\\|\t(;,](?:(?<=[^(;,])|(?<=\w\()|(?<=;)$|(?<=,)[^\s\d])")
_OPENING: Final = " \t\"'“‘«‹„([{¿¡*_—-"

_STARTERS: Final = re.compile(
    "(?:The|Then|This|That|These|Those|It|Its|In|He|She|They|We|You|If|But|And|For|On|At|As|There|However|When|While|"
    "After|Although|Before|Our|Their|His|No|Not|What|Why|How|A|An|I|Der|Die|Ein|Eine|Es|Er|Sie|Wir|Im)(?=[\\s,'’])"
)
"""Words that begin sentences and are hardly ever part of a name."""

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
"""Abbreviations, mostly words as well, which are abbreviations only before a number."""

_LONGEST_ABBREVIATION: Final = 16
_MOST_DIGITS: Final = 3
"""Of a number that stands before a list's item."""
_MOST_FILLED: Final = 0.8
"""A line was broken by its writer if, with the next word, it would take at most this share of its longest neighbour."""
_FEWEST_VERSES: Final = 4
_LAST_SPACED: Final = "\u2e7f"
"""Behind it come the scripts of China and Japan, which have no spaces between words."""


def sentence_ends(text: str, *, in_small: bool | None = None) -> list[int]:
    r"""Return the position behind the last character of each sentence, ascending; takes time in proportion to the text.

    The first sentence begins at 0 and each other where the one before it ends, with the white space between them; the
    last ends with the text. A text of only white space is one sentence, an empty one is none. Where nobody writes
    capitals, which `in_small` says of a part of a text, a sentence begins without one.

    >>> sentence_ends("Dr. Who met\nMr. X. They spoke.\n\n- Tea\n- Milk")
    [18, 30, 37, 44]
    """
    ends = set(_ends_of_lines(text))
    in_small = text.islower() if in_small is None else in_small
    ends.update(_ends_by_stops(text, in_small=in_small))
    if not text.isascii() and _WIDE_OR_THAI.search(text):
        ends.update(
            match.end() for mark in (_WIDE_STOP, _THAI_OR_LAO) for match in mark.finditer(text)
        )
    found = sorted(ends)
    if found and not text[found[-1] :].strip():
        found.pop()
    return [*found, len(text)] if text else []


def unwrapped(text: str) -> str:
    """Return a text with its lines joined, but for those whose end ends a sentence."""
    ends, place, pieces = set(_ends_of_lines(text)), 0, list[str]()
    for line in text.split("\n"):
        place += len(line)
        pieces += line, "\n" if place in ends else "" if line[-1:] > _LAST_SPACED else " "
        place += 1
    return "".join(pieces).rstrip()


def _ends_by_stops(text: str, *, in_small: bool) -> Iterator[int]:
    """Yield where a stop before white space ends a sentence."""
    for stop in _STOP.finditer(text):
        more, following = stop.groups()
        start = stop.start()
        if following.islower() and not in_small:
            continue
        if following and not more and text[start] == ".":
            before = text[max(start - _LONGEST_ABBREVIATION, 0) : start]
            word = (
                before.rsplit(None, 1)[-1].lstrip(_OPENING)
                if before and not before[-1].isspace()
                else ""
            )
            if (
                len(word) <= _MOST_DIGITS
                and word.isdecimal()
                and before.rpartition("\n")[2].strip(_OPENING) == word
            ):
                continue  # the number of a list's item
            if _is_doubtful(word, following.isdecimal()) and not _STARTERS.match(
                text, stop.start(2)
            ):
                continue
        yield stop.end()


@functools.lru_cache(maxsize=1 << 13)
def _is_doubtful(word: str, before_number: bool) -> bool:
    """Tell whether a full stop behind a word may belong to it."""
    small = word.lower()
    return (
        _INITIALS.fullmatch(word) is not None
        or small in _ABBREVIATIONS
        or (before_number and small in _BEFORE_NUMBERS)
    )


def _ends_of_lines(text: str) -> Iterator[int]:
    """Yield where lines end that end a sentence."""
    start = 0
    for blank in _BLANK.finditer(text):
        yield from _ends_within(text[start : blank.start()], start)
        start = blank.end()
    yield from _ends_within(text[start:], start)


def _ends_within(paragraph: str, start: int) -> Iterator[int]:
    """Yield the end of a paragraph that begins at `start`, and of those of its lines that end a sentence."""
    lines = paragraph.split("\n")
    if len(lines) == 1:
        if line := paragraph.rstrip():
            yield start + len(line)
        return
    widest = sorted(map(len, lines))[
        9 * len(lines) // 10
    ]  # not one long line that stands out, such as an address
    is_set_in_lines = _are_mostly_code(lines) or (
        len(lines) >= _FEWEST_VERSES and all(line.lstrip(_OPENING)[:1].isupper() for line in lines)
    )
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        is_end = is_set_in_lines or not following or line.startswith("#") or _ITEM.match(following)
        if (is_end or _had_room(line, following, widest)) and line and not line.isspace():
            yield start + len(line.rstrip())
        start += len(line) + 1


def _are_mostly_code(lines: list[str]) -> bool:
    """Tell whether at least half of some lines look like code or a table."""
    n_others = 0
    for line in lines:
        n_others += _CODE.search(line) is None
        if 2 * n_others > len(lines):
            return False
    return True


def _had_room(line: str, following: str, widest: int) -> bool:
    """Tell whether the first word of the next line would have had room in a line, had the text been wrapped."""
    if len(line) + 1 > _MOST_FILLED * widest:
        return False
    word = _FIRST_WORD.match(following)
    n_chars = len(line) + 1 + (word.end() if word else 0)
    filled = _MOST_FILLED / 2 if following.lstrip()[:1].islower() else _MOST_FILLED
    return n_chars <= filled * widest
