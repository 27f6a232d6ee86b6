"""Print search results: score, file and line, and the most relevant lines."""

from __future__ import annotations

import argparse
import bisect
import os
import re
from collections.abc import Sequence
from typing import Final, TextIO

from attrs import frozen

from relevance_gen.checks import is_integer
from relevance_gen.cli.arguments import STDIN
from relevance_gen.cli.terminal import size, visible, wants_color
from relevance_gen.display.tables import TextRange, one_line
from relevance_gen.documents.reading import INCOMPLETE
from relevance_gen.errors import pluralize
from relevance_gen.types import SearchResponse, SearchResult, Span

_INDENT: Final = "  "
_LIKELY: Final = 0.5
"""The minimum confidence of a search whose results probably contain an answer."""
_MAX_TITLE_CHARS: Final = 200
_MIN_COLUMNS: Final = 20
_MAX_COLUMNS: Final = 120
"""Maximum length of a line: longer lines are hard to read on wide terminals."""

_SCORE: Final = "\x1b[1m"
_PATH: Final = "\x1b[35m"
_LINE: Final = "\x1b[32m"
_MATCH: Final = "\x1b[1;31m"
_RESET: Final = "\x1b[0m"
"""Escape sequences of colors, as in grep and ripgrep; `_RESET` ends a color."""


@frozen
class ResultPrinter:
    """Prints search results.

    Attributes:
        stream: the output.
        has_color: whether to color the output.
        columns: maximum characters of a line of text, without its indentation.
        max_lines: maximum lines of text of a result; 0 for all its lines.
    """

    stream: TextIO
    has_color: bool
    columns: int
    max_lines: int

    @classmethod
    def from_args(cls, args: argparse.Namespace, stream: TextIO) -> ResultPrinter:
        """Return the printer for the options of a command."""
        columns = min(size(stream)[0], _MAX_COLUMNS) - len(_INDENT)
        has_color = wants_color(args.color, stream, os.environ)
        return cls(stream, has_color, max(_MIN_COLUMNS, columns), args.lines)

    def print(self, response: SearchResponse, *, n_chunks: int, seconds: float) -> None:
        """Print the results of a response, and on a terminal the size and time of the search.

        If the results exceed the height of a terminal, the best is printed last.
        """
        blocks = [self.format(result) for result in response.results]
        if self.stream.isatty():
            order = ""
            is_long = "".join(blocks).count("\n") >= size(self.stream)[1]
            if is_long and response.results == response.best:
                blocks.reverse()
                order = ", the best last"
            n_shown = f"{len(blocks)} of {pluralize(n_chunks, 'chunk')}{order}"
            tokens = pluralize(response.metadata.num_context_tokens, "token")
            confidence = describe_confidence(response.confidence)
            blocks.append(f"{n_shown}, {tokens}, {seconds:.2f} s, {confidence}\n")
        self.stream.writelines(blocks)

    def format(
        self,
        result: SearchResult,
        label: str = "",
        ranges: Sequence[TextRange] | None = None,
        *,
        note: str = "",
    ) -> str:
        """Return the printed form of a result: a header, lines of its text and an empty line.

        Args:
            result: the result.
            label: text before the score.
            ranges: the parts of the text to show, as start and end in ``result.chunk_txt``; None
                shows `max_lines` lines, beginning with the line in which the result's passage
                begins.
            note: text after the location; if it is "" and the result has no path, the title of the
                result is shown there.
        """
        text = result.chunk_txt
        if ranges is None:
            lines = _from_passage(_wrap(text, self.columns), result.passage, self.max_lines)
        else:
            lines = []
            for start, end in ranges:
                for first, last in _wrap(text[start:end], self.columns):
                    lines.append((start + first, start + last))
        if "path" not in result.metadata and result.title and not note:
            note = f"  {one_line(result.title[:_MAX_TITLE_CHARS])}"
        n_lines_before = text.count("\n", 0, lines[0][0])
        header = f"{label}{self._header(result, n_lines_before)}{note}"
        matches = [(word.start, word.end) for word in result.words]
        indented_lines = [f"{_INDENT}{self._highlight(text, line, matches)}" for line in lines]
        return "\n".join([header, *indented_lines, "\n"])

    def _header(self, result: SearchResult, n_lines_before: int) -> str:
        """Return a line with the score, file and location of a result.

        It includes the number of further results that the search collapsed into this result, and a
        remark if the file was not read completely. `n_lines_before` is as for `_location`.
        """
        path = str(result.metadata.get("path", f"chunk {result.original_index}"))
        name = "(standard input)" if path == STDIN else visible(path)
        score = self._color(f"{result.chunk_score:.2f}", _SCORE)
        header = f"{score}  {self._color(name, _PATH)}"
        location = visible(_location(result, n_lines_before))
        if location:
            header += f":{self._color(location, _LINE)}"
        if result.num_collapsed:
            header += f"  (and {result.num_collapsed} more)"
        if INCOMPLETE in result.metadata:
            header += "  (not read whole)"
        return header

    def _highlight(self, text: str, line: TextRange, matches: list[TextRange]) -> str:
        """Return the range `line` of `text`, with the ranges `matches` in color if enabled.

        The ranges of `matches` must ascend; control characters are replaced.
        """
        line_start, line_end = line
        if not self.has_color:
            return visible(text[line_start:line_end])
        pieces = []
        position = line_start
        for start, end in matches:
            if end <= position or start >= line_end:
                continue
            start, end = max(start, position), min(end, line_end)
            pieces.append(visible(text[position:start]))
            pieces.append(self._color(visible(text[start:end]), _MATCH))
            position = end
        pieces.append(visible(text[position:line_end]))
        return "".join(pieces)

    def _color(self, text: str, color: str) -> str:
        return f"{color}{text}{_RESET}" if self.has_color else text


