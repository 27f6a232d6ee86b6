"""What is bounded: how much of something all may hold at once, and how much of it each client."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager


class Quota:
    """So much of something at once: places, tasks, bytes or seconds. Safe to use from several threads.

    It says whether there is room, and leaves it to its caller to word a refusal.

    Args:
        whole: most that all clients may hold together.
        share: most that one client may hold.
        regained_per_s: by so much each client holds less with every second: for what is used up and never given back,
            such as time of the processor. Nobody can wait for that here: `seconds_until_room` tells when to come again.
        watch: called with what all hold, whenever that changes.
        clock: tells the time in seconds.
    """

    def __init__(
        self,
        whole: float = math.inf,
        share: float = math.inf,
        *,
        regained_per_s: float = 0.0,
        watch: Callable[[float], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.whole = whole
        self.share = share
        self._regained_per_s = regained_per_s
        self._watch = watch
        self._clock = clock
        self._looked_s = clock()
        self._changed = (
            threading.Condition()
        )  # its lock is re-entrant: collecting garbage inside it may give back
        self._by_client: dict[Hashable, float] = {}
        self._total: float = 0

    @property
    def held(self) -> float:
        """What all hold together."""
        with self._changed:
            self._regain()
            return self._total

    def held_by(self, client: Hashable) -> float:
        """Return what one client holds."""
        with self._changed:
            self._regain()
            return self._by_client.get(client, 0)

    def has_room(self, amount: float = 0, client: Hashable = None) -> bool:
        """Tell whether a client may hold `amount` more."""
        with self._changed:
            return self.held + amount <= self.whole and self.held_by(client) + amount <= self.share

    def seconds_until_room(self, client: Hashable = None) -> float:
        """Return how long it takes until a client has regained what it holds beyond its share; infinity for never."""
        beyond = max(0.0, self.held_by(client) - self.share)
        return (
            beyond / self._regained_per_s if self._regained_per_s else math.inf if beyond else 0.0
        )

    def take(self, amount: float = 1, client: Hashable = None, *, timeout_s: float = 0.0) -> bool:
        """Hold `amount` more; where there is no room, wait for it in this thread. Return whether it is held now."""
        with self._changed:
            has_room = self._changed.wait_for(lambda: self.has_room(amount, client), timeout_s)
            if has_room:
                self.charge(amount, client)
            return has_room

    @contextmanager
    def taken(
        self, amount: float = 1, client: Hashable = None, *, refusal: Callable[[], Exception]
    ) -> Iterator[None]:
        """Hold `amount` more until the context ends; where there is no room, raise the `refusal`."""
        if not self.take(amount, client):
            raise refusal()
        try:
            yield
        finally:
            self.give_back(amount, client)

    def charge(self, amount: float, client: Hashable = None) -> None:
        """Hold `amount` more though there may be no room: it has been used already."""
        with self._changed:
            self._regain()
            self._total += amount
            self._by_client[client] = self._by_client.get(client, 0) + amount
            if not self._by_client[client]:
                del self._by_client[client]
            self._watch(self._total)

    def give_back(self, amount: float = 1, client: Hashable = None) -> None:
        """Hold `amount` less, and wake those who wait for room."""
        with self._changed:
            self.charge(-amount, client)
            self._changed.notify_all()

    def _regain(self) -> None:
        """Let every client hold less by what the time since the last look is worth."""
        if not self._regained_per_s:
            return
        now_s = self._clock()
        regained, self._looked_s = self._regained_per_s * (now_s - self._looked_s), now_s
        self._by_client = {
            one: left for one, held in self._by_client.items() if (left := held - regained) > 0
        }
        self._total = sum(self._by_client.values())
        self._watch(self._total)
