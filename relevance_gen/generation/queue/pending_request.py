"""A queued request with the parts that never leave this process: future and text callback."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeAlias

import attrs
from attrs import define, field

from relevance_gen.generation.output_parsing.output_parser import (
    OutputFormat,
    OutputParser,
    finish_reason_of,
    merge_parts,
)
from relevance_gen.generation.queue.prefix_routing import Blocks
from relevance_gen.generation.queue.request import QueuedRequest
from relevance_gen.types import Completion, ContentPart, GenerationResponse

OnText: TypeAlias = Callable[[int, Any], None]
"""Receives a sample index and a text, or a `ContentPart` if the request has an output format."""

_log = logging.getLogger(__name__)


@define(eq=False)
class _ParsedTurn:
    """The output parser of one sample, and all content parts that it has returned."""

    parser: OutputParser
    parts: list[ContentPart] = field(factory=list)


@define(eq=False)
class PendingRequest:
    """A request that waits or that a worker serves, and its caller.

    Attributes:
        queued: the request.
        on_text: the caller's callback for text; None if there is none.
        future: the future of the response.
        n_pending_samples: number of samples without a first token.
        is_queued: whether the samples count as waiting: until a worker takes the request, or until
            the first sample starts if the request has a grammar.
        has_streamed: whether text was passed to the callback.
        was_requeued: whether the request was put back into the queue because its worker has left.
        blocks: hashes of prompt blocks; empty if any worker may compute the prompt.
        deferred_since_s: `time.monotonic` at which a worker first deferred to another worker; None
            if none has.
        turns: output parsers by sample index; empty without an output format.
    """

    queued: QueuedRequest
    on_text: OnText | None
    future: Future[GenerationResponse]
    n_pending_samples: int = 0
    is_queued: bool = False
    has_streamed: bool = False
    was_requeued: bool = False
    blocks: Blocks = ()
    deferred_since_s: float | None = None
    turns: dict[int, _ParsedTurn] = field(factory=dict)

    def stream_text(self, sample: int, text: str) -> None:
        """Pass text of a sample to the callback, parsed if the request has an output format."""
        output_format = self.queued.context.output_format
        if output_format is not None:
            turn = self._turn(sample, output_format)
            self._stream_parts(sample, turn.parser.push(text))
        elif self.on_text is not None:
            self.on_text(sample, text)

    def parse_response(self, response: GenerationResponse) -> GenerationResponse:
        """Return the response with the content parts, text and finish reason of each parsed turn.

        The callback receives the content parts that it has not yet received: those that the parser
        held back, or all parts of a sample whose text was not streamed. Without an output format,
        the response is returned unchanged.
        """
        output_format = self.queued.context.output_format
        if output_format is None:
            return response
        completions = tuple(
            self._parse_completion(sample, completion, output_format)
            for sample, completion in enumerate(response.responses)
        )
        return attrs.evolve(response, responses=completions)

    def _parse_completion(
        self, sample: int, completion: Completion, output_format: OutputFormat
    ) -> Completion:
        was_streamed = sample in self.turns
        turn = self._turn(sample, output_format)
        pieces = [] if was_streamed else turn.parser.push(completion.text)
        self._stream_parts(sample, [*pieces, *turn.parser.end()])
        parts = merge_parts(turn.parts)
        return attrs.evolve(
            completion,
            text="".join(part.text for part in parts if part.kind == "text"),
            finish_reason=finish_reason_of(completion.finish_reason, parts),
            parts=parts,
        )

    def _turn(self, sample: int, output_format: OutputFormat) -> _ParsedTurn:
        if sample not in self.turns:
            self.turns[sample] = _ParsedTurn(OutputParser(output_format, secrets.token_hex(8)))
        return self.turns[sample]

    def _stream_parts(self, sample: int, parts: Sequence[ContentPart]) -> None:
        self.turns[sample].parts.extend(parts)
        if self.on_text is not None:
            for part in parts:
                self.on_text(sample, part)

    def settle(self, outcome: GenerationResponse | BaseException) -> None:
        """Settle the future and drop it, because an error's traceback may refer to this object."""
        future = self.future
        del self.future
        try:
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        except InvalidStateError:
            pass  # The future was cancelled a moment ago.
        except BaseException:
            # The future handles `Exception` itself. Other exceptions must not end the worker's
            # thread.
            _log.exception("a callback of a request's future failed")
