"""Pages set in lines as running text: without what repeats at their edges, each sentence whole on one page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from relevance_gen.text.sentences import sentence_ends, unwrapped

_N_EDGE: Final = 3
"""So many first and last lines of a page may be running heads, its number among them."""
_N_REPEATS: Final = 3
"""A line at an edge of so many pages, but for its numbers, is one."""
_MOST_CARRIED: Final = 1000
_NUMBER: Final = re.compile(r"\d+|^[ivxlc]+$")
_SOFT_HYPHEN: Final = re.compile(r"(?<!\w)(\w++)(?:\ufffe|\xad|-\n(?=[^\W\d_A-Z]))(\w++)")
"""A hyphen at the end of a line; U+FFFE is what PDFium writes for it."""
_HYPHENATED: Final = re.compile(r"(?<!\w)\w++-\w++")


def running_text(pages: Sequence[str]) -> list[str]:
    r"""Return the texts of pages with lines joined to paragraphs, and words that were parted at the end of a line.

    A sentence that goes on where a page begins is moved to the page before, if this one has more. A parted word keeps
    its hyphen where it has it elsewhere within a line.

    >>> running_text(["Cats and dogs sleep for most of\nthe day. They are", "nocturnal. Birds are not."])
    ['Cats and dogs sleep for most of the day. They are nocturnal.', 'Birds are not.']
    """
    bodies = _without_running_heads(
        [[" ".join(line.split()) for line in page.splitlines()] for page in pages]
    )
    hyphenated = {
        word.lower() for body in bodies for line in body for word in _HYPHENATED.findall(line)
    }

    def whole(parted: re.Match[str]) -> str:
        with_hyphen = "-".join(parted.groups())
        return with_hyphen if with_hyphen.lower() in hyphenated else "".join(parted.groups())

    texts = [
        unwrapped(_SOFT_HYPHEN.sub(whole, "\n".join(body)).replace("\ufffe", "")) for body in bodies
    ]
    for number in range(1, len(texts)):
        before, text = texts[number - 1], texts[number]
        if (
            before
            and text[:1].islower()
            and (end := sentence_ends(text)[0]) < min(len(text), _MOST_CARRIED)
        ):
            texts[number - 1 : number + 1] = f"{before} {text[:end]}", text[end:].lstrip()
    return texts


def _without_running_heads(pages: list[list[str]]) -> list[list[str]]:
    pages = [[line for line in page if line] for page in pages]
    counts = Counter(
        pattern
        for page in pages
        for pattern in {_pattern(line) for line in page[:_N_EDGE] + page[-_N_EDGE:]}
    )
    bodies = []
    for page in pages:
        repeats = [counts[_pattern(line)] >= _N_REPEATS for line in page]
        first = [*repeats[:_N_EDGE], False].index(False)
        last = [*repeats[: -_N_EDGE - 1 : -1], False].index(False)
        bodies.append(page[first : len(page) - last] or page)
    return bodies


def _pattern(line: str) -> str:
    """Return a line without what its numbers are; with three or more of these it is a row of a table, and itself."""
    pattern, n_numbers = _NUMBER.subn("#", line)
    return pattern if n_numbers < _N_REPEATS else line
