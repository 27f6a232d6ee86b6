"""Write the request to a model: select the sources that fit, and write the prompt."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

from attrs import frozen

from relevance_gen.asking.answer import Source
from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.queue.request import GRAMMAR_FIELDS
from relevance_gen.llama.language_model import MAX_BYTES_PER_TOKEN, ChatFormat
from relevance_gen.request_scope import raise_if_cancelled
from relevance_gen.text.chunking import sentences
from relevance_gen.types import SearchResponse, SearchResult

INSTRUCTIONS = (
    "Answer the question in a few sentences, from the sources below and nothing else. If the "
    "sources do not answer the question, say that they do not."
)
_CHAT_MAX_TOKENS = 512
_COMPLETION_MAX_TOKENS = 128
_SEVERAL_PASSAGES_TOKENS = 128
"""Maximum tokens of a prompt with several passages for a model that does not follow instructions:
the embedded model finds the right sentence best among few sentences."""
_FRAME_BYTES = 2048
"""Upper bound of the bytes that a template adds to a message."""
Fits: TypeAlias = Callable[[Sequence[Source]], bool]
"""Returns whether a prompt with these sources fits into the context of the model. If it does, a
prompt with fewer or shorter sources does, too."""
_NAMED_ROW = re.compile(r"\|.*: .*\|")
_MAX_TRIED = 100
"""Sources that are tried after the first that does not fit; the model counts each of them."""


def follows_instructions(model: ChatFormat) -> bool:
    """Return whether the prompt of a model is written by `chat_message`.

    This is the case if the model file has a chat template and does not mark the model as one that
    copies its answers. Otherwise the prompt is written by `completion_prompt`. The embedded model
    has a chat template, but is marked, because it was not trained on instructions.
    """
    return model.template is not None and not model.is_extractive


def chat_message(
    question: str, sources: Sequence[Source], instructions: str = INSTRUCTIONS
) -> dict[str, str]:
    """Return a chat message that contains the instructions, the numbered sources and the question.

    Its role is ``user``, because some chat templates do not support the role ``system``.
    """
    numbered = [f"[{number}] {source.text.strip()}" for number, source in enumerate(sources, 1)]
    return {
        "role": "user",
        "content": "\n\n".join([instructions, *numbered, f"Question: {question.strip()}"]),
    }


def completion_prompt(question: str, sources: Sequence[Source]) -> str:
    """Return a prompt for a model without instructions; its continuation is the answer.

    The prompt has the format of the prompts on which the embedded model was trained: the sources on
    one line, the question on the next line, and the beginning of the answer's line.
    """
    context = " ".join(source.reference for source in sources)
    return f"Context: {context}\nQuestion: {' '.join(question.split())}\nAnswer:"


class PromptModel(Protocol):
    """The part of `Runner` that prompts depend on."""

    @property
    def chat_format(self) -> ChatFormat:
        """The chat template of the model file, and the length of its context."""

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a prompt."""

    def count_chat_tokens(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        chat_template: str | None = None,
        template_variables: Mapping[str, Any] | None = None,
    ) -> int:
        """Return the number of tokens of a conversation."""


