"""Prepare the request to a model: select the sources that fit, and write the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from attrs import frozen

from relevance_gen.asking.answer import Source
from relevance_gen.asking.prompts import (
    INSTRUCTIONS,
    chat_message,
    completion_prompt,
    follows_instructions,
)
from relevance_gen.asking.selection import fit, passage_of
from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.queue.request import GRAMMAR_FIELDS
from relevance_gen.llama.language_model import MAX_BYTES_PER_TOKEN, ChatFormat
from relevance_gen.request_scope import raise_if_cancelled
from relevance_gen.types import SearchResponse

_CHAT_MAX_TOKENS = 512
_COMPLETION_MAX_TOKENS = 128
_SEVERAL_PASSAGES_TOKENS = 128
"""Maximum tokens of a prompt with several passages for a model that does not follow instructions:
the embedded model finds the right sentence best among few sentences."""
_FRAME_BYTES = 2048
"""Upper bound of the bytes that a template adds to a message."""


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
        InvalidRequestError: no source fits into the context, or `copy` is true and a field such as
            ``grammar`` also constrains the answer.
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
        if (
            n_bytes > MAX_BYTES_PER_TOKEN * self.model.chat_format.n_ctx
        ):  # the model would refuse to count them
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
    n_ctx, max_tokens = model.chat_format.n_ctx, int(fields["max_tokens"])
    return n_ctx - min(max_tokens, n_ctx // 2)
