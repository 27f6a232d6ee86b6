"""Extract the text of an HTML page without navigation.

A blank line separates paragraphs; each list item and table row is a line.
"""

from __future__ import annotations

import itertools
import re
from html.parser import HTMLParser
from typing import Final

from attrs import frozen

from relevance_gen.documents.tables import header_lines, names_of, one_line, row_line

_INVISIBLE: Final = frozenset({"script", "style", "template"})
_NAVIGATION: Final = frozenset({"nav", "header", "footer", "aside"})
_NAVIGATION_ROLES: Final = frozenset(
    {"navigation", "banner", "contentinfo", "complementary", "menu", "menubar", "search"}
)
_WITH_ROLE: Final = frozenset({*_NAVIGATION, "div", "ul", "ol", "section", "form", "menu"})
_CONTENT: Final = frozenset({"main", "article"})
_INLINE: Final = frozenset(
    "a abbr b bdi bdo cite code data del dfn em font i ins kbd mark q s samp small span strong sub "
    "sup time tt u var wbr".split()
)
"""Elements within a word or a sentence; any other element begins a new line, except in a cell."""
_LINES: Final = frozenset("br caption dd dt li option tbody tfoot thead tr".split())
"""Elements that begin a line, and not a paragraph; so does every element in a list."""
_LISTS: Final = frozenset({"ul", "ol"})
_HEADING: Final = re.compile("h[1-6]")
_PARAGRAPH: Final = "\x1e"
"""Separator that is written as a piece of text where a paragraph ends."""
_SPACES: Final = re.compile(r"[^\S\n\x1e]+")
_NEWLINES: Final = re.compile(r" ?[\n\x1e][ \n\x1e]*")
_EMPTY_MARKER: Final = re.compile(r"^(-|#{1,6})\n+(?=[^\n#-])", re.MULTILINE)
"""Matches a Markdown marker whose text is in a block of its own, as in ``<li><p>``."""


def page_text(markup: str) -> tuple[str, str]:
    r"""Return the title of a page and its text, without markup and navigation.

    A heading is written as in Markdown, a list item after a hyphen, a table as rows. After a header
    row, each cell begins with the name of its column, if its row has as many cells as the header
    row. If a page has no text outside its navigation, the text of the navigation is returned.

    >>> page_text("<title>Food</title><nav>Home</nav><h2>Fish &amp;\n <b>ch</b>ips</h2><p>Peas")
    ('Food', '## Fish & chips\n\nPeas')
    >>> page_text("<table><tr><th>Fish<th>Price<tr><td>Cod<td>9</table>")[1]
    '| Fish | Price |\n| --- | --- |\n| Fish: Cod | Price: 9 |'
    """
    for skips_navigation in (True, False):
        parser = _PageParser(skips_navigation=skips_navigation)
        parser.feed(markup)
        parser.close()
        parser.end_line()
        text = _SPACES.sub(" ", "".join(parser.pieces))
        text = _NEWLINES.sub(_line_break, text).strip()
        text = _EMPTY_MARKER.sub(r"\1 ", text)
        if text:
            break
    return one_line("".join(parser.title)), text


@frozen
class _CellStart:
    """The tag of a table cell, and the number of pieces of text before the cell."""

    tag: str
    n_pieces: int


class _PageParser(HTMLParser):
    """A parser that collects the text of a page.

    Args:
        skips_navigation: whether to leave out the text of navigation.

    Attributes:
        pieces: the pieces of the text in order, newlines included.
        title: the pieces of the title.
    """

    def __init__(self, *, skips_navigation: bool) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []
        self.title: list[str] = []
        self._skips_navigation = skips_navigation
        self._skipped_tag = ""  # of the element that is skipped now
        self._skipped_depth = 0  # open elements with that tag
        self._content_depth = 0
        self._pre_depth = 0
        self._list_depth = 0
        self._is_in_title = False
        self._column_names: list[str] = []
        self._row: list[_CellStart] = []

    def handle_starttag(
        self,
        tag: str,
        attrs: list[tuple[str, str | None]],
    ) -> None:
        if tag in _CONTENT:
            self._skipped_tag = ""
            self._content_depth += 1
        if self._skipped_tag:
            self._skipped_depth += tag == self._skipped_tag
        elif tag in _INVISIBLE or self._is_navigation(tag, attrs):
            self._skipped_tag = tag
            self._skipped_depth = 1
        self._is_in_title = tag == "title" and not self.title
        self._pre_depth += tag == "pre"
        if tag in _INLINE or self._skipped_tag:
            return
        if tag in ("td", "th"):
            self._row.append(_CellStart(tag, len(self.pieces)))
            return
        self._end_block(tag)
        self._list_depth += tag in _LISTS
        if tag == "table":
            self._column_names = []
        elif _HEADING.fullmatch(tag) and not self._row:
            self.pieces.append("#" * int(tag[1]) + " ")
        elif tag == "li":
            self.pieces.append("- ")

    def handle_endtag(self, tag: str) -> None:
        if tag == self._skipped_tag:
            self._skipped_depth -= 1
            if not self._skipped_depth:
                self._skipped_tag = ""
        self._content_depth -= tag in _CONTENT and self._content_depth > 0
        self._pre_depth -= tag == "pre" and self._pre_depth > 0
        self._list_depth -= tag in _LISTS and self._list_depth > 0
        self._is_in_title = False
        if tag not in _INLINE:
            self._end_block(tag)

    def handle_data(self, data: str) -> None:
        if self._is_in_title:
            self.title.append(data)
        elif not self._skipped_tag:
            self.pieces.append(data if self._pre_depth else data.replace("\n", " "))

    def _end_block(self, tag: str) -> None:
        if self._row and tag not in ("tr", "table"):
            self.pieces.append(" ")  # the content of a cell stays in one line
        else:
            self.end_line()
            if tag not in _LINES and not self._list_depth:
                self.pieces.append(_PARAGRAPH)

    def end_line(self) -> None:
        """End the current line of text; first join the cells of an open table row."""
        if self._row:
            self._end_row()
        self.pieces.append("\n")

    def _end_row(self) -> None:
        """Replace the pieces of the open table row by that row in Markdown.

        A row of several cells, all ``th``, is a header: it gets a separator and sets the column
        names. In other rows with as many cells, each cell that is not empty starts with the name of
        its column.
        """
        bounds = [*(cell.n_pieces for cell in self._row), len(self.pieces)]
        cells = []
        for start, end in itertools.pairwise(bounds):
            cells.append("".join(self.pieces[start:end]))
        del self.pieces[bounds[0] :]
        if len(cells) > 1 and all(cell.tag == "th" for cell in self._row):
            self._column_names = names_of(cells)
            self.pieces.append(header_lines(cells))
        else:
            is_named = len(cells) == len(self._column_names)
            self.pieces.append(row_line(cells, self._column_names if is_named else ()))
        self._row = []

    def _is_navigation(
        self,
        tag: str,
        attrs: list[tuple[str, str | None]],
    ) -> bool:
        if not self._skips_navigation:
            return False
        if tag in ("header", "footer") and self._content_depth:
            return False
        has_role = tag in _WITH_ROLE and dict(attrs).get("role") in _NAVIGATION_ROLES
        return tag in _NAVIGATION or has_role


def _line_break(spaces: re.Match[str]) -> str:
    return "\n\n" if _PARAGRAPH in spaces[0] else "\n"