def prepare(
    question: str,
    response: SearchResponse,
    model: PromptModel,
    *,
    copy: bool | None = None,
    fill: bool | None = None,
    instructions: str = INSTRUCTIONS,
    chat_template: str | None = None,
    template_variables: Mapping[str, Any] | None = None,
    **fields: Any,
) -> tuple[tuple[Source, ...], dict[str, Any]]:
    """Select the sources of a prompt, and return them and the arguments of the generation.

    Args:
        question: the question.
        response: the response of a search with the option ``spans``; its results must be sorted
            best first.
        model: the model that answers.
        copy: as in `ask`.
        fill: whether filled results, which share nothing with the question, can be sources. None
            uses them for a chat model that writes its own answer, if all results fit completely and
            some of them share a word with the question.
        instructions: as in `ask`.
        chat_template: as in `ask`.
        template_variables: as in `ask`.
        **fields: further fields of a `GenerationRequest`.

    Returns:
        The sources, and either the arguments of `Runner.chat`, with ``messages``, or the fields of
        a `GenerationRequest`, with ``text``.

    Raises:
        InvalidRequestError: no source fits into the context; `copy` is true and a field such as
            ``grammar`` also constrains the answer; or `instructions` are not the default and the
            model does not follow instructions.
    """
    grammar_names = [name for name in GRAMMAR_FIELDS if fields.get(name) is not None]
    if copy and grammar_names:
        raise InvalidRequestError(f"cannot be combined with {grammar_names[0]}", "copy")
    copies = model.chat_format.is_extractive and not grammar_names if copy is None else copy
    fields = {"temperature": 0.0, **fields}
    candidate_sources = [Source.whole(result) for result in response.results]
    matching = [source for source in candidate_sources if fill or not source.result.is_filled]
    form: _Chat | _CompletionPrompt
    if chat_template is not None or follows_instructions(model.chat_format):
        variables = {"enable_thinking": False, **(template_variables or {})}
        rendering = {"chat_template": chat_template, "template_variables": variables}
        fields = {"max_tokens": _CHAT_MAX_TOKENS, **fields}
        form = _Chat(model, question, fields, copies, instructions, rendering)
        has_filled = len(matching) < len(candidate_sources)
        if not matching or copies or (has_filled and not form.fits(candidate_sources)):
            candidate_sources = matching
    else:
        if instructions != INSTRUCTIONS:
            raise InvalidRequestError(
                "must not be given: the model has no chat template, or only copies",
                "instructions",
                remedy="pass the runner of a chat model",
            )
        # A copied answer is part of the prompt, so it fits into half of the context.
        max_tokens = model.chat_format.n_ctx if copies else _COMPLETION_MAX_TOKENS
        form = _CompletionPrompt(model, question, {"max_tokens": max_tokens, **fields}, copies)
        candidate_sources = [passage_of(source) for source in matching]
    sources = fit(candidate_sources, form.fits)
    if candidate_sources and not sources:
        n_ctx = model.chat_format.n_ctx
        raise InvalidRequestError(
            f"must leave space for a sentence of a source in a context of {n_ctx} tokens",
            field="question",
            remedy="shorten it, lower max_tokens, or load the model with a larger n_ctx",
        )
    return sources, form.write(sources)


@frozen
class _Chat:
    """Writes the request to a model with a chat template, for sources that fit into the prompt."""

    model: PromptModel
    question: str
    fields: Mapping[str, Any]
    copies: bool
    instructions: str
    rendering: Mapping[str, Any]

    def fits(self, sources: Sequence[Source]) -> bool:
        raise_if_cancelled()
        max_prompt_tokens = _max_prompt_tokens(self.model, self.fields)
        n_bytes = _n_bytes(*self._message(sources).values())
        if n_bytes + _FRAME_BYTES <= max_prompt_tokens:  # each token has at least one byte
            return True
        # The model would refuse to count tokens of longer texts.
        if n_bytes > MAX_BYTES_PER_TOKEN * self.model.chat_format.n_ctx:
            return False
        n_tokens = self.model.count_chat_tokens([self._message(sources)], **self.rendering)
        return n_tokens <= max_prompt_tokens

    def write(self, sources: Sequence[Source]) -> dict[str, Any]:
        request = {"messages": [self._message(sources)], **self.rendering, **self.fields}
        if self.copies and sources:
            # Some models begin a turn with a space, which may be a part of their first token.
            copied = passage_of(sources[0]).reference
            request["choice"] = [copied, f" {copied}"]
        return request

    def _message(self, sources: Sequence[Source]) -> dict[str, str]:
        return chat_message(self.question, sources, self.instructions)


