"""Lists for terminals and HTML tables for notebooks, with an excerpt of each item's text."""

from __future__ import annotations

import html
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from attrs import frozen

from relevance_gen.errors import describe

T = TypeVar("T")

TextRange: TypeAlias = tuple[int, int]
"""Positions in a text: of the first character, and after the last."""

LINE_CHARS: Final = 80
"""Maximum characters of a text in a list."""
CELL_CHARS: Final = 400
"""Maximum characters of a text in a table."""
ALL_CHARS: Final = sys.maxsize
_MAX_ROWS: Final = 10
_MAX_METADATA_FIELDS: Final = 4
_MAX_METADATA_CHARS: Final = 40
_TEXT_STYLE: Final = 'style="text-align: left; white-space: pre-wrap"'


@frozen
class Row:
    """The displayed parts of an item.

    Attributes:
        label: precedes the text in a list, including the separating space.
        cells: the columns before the text in a table.
        text: the text of the item, of which an excerpt is shown.
        focus: the range of the text that the excerpt includes; None for the beginning of the text.
        highlights: ranges of the text that are highlighted in a table; ascending, without overlap.
    """

    label: str  # precedes the text in a list, including the separating space
    cells: tuple[str, ...]  # the columns before the text in a table
    text: str  # shortened to fit
    focus: TextRange | None = None  # show this range if the text is shortened; None: the beginning
    highlights: Sequence[TextRange] = ()  # highlighted in a table; ascending, without overlap


@frozen
class _Excerpt:
    """The range of a text from `start` to `end` that is shown.

    `prefix` and `suffix` are an ellipsis if the text before or after the range is left out,
    otherwise "".
    """

    text: str
    start: int
    end: int

    @property
    def prefix(self) -> str:
        return "…" if self.start else ""

    @property
    def suffix(self) -> str:
        return "…" if self.end < len(self.text) else ""


def format_list(
    title: str,
    items: Sequence[T],
    row_of: Callable[[T], Row],
    n_chars: int = LINE_CHARS,
) -> str:
    """Return `title`, and a line with at most `n_chars` of text for each of the first 10 items.

    If there are more items, a last line states how many.
    """
    lines = [title]
    for row in map(row_of, items[:_MAX_ROWS]):
        excerpt = _excerpt(row, n_chars)
        text = excerpt.prefix + row.text[excerpt.start : excerpt.end] + excerpt.suffix
        lines.append(f"  {row.label}{one_line(text)}")
    if len(items) > _MAX_ROWS:
        lines.append(f"  … and {len(items) - _MAX_ROWS:,} more")
    return "\n".join(lines)


def format_table(
    caption: str,
    columns: Sequence[str],
    items: Sequence[T],
    row_of: Callable[[T], Row],
    n_chars: int = CELL_CHARS,
) -> str:
    """Return an HTML table of the first 10 items, with at most `n_chars` of each item's text.

    If there are more items, a last row states how many.

    Args:
        caption: the caption of the table, as HTML.
        columns: the names of all columns, the last of which contains the text.
        items: the items.
        row_of: returns the displayed parts of an item.
        n_chars: maximum number of characters of an item's text.
    """
    rows = ["".join(f"<th>{name}</th>" for name in columns)]
    for row in map(row_of, items[:_MAX_ROWS]):
        cells = "".join(f"<td>{escape_html(cell)}</td>" for cell in row.cells)
        rows.append(f"{cells}<td {_TEXT_STYLE}>{_highlight(row, n_chars)}</td>")
    if len(items) > _MAX_ROWS:
        n_more = f"{len(items) - _MAX_ROWS:,}"
        rows.append(f'<td colspan="{len(columns)}">… and {n_more} more</td>')
    body = "".join(f"<tr>{cells}</tr>" for cells in rows)
    return f"<table><caption>{caption}</caption>{body}</table>"


def summarize_mapping(mapping: Mapping[str, object]) -> str:
    """Return the first 4 fields of a mapping on one line, cut after 40 characters.

    >>> summarize_mapping({"source": "a.txt", "page": 3})
    'source: a.txt, page: 3'
    """
    parts = []
    for key, value in itertools.islice(mapping.items(), _MAX_METADATA_FIELDS):
        shown = value[:_MAX_METADATA_CHARS] if isinstance(value, str) else describe(value)
        parts.append(f"{key}: {shown}")
    text = one_line(", ".join(parts))
    return text if len(text) <= _MAX_METADATA_CHARS else text[:_MAX_METADATA_CHARS] + "…"


def one_line(text: str) -> str:
    """Return a text on one line, without characters that would move a terminal's cursor."""
    line = " ".join(text.split())
    return "".join(char if char.isprintable() else "\ufffd" for char in line)


def escape_html(text: str) -> str:
    """Escape a text for HTML, and replace lone surrogates, which UTF-8 cannot encode."""
    return html.escape(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))


def _excerpt(row: Row, n_chars: int) -> _Excerpt:
    """Choose at most `n_chars` of a row's text to show, around its focus unless that is None."""
    start = 0
    if row.focus is not None and row.focus[1] > n_chars:
        focus_start, focus_end = row.focus
        centered = (focus_start + focus_end - n_chars) // 2
        start = max(0, min(centered, focus_start, len(row.text) - n_chars))
    return _Excerpt(row.text, start, min(start + n_chars, len(row.text)))


def _highlight(row: Row, n_chars: int) -> str:
    """Return the excerpt of a row's text as HTML, with its highlights."""
    excerpt = _excerpt(row, n_chars)
    position = excerpt.start
    parts = [excerpt.prefix]
    for highlight_start, highlight_end in row.highlights:
        start = max(highlight_start, excerpt.start)
        end = min(highlight_end, excerpt.end)
        if start < end:
            before, inside = row.text[position:start], row.text[start:end]
            parts.append(f"{escape_html(before)}<mark>{escape_html(inside)}</mark>")
            position = end
    parts += [escape_html(row.text[position : excerpt.end]), excerpt.suffix]
    return "".join(parts)
