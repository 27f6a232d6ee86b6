"""What the handlers of one process share, and what is known of each request."""

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
    """What the handlers of one process share.

    Attributes:
        identify: returns the id of the valid key that a request's headers show.
        lanes: threads and memory, by the name of the lane.
        stats: returns the runners' state, wherever they live.
        http_metrics: counts requests; not where another process has counted them before it passed them on.
        forward: answers generations where another process holds the model: see `forwarding`.
        strangers: requests without a key that may be answered at once.
        draining: the process is ending and takes no new work.
    """

    settings: Settings
    identify: Callable[[Mapping[str, str]], str | None]
    rate: RateLimit
    lanes: Mapping[str, ResourcePool]
    searcher: Searcher
    embedder: EmbeddingService
    generator: Generator
    stats: Callable[[], Awaitable[Stats]]
    metrics: Metrics
    http_metrics: Metrics
    forward: Callable[..., Awaitable[web.StreamResponse]] | None = None
    extractor: Extractor = field(factory=Extractor)
    strangers: Quota = field(factory=Quota)
    draining: bool = False
    n_working: int = 0
    _idle: asyncio.Event = field(factory=asyncio.Event)
    _limits: set[asyncio.Timeout] = field(factory=set)

    @contextmanager
    def working(self) -> Iterator[None]:
        """Count one request as being answered for as long as the context is open."""
        self.n_working += 1
        try:
            yield
        finally:
            self.n_working -= 1
            self._idle.set()

    async def until_idle(self) -> None:
        """Wait until no request is being answered."""
        while self.n_working:
            self._idle.clear()
            await self._idle.wait()

    @asynccontextmanager
    async def until_cut(self) -> AsyncIterator[None]:
        """Let the work in the context go on until it is done; where `cut` ends it, raise a ShuttingDownError."""
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._limits.add(limit)
                yield
        except TimeoutError:
            if limit.expired():
                raise ShuttingDownError from None
            raise
        finally:
            self._limits.discard(limit)

    def cut(self) -> None:
        """End all work now."""
        for limit in self._limits:
            limit.reschedule(asyncio.get_running_loop().time())


REQUEST_ID = web.RequestKey("REQUEST_ID", str)
KEY_ID = web.RequestKey("KEY_ID", str)
RATE_HEADERS = web.RequestKey("RATE_HEADERS", dict[str, str])
LANE = web.RequestKey("LANE", ResourcePool)
WRITE_ERROR: web.RequestKey[WriteError] = web.RequestKey("WRITE_ERROR", Callable)  # type: ignore[arg-type]
"""How this request's dialect words errors: the route's, until its body tells of another."""
HELD = web.RequestKey("HELD", ExitStack)
"""What is given back when the client has read its answer, or has left."""
