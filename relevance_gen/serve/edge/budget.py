"""Memory that requests cause: a budget for each lane, and an account for each request."""

from __future__ import annotations

import threading
import time
from typing import Self

from relevance_gen.errors import BusyError, TooLargeError
from relevance_gen.serve.metrics import Metrics


class Budget:
    """The bytes that the requests of one lane may hold at once: bodies, what is made of them, and unread answers.

    Args:
        lane: whose budget it is; names the metric.
        limit_bytes: most bytes held.
        metrics: shows the bytes held.
    """

    def __init__(self, lane: str, limit_bytes: int, metrics: Metrics) -> None:
        self._lane = lane
        self._metrics = metrics
        self._changed = threading.Condition()
        self._held_bytes = 0
        self._n_returns = 0
        self.limit_bytes = limit_bytes

    def account(self) -> Account:
        """Open an account for one request; use it in a ``with``."""
        return Account(self)

    def take(self, n_bytes: int) -> None:
        """Hold `n_bytes` more; less if negative.

        Raises:
            BusyError: others hold too much now.
        """
        with self._changed:
            if n_bytes > 0 and self._held_bytes + n_bytes > self.limit_bytes:
                raise BusyError("too many large requests at once")
            self._held_bytes += n_bytes
            self._metrics.put("request_body_bytes_held", self._held_bytes, self._lane)
            if n_bytes < 0:
                self._n_returns += 1
                self._changed.notify_all()

    @property
    def n_returns(self) -> int:
        """How often something was given back."""
        return self._n_returns

    def wait_for_return(self, seen: int, timeout_s: float) -> None:
        """Wait until something is given back after `n_returns` was `seen`, or the time is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._n_returns != seen, timeout_s)


class Account:
    """What one request holds of a `Budget`.

    Whoever works on the request does so in a ``with`` on its account. The last of them to leave gives everything back:
    a thread goes on holding memory after its client has left.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._lock = threading.RLock()
        self._n_users = 0
        self.taken_bytes = 0

    def __enter__(self) -> Self:
        with self._lock:
            self._n_users += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._n_users -= 1
            if not self._n_users:
                self.replace(0)

    def take(self, n_bytes: int) -> None:
        """Take `n_bytes` more; call it before the memory is used.

        Raises:
            TooLargeError: this request alone needs more than the whole budget.
            BusyError: others hold too much now.
        """
        with self._lock:
            needed_bytes, limit_bytes = self.taken_bytes + n_bytes, self._budget.limit_bytes
            if needed_bytes > limit_bytes:
                message = f"a request may take {limit_bytes} bytes of memory, and this one takes {needed_bytes}"
                raise TooLargeError(message)
            self._budget.take(n_bytes)
            self.taken_bytes += n_bytes

    def take_in_time(self, n_bytes: int, patience_s: float) -> None:
        """Take `n_bytes` more, and wait in this thread until others have given back as much.

        Raises:
            TooLargeError: this request alone needs more than the whole budget.
            BusyError: there was no room in time.
        """
        end_s = time.monotonic() + patience_s
        while True:
            seen = self._budget.n_returns
            try:
                return self.take(n_bytes)
            except BusyError:
                if time.monotonic() >= end_s:
                    raise
            # Without this account's lock: the event loop needs it when the client leaves.
            self._budget.wait_for_return(seen, end_s - time.monotonic())

    def replace(self, n_bytes: int) -> None:
        """Hold `n_bytes` in place of all that was taken: the body has become what was made of it."""
        self.take(n_bytes - self.taken_bytes)
