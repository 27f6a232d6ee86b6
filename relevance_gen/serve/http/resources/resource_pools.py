"""Resource pools: threads, a queue and memory per class of requests, separate for each class."""

from __future__ import annotations

import math
import threading
from typing import Any, Self

from attrs import frozen

from relevance_gen.errors import BusyError, TooLargeError
from relevance_gen.quota import Quota
from relevance_gen.serve.http.resources.bounded_executor import CLIENT_FRACTION, BoundedExecutor
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.services import extraction, reranking
from relevance_gen.serve.settings import Settings

_MAX_QUEUED = 256
"""Documents, agents' messages and large bodies of generations that may wait for a thread."""

_VALUES_PER_CHUNK = 16
"""JSON values allowed in a body for each chunk that a search may have: its text and metadata."""
_MAX_GENERATION_VALUES = 1 << 18
"""JSON values in the body of a generation. The parser holds the GIL for at most about 50 ms."""
_MAX_LOOP_VALUES = 1 << 8
_MAX_GENERATION_LOOP_VALUES = 1 << 12
"""JSON values of a body that is parsed on the event loop. Adapters read at most 4,096 values of a
generation within a few milliseconds; of 4,096 documents to rerank they make chunks, which takes
40."""
_MAX_ANONYMOUS_BODY_BYTES = 16 << 20
"""Body size of a generation without a key, for the same reason."""


@frozen
class ResourcePool:
    """Threads with a queue, and memory, for one class of requests.

    Attributes:
        executor: the threads and their queue.
        memory: bytes that all requests of the class may hold at once.
        max_body_bytes: maximum size of one body after decompression.
        max_values: maximum number of JSON values in one body.
        max_loop_values: maximum number of JSON values in a body that is parsed on the event loop.
        memory_timeout_s: how long a thread of the pool waits for memory. Zero in the two generation
            pools, which have only one thread each.
    """

    executor: BoundedExecutor
    memory: Quota
    max_body_bytes: int
    max_values: int
    max_loop_values: int = _MAX_LOOP_VALUES
    memory_timeout_s: float = 0.0


def make_resource_pools(
    settings: Settings, metrics: Metrics, *, limits_keys: bool = False
) -> dict[str, ResourcePool]:
    """Create the resource pools of one process, by name, and start their threads.

    Args:
        settings: the settings of the server.
        metrics: the metrics to which the pools write their state.
        limits_keys: whether the requests of one API key may occupy only a part of each pool, so
            that the requests of other keys can run; False if there is only one key.
    """
    n_search_threads = settings.n_search_threads
    if settings.reranker:
        n_search_threads += reranking.MAX_CONCURRENT_SEARCHES

    def pool(
        name: str, n_threads: int, max_queued: int = _MAX_QUEUED, **options: Any
    ) -> ResourcePool:
        max_bytes = settings.max_buffered_bytes
        client_bytes = math.inf
        if limits_keys and name != "anonymous_generation":
            client_bytes = int(CLIENT_FRACTION * max_bytes)
            options.setdefault("client_limit", max(1, n_threads - 1))
        executor = BoundedExecutor(
            name,
            n_threads,
            max_queued=max_queued,
            max_wait_s=settings.queue_timeout_s,
            metrics=metrics,
            **options,
        )
        is_generation = "generation" in name
        max_body_bytes = settings.max_body_bytes
        if name == "anonymous_generation":
            max_body_bytes = min(max_body_bytes, _MAX_ANONYMOUS_BODY_BYTES)
        max_values = _MAX_GENERATION_VALUES
        if name == "search":
            max_values = _VALUES_PER_CHUNK * settings.max_chunks
        return ResourcePool(
            executor,
            Quota(
                max_bytes,
                client_bytes,
                on_change=lambda n_bytes: metrics.put("request_body_bytes_held", n_bytes, name),
            ),
            max_body_bytes,
            max_values,
            _MAX_GENERATION_LOOP_VALUES if is_generation else _MAX_LOOP_VALUES,
            memory_timeout_s=0.0 if is_generation else settings.queue_timeout_s,
        )

    return {
        "search": pool("search", n_search_threads, settings.search_queue),
        "generation": pool("generation", 1),
        "anonymous_generation": pool("anonymous_generation", 1),
        "extraction": pool("extraction", extraction.MAX_CONCURRENCY, client_limit=1),
        "agents": pool("agents", settings.n_search_threads),
    }


class MemoryReservation:
    """Bytes of a pool that one request holds: its body, objects made of it, its unsent response.

    The event loop and each thread that works on the request enter the reservation as a context.
    Leaving the last context releases all bytes: a thread keeps them after its client has
    disconnected.

    Args:
        memory: the bytes of the pool.
        client: the id of the client's key, on whose limit the bytes count.
    """

    def __init__(self, memory: Quota, client: str = "") -> None:
        self._memory = memory
        self._client = client
        self._lock = threading.RLock()
        self._n_users = 0
        self.held_bytes = 0

    def __enter__(self) -> Self:
        with self._lock:
            self._n_users += 1
        return self

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._n_users -= 1
            if not self._n_users:
                self.resize(0)

    def acquire(self, n_bytes: int, timeout_s: float = 0.0) -> None:
        """Acquire `n_bytes` more before they are used, or release some if negative.

        Args:
            n_bytes: the change in bytes.
            timeout_s: how long the calling thread waits for other requests to release memory.

        Raises:
            TooLargeError: this request alone needs more than the pool has, or more than one client
                may hold.
            BusyError: the memory did not become available in time.
        """
        required_bytes = self.held_bytes + n_bytes
        limit_bytes = min(self._memory.limit, self._memory.client_limit)
        if required_bytes > limit_bytes:
            raise TooLargeError(
                f"a request may take {limit_bytes} bytes of memory, and this one takes {required_bytes}"
            )
        if n_bytes < 0:
            self._memory.release(-n_bytes, self._client)
        # Wait without holding the lock: the event loop needs it when the client disconnects.
        elif not self._memory.acquire(n_bytes, self._client, timeout_s=timeout_s):
            raise BusyError("too many large requests at once")
        with self._lock:
            self.held_bytes += n_bytes

    def resize(self, n_bytes: int) -> None:
        """Change the number of bytes that the request holds to `n_bytes`, without waiting.

        Raises:
            TooLargeError: see `acquire`.
            BusyError: `n_bytes` is larger than before, and the memory is not available.
        """
        with self._lock:
            self.acquire(n_bytes - self.held_bytes)
