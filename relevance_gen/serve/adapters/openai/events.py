"""Streams of completions and chats: server-sent events, terminated by ``[DONE]``."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from relevance_gen import wire
from relevance_gen.serve.adapters.openai.requests import SamplingRequest, error
from relevance_gen.serve.adapters.openai.tokens import usage
from relevance_gen.serve.services.generation import Responses
from relevance_gen.types import Completion, GenerationResponse
from relevance_gen.wire import JsonObject


class CompletionEvents:
    """The events of one stream.

    Args:
        identity: the fields of every chunk: its id, object and model.
        request: the request.
        n_samples: number of samples of all prompts.
        first: function from a sample's index and its first piece (None if the sample has no piece)
            to the choice of a chunk that is sent before this piece, or to None for no such chunk.
        piece: function from a sample's index and a piece, of a text or of a turn, to the choice of
            the piece's chunk.
        last: function from a completed sample and its response to the choice of its last chunk.
        write_error: function that returns the body of an error.
    """

    stream_format = wire.EVENT_STREAM

    def __init__(
        self,
        identity: JsonObject,
        request: SamplingRequest,
        n_samples: int,
        *,
        first: Callable[[int, Any], JsonObject | None],
        piece: Callable[[int, Any], JsonObject],
        last: Callable[[Completion, GenerationResponse], JsonObject],
        write_error: Callable[[str, str, str | None], object] = error,
    ) -> None:
        self._common = {**identity, "created": int(time.time())}
        self._not_started = set(range(n_samples))
        self._first = first
        self._piece = piece
        self._last = last
        self._includes_usage = request.includes_usage
        self._write_error = write_error

    def text(self, sample: int, piece: Any) -> bytes:
        """Return the event of a piece, after the sample's first chunk if that was not sent."""
        return self._start(sample, piece) + self._chunk(sample, self._piece(sample, piece))

    def end(self, responses: Responses) -> bytes:
        """Return the events that end a stream: the last chunk of each sample, and the usage."""
        events = []
        sample = 0
        for response in responses:
            for completion in response.responses:
                events.append(self._start(sample, None))
                events.append(self._chunk(sample, self._last(completion, response)))
                sample += 1
        if self._includes_usage:
            events.append(wire.event({**self._common, "choices": [], "usage": usage(responses)}))
        return b"".join([*events, b"data: [DONE]\n\n"])

    def error(self, kind: str, message: str, field: str | None) -> bytes:
        """Return the event that ends a stream that failed."""
        return wire.event(self._write_error(kind, message, field))

    def _start(self, sample: int, piece: Any) -> bytes:
        if sample not in self._not_started:
            return b""
        self._not_started.remove(sample)
        choice = self._first(sample, piece)
        return b"" if choice is None else self._chunk(sample, choice)

    def _chunk(self, sample: int, choice: JsonObject) -> bytes:
        choices = [{"index": sample, "logprobs": None, "finish_reason": None, **choice}]
        return wire.event({**self._common, "choices": choices})
