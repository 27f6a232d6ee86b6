"""Connect the model in an actor to the request queues of its clients, which are other processes.

The clients send requests to the actor. A `Worker` in the actor takes them and generates text in
steps, each of which computes one batch of tokens. After each step, the clients receive the events
of their own requests.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from attrs import evolve, field, frozen

from relevance_gen.generation.counters import Counters
from relevance_gen.generation.queue.events import EngineEvent, Failed, Finished
from relevance_gen.generation.queue.request import NO_CAPACITY, Capacity, QueuedRequest

CLIENT_TIMEOUT_S: Final = 30.0
"""Seconds without a call of a client after which its requests are dropped."""


@frozen
class Delivery:
    """The response of a mailbox to a client.

    Attributes:
        events: events of the client's requests since its last delivery, in order.
        capacity: the capacity of the worker that remains for new requests, after the capacity for
            the requests that already wait in the mailbox is subtracted.
        counters: counts of the worker's work so far, for all clients.
    """

    events: list[EngineEvent]
    capacity: Capacity
    counters: Counters = field(factory=Counters)


@frozen
class _Origin:
    """The client of a request, and the id that the client uses for it."""

    client: str
    request_id: int


@frozen
class _ClientEvent:
    """An event with the client that receives it."""

    client: str
    event: EngineEvent


class Mailbox:
    """The source from which one worker takes the requests of several clients. Thread-safe.

    Each client numbers its own requests, so requests get new ids in this mailbox; clients see only
    their own ids. The events of a step become visible to clients when the step has ended.
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._waiting: deque[QueuedRequest] = deque()
        self._origins: dict[int, _Origin] = {}
        self._last_call_s: dict[str, float] = {}
        self._step_events: list[_ClientEvent] = []
        self._events: dict[str, list[EngineEvent]] = {}
        self._capacity = NO_CAPACITY
        self._error: BaseException | None = None
        self._on_cancel: Callable[[int], None] = lambda _: None
        self._ids = itertools.count(1)
        self._last_any_call_s = time.monotonic()

    # ── Clients ──────────────────────────────────────────────────────────────────────────────────

    def exchange(
        self,
        client: str,
        requests: Sequence[QueuedRequest],
        cancelled: Sequence[int] = (),
        timeout_s: float = 0.0,
    ) -> Delivery:
        """Accept requests of a client, and return the new events of all its requests.

        Waits until there is an event for the client, or the worker has failed.

        Args:
            client: id of the client.
            requests: new requests.
            cancelled: the client's ids of requests to drop; no further events of them are returned.
            timeout_s: maximum seconds to wait; then the delivery has no events.

        Raises:
            BaseException: the error that the worker failed with, after all events were returned.
        """
        with self._condition:
            self._last_call_s[client] = self._last_any_call_s = time.monotonic()
            for queued in requests:
                request_id = next(self._ids)
                self._origins[request_id] = _Origin(client, queued.id)
                self._waiting.append(evolve(queued, id=request_id))
            if requests:
                self._condition.notify_all()
            dropped = [
                request_id
                for request_id, origin in self._origins.items()
                if origin.client == client and origin.request_id in cancelled
            ]
            self._drop(dropped)
        for request_id in dropped:
            self._on_cancel(request_id)
        with self._condition:
            self._condition.wait_for(
                lambda: self._events.get(client) or self._error is not None, timeout_s
            )
            events = self._events.pop(client, [])
            if self._error is not None and not events:
                raise self._error
            return Delivery(events, self._capacity.after(self._waiting))

    @property
    def idle_s(self) -> float:
        """Seconds since the last `exchange` of any client, or since the mailbox was created."""
        return time.monotonic() - self._last_any_call_s

    # ── The worker ───────────────────────────────────────────────────────────────────────────────

    def register(self, on_cancel: Callable[[int], None]) -> int:
        """Register the only worker, and return the id of the worker, which is always 0.

        Args:
            on_cancel: called with the mailbox's id of each request that is dropped.
        """
        self._on_cancel = on_cancel
        return 0

    def take(
        self, _worker_id: int, capacity: Capacity, timeout_s: float | None = None
    ) -> list[QueuedRequest] | None:
        """Make the events of the last step available to the clients, and take waiting requests.

        The requests are taken in the order of their priority. If no request waits, the method waits
        for one; the result can be empty nevertheless.

        Args:
            capacity: the capacity of the worker; only requests that fit into it are taken.
            timeout_s: maximum seconds to wait; None for no limit.

        Returns:
            The requests, with the ids of this mailbox; None if the worker has failed.
        """
        with self._condition:
            self._capacity = capacity
            for step_event in self._step_events:
                self._events.setdefault(step_event.client, []).append(step_event.event)
            self._step_events.clear()
            self._condition.notify_all()
            dropped = self._drop_lost_clients()
            if not dropped and timeout_s != 0 and not self._waiting and self._error is None:
                self._condition.wait(timeout_s)
            if self._error is not None:
                return None
            requests: list[QueuedRequest] = []
            for queued in sorted(self._waiting, key=lambda queued: queued.context.priority):
                if self._capacity.accepts(queued.context.priority):
                    self._waiting.remove(queued)
                    requests.append(queued)
                    self._capacity = self._capacity.after([queued])
        for request_id in dropped:
            self._on_cancel(request_id)
        return requests

    def deliver(self, _worker_id: int, event: EngineEvent) -> None:
        """Store an event until the current step ends; ignore it if its request was dropped."""
        with self._condition:
            origin = self._origins.get(event.request_id)
            if origin is None:
                return
            client_event = evolve(event, request_id=origin.request_id)
            self._step_events.append(_ClientEvent(origin.client, client_event))
            if isinstance(event, Finished | Failed):
                del self._origins[event.request_id]

    def unregister(self, _worker_id: int, error: BaseException) -> None:
        """Record the worker's error; each client receives its remaining events, then the error."""
        with self._condition:
            self._error = self._error or error
            self._condition.notify_all()

    # ── Dropping requests ────────────────────────────────────────────────────────────────────────

    def _drop_lost_clients(self) -> list[int]:
        """Drop the requests of clients whose last `exchange` is over `CLIENT_TIMEOUT_S` ago.

        The caller must hold `_condition`.

        Returns:
            The mailbox's ids of the dropped requests.
        """
        now_s = time.monotonic()
        lost = {
            client
            for client, call_s in self._last_call_s.items()
            if now_s - call_s > CLIENT_TIMEOUT_S
        }
        for client in lost:
            del self._last_call_s[client]
            self._events.pop(client, None)
        dropped = [
            request_id for request_id, origin in self._origins.items() if origin.client in lost
        ]
        self._drop(dropped)
        return dropped

    def _drop(self, request_ids: Sequence[int]) -> None:
        for request_id in request_ids:
            del self._origins[request_id]
        self._waiting = deque(queued for queued in self._waiting if queued.id in self._origins)
