"""Mixins that give the response classes their text form and, for notebooks, their HTML form."""

from __future__ import annotations

from typing import Any

from attrs import fields

from relevance_gen.display.tables import (
    ALL_CHARS,
    CELL_CHARS,
    Row,
    format_list,
    format_table,
    one_line,
    summarize_mapping,
)
from relevance_gen.errors import pluralize

RESULT_COLUMNS = ("score", "position", "metadata", "text")


def result_row(result: Any, prefix: str = "") -> Row:
    """Return the `Row` that displays a search result in a list or a table.

    It has a cell for each column of `RESULT_COLUMNS` except the text. `prefix` precedes the score.
    """
    score = f"{prefix}{result.chunk_score:.3f}"
    position = str(result.original_index)
    metadata = summarize_mapping(result.metadata)
    shown_metadata = f"({metadata})  " if metadata else ""
    spans = result.spans or ()
    return Row(
        label=f"{score}  [{position}]  {shown_metadata}",
        cells=(score, position, metadata),
        text=result.chunk_txt,
        focus=(spans[0].start, spans[0].end) if spans else None,
        highlights=[(word.start, word.end) for word in spans[1:]],
    )


class SearchResponseDisplay:
    """The display of a `SearchResponse`: one row for each result."""

    __slots__ = ()

    def __repr__(self: Any) -> str:
        return format_list(f"<SearchResponse: {self._summary()}>", self.results, result_row)

    def _repr_html_(self: Any) -> str:
        return format_table(self._summary(), RESULT_COLUMNS, self.results, result_row)

    def _summary(self: Any) -> str:
        n_results = pluralize(len(self.results), "result")
        order = ""
        if len(self.results) > 1:
            order = ", best first" if self.results == self.best else ", in the chunks' order"
        return f"{n_results}{order}, confidence {self.confidence:.2f}"


class ExplanationDisplay:
    """The display of an `Explanation`: one line for each contribution other than 0."""

    __slots__ = ()

    def __repr__(self: Any) -> str:
        lines = [f"<Explanation: score {self.score:.3f}>"]
        lines += [f"  left out by {one_line(operator)}" for operator in self.violated_operators]
        for word, correction in self.corrections.items():
            lines.append(f"  {one_line(word)!r} taken for {correction!r}")
        for term in self.terms:
            if term.contribution:
                n_chunks = pluralize(term.df, "chunk")
                counts = f"{one_line(term.term)!r}, {term.tf:g} here, in {n_chunks}"
                lines.append(f"  {term.contribution:.3f}  {counts}")
        for attribute in fields(type(self)):
            contribution = getattr(self, attribute.name)
            if attribute.default == 0.0 and contribution:
                lines.append(f"  {contribution:.3f}  {attribute.name}")
        return "\n".join(lines)


class CompressionResponseDisplay:
    """The display of a `CompressionResponse`: one line for each selected sentence."""

    __slots__ = ()

    def __repr__(self: Any) -> str:
        n_sentences = pluralize(len(self.sentences), "sentence")
        n_context_tokens = pluralize(self.num_context_tokens, "token")
        summary = f"{n_sentences}, {self.num_tokens:,} of {n_context_tokens}"
        return format_list(f"<CompressionResponse: {summary}>", self.sentences, _sentence_row)


def _sentence_row(sentence: Any) -> Row:
    ellipsis = "… " if sentence.num_omitted_before else ""
    label = f"[{sentence.original_index}]  {ellipsis}"
    return Row(label=label, cells=(), text=sentence.text)


class GenerationResponseDisplay:
    """The display of a `GenerationResponse`: one row for each sample."""

    __slots__ = ()

    def __repr__(self: Any) -> str:
        title = f"<GenerationResponse: {self._summary()}>"
        return format_list(title, self.responses, _sample_row, CELL_CHARS)

    def _repr_html_(self: Any) -> str:
        columns = ("tokens", "ended by", "text")
        return format_table(self._summary(), columns, self.responses, _sample_row, ALL_CHARS)

    def _summary(self: Any) -> str:
        n_samples = pluralize(len(self.responses), "sample")
        return f"{n_samples} of a prompt of {pluralize(self.prompt_tokens, 'token')}"


def _sample_row(sample: Any) -> Row:
    n_tokens = sample.generated_tokens
    return Row(
        label=f"{pluralize(n_tokens, 'token')}, {sample.finish_reason}: ",
        cells=(f"{n_tokens:,}", sample.finish_reason),
        text=sample.text,
    )
