"""A worker's half of backlogs that are elsewhere: tickets come in, and what becomes of them goes out, step by step."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TypeAlias

from attrs import evolve, field, frozen

from relevance_gen.generation.counters import Counters
from relevance_gen.generation.queue.request import NO_ROOMS, QueuedRequest, Rooms
from relevance_gen.types import GenerationResponse

Event: TypeAlias = tuple[str, int, Any, Any]
"""What became of a ticket: ``started`` with a number of samples, ``text`` with sample and text, ``done`` with how."""

SILENCE_S: Final = 30.0
"""The tickets of a client that has not been heard of for so long are dropped: it is gone."""


@frozen
class Delivery:
    """What a client is told: what became of its tickets since it was told last, in order.

    The worker has `rooms` for further tickets, as `WorkerHandle.take` takes them, and has computed so much for all clients.
    """

    events: list[Event]
    rooms: Rooms
    counters: Counters = field(factory=Counters)


class Mailbox:
    """Stands between one worker, which takes it for its backlog, and clients that each have a backlog of their own.

    Every client numbers its tickets for itself, so tickets get numbers of this mailbox here. What is told of a step is
    told when the step is over.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[QueuedRequest] = deque()
        self._owners: dict[int, tuple[str, int]] = {}
        self._heard_s: dict[str, float] = {}
        self._step: list[tuple[str, Event]] = []
        self._events: dict[str, list[Event]] = {}
        self._rooms = NO_ROOMS
        self._error: BaseException | None = None
        self._on_cancel: Callable[[int], None] = lambda _: None
        self._numbers = itertools.count(1)
        self._last_s = time.monotonic()

    # ── Clients ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def exchange(
        self,
        client: str,
        tickets: Sequence[QueuedRequest],
        cancelled: Sequence[int] = (),
        timeout_s: float = 0.0,
    ) -> Delivery:
        """Take a client's tickets, wait until there is something to tell it, or the time is over, and tell it.

        Nothing more is told of the tickets with ids in `cancelled`. Once all else is told, what the worker died of is
        raised.
        """
        with self._changed:
            self._heard_s[client] = self._last_s = time.monotonic()
            for ticket, number in zip(tickets, self._numbers, strict=False):
                self._owners[number] = client, ticket.id
                self._waiting.append(evolve(ticket, id=number))
            if tickets:
                self._changed.notify_all()
            gone = [
                number
                for number, (one, own) in self._owners.items()
                if one == client and own in cancelled
            ]
            self._drop(gone)
        for number in gone:
            self._on_cancel(number)
        with self._changed:
            self._changed.wait_for(
                lambda: self._events.get(client) or self._error is not None, timeout_s
            )
            events = self._events.pop(client, [])
            if self._error is not None and not events:
                raise self._error
            return Delivery(events, self._rooms_left(self._waiting))

    @property
    def silent_s(self) -> float:
        """Seconds since any client was heard of."""
        return time.monotonic() - self._last_s

    # ── The worker ───────────────────────────────────────────────────────────────────────────────────────────────────

    def join(self, on_cancel: Callable[[int], None]) -> Mailbox:
        """Return what the worker takes tickets with: this."""
        self._on_cancel = on_cancel
        return self

    def take(self, rooms: Rooms, timeout_s: float | None = None) -> list[QueuedRequest] | None:
        """Tell clients of the step that is over, and return the next tickets, as many as there is room for."""
        with self._changed:
            self._rooms = rooms
            for client, event in self._step:
                self._events.setdefault(client, []).append(event)
            self._step.clear()
            self._changed.notify_all()
            gone = self._gone()
            if not gone and timeout_s != 0 and not self._waiting and self._error is None:
                self._changed.wait(timeout_s)
            if self._error is not None:
                return None
            tickets: list[QueuedRequest] = []
            for ticket in sorted(self._waiting, key=lambda one: one.context.is_anonymous):
                if self._rooms_left(tickets)[ticket.context.is_anonymous].n_tickets > 0:
                    self._waiting.remove(ticket)
                    tickets.append(ticket)
            self._rooms = self._rooms_left(tickets)
        for number in gone:
            self._on_cancel(number)
        return tickets

    def started(self, ticket: QueuedRequest, n_samples: int) -> None:
        """Take note that `n_samples` more samples have produced a token."""
        self._note(ticket, "started", n_samples)

    def text(self, ticket: QueuedRequest, sample: int, text: str) -> None:
        """Take a piece of a sample's text."""
        self._note(ticket, "text", sample, text)

    def done(self, ticket: QueuedRequest, outcome: GenerationResponse | BaseException) -> None:
        """Take the response, or why there is none."""
        self._note(ticket, "done", outcome)
        with self._changed:
            self._owners.pop(ticket.id, None)

    def leave(self, error: BaseException) -> None:
        """Take no more tickets; clients are told why."""
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    # ── Inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _rooms_left(self, tickets: Collection[QueuedRequest]) -> Rooms:
        """Return the rooms that `tickets` leave, of which strangers' take none from others."""
        n_open = sum(ticket.context.is_anonymous for ticket in tickets)
        n_taken = {True: len(tickets), False: len(tickets) - n_open}
        return {
            is_anonymous: evolve(room, n_tickets=max(0, room.n_tickets - n_taken[is_anonymous]))
            for is_anonymous, room in self._rooms.items()
        }

    def _note(self, ticket: QueuedRequest, kind: str, first: Any, second: Any = None) -> None:
        with self._changed:
            if (owner := self._owners.get(ticket.id)) is not None:
                self._step.append((owner[0], (kind, owner[1], first, second)))

    def _gone(self) -> list[int]:
        """Drop the tickets of clients that are gone, and return their numbers."""
        now_s = time.monotonic()
        silent = {
            client for client, heard_s in self._heard_s.items() if now_s - heard_s > SILENCE_S
        }
        for client in silent:
            del self._heard_s[client]
            self._events.pop(client, None)
        found = [number for number, (client, _) in self._owners.items() if client in silent]
        self._drop(found)
        return found

    def _drop(self, numbers: Sequence[int]) -> None:
        for number in numbers:
            del self._owners[number]
        self._waiting = deque(ticket for ticket in self._waiting if ticket.id in self._owners)
