"""Compression, citations, and prompts for questions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, overload

from attrs import asdict, frozen

from relevance_gen.display.responses import CompressionResponseDisplay
from relevance_gen.types.search import Span

MIN_CONFIDENCE = 0.6
"""Default minimum confidence of a search for an answer; `bench.answerable` measures it."""


# ── Compression ──────────────────────────────────────────────────────────────────────────────────


@frozen
class SelectedSentence:
    """A sentence of a chunk that compression selected.

    Attributes:
        original_index: position of the chunk in the input.
        start: position of its first character in the chunk's text, in code points.
        end: position after its last character.
        text: its text, verbatim.
        num_omitted_before: number of sentences, of all chunks, omitted between the preceding
            selected sentence and this sentence; for the first selected sentence, before it.
    """

    original_index: int
    start: int
    end: int
    text: str
    num_omitted_before: int


@frozen(repr=False)
class CompressionResponse(CompressionResponseDisplay, Sequence[SelectedSentence]):
    """The sentences that compression selected from chunks, as a sequence in input order.

    It prints as a short list.

    Attributes:
        sentences: the selected sentences.
        text: all of them in one text: verbatim if consecutive, with ``…`` between two sentences of
            a chunk if sentences between them were omitted, and with a blank line between chunks.
        num_tokens: tokens in the text; at most ``max_tokens`` of the request.
        num_context_tokens: total tokens of all supplied chunks, each counted alone.
    """

    sentences: tuple[SelectedSentence, ...]
    text: str
    num_tokens: int
    num_context_tokens: int

    def to_dict(self) -> dict[str, Any]:
        """Return the response as plain dicts and lists, with the content of the server's JSON."""
        return asdict(self) | {"sentences": [asdict(sentence) for sentence in self.sentences]}

    def __len__(self) -> int:
        return len(self.sentences)

    @overload
    def __getitem__(self, index: int) -> SelectedSentence: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[SelectedSentence, ...]: ...
    def __getitem__(self, index: int | slice) -> SelectedSentence | tuple[SelectedSentence, ...]:
        return self.sentences[index]


# ── Citations ────────────────────────────────────────────────────────────────────────────────────


@frozen
class CitedSpan(Span):
    """A sentence of a source that supports a sentence of an answer.

    Its ``score`` is in (0, 1]: the total weight of the distinct words that both sentences contain,
    divided by the total weight of the distinct words of the answer's sentence. The rarer a word is
    in the sources, the greater its weight; for the formula see `relevance_gen.asking.citations`.

    Attributes:
        source: number of the source, from 0. The inherited attributes ``start`` and ``end`` are
            positions in the text of that source's chunk.
    """

    source: int


@frozen
class CitedSentence:
    """A sentence of an answer, with the source sentences that support it.

    Attributes:
        start: position of its first character in the answer, in code points.
        end: position after its last character.
        spans: the supporting source sentences; empty if the sources do not support the sentence.
            The first has the highest ``score``. The others are in descending order of the weight of
            the answer's words that they contain and no earlier span contains.
    """

    start: int
    end: int
    spans: tuple[CitedSpan, ...]

    @property
    def citation_marker(self) -> str:
        """The numbers of the distinct sources, from 1, each in brackets: for example ``[1][3]``.

        ``[not found in the sources]`` if there are none.
        """
        numbers = dict.fromkeys(span.source + 1 for span in self.spans)
        return "".join(f"[{number}]" for number in numbers) or "[not found in the sources]"


# ── Prompts ──────────────────────────────────────────────────────────────────────────────────────


@frozen
class PromptSource:
    """A part of a chunk that a prompt contains.

    Attributes:
        original_index: position of the chunk in the input.
        start: position of the part's first character in the chunk's text, in code points.
        end: position after its last character.
    """

    original_index: int
    start: int
    end: int


@frozen
class PromptResponse:
    """A request to send to the server's model, with the sources that its prompt contains.

    Attributes:
        sources: the sources in the prompt, best first; a chat model sees them numbered [1], [2] and
            so on.
        path: the path to post ``request`` to, unchanged: ``"/generate"``, or
            ``"/v1/chat/completions"`` for a chat model.
        request: the body of that request.
        found: whether the confidence of the search is high enough for an answer; if false, do not
            present the model's output as an answer.
    """

    sources: tuple[PromptSource, ...]
    path: str
    request: Mapping[str, Any]
    found: bool
