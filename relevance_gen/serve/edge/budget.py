"""Memory for request bodies: a budget for each lane, and an account for each request."""

from __future__ import annotations

import threading
from typing import Self

from relevance_gen.errors import BusyError, TooLargeError
from relevance_gen.serve.metrics import Metrics

_BYTES_PER_MARK = {b"[": 128, b"{": 256, b",": 80, b":": 160}
"""What Python needs at most for each mark of JSON, beside the text itself: a list, an object, an item, a field."""
_NO_MARKS = bytes(set(range(256)) - set(b"[{,:"))


class Budget:
    """The bytes of request bodies, and of what is made of them, that one lane may hold at once.

    Args:
        lane: whose budget it is; names the metric.
        limit_bytes: most bytes held.
        metrics: shows the bytes held.
    """

    def __init__(self, lane: str, limit_bytes: int, metrics: Metrics) -> None:
        self._lane = lane
        self._metrics = metrics
        self._lock = threading.Lock()
        self._held_bytes = 0
        self.limit_bytes = limit_bytes

    def account(self) -> Account:
        """Open an account for one request; use it in a ``with``."""
        return Account(self)

    def take(self, n_bytes: int) -> None:
        """Hold `n_bytes` more; less if negative.

        Raises:
            BusyError: others hold too much now.
        """
        with self._lock:
            if n_bytes > 0 and self._held_bytes + n_bytes > self.limit_bytes:
                raise BusyError("too many large requests at once")
            self._held_bytes += n_bytes
            self._metrics.put("request_body_bytes_held", self._held_bytes, self._lane)


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
                message = f"reading the body may take {limit_bytes} bytes of memory, and takes {needed_bytes}"
                raise TooLargeError(message)
            self._budget.take(n_bytes)
            self.taken_bytes += n_bytes

    def replace(self, n_bytes: int) -> None:
        """Hold `n_bytes` in place of all that was taken: the body has become what was made of it."""
        self.take(n_bytes - self.taken_bytes)


def parsed_bytes(text: bytes) -> int:
    """Return an upper bound of the memory that parsing the JSON `text` takes, in bytes, `text` itself not counted."""
    widest = 1 if text.isascii() and b"\\u" not in text else 4  # bytes of a character
    marks = text.translate(None, _NO_MARKS)
    # All of it is one string while it is parsed, and then, at most, the strings in it.
    return 2 * widest * len(text) + sum(n_bytes * marks.count(mark) for mark, n_bytes in _BYTES_PER_MARK.items())