def describe_confidence(confidence: float) -> str:
    """Return a text with the confidence of a search, and a remark if it is below `_LIKELY`."""
    remark = "" if confidence >= _LIKELY else ": probably none of these holds what was asked"
    return f"confidence {confidence:.2f}{remark}"


def _location(result: SearchResult, n_lines_before: int) -> str:
    """Return the location of a result in its file as text.

    This is the number of the first line that is shown, or else the page, slide, sheet or chapter
    as in "page 3". It is "" if the metadata has none of these.

    `n_lines_before` is the number of lines of the result before the first line that is shown.
    """
    metadata = result.metadata
    if is_integer(metadata.get("first_line")):
        return str(metadata["first_line"] + n_lines_before)
    for kind in ("page", "slide", "sheet", "chapter"):
        if kind in metadata:
            return f"{kind} {metadata[kind]}"
    return ""


def _wrap(text: str, columns: int) -> list[TextRange]:
    """Divide a text into lines of at most `columns` characters, and return their ranges.

    Longer lines are broken between words, or within a word that is itself longer. Blank lines are
    left out.
    """
    pattern = re.compile(rf"[^\n]{{1,{columns}}}(?=\s|\Z)|[^\n]{{1,{columns}}}")
    lines = []
    for match in pattern.finditer(text):
        start, end = match.span()
        if start and text[start - 1] != "\n":  # the rest of a line, without the space at the break
            start = end - len(text[start:end].lstrip())
        if text[start:end].strip():
            lines.append((start, end))
    return lines


def _from_passage(
    lines: list[TextRange],
    passage: Span | None,
    max_lines: int,
) -> list[TextRange]:
    """Return at most `max_lines` lines, from the line in which the passage begins.

    All lines are returned if `max_lines` is 0 or there is no passage.
    """
    if max_lines <= 0 or passage is None:
        return lines
    starts = [start for start, _ in lines]
    first = max(bisect.bisect_right(starts, passage.start) - 1, 0)
    return lines[first : first + max_lines]
