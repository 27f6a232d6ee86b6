"""Show things to people: a few lines of text for a terminal, a table for a notebook."""

from __future__ import annotations

import html
import itertools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias, TypeVar

from attrs import frozen

from relevance_gen.errors import describe

T = TypeVar("T")

Part: TypeAlias = tuple[int, int]
"""Where a part of a text begins, and the position behind its end."""

_MOST_ROWS: Final = 10
LINE_CHARS: Final = 80
"""Characters of a text on its line."""
CELL_CHARS: Final = 400
"""Characters of a text in its cell of a table."""
ALL_CHARS: Final = sys.maxsize
_MOST_FIELDS: Final = 4
_FIELDS_CHARS: Final = 40
"""Of metadata and their characters, as much as leaves room for the text."""
_TEXT_STYLE: Final = 'style="text-align: left; white-space: pre-wrap"'


@frozen
class Row:
    """What is shown of one thing."""

    label: str  # what stands before the text on its line, the space between them included
    cells: tuple[str, ...]  # what stands before it in a table
    text: str  # as much of it is shown as there is room for
    focus: Part | None = None  # the part to show if that is not all; the beginning if not given
    marks: Sequence[Part] = ()  # parts to mark in a table, ascending and apart


def as_text(
    head: str, items: Sequence[T], row: Callable[[T], Row], n_chars: int = LINE_CHARS
) -> str:
    """Return `head`, and a line for each of the first items, with at most `n_chars` of its text."""
    lines = [
        f"  {one.label}{one_line(_excerpt(one, n_chars)[2])}"
        for one in map(row, items[:_MOST_ROWS])
    ]
    return "\n".join([head, *lines, *_rest(items, "  … and {:,} more")])


def as_html(
    caption: str,
    columns: Sequence[str],
    items: Sequence[T],
    row: Callable[[T], Row],
    n_chars: int = CELL_CHARS,
) -> str:
    """Return a table of the first items, the last of its columns with at most `n_chars` of a text."""
    rows = ["".join(f"<th>{name}</th>" for name in columns)]
    for one in map(row, items[:_MOST_ROWS]):
        cells = "".join(f"<td>{escaped(cell)}</td>" for cell in one.cells)
        rows.append(f"{cells}<td {_TEXT_STYLE}>{_marked(one, n_chars)}</td>")
    rows += _rest(items, f'<td colspan="{len(columns)}">… and {{:,}} more</td>')
    return f"<table><caption>{caption}</caption>{''.join(f'<tr>{cells}</tr>' for cells in rows)}</table>"


def in_few_words(mapping: Mapping[str, object]) -> str:
    """Return the first fields of a mapping on a part of a line.

    >>> in_few_words({"source": "a.txt", "page": 3})
    'source: a.txt, page: 3'
    """
    fields = itertools.islice(mapping.items(), _MOST_FIELDS)
    shown = (
        f"{key}: {value[:_FIELDS_CHARS] if isinstance(value, str) else describe(value)}"
        for key, value in fields
    )
    text = one_line(", ".join(shown))
    return text if len(text) <= _FIELDS_CHARS else text[:_FIELDS_CHARS] + "…"


def one_line(text: str) -> str:
    """Return a text on one line, without characters that would move a terminal's cursor."""
    line = " ".join(text.split())
    return "".join(char if char.isprintable() else "\ufffd" for char in line)


def escaped(text: str) -> str:
    """Escape a text for HTML; a lone surrogate could not be sent to a browser."""
    return html.escape(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))


def _rest(items: Sequence[object], form: str) -> list[str]:
    n = len(items) - _MOST_ROWS
    return [form.format(n)] if n > 0 else []


def _excerpt(row: Row, n_chars: int) -> tuple[int, int, str]:
    """Choose the part of a text to show, about its focus if it has one: start, end, and the part itself."""
    text, start = row.text, 0
    if row.focus is not None and row.focus[1] > n_chars:
        first, last = row.focus
        start = max(0, min((first + last - n_chars) // 2, first, len(text) - n_chars))
    end = min(start + n_chars, len(text))
    return start, end, f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"


def _marked(row: Row, n_chars: int) -> str:
    """Return the part of a text to show as HTML, with its marks."""
    start, end, _ = _excerpt(row, n_chars)
    text, at, parts = row.text, start, []
    for first, last in row.marks:
        low, high = max(first, start), min(last, end)
        if low < high:
            parts.append(f"{escaped(text[at:low])}<mark>{escaped(text[low:high])}</mark>")
            at = high
    parts.append(escaped(text[at:end]))
    return f"{'…' if start else ''}{''.join(parts)}{'…' if end < len(text) else ''}"
