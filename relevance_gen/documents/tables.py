"""Write tables as rows of Markdown in which each cell repeats the name of its column.

So a row can be found, quoted and split from its table without its header row. The tables of CSV and
TSV files are read here, too.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from io import StringIO
from itertools import zip_longest
from typing import Final, Literal

DELIMITED_SUFFIXES: Final = frozenset({".csv", ".tsv"})
MAX_COLUMN_NAME_CHARS: Final = 50
"""Maximum characters of a column name, which is repeated in each cell of its column."""

_NUMBER: Final = re.compile(r"(?!\d{4}$)[-+\d.,%\s]*\d[-+\d.,%\s]*")
"""Matches a cell that is only a number, except of four digits: a year can be a column name."""
_DELIMITERS: Final = "\t;,|"
_QUOTED: Final = re.compile('"[^"]*"')
_MAX_HEADER_CHARS: Final = 1 << 16
"""Maximum characters of the first line; a file with a longer first line is not a table."""
_MAX_LINE_CHARS: Final = 1 << 20
_MAX_RECORD_LINES: Final = 1000
"""Lines of a record above which its quotation mark counts as a character of the cell."""


def is_header(cells: Sequence[str]) -> bool:
    """Return whether the first row of a table, with these cells, consists of column names.

    This is true of several cells that are all different, of which none is empty or a number.
    """
    is_distinct = len(set(cells)) == len(cells) > 1
    return is_distinct and all(cell and not _NUMBER.fullmatch(cell) for cell in cells)


def names_of(header: Sequence[str]) -> list[str]:
    """Return the column names of a header row, each at most `MAX_COLUMN_NAME_CHARS` long."""
    return [one_line(cell)[:MAX_COLUMN_NAME_CHARS].rstrip(": ") for cell in header]


def header_lines(cells: Sequence[str]) -> str:
    """Return a header row and the separator below it."""
    return f"{_line(map(one_line, cells))}\n|{' --- |' * len(cells)}"


def row_line(cells: Sequence[str], column_names: Sequence[str] = ()) -> str:
    r"""Return a row, without the empty cells at its end; "" if all its cells are empty.

    The only cell of a row is returned as text, unless there are column names.

    >>> row_line(["Cod", "", "9"], ["Fish", "Size", "Price"])
    '| Fish: Cod |  | Price: 9 |'
    >>> row_line(["a|b", "c"]), row_line(["a", ""])
    ('| a\\|b | c |', 'a')
    """
    named_cells: list[str] = []
    for name, cell in zip_longest(column_names, map(one_line, cells), fillvalue=""):
        named_cells.append(f"{name}: {cell}" if name and cell else cell)
    while named_cells and not named_cells[-1]:
        named_cells.pop()
    if len(named_cells) > 1 or (named_cells and column_names):
        return _line(named_cells)
    return "".join(named_cells)


def _line(cells: Iterable[str]) -> str:
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"


def one_line(text: str) -> str:
    """Return a text with each run of white space replaced by a space, and none at its ends."""
    return " ".join(text.split())


# ── CSV and TSV files ─────────────────────────────────────────────────────────────────────────────


def table_text(text: str, max_chars: int) -> str:
    r"""Return the records of a CSV or TSV file as rows.

    The first record is the header row, if it has several cells, all different, and none is empty or
    a number. The returned text has as many lines as the file: a record with line breaks in its
    cells becomes one row and empty lines, so each record keeps its line number. A text is returned
    unchanged if its first line has no delimiter, if a line or cell is too long, or if the rows have
    more than `max_chars` characters.

    >>> table_text('city;limit\nLondon;"£ 190"\n', 100)
    '| city | limit |\n| city: London | limit: £ 190 |'
    """
    delimiter = _delimiter_of(text)
    if not delimiter:
        return text
    with suppress(OverflowError):
        for has_quotes in (True, False):
            with suppress(csv.Error):
                return "\n".join(_rows(text, delimiter, max_chars, has_quotes=has_quotes))
    return text


def _delimiter_of(text: str) -> str:
    """Return the delimiter that is most frequent outside quotation marks in the first line.

    Return "" if the line contains no delimiter or has more than `_MAX_HEADER_CHARS` characters.
    """
    beginning = text[: _MAX_HEADER_CHARS + 1]
    first_line = beginning.partition("\n")[0]
    if len(first_line) > _MAX_HEADER_CHARS:
        return ""
    unquoted = _QUOTED.sub("", first_line)
    delimiter = max(_DELIMITERS, key=unquoted.count)
    return delimiter if delimiter in unquoted else ""


def _rows(
    text: str,
    delimiter: str,
    max_chars: int,
    *,
    has_quotes: bool,
) -> Iterator[str]:
    """Yield one line of text for each line of the file, so that line numbers stay the same.

    The first line of a record becomes its cells, with the names of their columns. A record with
    line breaks in its cells has further lines; each of these becomes an empty line.

    Args:
        text: the content of a file of delimited values.
        delimiter: the character between cells.
        max_chars: maximum number of characters of all yielded lines.
        has_quotes: whether quotation marks enclose cells; otherwise they are characters of cells.

    Raises:
        csv.Error: a line or a record is too long.
        OverflowError: the rows have more than `max_chars` characters.
    """
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if has_quotes else csv.QUOTE_NONE
    reader = csv.reader(_checked_lines(text), delimiter=delimiter, quoting=quoting)
    column_names: list[str] = []
    n_chars = 0
    n_lines = 0
    for cells in reader:
        row = row_line(cells, column_names)
        if not n_lines and is_header(cells):
            column_names = names_of(cells)
        n_record_lines = reader.line_num - n_lines
        n_lines = reader.line_num
        n_chars += len(row) + n_record_lines
        if n_record_lines > _MAX_RECORD_LINES:
            raise csv.Error
        if n_chars > max_chars:
            raise OverflowError
        yield row
        yield from [""] * (n_record_lines - 1)


def _checked_lines(text: str) -> Iterator[str]:
    for line in StringIO(text, newline=""):
        if len(line) > _MAX_LINE_CHARS:
            raise csv.Error
        yield line