@frozen
class _CompletionPrompt:
    """Writes the request to a model without instructions, such as the built-in model."""

    model: PromptModel
    question: str
    fields: Mapping[str, Any]
    copies: bool

    def fits(self, sources: Sequence[Source]) -> bool:
        raise_if_cancelled()
        max_prompt_tokens = _max_prompt_tokens(self.model, self.fields)
        if len(sources) > 1:
            max_prompt_tokens = min(max_prompt_tokens, _SEVERAL_PASSAGES_TOKENS)
        prompt = completion_prompt(self.question, sources)
        return (
            _n_bytes(prompt) <= MAX_BYTES_PER_TOKEN * max_prompt_tokens
            and self.model.count_tokens(prompt) <= max_prompt_tokens
        )

    def write(self, sources: Sequence[Source]) -> dict[str, Any]:
        eos_token_ids = self.model.chat_format.eos_token_ids
        text = completion_prompt(self.question, sources)
        request = {"text": text, "eos_token_ids": eos_token_ids, "stop": ["\n"], **self.fields}
        if self.copies and sources:
            # The search selects the answering sentence better than a small model does.
            request["choice"] = [f" {sources[0].reference}"]
        return request


def _n_bytes(*texts: str) -> int:
    return sum(len(text.encode(errors="replace")) for text in texts)


def _max_prompt_tokens(model: PromptModel, fields: Mapping[str, Any]) -> int:
    """Return the maximum tokens of a prompt: the context length less the tokens of the answer.

    The field ``max_tokens`` is the number of tokens of the answer, but at most half of the context
    is reserved for it.
    """
    n_ctx = model.chat_format.n_ctx
    max_tokens = int(fields["max_tokens"])
    return n_ctx - min(max_tokens, n_ctx // 2)


def fit(sources: Sequence[Source], fits: Fits) -> tuple[Source, ...]:
    """Return the sources that fit into a prompt; sources with equal text are returned once.

    A source that does not fit is shortened to the sentences around its best passage. It is dropped
    if not even the sentences of the passage fit.

    Args:
        sources: the sources, best first.
        fits: returns whether a prompt with given sources fits into the context of the model.
    """
    by_text = {source.text.strip(): source for source in reversed(sources)}
    sources = list(reversed(by_text.values()))
    if fits(sources):
        return tuple(sources)
    n_complete = bisect.bisect_left(
        range(1, len(sources)),
        True,
        key=lambda n_sources: not fits(sources[:n_sources]),
    )
    selected = sources[:n_complete]
    for source in sources[n_complete : n_complete + _MAX_TRIED]:
        if fits([*selected, source]):
            selected.append(source)
            continue
        parts = _around_passage(source)
        n_fitting = bisect.bisect_left(
            parts,
            True,
            key=lambda part: not fits([*selected, part]),
        )
        selected += parts[:n_fitting][-1:]
    return tuple(selected)


def passage_of(source: Source) -> Source:
    """Return a source with only the sentences that the best passage of `source` overlaps.

    This is the first part that `_around_passage` returns; without a passage, `source` itself.
    """
    return _around_passage(source)[0]


def _around_passage(source: Source) -> list[Source]:
    """Return parts of the text of a source around its best passage, in ascending size.

    The first part consists of the sentences that the passage overlaps. Each further part has one
    more sentence at each end, as far as the text has one. If all overlapped sentences are table
    rows that contain the names of their columns, the first part is the single row with the most
    different words of the query. Without a passage, the source itself is the only part.
    """
    result = source.result
    passage = result.passage
    if passage is None:
        return [source]
    spans = list(sentences(result.chunk_txt))
    overlapping = []
    for sentence_ord, (start, end) in enumerate(spans):
        if start < passage.end and passage.start < end:
            overlapping.append(sentence_ord)
    if all(_NAMED_ROW.match(result.chunk_txt, *spans[row]) for row in overlapping):
        overlapping = [max(overlapping, key=lambda row: _n_matches(result, spans[row]))]
    first = overlapping[0]
    last = overlapping[-1]
    parts = []
    while True:
        parts.append(Source(result, spans[first][0], spans[last][1]))
        if first == 0 and last == len(spans) - 1:
            return parts
        first = max(first - 1, 0)
        last = min(last + 1, len(spans) - 1)


def _n_matches(result: SearchResult, sentence: tuple[int, int]) -> int:
    """Return the number of different words of a sentence that match the query, ignoring case.

    Args:
        result: the result whose text contains the sentence.
        sentence: start and end of the sentence in ``result.chunk_txt``.
    """
    start, end = sentence
    words = set()
    for word in result.words:
        if start <= word.start and word.end <= end:
            words.add(result.chunk_txt[word.start : word.end].casefold())
    return len(words)
