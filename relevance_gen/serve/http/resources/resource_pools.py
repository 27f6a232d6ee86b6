"""Lanes: threads, a queue and memory for each class of callers, so that none can use up another's."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any, Self

from attrs import frozen

from relevance_gen.errors import BusyError, TooLargeError
from relevance_gen.quota import Quota
from relevance_gen.serve.http.resources.bounded_executor import BoundedExecutor
from relevance_gen.serve.metrics import LANES, Metrics
from relevance_gen.serve.services.extraction import AT_ONCE
from relevance_gen.serve.services.reranking import AT_ONCE as AT_ONCE_RERANKED
from relevance_gen.serve.settings import Settings

_MAX_WAITING = 256
"""Documents, and bodies of generations, that may wait; small bodies are parsed at once and do not."""

_VALUES_PER_CHUNK = 16
"""JSON values that a body may hold for each chunk allowed: its text and its metadata."""
_MOST_VALUES_OF_GENERATION = 1 << 18
_MOST_BYTES_OF_OPEN_GENERATION = 16 << 20
"""Of a generation's body, and of one without a key. The parser holds the interpreter's lock for some 50 ms at most."""


@frozen
class ResourcePool:
    """What one class of callers has for itself: threads and a queue, and bytes that its requests may hold at once.

    One body may have `most_bytes` after decompression, and `most_values` of JSON.
    """

    gate: BoundedExecutor
    memory: Quota
    most_bytes: int
    most_values: int


def make_lanes(settings: Settings, metrics: Metrics) -> dict[str, ResourcePool]:
    """Make the lanes of one process, by name, and start their threads."""
    waits: dict[str, Any] = {"max_wait_s": settings.queue_timeout_s, "metrics": metrics}
    gates = {
        name: BoundedExecutor(name, 1, max_waiting=_MAX_WAITING, **waits)
        for name in ("generation", "anonymous_generation")
    }
    n_search_threads = settings.n_search_threads + (AT_ONCE_RERANKED if settings.reranker else 0)
    gates["search"] = BoundedExecutor(
        "search", n_search_threads, max_waiting=settings.search_queue, **waits
    )
    gates["agents"] = BoundedExecutor(
        "agents", settings.n_search_threads, max_waiting=_MAX_WAITING, **waits
    )
    gates["extraction"] = BoundedExecutor(
        "extraction", AT_ONCE, max_waiting=_MAX_WAITING, share=1, **waits
    )
    most_bytes = dict.fromkeys(LANES, settings.max_body_bytes)
    most_bytes["anonymous_generation"] = min(
        settings.max_body_bytes, _MOST_BYTES_OF_OPEN_GENERATION
    )
    most_values = dict.fromkeys(LANES, _MOST_VALUES_OF_GENERATION)
    most_values["search"] = _VALUES_PER_CHUNK * settings.max_chunks
    lanes = {}
    for name, gate in gates.items():
        show = partial(
            lambda lane, n_bytes: metrics.put("request_body_bytes_held", n_bytes, lane), name
        )
        lanes[name] = ResourcePool(
            gate,
            Quota(settings.max_buffered_bytes, on_change=show),
            most_bytes[name],
            most_values[name],
        )
    return lanes


class MemoryReservation:
    """What one request holds of its lane's memory: its body, what is made of it, and its unread answer.

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
        needed_bytes, limit_bytes = self.taken_bytes + n_bytes, self._memory.limit
        if needed_bytes > limit_bytes:
            raise TooLargeError(
                f"a request may take {limit_bytes} bytes of memory, and this one takes {needed_bytes}"
            )
        if n_bytes < 0:
            self._memory.release(-n_bytes)
        # Without this holding's lock: the event loop needs it when the client leaves.
        elif not self._memory.acquire(n_bytes, timeout_s=patience_s):
            raise BusyError("too many large requests at once")
        with self._lock:
            self.taken_bytes += n_bytes

    def replace(self, n_bytes: int) -> None:
        """Hold `n_bytes` in place of all that was taken: the body has become what was made of it."""
        with self._lock:
            self.take(n_bytes - self.taken_bytes)
