"""Choices of completions and chats, with token counts and the tokens of samples."""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from attrs import frozen

from relevance_gen import wire
from relevance_gen.serve.adapters.openai.requests import SamplingRequest, error
from relevance_gen.serve.adapters.shared import Problem
from relevance_gen.serve.services.generation import Responses
from relevance_gen.types import Completion, GenerationResponse, TokenLogprob, TokenTexts
from relevance_gen.wire import JsonObject


class ChoiceEvents(ABC):
    """The events of one stream, terminated by ``[DONE]``, or the whole response as one object.

    Subclasses write the choices: one for each sample of each prompt.

    Args:
        identity: the fields of the response and of every chunk: its id, object and model.
        request: the request.
        n_samples: number of samples of all prompts.
    """

    stream_format = wire.EVENT_STREAM

    def __init__(self, identity: JsonObject, request: SamplingRequest, n_samples: int) -> None:
        self._identity = identity
        self._created = int(time.time())
        self._includes_usage = (request.stream_options or {}).get("include_usage")
        self._not_started = set(range(n_samples))

    @abstractmethod
    def _first(self, sample: int, piece: Any) -> JsonObject | None:
        """Return the choice of a chunk that is sent before the first piece of a sample.

        None sends no such chunk. `piece` is None if the sample has no piece.
        """

    @abstractmethod
    def _piece(self, sample: int, piece: Any) -> JsonObject:
        """Return the choice of the chunk of a piece, of a text or of a turn."""

    @abstractmethod
    def _last(self, completion: Completion) -> JsonObject:
        """Return the choice of the last chunk of a sample, without its `_ending`."""

    @abstractmethod
    def _choice(self, completion: Completion, response: GenerationResponse) -> JsonObject:
        """Return the choice of a sample in the response as one object, without its `_ending`."""

    @abstractmethod
    def _logprobs(self, completion: Completion, response: GenerationResponse) -> JsonObject | None:
        """Return the log probabilities of a sample; None if they were not requested."""

    def _ending(self, completion: Completion, response: GenerationResponse) -> JsonObject:
        reason = completion.finish_reason
        return {
            "logprobs": self._logprobs(completion, response),
            "finish_reason": "stop" if reason == "eos" else reason,
        }

    def full_response(self, responses: Responses) -> JsonObject:
        """Return the response with all choices as one object."""
        choices: list[JsonObject] = []
        for completion, response in _samples(responses):
            choice = self._choice(completion, response) | self._ending(completion, response)
            choices.append({"index": len(choices), **choice})
        return {
            **self._identity,
            "created": int(responses[0].created),
            "choices": choices,
            "usage": _usage(responses),
        }

    def text(self, sample: int, piece: Any) -> bytes:
        """Return the event of a piece, after the sample's first chunk if that was not sent."""
        return self._start(sample, piece) + self._event(sample, self._piece(sample, piece))

    def end(self, responses: Responses) -> bytes:
        """Return the events that end a stream: the last chunk of each sample, and the usage."""
        events = []
        for sample, (completion, response) in enumerate(_samples(responses)):
            choice = self._last(completion) | self._ending(completion, response)
            events += [self._start(sample, None), self._event(sample, choice)]
        if self._includes_usage:
            events.append(self._chunk([], usage=_usage(responses)))
        return b"".join([*events, b"data: [DONE]\n\n"])

    def error(self, problem: Problem) -> bytes:
        """Return the event that ends a stream that failed."""
        return wire.event(error(problem))

    def _start(self, sample: int, piece: Any) -> bytes:
        if sample not in self._not_started:
            return b""
        self._not_started.remove(sample)
        choice = self._first(sample, piece)
        return b"" if choice is None else self._event(sample, choice)

    def _event(self, sample: int, choice: JsonObject) -> bytes:
        return self._chunk([{"index": sample, "logprobs": None, "finish_reason": None, **choice}])

    def _chunk(self, choices: list[JsonObject], **fields: object) -> bytes:
        return wire.event(
            {**self._identity, "created": self._created, "choices": choices, **fields}
        )


def _samples(responses: Responses) -> Iterator[tuple[Completion, GenerationResponse]]:
    for response in responses:
        for completion in response.responses:
            yield completion, response


def _usage(responses: Responses) -> JsonObject:
    """Return the number of tokens of all prompts and samples.

    The keys are ``prompt_tokens``, ``completion_tokens`` and their sum, ``total_tokens``. For the
    turns of a conversation, ``cached_tokens`` in ``prompt_tokens_details`` is the number of prompt
    tokens that were reused, and ``reasoning_tokens`` in ``completion_tokens_details`` the number of
    generated tokens of the reasoning.
    """
    samples = [sample for sample, _ in _samples(responses)]
    n_prompt = sum(response.prompt_tokens for response in responses)
    n_generated = sum(sample.generated_tokens for sample in samples)
    counts: JsonObject = {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_generated,
        "total_tokens": n_prompt + n_generated,
    }
    n_reasoning = [
        sample.reasoning_tokens for sample in samples if sample.reasoning_tokens is not None
    ]
    if n_reasoning:
        n_cached = sum(response.reused_tokens for response in responses)
        counts["prompt_tokens_details"] = {"cached_tokens": n_cached}
        counts["completion_tokens_details"] = {"reasoning_tokens": sum(n_reasoning)}
    return counts


@frozen
class ScoredToken:
    """A token with its log probability and the most likely tokens at its position, if known."""

    token: int
    logprob: float | None
    alternatives: Sequence[TokenLogprob] | None


def sample_tokens(
    completion: Completion, token_texts: TokenTexts, *, with_end: bool = False
) -> list[ScoredToken]:
    """Return a sample's tokens, each with its log probability and alternatives.

    If the last token is an end-of-sequence token, it is included only with `with_end`.
    """
    tokens = completion.tokens or ()
    alternatives = completion.top_logprobs or ((),) * len(tokens)
    rows = zip(tokens, completion.logprobs or (), alternatives, strict=True)
    scored = list(itertools.starmap(ScoredToken, rows))
    if tokens and tokens[-1] in token_texts.eos_token_ids and not with_end:
        scored.pop()
    return scored
