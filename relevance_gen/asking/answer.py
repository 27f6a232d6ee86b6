"""The answer to a question, and its sources."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from attrs import frozen

from relevance_gen import wire
from relevance_gen.asking.citations import Attributor
from relevance_gen.display.responses import RESULT_COLUMNS, result_row
from relevance_gen.display.tables import Row, escape_html, format_list, format_table, one_line
from relevance_gen.errors import pluralize
from relevance_gen.interop import PydanticSerializable
from relevance_gen.types import (
    CitedSentence,
    FinishReason,
    GenerationResponse,
    SearchResult,
)

NOTHING_FOUND = "Nothing was found that the question asks for."
"""The text of an answer if the search returns nothing."""
NO_ANSWER_FOUND = "No answer found. These passages are the closest matches."
"""The text of an answer if the confidence of the search is too low."""


@frozen
class Source(PydanticSerializable):
    """A result of the search, and the part of its text that is in the prompt.

    Attributes:
        result: the chunk, with its score, its position, its metadata and its spans.
        start: the start of the part in ``result.chunk_txt``, in code points.
        end: the end of the part in ``result.chunk_txt``, exclusive.
    """

    result: SearchResult
    start: int
    end: int

    @classmethod
    def whole(cls, result: SearchResult) -> Source:
        """Return a source with the whole text of a result."""
        return cls(result, 0, len(result.chunk_txt))

    @property
    def text(self) -> str:
        """The part of the text that is in the prompt."""
        return self.result.chunk_txt[self.start : self.end]

    @property
    def reference(self) -> str:
        """The part `text` on one line, with single spaces between words."""
        return " ".join(self.text.split())

    def to_dict(self) -> dict[str, Any]:
        """Return the fields of `SearchResult.to_dict` and the key ``shown``.

        ``shown`` is a dictionary with the attributes `start` and `end` of this source as its keys.
        """
        shown = {"start": self.start, "end": self.end}
        return {**self.result.to_dict(), "shown": shown}


def attributor_of(sources: Sequence[Source]) -> Attributor:
    """Return an `Attributor`, which finds the supporting spans of sentences, for sources.

    It searches only the parts of the chunks that are in the prompt; the positions of its spans
    refer to the complete texts of the chunks.
    """
    texts = [source.text for source in sources]
    return Attributor(texts, [source.start for source in sources])


@frozen(repr=False)
class Answer(PydanticSerializable):
    """An answer. It prints as its text with source numbers, and a line for each source.

    A notebook shows the text and a table.

    Attributes:
        text: the answer; `NOTHING_FOUND` or `NO_ANSWER_FOUND` if there is none.
        sources: the sources in the prompt, best first, numbered [1], [2] and so on for chat models;
            without a generation, the closest passages.
        prompt: the complete prompt; empty if there is no response.
        confidence: the confidence of the search that the chunks contain an answer, in [0, 1]; not
            the confidence that the text is right.
        response: the generation with token counts and times; ``None`` if no model was used, or if
            the generation was stopped because the text repeated itself.
        found: whether there is an answer; otherwise the text is a message.
    """

    text: str
    sources: tuple[Source, ...]
    prompt: str
    confidence: float
    response: GenerationResponse | None
    found: bool = True

    @classmethod
    def none_found(cls, sources: tuple[Source, ...], confidence: float) -> Answer:
        """Return an answer for which the model was not called, because the search found too little.

        Its text is `NOTHING_FOUND` if `sources` is empty. Otherwise the confidence of the search
        was too low, and its text is `NO_ANSWER_FOUND`.
        """
        text = NO_ANSWER_FOUND if sources else NOTHING_FOUND
        return cls(
            text,
            sources,
            prompt="",
            confidence=confidence,
            response=None,
            found=False,
        )

    @cached_property
    def citations(self) -> tuple[CitedSentence, ...]:
        """The sentences of the text that have words, each with its supporting spans; see `cite`.

        The ``source`` of a span is an index into `sources`, and its positions refer to
        ``result.chunk_txt``. Without an answer the tuple is empty.
        """
        return attributor_of(self.sources).cite(self.text) if self.found else ()

    @property
    def text_with_citations(self) -> str:
        """The text with the numbers of its sources, from 1, after each sentence."""
        text = self.text
        for sentence in reversed(self.citations):
            end = sentence.end
            text = f"{text[:end]} {sentence.citation_marker}{text[end:]}"
        return text

    @property
    def finish_reason(self) -> FinishReason | None:
        """Why the answer ended: ``"length"`` at the token limit; ``None`` without a response."""
        return None if self.response is None else self.response.responses[0].finish_reason

    def to_dict(self) -> dict[str, Any]:
        """Return the answer as dicts and lists, valid as JSON if the chunks' metadata is valid.

        The keys are ``text``, ``found``, ``sources``, ``citations``, ``prompt``, ``confidence`` and
        ``finish_reason``.
        """
        return {
            "text": self.text,
            "found": self.found,
            "sources": [source.to_dict() for source in self.sources],
            "citations": wire.unstructure(self.citations),
            "prompt": self.prompt,
            "confidence": self.confidence,
            "finish_reason": self.finish_reason,
        }

    def __repr__(self) -> str:
        head = f"<Answer: {self._summary}>\n  {one_line(self.text_with_citations)}"
        return format_list(head, list(enumerate(self.sources, 1)), _row_of)

    def _repr_html_(self) -> str:
        table = format_table(
            self._summary, RESULT_COLUMNS, list(enumerate(self.sources, 1)), _row_of
        )
        return (
            f'<p style="white-space: pre-wrap">{escape_html(self.text_with_citations)}</p>{table}'
        )

    @property
    def _summary(self) -> str:
        return f"{pluralize(len(self.sources), 'source')}, confidence {self.confidence:.2f}"


def _row_of(numbered: tuple[int, Source]) -> Row:
    number, source = numbered
    return result_row(source.result, f"[{number}] ")
