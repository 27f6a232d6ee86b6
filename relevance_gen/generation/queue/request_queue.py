"""The one queue between callers and whoever generates for them.

A caller `put`s a ticket in and holds its future. A worker `join`s and gets a `WorkerHandle`, through which it takes tickets
and reports what becomes of them. Clients take turns, strangers come last, and of one client the oldest comes first, but
for those that a worker leaves to others (see `relevance_gen.generation.queue.prefix_routing`). A worker may be a thread of this
process, or stand in for a worker elsewhere: all that passes are tickets, pieces of text and outcomes.

The lock is re-entrant, for collecting garbage inside it may drop a stream, and so cancel a request.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from relevance_gen.errors import OverloadedError, RunnerClosedError
from relevance_gen.generation.counters import Counters
from relevance_gen.generation.queue.pending_request import OnText, Outcome, PendingRequest
from relevance_gen.generation.queue.prefix_routing import (
    MAX_DEFER_S,
    PrefixTable,
    WorkerLoad,
    blocks_of,
    should_defer,
)
from relevance_gen.generation.queue.request import QueuedRequest, Rooms, has_grammar
from relevance_gen.quota import Quota
from relevance_gen.types import GenerationResponse

_log = logging.getLogger(__name__)


class RequestQueue:
    """The queue, as callers see it; its `counters` say how requests ended: finished, cancelled or failed.

    While `max_queue` samples of one client wait, those whose grammar is being compiled among them, further requests of
    this client are refused. All clients without a name are one. It `routes_by_prefix` where pullers are quicker with
    prompts whose beginning they had before.
    """

    def __init__(self, max_queue: int, *, routes_by_prefix: bool = True) -> None:
        self.counters = Counters()
        self._keeps_prompts = routes_by_prefix
        self._changed = threading.Condition()
        self._waiting: OrderedDict[int, PendingRequest] = OrderedDict()
        self._queued = Quota(client_limit=max_queue)
        self._pullers: list[WorkerHandle] = []
        self._closed: BaseException | None = None
        self._pid = os.getpid()

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests."""
        return self._closed is not None

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the one that made this: the workers' threads did not come along."""
        return self._pid != os.getpid()

    @property
    def n_pending_samples(self) -> int:
        """Samples that have not produced a token, whether they wait or a puller has them."""
        with self._changed:
            taken = [call for puller in self._pullers for call in list(puller._taken.values())]
            return int(self._queued.held) + sum(
                call.n_pending_samples for call in taken if not call.is_queued
            )

    def put(
        self, ticket: QueuedRequest, on_text: OnText | None = None
    ) -> Future[GenerationResponse]:
        """Append a ticket; return the future of its response, which can be cancelled until that is there.

        Raises:
            OverloadedError: as many samples as allowed wait already.
            RunnerClosedError: it is closed, or every puller has left.
        """
        future: Future[GenerationResponse] = Future()
        matters = self._keeps_prompts and len(self._pullers) > 1 and not ticket.context.count_only
        blocks = blocks_of(ticket.request.text, ticket.context.client) if matters else ()
        with self._changed:
            if self._closed is not None:
                raise RunnerClosedError(
                    f"the runner takes no more requests: {self._closed}"
                ) from self._closed
            if not self._queued.has_capacity(1, ticket.context.client):
                n_queued = self._queued.held_by(ticket.context.client)
                raise OverloadedError(
                    f"{n_queued} samples wait already, and at most {self._queued.client_limit} may"
                )
            self._enqueue(PendingRequest(ticket, on_text, future, blocks=blocks))
        # By its id: a future that held its ticket would keep the texts.
        future.add_done_callback(partial(self._drop_cancelled, ticket.id))
        return future

    def join(self, on_cancel: Callable[[int], None]) -> WorkerHandle:
        """Return what a worker takes tickets with from now on.

        `on_cancel` is called from any thread with the id of a ticket that it took and shall not serve any more.
        """
        with self._changed:
            self._pullers.append(puller := WorkerHandle(self, on_cancel))
        return puller

    def close(self) -> None:
        """Refuse new tickets; those that wait are still served. In a forked process this does nothing."""
        if self.forked:
            return  # another thread may have held the lock when this process was made
        with self._changed:
            self._closed = self._closed or RunnerClosedError("the runner is closed")
            self._changed.notify_all()

    def _in_turn(self) -> list[PendingRequest]:
        """Return what waits: strangers last, then the clients of whom fewest are served, then the oldest."""
        n_before = Counter(
            call.ticket.context.client
            for one in self._pullers
            for call in list(one._taken.values())
        )

        def turn(call: PendingRequest) -> tuple[bool, int]:
            context = call.ticket.context
            n_before[context.client] += 1
            return context.is_anonymous, n_before[context.client]

        return sorted(self._waiting.values(), key=turn)

    def _enqueue(self, call: PendingRequest, *, in_front: bool = False) -> None:
        call.n_pending_samples = call.ticket.request.num_samples
        call.is_queued = True
        self._queued.charge(call.n_pending_samples, call.ticket.context.client)
        self._waiting[call.ticket.id] = call
        if in_front:
            with suppress(KeyError):  # collecting garbage may have cancelled it just now
                self._waiting.move_to_end(call.ticket.id, last=False)
        self._changed.notify_all()

    def _unqueue(self, call: PendingRequest) -> None:
        """Count the samples of a ticket as waiting no more."""
        if call.is_queued:
            call.is_queued = False
            self._queued.release(call.ticket.request.num_samples, call.ticket.context.client)

    def _drop_cancelled(self, ticket_id: int, future: Future[GenerationResponse]) -> None:
        """Forget the ticket of a cancelled future, and tell the puller that has it."""
        if not future.cancelled():
            return
        future.set_running_or_notify_cancel()  # what `concurrent.futures.wait` waits for
        with self._changed:
            call = self._waiting.pop(ticket_id, None)
            holder = next((puller for puller in self._pullers if ticket_id in puller._taken), None)
            if holder is not None:
                call = holder._taken.pop(ticket_id)
            if call is None:
                return  # it ended a moment ago
            self._unqueue(call)
            self.counters.requests_cancelled += 1
            self._changed.notify_all()
        if holder is not None:
            holder._on_cancel(ticket_id)


