"""Print what a search found, for people: score, file and line, and the lines that say most about the question."""

from __future__ import annotations

import argparse
import bisect
import os
import re
from collections.abc import Collection
from typing import TextIO

from attrs import frozen

from relevance_gen.checks import is_integer
from relevance_gen.cli.highlighting import Span, matches
from relevance_gen.cli.reading import STDIN
from relevance_gen.cli.terminal import visible, wants_colour, width
from relevance_gen.types import SearchResponse, SearchResult

_INDENT = "  "
_MIN_COLUMNS = 20
_MAX_COLUMNS = 120
"""Lines longer than this are hard to read, however wide the terminal is."""

_SCORE, _PATH, _LINE, _MATCH, _PLAIN = "\x1b[1m", "\x1b[35m", "\x1b[32m", "\x1b[1;31m", "\x1b[0m"
"""The colours of grep and ripgrep."""


@frozen
class Printer:
    """Print search results to `stream`.

    Attributes:
        stream: where they go.
        spellings: the words, folded, to look for in the chunks.
        colour: whether to colour them.
        columns: longest line of a chunk's text, in characters.
        max_lines: most lines of a chunk to show; 0 = all.
    """

    stream: TextIO
    spellings: Collection[str]
    colour: bool
    columns: int
    max_lines: int

    @classmethod
    def of(cls, args: argparse.Namespace, stream: TextIO, spellings: Collection[str]) -> Printer:
        """Make the printer that the command's arguments ask for."""
        columns = max(_MIN_COLUMNS, min(width(stream), _MAX_COLUMNS) - len(_INDENT))
        return cls(stream, spellings, wants_colour(args.color, stream, os.environ), columns, args.lines)

    def print(self, response: SearchResponse, *, n_chunks: int, seconds: float) -> None:
        """Print the results of `response`; on a terminal also what it took to find them."""
        for result in response.results:
            self._print_result(result)
        if self.stream.isatty():
            n_found, n_tokens = len(response.results), response.metadata.num_context_tokens
            self.stream.write(f"{n_found} of {n_chunks:,} chunks, {n_tokens:,} tokens, {seconds:.2f} s\n")

    def _print_result(self, result: SearchResult) -> None:
        text = result.chunk_txt
        found = matches(text, self.spellings)
        lines = _best_lines(_wrap(text, self.columns), found, text, self.max_lines)
        source = str(result.metadata.get("source", f"chunk {result.original_index}"))
        name = "(standard input)" if source == STDIN else visible(source)
        score = self._coloured(f"{result.chunk_score:.2f}", _SCORE)
        place = visible(_place(result, text.count("\n", 0, lines[0][0])))
        self.stream.write(f"{score}  {self._coloured(name, _PATH)}:{self._coloured(place, _LINE)}\n")
        for span in lines:
            self.stream.write(f"{_INDENT}{self._marked(text, span, found)}\n")
        self.stream.write("\n")

    def _marked(self, text: str, line: Span, found: list[Span]) -> str:
        """Return a line of `text` with what was found in it coloured."""
        if not self.colour:
            return visible(text[slice(*line)])
        marked, position = [], line[0]
        for start, end in found:
            if end > position and start < line[1]:
                start, end = max(start, position), min(end, line[1])
                marked += [visible(text[position:start]), self._coloured(visible(text[start:end]), _MATCH)]
                position = end
        return "".join([*marked, visible(text[position : line[1]])])

    def _coloured(self, text: str, colour: str) -> str:
        return f"{colour}{text}{_PLAIN}" if self.colour else text


def _place(result: SearchResult, n_lines_before: int) -> str:
    """Say where in its file a result stands: the line, or the page, slide or sheet."""
    metadata = result.metadata
    if "line" in metadata and is_integer(metadata["line"]):
        return str(metadata["line"] + n_lines_before)
    return next((f"{kind} {metadata[kind]}" for kind in ("page", "slide", "sheet") if kind in metadata), "?")


def _wrap(text: str, columns: int) -> list[Span]:
    """Return where the lines of `text` stand that are not blank, broken between words where longer than `columns`."""
    pattern = re.compile(rf"[^\n]{{1,{columns}}}(?=\s|\Z)|[^\n]{{1,{columns}}}")
    lines = []
    for match in pattern.finditer(text):
        start, end = match.span()
        if start and text[start - 1] != "\n":  # the rest of a broken line: without the space it was broken at
            start = end - len(text[start:end].lstrip())
        if text[start:end].strip():
            lines.append((start, end))
    return lines


def _best_lines(lines: list[Span], found: list[Span], text: str, max_lines: int) -> list[Span]:
    """Return the `max_lines` lines in a row that hold the most different words found; the first such."""
    if not 0 < max_lines < len(lines):
        return lines
    starts = [start for start, _ in lines]
    words: list[set[str]] = [set() for _ in lines]
    for start, end in found:
        words[max(bisect.bisect_right(starts, start) - 1, 0)].add(text[start:end].casefold())
    first = max(range(len(lines) - max_lines + 1), key=lambda at: len(set().union(*words[at : at + max_lines])))
    return lines[first : first + max_lines]
