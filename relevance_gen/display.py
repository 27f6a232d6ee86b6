"""Show what was found, answered or generated to people: as a few lines of text, or as a table for a notebook."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Final, Protocol

_MAX_RESULTS: Final = 10
_LINE_CHARS: Final = 80
"""Characters of a chunk on its line of text."""
_CELL_CHARS: Final = 400
"""Characters of a chunk in its cell of a table."""
_HEAD: Final = "<tr><th>score</th><th>position</th><th>text</th></tr>"
_REST_ROW: Final = '<tr><td colspan="3">… and {} more</td></tr>'
_TEXT_STYLE: Final = 'style="text-align: left; white-space: pre-wrap"'


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


class Completion(Protocol):
    """What is shown of a generated sample."""

    @property
    def text(self) -> str:
        """The text."""

    @property
    def generated_tokens(self) -> int:
        """Number of its tokens."""

    @property
    def finish_reason(self) -> str:
        """Why it ended."""


def as_text(results: Sequence[Result], confidence: float) -> str:
    """Return a line for the whole and one for each of the first results: score, position, and a bit of the text."""
    shown = [_line(result) for result in results[:_MAX_RESULTS]]
    return "\n".join([f"<SearchResponse: {_summary(results, confidence)}>", *shown, *_rest(results, "  … and {} more")])


def answer_as_text(text: str, sources: Sequence[Result], confidence: float) -> str:
    """Return a line for the whole, the answer, and a numbered line for each of the first sources."""
    shown = [_line(source, f"[{number}] ") for number, source in enumerate(sources[:_MAX_RESULTS], 1)]
    head = f"<Answer: {_summary(sources, confidence, 'source')}>"
    return "\n".join([head, f"  {_visible(text)}", *shown, *_rest(sources, "  … and {} more")])


def answer_as_html(text: str, sources: Sequence[Result], confidence: float) -> str:
    """Return the answer, and below it a table of the first sources, numbered, with the words found marked."""
    rows = [_row(source, f"[{number}] ") for number, source in enumerate(sources[:_MAX_RESULTS], 1)]
    table = _table(_summary(sources, confidence, "source"), _HEAD, rows + _rest(sources, _REST_ROW))
    return f'<p style="white-space: pre-wrap">{_escaped(text)}</p>{table}'


def completions_as_text(completions: Sequence[Completion], n_prompt_tokens: int) -> str:
    """Return a line for the whole, and for each of the first samples one: tokens, why it ended, and its text."""
    shown = [
        f"  {_counted(sample.generated_tokens, 'token')}, {sample.finish_reason}: {_visible(_cut(sample.text))}"
        for sample in completions[:_MAX_RESULTS]
    ]
    head = f"<GenerationResponse: {_about(completions, n_prompt_tokens)}>"
    return "\n".join([head, *shown, *_rest(completions, "  … and {} more")])


def completions_as_html(completions: Sequence[Completion], n_prompt_tokens: int) -> str:
    """Return a table of the first samples, with all of their texts."""
    rows = [
        f"<tr><td>{sample.generated_tokens:,}</td><td>{_escaped(sample.finish_reason)}</td>"
        f"<td {_TEXT_STYLE}>{_escaped(sample.text)}</td></tr>"
        for sample in completions[:_MAX_RESULTS]
    ]
    head = "<tr><th>tokens</th><th>ended by</th><th>text</th></tr>"
    return _table(_about(completions, n_prompt_tokens), head, rows + _rest(completions, _REST_ROW))


def explanation_as_text(score: float, terms: Sequence[TermShare], parts: Mapping[str, float]) -> str:
    """Return a line for the score and one for each term and each part that gave something to it, and for no other.

    Args:
        score: the chunk's.
        terms: the query's, with what each gave.
        parts: what else gave something, by name.
    """
    shown = [
        f"  {term.share:.3f}  {_visible(term.term)!r}, {term.tf:g} here, in {_counted(term.df, 'chunk')}"
        for term in terms
        if term.share
    ]
    shown += [f"  {share:.3f}  {name}" for name, share in parts.items() if share]
    return "\n".join([f"<Explanation: score {score:.3f}>", *shown])


def as_html(results: Sequence[Result], confidence: float) -> str:
    """Return a table of the first results, with the words found marked where spans were asked for."""
    rows = [_row(result) for result in results[:_MAX_RESULTS]]
    return _table(_summary(results, confidence), _HEAD, rows + _rest(results, _REST_ROW))


def _line(result: Result, number: str = "") -> str:
    text = _visible(_excerpt(result, _LINE_CHARS)[2])
    return f"  {number}{result.chunk_score:.3f}  [{result.original_index}]  {text}"


def _row(result: Result, number: str = "") -> str:
    return (
        f"<tr><td>{number}{result.chunk_score:.3f}</td><td>{result.original_index}</td>"
        f"<td {_TEXT_STYLE}>{_marked(result)}</td></tr>"
    )


def _table(caption: str, head: str, rows: Sequence[str]) -> str:
    return f"<table><caption>{caption}</caption>{head}{''.join(rows)}</table>"


def _summary(results: Sequence[Result], confidence: float, noun: str = "result") -> str:
    return f"{_counted(len(results), noun)}, confidence {confidence:.2f}"


def _about(completions: Sequence[Completion], n_prompt_tokens: int) -> str:
    return f"{_counted(len(completions), 'sample')} of a prompt of {_counted(n_prompt_tokens, 'token')}"


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _cut(text: str) -> str:
    return text if len(text) <= _CELL_CHARS else text[:_CELL_CHARS] + "…"


def _rest(results: Sequence[object], form: str) -> list[str]:
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