class WorkerHandle:
    """The queue, as one worker sees it: it takes tickets, and reports what becomes of them."""

    def __init__(self, backlog: RequestQueue, on_cancel: Callable[[int], None]) -> None:
        self._backlog = backlog
        self._on_cancel = on_cancel
        self._taken: dict[int, PendingRequest] = {}
        self._n_room = {True: 0, False: 0}
        self._prompts = PrefixTable()

    def take(self, rooms: Rooms, timeout_s: float | None = None) -> list[QueuedRequest] | None:
        """Remove and return the next tickets: as many as there is room for, and this puller's share of what waits.

        Where there is none for it, wait once for a change, for `timeout_s` seconds or without limit, and for
        `MAX_DEFER_S` where some are left to others; it may bring none. Return ``None`` if there is nothing to come: the
        backlog is closed, and this puller has left it.
        """
        backlog = self._backlog
        with backlog._changed:
            self._n_room = {is_anonymous: room.n_tickets for is_anonymous, room in rooms.items()}
            if max(self._n_room.values()) < 1:
                return []
            if self._is_over():
                return None
            tickets = self._choose(rooms)
            if not tickets and timeout_s != 0:
                limits = [timeout_s, MAX_DEFER_S if backlog._waiting else None]
                backlog._changed.wait(
                    min((limit for limit in limits if limit is not None), default=None)
                )
                if self._is_over():
                    return None
                tickets = self._choose(rooms)
            return tickets

    def _choose(self, rooms: Rooms) -> list[QueuedRequest]:
        """Remove and return the next tickets that are for this puller."""
        backlog = self._backlog
        in_turn = backlog._in_turn()
        n_left = -(-len(in_turn) // len(backlog._pullers))
        n_to_hold = {
            is_anonymous: math.inf if room.n_to_hold is None else room.n_to_hold
            for is_anonymous, room in rooms.items()
        }
        holders = {
            call.ticket.context.client
            for call in list(self._taken.values())
            if call.ticket.request.num_samples > 1 and call.n_pending_samples
        }
        tickets: list[QueuedRequest] = []
        for call in in_turn:
            ticket, is_anonymous = call.ticket, call.ticket.context.is_anonymous
            is_compiled = has_grammar(ticket.request)
            is_held = not is_compiled and ticket.request.num_samples > 1
            if len(tickets) == n_left:
                break
            must_wait = is_held and n_to_hold[is_anonymous] < 1 and ticket.context.client in holders
            if self._n_room[is_anonymous] < 1 or must_wait or self._leaves(call):
                continue
            self._taken[ticket.id] = call
            if (
                backlog._waiting.pop(ticket.id, None) is None
            ):  # collecting garbage has cancelled it since
                self._taken.pop(ticket.id, None)
                continue
            if not is_compiled:
                backlog._unqueue(call)
            n_to_hold[is_anonymous] -= is_held
            if is_held:
                holders.add(ticket.context.client)
            for each in (True, False) if not is_anonymous else (True,):
                self._n_room[each] -= 1
            self._prompts.add(call.blocks)
            tickets.append(ticket)
        return tickets

    def _leaves(self, call: PendingRequest) -> bool:
        """Tell whether a ticket is to wait for a puller that knows more of its prompt."""
        if not call.blocks:
            return False
        now_s = time.monotonic()
        if call.deferred_since_s is not None and now_s >= call.deferred_since_s + MAX_DEFER_S:
            return False
        others = (puller._standing(call) for puller in self._backlog._pullers if puller is not self)
        if not should_defer(self._standing(call), others):
            return False
        call.deferred_since_s = call.deferred_since_s or now_s
        return True

    def _standing(self, call: PendingRequest) -> WorkerLoad:
        has_room = self._n_room[call.ticket.context.is_anonymous] > 0
        return WorkerLoad(self._prompts.n_known_blocks(call.blocks), len(self._taken), has_room)

    def started(self, ticket: QueuedRequest, n_samples: int) -> None:
        """Report that `n_samples` more samples have produced a token."""
        if call := self._taken.get(ticket.id):
            with self._backlog._changed:
                self._backlog._unqueue(call)
            call.n_pending_samples -= n_samples

    def text(self, ticket: QueuedRequest, sample: int, text: str) -> None:
        """Report a piece of a sample's text; one of a ticket that is over is ignored."""
        call = self._taken.get(ticket.id)
        if call is None or call.on_text is None:
            return
        call.has_streamed = True
        try:
            call.tell(sample, text)
        except BaseException as error:  # even SystemExit is the matter of this request alone
            self._on_cancel(ticket.id)
            self.done(ticket, error)

    def done(self, ticket: QueuedRequest, outcome: Outcome) -> None:
        """Report how a ticket ended; one that is over is ignored."""
        backlog = self._backlog
        with backlog._changed:
            call = self._taken.pop(ticket.id, None)
            if call is None:
                return
            backlog._unqueue(call)
            if isinstance(outcome, BaseException):
                backlog.counters.requests_failed += 1
            else:
                backlog.counters.requests_finished += 1
            backlog._changed.notify_all()
        try:
            call.settle(outcome if isinstance(outcome, BaseException) else call.read(outcome))
        except BaseException as error:  # the callback's, for what was held back
            call.settle(error)

    def leave(self, error: BaseException) -> None:
        """Take no more tickets. Safe to call twice, and from any thread.

        Tickets of which no text was shown go back to the front of the queue for the other pullers, but once only: they
        may be what this one failed of. The others fail with `error`. So does all that waits, if this was the last.
        """
        backlog = self._backlog
        failed: list[PendingRequest] = []
        with backlog._changed:
            if self not in backlog._pullers:
                return
            backlog._pullers.remove(self)
            n_left = len(backlog._pullers)
            taken, self._taken = self._taken, {}
            for call in reversed(taken.values()):
                backlog._unqueue(call)
                if call.has_streamed or call.was_requeued or not n_left:
                    failed.insert(0, call)
                else:
                    call.was_requeued = True
                    backlog._enqueue(call, in_front=True)
            if not n_left:
                backlog._closed = error
                # Taken away first: collecting garbage may cancel one of them meanwhile.
                waiting, backlog._waiting = backlog._waiting, OrderedDict()
                for call in waiting.values():
                    backlog._unqueue(call)
                failed += waiting.values()
            backlog.counters.requests_failed += len(failed)
            backlog._changed.notify_all()
        if n_left and not isinstance(error, RunnerClosedError):
            _log.warning("a worker failed, and %d go on: %s", n_left, error)
        for call in failed:
            call.settle(error)

    def _is_over(self) -> bool:
        """Leave if the backlog is closed and nothing is left to do; tell whether this has left."""
        backlog = self._backlog
        if self in backlog._pullers and backlog.closed and not backlog._waiting and not self._taken:
            backlog._pullers.remove(self)
        return self not in backlog._pullers
