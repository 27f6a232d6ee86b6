"""A ticket with its caller's half, which never travels: the future, and the callback for text."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from typing import TypeAlias

from attrs import define

from relevance_gen.generation.affinity import Blocks
from relevance_gen.generation.ticket import Ticket
from relevance_gen.types import GenerationResponse

OnText: TypeAlias = Callable[[int, str], None]
Outcome: TypeAlias = GenerationResponse | BaseException

_log = logging.getLogger(__name__)


@define(eq=False)
class Call:
    """A ticket that waits or is served, and who waits for it.

    Attributes:
        n_unstarted: samples that have not produced a token.
        is_queued: whether they count as waiting: until it is taken, or if it has a grammar, until a sample starts.
        has_shown: whether the callback was given text.
        was_lost: whether a puller that had this ticket has left.
        blocks: of its prompt; none where it does not matter who computes that.
        left_s: when a puller first left it to another one.
    """

    ticket: Ticket
    on_text: OnText | None
    future: Future[GenerationResponse]
    n_unstarted: int = 0
    is_queued: bool = False
    has_shown: bool = False
    was_lost: bool = False
    blocks: Blocks = ()
    left_s: float | None = None

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
        except BaseException:  # the future itself takes care of Exception alone, and others wait for this thread
            _log.exception("a callback of a request's future failed")
