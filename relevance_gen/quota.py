"""Limits on a resource: how much all clients together, and one client, may hold."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager


class Quota:
    """A limited amount of a resource: slots, tasks, bytes or seconds. Thread-safe.

    Clients are identified by any hashable value; None, the default, is the value of all callers
    that name no client.

    Args:
        limit: maximum amount that all clients hold together; unlimited by default.
        client_limit: maximum amount that one client holds; unlimited by default.
        refill_per_s: amount that is released automatically per second and client, for resources
            that are used up and never returned, such as CPU time. `acquire` cannot wait for a
            refill: `seconds_until_available` returns when a client may try again.
        on_change: called after every change with the amount that all clients hold together.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        limit: float = math.inf,
        client_limit: float = math.inf,
        *,
        refill_per_s: float = 0.0,
        on_change: Callable[[float], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.limit = limit
        self.client_limit = client_limit
        self._refill_per_s = refill_per_s
        self._on_change = on_change
        self._clock = clock
        self._refilled_s = clock()
        # The lock is re-entrant: garbage collection inside it can call `release`.
        self._condition = threading.Condition()
        self._by_client: dict[Hashable, float] = {}
        self._total: float = 0

    @property
    def held(self) -> float:
        """The amount that all clients hold together."""
        with self._condition:
            self._refill()
            return self._total

    def held_by(self, client: Hashable) -> float:
        """Return the amount that one client holds."""
        with self._condition:
            self._refill()
            return self._by_client.get(client, 0)

    def has_capacity(self, amount: float = 0, client: Hashable = None) -> bool:
        """Return whether a client can acquire `amount` now without exceeding a limit."""
        with self._condition:
            if self.held + amount > self.limit:
                return False
            return self.held_by(client) + amount <= self.client_limit

    def seconds_until_available(self, client: Hashable = None) -> float:
        """Return the seconds until refills have reduced a client's amount to its limit.

        0 if it does not exceed its limit; otherwise infinity if there are no refills.
        """
        excess = max(0.0, self.held_by(client) - self.client_limit)
        if self._refill_per_s:
            return excess / self._refill_per_s
        return math.inf if excess else 0.0

    def acquire(
        self, amount: float = 1, client: Hashable = None, *, timeout_s: float = 0.0
    ) -> bool:
        """Acquire `amount`, waiting in this thread for at most `timeout_s`.

        Return True if the amount was acquired, False after the timeout.
        """
        with self._condition:
            has_capacity = self._condition.wait_for(
                lambda: self.has_capacity(amount, client), timeout_s
            )
            if has_capacity:
                self.charge(amount, client)
            return has_capacity

    @contextmanager
    def acquired(
        self, amount: float = 1, client: Hashable = None, *, refusal: Callable[[], Exception]
    ) -> Iterator[None]:
        """Hold `amount` during the context; raise ``refusal()`` if it is not available now."""
        if not self.acquire(amount, client):
            raise refusal()
        try:
            yield
        finally:
            self.release(amount, client)

    def charge(self, amount: float, client: Hashable = None) -> None:
        """Add `amount` even if that exceeds a limit, for a resource that has been used already."""
        with self._condition:
            self._refill()
            self._total += amount
            held = self._by_client.pop(client, 0) + amount
            if held:
                self._by_client[client] = held
            self._on_change(self._total)

    def release(self, amount: float = 1, client: Hashable = None) -> None:
        """Release an amount that a client holds, and wake the threads that wait in `acquire`."""
        with self._condition:
            self.charge(-amount, client)
            self._condition.notify_all()

    def _refill(self) -> None:
        """Reduce the amount of every client by the refill since the last call, but not below 0.

        The caller must hold `_condition`.
        """
        if not self._refill_per_s:
            return
        now_s = self._clock()
        refill = self._refill_per_s * (now_s - self._refilled_s)
        self._refilled_s = now_s
        remaining = {client: held - refill for client, held in self._by_client.items()}
        self._by_client = {client: held for client, held in remaining.items() if held > 0}
        self._total = sum(self._by_client.values())
        self._on_change(self._total)
