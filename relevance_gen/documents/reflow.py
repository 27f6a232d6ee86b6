"""Convert the lines of pages to running text.

Page headers and footers are removed, and a sentence that continues on the next page is completed on
the page where it begins.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from relevance_gen.documents.tables import one_line
from relevance_gen.text.sentences import sentence_ends, unwrapped

_N_EDGE_LINES: Final = 3
"""Number of first lines, and of last lines, of a page that may be page headers and footers."""
_MIN_REPEATS: Final = 3
"""A line at an edge of this many pages, with numbers ignored, is a page header or footer."""
_MAX_MOVED_CHARS: Final = 1000
"""Maximum characters of a sentence that are moved to the previous page."""
_NUMBER: Final = re.compile(r"\d+|^[ivxlc]+$")
"""Matches a number in digits, or a line that is a Roman numeral in lower case."""
_LINE_HYPHEN: Final = re.compile(r"(?<!\w)(\w++)(?:\ufffe|\xad|-\n(?=[^\W\d_A-Z]))(\w++)")
"""Matches a word with a hyphen at the end of a line; PDFium writes U+FFFE for the hyphen."""
_HYPHENATED: Final = re.compile(r"(?<!\w)\w++-\w++")


def reflow(pages: Sequence[str]) -> list[str]:
    r"""Return the texts of pages with lines joined to paragraphs and hyphenated words joined.

    Page headers and footers are removed. If a page begins with a lower-case letter, its text up to
    the end of the sentence is moved to the previous page, unless this text is the whole page or has
    1,000 characters or more, or the previous page is empty. A word that is hyphenated at the end of
    a line keeps its hyphen if it also occurs with the hyphen within a line.

    >>> reflow(["Cats and dogs sleep for most of\nthe day. They are", "nocturnal. Birds are not."])
    ['Cats and dogs sleep for most of the day. They are nocturnal.', 'Birds are not.']
    """
    page_lines = []
    for page_text in pages:
        lines = map(one_line, page_text.splitlines())
        page_lines.append(list(filter(None, lines)))
    bodies = ["\n".join(lines) for lines in _without_page_headers(page_lines)]
    hyphenated: set[str] = set()
    for body in bodies:
        hyphenated.update(map(str.lower, _HYPHENATED.findall(body)))

    def join(word: re.Match[str]) -> str:
        with_hyphen = "-".join(word.groups())
        return with_hyphen if with_hyphen.lower() in hyphenated else "".join(word.groups())

    texts = []
    for body in bodies:
        joined = _LINE_HYPHEN.sub(join, body)
        texts.append(unwrapped(joined.replace("\ufffe", "")))
    for page in range(1, len(texts)):
        previous, text = texts[page - 1], texts[page]
        if not previous or not text[:1].islower():
            continue
        end = sentence_ends(text)[0]
        if end < min(len(text), _MAX_MOVED_CHARS):
            texts[page - 1] = f"{previous} {text[:end]}"
            texts[page] = text[end:].lstrip()
    return texts


def _without_page_headers(pages: list[list[str]]) -> list[list[str]]:
    """Return the lines of pages, none of them blank, without page headers and page footers.

    If a page contains nothing but headers and footers, its lines are returned.
    """
    n_pages_with: Counter[str] = Counter()
    for page in pages:
        edges = page[:_N_EDGE_LINES] + page[-_N_EDGE_LINES:]
        n_pages_with.update(set(map(_without_numbers, edges)))
    bodies = []
    for page in pages:
        repeats = [n_pages_with[_without_numbers(line)] >= _MIN_REPEATS for line in page]
        n_first = [*repeats[:_N_EDGE_LINES], False].index(False)
        n_last = [*repeats[: -_N_EDGE_LINES - 1 : -1], False].index(False)
        bodies.append(page[n_first : len(page) - n_last] or page)
    return bodies


def _without_numbers(line: str) -> str:
    """Return a line with each number replaced by ``#``, to compare the headers of pages.

    A line with 3 numbers or more, which is probably a table row, is returned unchanged.
    """
    pattern, n_numbers = _NUMBER.subn("#", line)
    return pattern if n_numbers < _MIN_REPEATS else line
