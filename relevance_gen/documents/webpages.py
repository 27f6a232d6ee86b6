"""The text of an HTML page, line by line as it stands in the file."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Final

_UNSEEN: Final = frozenset({"script", "style", "template"})
_INLINE: Final = frozenset(
    "a abbr b bdi bdo cite code data del dfn em font i ins kbd mark q s samp small span strong sub sup time tt u var "
    "wbr".split()
)
"""Elements that stand within a word or a sentence; all others end it."""
_GAP = re.compile(r"[^\S\n]+")


def text_of_page(markup: str) -> str:
    r"""Return what a page says, without its markup. Each line of text keeps its number.

    >>> text_of_page("Fish &amp;\n <b>ch</b>ips<p>Peas")
    'Fish &\n chips Peas'
    """
    page = _Page()
    page.feed(markup)
    page.close()
    return _GAP.sub(" ", "".join(page.pieces))


class _Page(HTMLParser):
    """Collect the pieces of text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self._line = 1
        self._unseen = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        if tag in _UNSEEN and not self._unseen:
            self._unseen = tag
        self._end_word(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == self._unseen:
            self._unseen = ""
        self._end_word(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:  # noqa: ARG002
        self._end_word(tag)

    def handle_data(self, data: str) -> None:
        if self._unseen:
            return
        line, _ = self.getpos()
        self.pieces.append("\n" * (line - self._line))  # where only markup stood
        self.pieces.append(data)
        self._line = max(line, self._line) + data.count("\n")

    def _end_word(self, tag: str) -> None:
        if tag not in _INLINE:
            self.pieces.append(" ")
