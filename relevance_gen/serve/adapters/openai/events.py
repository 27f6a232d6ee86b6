"""Streams: server-sent events whose data are chunks of a completion, and ``[DONE]`` at the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from relevance_gen import wire
from relevance_gen.serve.adapters.openai.tokens import usage
from relevance_gen.serve.services.generation import Responses
from relevance_gen.types import Completion, GenerationResponse


class CompletionEvents:
    """The events of one stream.

    Args:
        head: what every chunk has: its id, object and model.
        n_samples: samples of all prompts.
        beginning: what a sample's first chunk says, given its number; ``None`` for no chunk.
        piece: what a choice says for a piece of text, or of a turn, given the number of its sample.
        last: what a choice says at a sample's end.
        includes_usage: whether a last chunk tells the tokens used.
    """

    def __init__(
        self,
        head: dict[str, Any],
        n_samples: int,
        *,
        beginning: Callable[[int], dict[str, Any] | None],
        piece: Callable[[int, Any], dict[str, Any]],
        last: Callable[[Completion, GenerationResponse], dict[str, Any]],
        includes_usage: bool,
        write_error: Callable[[str, str, str | None], object],
    ) -> None:
        self._head = {**head, "created": int(time.time())}
        self._unbegun = set(range(n_samples))
        self._beginning, self._piece, self._last = beginning, piece, last
        self._includes_usage = includes_usage
        self._write_error = write_error

    def text(self, sample: int, piece: Any) -> bytes:
        """Return the event of a piece, and before the first that of a sample's beginning."""
        return self._begin(sample) + self._choice(
            sample, {**self._piece(sample, piece), "finish_reason": None}
        )

    def end(self, responses: Responses) -> bytes:
        """Return the events that end a stream: each sample's last, the usage, and the end."""
        events, sample = [], 0
        for response in responses:
            for completion in response.responses:
                events += [
                    self._begin(sample),
                    self._choice(sample, self._last(completion, response)),
                ]
                sample += 1
        if self._includes_usage:
            events.append(wire.event({**self._head, "choices": [], "usage": usage(responses)}))
        return b"".join([*events, b"data: [DONE]\n\n"])

    def error(self, kind: str, message: str, field: str | None) -> bytes:
        """Return the event that ends a stream that failed."""
        return wire.event(self._write_error(kind, message, field))

    def _begin(self, sample: int) -> bytes:
        if sample not in self._unbegun:
            return b""
        self._unbegun.remove(sample)
        beginning = self._beginning(sample)
        return (
            b"" if beginning is None else self._choice(sample, {**beginning, "finish_reason": None})
        )

    def _choice(self, sample: int, said: dict[str, Any]) -> bytes:
        return wire.event({**self._head, "choices": [{"index": sample, "logprobs": None, **said}]})
