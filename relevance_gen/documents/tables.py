"""Write tables as rows of Markdown in which each cell repeats the name of its column.

So a row can be found, quoted and split from its table without its header row.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Final

MAX_COLUMN_NAME_CHARS: Final = 50
"""Maximum characters of a column name, which is repeated in each cell of its column."""

_NUMBER: Final = re.compile(r"(?!\d{4}$)[-+\d.,%\s]*\d[-+\d.,%\s]*")
"""Matches a cell that is only a number, except of four digits: a year can be a column name."""


def is_header(cells: Sequence[str]) -> bool:
    """Return whether the first row of a table, with these cells, consists of column names.

    This is true of several cells that are all different, of which none is empty or a number.
    """
    is_distinct = len(set(cells)) == len(cells) > 1
    return is_distinct and all(cell and not _NUMBER.fullmatch(cell) for cell in cells)


def names_of(header: Sequence[str]) -> list[str]:
    """Return the column names of a header row, each at most `MAX_COLUMN_NAME_CHARS` long."""
    return [_one_line(cell)[:MAX_COLUMN_NAME_CHARS].rstrip(": ") for cell in header]


def header_lines(cells: Sequence[str]) -> str:
    """Return a header row and the separator below it."""
    return f"{_line(map(_one_line, cells))}\n|{' --- |' * len(cells)}"


def row_line(cells: Sequence[str], column_names: Sequence[str] = ()) -> str:
    r"""Return a row, without the empty cells at its end; "" if all its cells are empty.

    The only cell of a row is returned as text, unless there are column names.

    >>> row_line(["Cod", "", "9"], ["Fish", "Size", "Price"])
    '| Fish: Cod |  | Price: 9 |'
    >>> row_line(["a|b", "c"]), row_line(["a", ""])
    ('| a\\|b | c |', 'a')
    """
    named_cells: list[str] = []
    for name, cell in zip_longest(column_names, map(_one_line, cells), fillvalue=""):
        named_cells.append(f"{name}: {cell}" if name and cell else cell)
    while named_cells and not named_cells[-1]:
        named_cells.pop()
    if len(named_cells) > 1 or (named_cells and column_names):
        return _line(named_cells)
    return "".join(named_cells)


def _line(cells: Iterable[str]) -> str:
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def _one_line(cell: str) -> str:
    return " ".join(cell.split())
