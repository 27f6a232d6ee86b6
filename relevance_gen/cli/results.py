"""Print what a search found, for people: score, file and line, and the lines that say most about the question."""

from __future__ import annotations

import argparse
import bisect
import os
import re
from collections.abc import Sequence
from typing import TextIO

from attrs import frozen

from relevance_gen.checks import is_integer
from relevance_gen.cli.arguments import STDIN
from relevance_gen.cli.terminal import size, visible, wants_colour
from relevance_gen.display.tables import TextRange, one_line
from relevance_gen.documents.reading import INCOMPLETE
from relevance_gen.errors import pluralize
from relevance_gen.types import SearchResponse, SearchResult, Span

_INDENT = "  "
_LIKELY = 0.5
"""The confidence from which on a chunk that holds what was asked is more likely than none."""
_TITLE_CHARS = 200
_MIN_COLUMNS = 20
_MAX_COLUMNS = 120
"""Lines longer than this are hard to read, however wide the terminal is."""

_SCORE, _PATH, _LINE, _MATCH, _PLAIN = "\x1b[1m", "\x1b[35m", "\x1b[32m", "\x1b[1;31m", "\x1b[0m"
"""The colours of grep and ripgrep."""


@frozen
class Printer:
    """Print search results to `stream`, coloured or not.

    Of a chunk's text at most `max_lines` are shown, 0 for all, of at most so many columns, in characters.
    """

    stream: TextIO
    colour: bool
    columns: int
    max_lines: int

    @classmethod
    def of(cls, args: argparse.Namespace, stream: TextIO) -> Printer:
        """Make the printer that the command's arguments ask for."""
        columns = max(_MIN_COLUMNS, min(size(stream)[0], _MAX_COLUMNS) - len(_INDENT))
        return cls(stream, wants_colour(args.color, stream, os.environ), columns, args.lines)

    def print(self, response: SearchResponse, *, n_chunks: int, seconds: float) -> None:
        """Print the results of `response`; on a terminal also what it took to find them.

        Where the best would leave a terminal at its upper edge, they are printed the best last.
        """
        shown = [self.described(result) for result in response.results]
        if self.stream.isatty():
            order = ""
            if (
                response.results == response.best
                and "".join(shown).count("\n") >= size(self.stream)[1]
            ):
                shown.reverse()
                order = ", the best last"
            found = f"{len(shown)} of {pluralize(n_chunks, 'chunk')}{order}"
            cost = f"{pluralize(response.metadata.num_context_tokens, 'token')}, {seconds:.2f} s"
            shown.append(f"{found}, {cost}, {confidence_in_words(response.confidence)}\n")
        self.stream.writelines(shown)

    def described(
        self,
        result: SearchResult,
        label: str = "",
        kept: Sequence[TextRange] | None = None,
        *,
        note: str = "",
    ) -> str:
        """Return a result as it is printed: the label, score, file and place, the note, and the lines of its passage.

        Where some parts of it are `kept`, lines of all these in place of the passage's.
        """
        text = result.chunk_txt
        lines = _from_passage(_wrap(text, self.columns), result.passage, self.max_lines)
        if kept is not None:
            wrapped = (
                (start, *line)
                for start, end in kept
                for line in _wrap(text[start:end], self.columns)
            )
            lines = [(start + first, start + behind) for start, first, behind in wrapped]
        found = [(word.start, word.end) for word in result.words]
        source = str(result.metadata.get("path", f"chunk {result.original_index}"))
        name = "(standard input)" if source == STDIN else visible(source)
        score = self._coloured(f"{result.chunk_score:.2f}", _SCORE)
        place = visible(_place(result, text.count("\n", 0, lines[0][0])))
        cut = "  (not read whole)" if INCOMPLETE in result.metadata else ""
        similar = f"  (and {result.num_collapsed} more)" if result.num_collapsed else ""
        where = self._coloured(name, _PATH) + (f":{self._coloured(place, _LINE)}" if place else "")
        if "path" not in result.metadata and result.title and not note:
            note = f"  {one_line(result.title[:_TITLE_CHARS])}"
        head = f"{label}{score}  {where}{similar}{cut}{note}"
        return "\n".join(
            [head, *(f"{_INDENT}{self._marked(text, span, found)}" for span in lines), "\n"]
        )

    def _marked(self, text: str, line: TextRange, found: list[TextRange]) -> str:
        """Return a line of `text` with what was found in it coloured."""
        if not self.colour:
            return visible(text[slice(*line)])
        marked, position = [], line[0]
        for start, end in found:
            if end > position and start < line[1]:
                start, end = max(start, position), min(end, line[1])
                marked += [
                    visible(text[position:start]),
                    self._coloured(visible(text[start:end]), _MATCH),
                ]
                position = end
        return "".join([*marked, visible(text[position : line[1]])])

    def _coloured(self, text: str, colour: str) -> str:
        return f"{colour}{text}{_PLAIN}" if self.colour else text


def confidence_in_words(confidence: float) -> str:
    """Say how likely it is that what was asked is in what was found, and where it is not, that."""
    return f"confidence {confidence:.2f}{': probably none of these holds what was asked' * (confidence < _LIKELY)}"


def _place(result: SearchResult, n_lines_before: int) -> str:
    """Say where in its file a result stands: the line, or the page, slide, sheet or chapter."""
    metadata = result.metadata
    if is_integer(metadata.get("first_line")):
        return str(metadata["first_line"] + n_lines_before)
    return next(
        (
            f"{kind} {metadata[kind]}"
            for kind in ("page", "slide", "sheet", "chapter")
            if kind in metadata
        ),
        "",
    )


def _wrap(text: str, columns: int) -> list[TextRange]:
    """Return where the lines of `text` stand that are not blank, broken between words where longer than `columns`."""
    pattern = re.compile(rf"[^\n]{{1,{columns}}}(?=\s|\Z)|[^\n]{{1,{columns}}}")
    lines = []
    for match in pattern.finditer(text):
        start, end = match.span()
        if (
            start and text[start - 1] != "\n"
        ):  # the rest of a broken line: without the space it was broken at
            start = end - len(text[start:end].lstrip())
        if text[start:end].strip():
            lines.append((start, end))
    return lines


def _from_passage(lines: list[TextRange], passage: Span | None, max_lines: int) -> list[TextRange]:
    """Return the `max_lines` lines in a row that begin with the passage; all if 0."""
    if max_lines <= 0 or passage is None:
        return lines
    first = max(bisect.bisect_right([start for start, _ in lines], passage.start) - 1, 0)
    return lines[first : first + max_lines]
