"""The text of an HTML page, without its navigation: a paragraph, an item or a row of a table is a line."""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser
from typing import Final

_UNSEEN: Final = frozenset({"script", "style", "template"})
_AROUND: Final = frozenset({"nav", "header", "footer", "aside"})
_ROLES: Final = frozenset(
    {"navigation", "banner", "contentinfo", "complementary", "menu", "menubar", "search"}
)
_MAY_HAVE_ROLES: Final = frozenset({*_AROUND, "div", "ul", "ol", "section", "form", "menu"})
_CONTENT: Final = frozenset({"main", "article"})
_INLINE: Final = frozenset(
    "a abbr b bdi bdo cite code data del dfn em font i ins kbd mark q s samp small span strong sub sup time tt u var "
    "wbr".split()
)
"""Elements that stand within a word or a sentence; all others end it."""
_HEADING: Final = re.compile("h[1-6]")
_MAX_HEAD_CHARS: Final = 50
"""So much of a column's head stands in each of its cells: a small page may say a long one very often."""
_GAP = re.compile(r"[^\S\n]+")
_BREAK = re.compile(r" ?\n[ \n]*")


def text_of_page(markup: str) -> tuple[str, str]:
    r"""Return the title of a page, and what it says, without its markup and what stands around its content.

    A heading is written as Markdown's, an item of a list after a hyphen. In a row of a table below a row of heads each
    cell has its head in front. Where nothing were left without the navigation, it stays.

    >>> text_of_page("<title>Food</title><nav>Home</nav><h2>Fish &amp;\n <b>ch</b>ips</h2><p>Peas")
    ('Food', '## Fish & chips\nPeas')
    >>> text_of_page("<table><tr><th>Fish<th>Price<tr><td>Cod<td>9</table>")[1]
    'Fish | Price\nFish: Cod | Price: 9'
    """
    for around in (_AROUND, frozenset[str]()):
        page = _Page(around)
        page.feed(markup)
        page.close()
        page.end_line()
        text = _BREAK.sub("\n", _GAP.sub(" ", "".join(page.pieces))).strip()
        if text:
            break
    return " ".join("".join(page.title).split()), text


class _Page(HTMLParser):
    """Collect the pieces of text, and leave out the elements `around` the content."""

    def __init__(self, around: frozenset[str]) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self.title: list[str] = []
        self._around = around
        self._unseen, self._depth = (
            "",
            0,
        )  # an element that is left out, and how many of its name are open within
        self._content, self._pre = (
            0,
            0,
        )  # how many elements are open that hold content, and text as it stands
        self._in_title = False
        self._heads: list[str] = []
        self._row: list[tuple[str, int]] = []  # each cell's tag, and where its pieces begin

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _CONTENT:
            self._unseen, self._content = "", self._content + 1
        if self._unseen:
            self._depth += tag == self._unseen
        elif tag in _UNSEEN or self._is_around(tag, attrs):
            self._unseen, self._depth = tag, 1
        self._in_title = tag == "title" and not self.title
        self._pre += tag == "pre"
        if tag in _INLINE or self._unseen:
            return
        if tag in ("td", "th"):
            self._row.append((tag, len(self.pieces)))
            return
        self._end_block(tag)
        if tag == "table":
            self._heads = []
        elif _HEADING.fullmatch(tag) and not self._row:
            self.pieces.append("#" * int(tag[1]) + " ")
        elif tag == "li":
            self.pieces.append("- ")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._unseen:
            self._depth -= 1
            self._unseen = tag if self._depth else ""
        self._content -= tag in _CONTENT and self._content > 0
        self._pre -= tag == "pre" and self._pre > 0
        self._in_title = False
        if tag not in _INLINE:
            self._end_block(tag)

    def handle_data(self, data: str) -> None:
        if self._in_title:
            self.title.append(data)
        elif not self._unseen:
            self.pieces.append(data if self._pre else data.replace("\n", " "))

    def _end_block(self, tag: str) -> None:
        if self._row and tag not in ("tr", "table"):
            self.pieces.append(" ")  # what stands in a cell stays in its line
        else:
            self.end_line()

    def end_line(self) -> None:
        """End a line, and the row of a table that stands in it."""
        if self._row:
            bounds = [*(start for _, start in self._row), len(self.pieces)]
            cells = [
                " ".join("".join(self.pieces[a:b]).split()) for a, b in itertools.pairwise(bounds)
            ]
            del self.pieces[bounds[0] :]
            if all(tag == "th" for tag, _ in self._row):
                self._heads = [cell[:_MAX_HEAD_CHARS] for cell in cells]
            elif len(cells) == len(self._heads):
                cells = [
                    f"{head}: {cell}" if head and cell else cell
                    for head, cell in zip(self._heads, cells, strict=True)
                ]
            self.pieces.append(" | ".join(cells))
            self._row = []
        self.pieces.append("\n")

    def _is_around(self, tag: str, attrs: list[tuple[str, str | None]]) -> bool:
        if tag in ("header", "footer") and self._content:
            return False
        return bool(self._around) and (
            tag in self._around or (tag in _MAY_HAVE_ROLES and dict(attrs).get("role") in _ROLES)
        )
