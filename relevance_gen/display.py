"""Show what a search found to people: as a few lines of text, or as a table for a notebook."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

_MAX_RESULTS: Final = 10
_LINE_CHARS: Final = 80
"""Characters of a chunk on its line of text."""
_CELL_CHARS: Final = 400
"""Characters of a chunk in its cell of a table."""


class Span(Protocol):
    """What is shown of a span."""

    @property
    def start(self) -> int:
        """Position of its first character."""

    @property
    def end(self) -> int:
        """The position behind its last."""


class Result(Protocol):
    """What is shown of a result."""

    @property
    def chunk_txt(self) -> str:
        """The text."""

    @property
    def chunk_score(self) -> float:
        """The score."""

    @property
    def original_index(self) -> int:
        """The position."""

    @property
    def passage(self) -> Span | None:
        """Where the answer stands."""

    @property
    def words(self) -> Sequence[Span]:
        """The words that were found."""


class TermShare(Protocol):
    """What is shown of a term of an explanation."""

    @property
    def term(self) -> str:
        """The query's word."""

    @property
    def tf(self) -> float:
        """How often the chunk has it."""

    @property
    def df(self) -> int:
        """Number of chunks that have it."""

    @property
    def share(self) -> float:
        """What it gave to the score."""


def as_text(results: Sequence[Result], confidence: float) -> str:
    """Return a line for the whole and one for each of the first results: score, position, and a bit of the text."""
    shown = [
        f"  {result.chunk_score:.3f}  [{result.original_index}]  {_visible(_excerpt(result, _LINE_CHARS)[2])}"
        for result in results[:_MAX_RESULTS]
    ]
    return "\n".join([f"<SearchResponse: {_summary(results, confidence)}>", *shown, *_rest(results, "  … and {} more")])


def explanation_as_text(score: float, terms: Sequence[TermShare], parts: Mapping[str, float]) -> str:
    """Return a line for the score and one for each term and each part that gave something to it, and for no other.

    Args:
        score: the chunk's.
        terms: the query's, with what each gave.
        parts: what else gave something, by name.
    """
    shown = [
        f"  {term.share:.3f}  {_visible(term.term)!r}, {term.tf:g} here, in {term.df:,} chunk{'s' * (term.df != 1)}"
        for term in terms
        if term.share
    ]
    shown += [f"  {share:.3f}  {name}" for name, share in parts.items() if share]
    return "\n".join([f"<Explanation: score {score:.3f}>", *shown])


def as_html(results: Sequence[Result], confidence: float) -> str:
    """Return a table of the first results, with the words found marked where spans were asked for."""
    rows = [
        f"<tr><td>{result.chunk_score:.3f}</td><td>{result.original_index}</td>"
        f'<td style="text-align: left; white-space: pre-wrap">{_marked(result)}</td></tr>'
        for result in results[:_MAX_RESULTS]
    ]
    rest = _rest(results, '<tr><td colspan="3">… and {} more</td></tr>')
    head = "<tr><th>score</th><th>position</th><th>text</th></tr>"
    return f"<table><caption>{_summary(results, confidence)}</caption>{head}{''.join([*rows, *rest])}</table>"


def _summary(results: Sequence[Result], confidence: float) -> str:
    return f"{len(results):,} result{'' if len(results) == 1 else 's'}, confidence {confidence:.2f}"


def _rest(results: Sequence[Result], form: str) -> list[str]:
    n = len(results) - _MAX_RESULTS
    return [form.format(f"{n:,}")] if n > 0 else []


def _excerpt(result: Result, n_chars: int) -> tuple[int, int, str]:
    """Choose the part of a text to show, about the best passage if that is known: start, end, and the part itself."""
    text, passage = result.chunk_txt, result.passage
    start = 0
    if passage is not None and passage.end > n_chars:
        start = max(0, min((passage.start + passage.end - n_chars) // 2, passage.start, len(text) - n_chars))
    end = min(start + n_chars, len(text))
    return start, end, f"{'…' if start else ''}{text[start:end]}{'…' if end < len(text) else ''}"


def _visible(text: str) -> str:
    """Return a text on one line, without characters that would move a terminal's cursor."""
    line = " ".join(text.split())
    return "".join(char if char.isprintable() else "\ufffd" for char in line)


def _marked(result: Result) -> str:
    """Return the part of a text to show as HTML, the words that were found marked."""
    start, end, _ = _excerpt(result, _CELL_CHARS)
    text, at, parts = result.chunk_txt, start, []
    for word in result.words:
        low, high = max(word.start, start), min(word.end, end)
        if low < high:
            parts.append(f"{_escaped(text[at:low])}<mark>{_escaped(text[low:high])}</mark>")
            at = high
    parts.append(_escaped(text[at:end]))
    return f"{'…' if start else ''}{''.join(parts)}{'…' if end < len(text) else ''}"


def _escaped(text: str) -> str:
    """Escape a text for HTML; a lone surrogate could not be sent to a browser."""
    return html.escape(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
