"""Read CSV and TSV files: each record becomes a row with the names of its columns."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from typing import Final, Literal

from relevance_gen.documents.tables import is_header, names_of, row_line

SUFFIXES: Final = frozenset({".csv", ".tsv"})

_DELIMITERS: Final = "\t;,|"
_QUOTED: Final = re.compile('"[^"]*"')
_MAX_HEADER_CHARS: Final = 1 << 16
"""Maximum characters of the first line; a file with a longer first line is not a table."""
_MAX_LINE_CHARS: Final = 1 << 20
_MAX_RECORD_LINES: Final = 1000
"""Lines of a record above which its quotation mark counts as a character of the cell."""


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
    reader = csv.reader(_lines(text), delimiter=delimiter, quoting=quoting)
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


def _lines(text: str) -> Iterator[str]:
    for line in StringIO(text, newline=""):
        if len(line) > _MAX_LINE_CHARS:
            raise csv.Error
        yield line
