"""State shared by the handlers of one process, and the values attached to each request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager

from aiohttp import web
from attrs import define, field

from relevance_gen.errors import ShuttingDownError
from relevance_gen.quota import Quota
from relevance_gen.serve.http.access.rate_limit import RateLimit
from relevance_gen.serve.http.http_errors import WriteError
from relevance_gen.serve.http.resources.resource_pools import ResourcePool
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.services.embedding import EmbeddingService
from relevance_gen.serve.services.extraction import Extractor
from relevance_gen.serve.services.generation import Generator
from relevance_gen.serve.services.search import Searcher
from relevance_gen.serve.settings import Settings
from relevance_gen.types import Stats


@define
class Service:
    """State shared by the handlers of one process.

    Attributes:
        identify: returns the id of the valid API key in a request's headers, or None.
        pools: the resource pools, by name.
        stats: returns the state of the runners in this process, or in the model process.
        http_metrics: counts requests; separate from `metrics` in a process whose requests
            another process has already counted.
        forward: answers generation requests if another process holds the model, see `forwarding`;
            None if this process generates.
        anonymous: limits the number of requests without a key that are answered at once.
        is_draining: whether the process is shutting down and accepts no new work.
        n_active: the number of requests that are being answered.
    """

    settings: Settings
    identify: Callable[[Mapping[str, str]], str | None]
    rate: RateLimit
    pools: Mapping[str, ResourcePool]
    searcher: Searcher
    embedder: EmbeddingService
    generator: Generator
    stats: Callable[[], Awaitable[Stats]]
    metrics: Metrics
    http_metrics: Metrics
    forward: Callable[..., Awaitable[web.StreamResponse]] | None = None
    extractor: Extractor = field(factory=Extractor)
    anonymous: Quota = field(factory=Quota)
    is_draining: bool = False
    n_active: int = 0
    _idle_event: asyncio.Event = field(factory=asyncio.Event)
    # the open `abortable` contexts of each task, the innermost last
    _timeouts: dict[object, list[asyncio.Timeout]] = field(factory=dict)

    @contextmanager
    def active(self) -> Iterator[None]:
        """Count one request as active while the context is open."""
        self.n_active += 1
        try:
            yield
        finally:
            self.n_active -= 1
            self._idle_event.set()

    async def wait_until_idle(self) -> None:
        """Wait until no request is active."""
        while self.n_active:
            self._idle_event.clear()
            await self._idle_event.wait()

    @asynccontextmanager
    async def abortable(self) -> AsyncIterator[None]:
        """Return a context that `abort` ends early, by cancelling the work in it.

        If a task has several open contexts, `abort` ends the innermost.

        Raises:
            ShuttingDownError: `abort` was called before the context ended.
        """
        task = asyncio.current_task()
        timeout = asyncio.timeout(None)
        timeouts = self._timeouts.setdefault(task, [])
        try:
            async with timeout:
                timeouts.append(timeout)
                yield
        except TimeoutError:
            if timeout.expired():
                raise ShuttingDownError from None
            raise
        finally:
            timeouts.pop()
            if not timeouts:
                del self._timeouts[task]

    def abort(self) -> None:
        """End the innermost `abortable` context of each task with a `ShuttingDownError`."""
        for timeouts in self._timeouts.values():
            timeouts[-1].reschedule(asyncio.get_running_loop().time())


REQUEST_ID = web.RequestKey("REQUEST_ID", str)
KEY_ID = web.RequestKey("KEY_ID", str)
RATE_HEADERS = web.RequestKey("RATE_HEADERS", dict[str, str])
POOL = web.RequestKey("POOL", ResourcePool)
WRITE_ERROR: web.RequestKey[WriteError] = web.RequestKey("WRITE_ERROR", Callable)  # type: ignore[arg-type]
"""The function that writes errors of this request in its API format.

It is the route's `Route.write_error`, until the body selects the alternate API format.
"""
RESERVATIONS = web.RequestKey("RESERVATIONS", ExitStack)
"""Resources that are released after the response was sent or the client has disconnected."""
