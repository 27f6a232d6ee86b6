"""A ticket with its caller's half, which never travels: the future, and the callback for text."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import Any, TypeAlias

import attrs
from attrs import define, field

from relevance_gen.generation.output_parsing.content_parts import finish_reason_of, merge_parts
from relevance_gen.generation.output_parsing.output_parser import OutputFormat, OutputParser
from relevance_gen.generation.queue.prefix_routing import Blocks
from relevance_gen.generation.queue.request import QueuedRequest
from relevance_gen.types import Completion, ContentPart, GenerationResponse

OnText: TypeAlias = Callable[[int, Any], None]
"""Takes a sample's number and its text; of a conversation, whose turns are read, in place of that a `ContentPart`."""
Outcome: TypeAlias = GenerationResponse | BaseException

_log = logging.getLogger(__name__)


@define(eq=False)
class PendingRequest:
    """A ticket that waits or is served, and who waits for it.

    Attributes:
        n_unstarted: samples that have not produced a token.
        is_queued: whether they count as waiting: until it is taken, or if it has a grammar, until a sample starts.
        has_shown: whether the callback was given text.
        was_lost: whether a puller that had this ticket has left.
        blocks: of its prompt; none where it does not matter who computes that.
        left_s: when a puller first left it to another one.
        turns: of each sample so far what reads it, and the pieces that it has told.
    """

    ticket: QueuedRequest
    on_text: OnText | None
    future: Future[GenerationResponse]
    n_pending_samples: int = 0
    is_queued: bool = False
    has_streamed: bool = False
    was_requeued: bool = False
    blocks: Blocks = ()
    deferred_since_s: float | None = None
    turns: dict[int, tuple[OutputParser, list[ContentPart]]] = field(factory=dict)

    def tell(self, sample: int, text: str) -> None:
        """Take a sample's text, and give the callback what is known of it."""
        if (form := self.ticket.context.output_format) is not None:
            reader, _ = self._turn(sample, form)
            self._tell(sample, reader.push(text))
        elif self.on_text is not None:
            self.on_text(sample, text)

    def read(self, response: GenerationResponse) -> GenerationResponse:
        """Return a response with its turns read to their end, and give the callback what was held back."""
        if (form := self.ticket.context.output_format) is None:
            return response
        responses = tuple(
            self._read(sample, one, form) for sample, one in enumerate(response.responses)
        )
        return attrs.evolve(response, responses=responses)

    def _read(self, sample: int, completion: Completion, form: OutputFormat) -> Completion:
        is_begun = sample in self.turns
        reader, pieces = self._turn(sample, form)
        self._tell(sample, [*([] if is_begun else reader.push(completion.text)), *reader.end()])
        parts = merge_parts(pieces)
        text = "".join(part.text for part in parts if part.kind == "text")
        reason = finish_reason_of(completion.finish_reason, parts)
        return attrs.evolve(completion, text=text, finish_reason=reason, parts=parts)

    def _turn(self, sample: int, form: OutputFormat) -> tuple[OutputParser, list[ContentPart]]:
        if (turn := self.turns.get(sample)) is None:
            turn = self.turns[sample] = OutputParser(form, secrets.token_hex(8)), []
        return turn

    def _tell(self, sample: int, pieces: list[ContentPart]) -> None:
        self.turns[sample][1].extend(pieces)
        if self.on_text is not None:
            for piece in pieces:
                self.on_text(sample, piece)

    def settle(self, outcome: Outcome) -> None:
        """Settle the future and let go of it: the error's traceback may hold this object."""
        future = self.future
        del self.future
        try:
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        except InvalidStateError:
            pass  # it was cancelled a moment ago
        except (
            BaseException
        ):  # the future itself takes care of Exception alone, and others wait for this thread
            _log.exception("a callback of a request's future failed")
