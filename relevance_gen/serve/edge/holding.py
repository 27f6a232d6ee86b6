"""What one request holds of its lane's memory: its body, what is made of it, and its unread answer."""

from __future__ import annotations

import threading
from typing import Self

from relevance_gen.errors import BusyError, TooLargeError
from relevance_gen.quota import Quota


class Holding:
    """What one request holds of a quota of bytes.

    Whoever works on the request does so in a ``with`` on its holding. The last of them to leave gives everything back:
    a thread goes on holding memory after its client has left.
    """

    def __init__(self, memory: Quota) -> None:
        self._memory = memory
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

    def take(self, n_bytes: int, patience_s: float = 0.0) -> None:
        """Take `n_bytes` more before they are used, or less if negative; this thread may wait for room so long.

        Raises:
            TooLargeError: this request alone needs more than there is for all.
            BusyError: there was no room in time.
        """
        needed_bytes, limit_bytes = self.taken_bytes + n_bytes, self._memory.whole
        if needed_bytes > limit_bytes:
            raise TooLargeError(f"a request may take {limit_bytes} bytes of memory, and this one takes {needed_bytes}")
        if n_bytes < 0:
            self._memory.give_back(-n_bytes)
        # Without this holding's lock: the event loop needs it when the client leaves.
        elif not self._memory.take(n_bytes, timeout_s=patience_s):
            raise BusyError("too many large requests at once")
        with self._lock:
            self.taken_bytes += n_bytes

    def replace(self, n_bytes: int) -> None:
        """Hold `n_bytes` in place of all that was taken: the body has become what was made of it."""
        with self._lock:
            self.take(n_bytes - self.taken_bytes)
