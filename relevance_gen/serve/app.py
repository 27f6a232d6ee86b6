"""The application: what a process of the server has, which paths it answers, and what surrounds every answer."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeAlias

from aiohttp import web
from attrs import define, field

from relevance_gen.serve import logs
from relevance_gen.serve.auth import Keys
from relevance_gen.serve.bodies import Budget
from relevance_gen.serve.connection import Handle
from relevance_gen.serve.gate import Gate
from relevance_gen.serve.metrics import STATUSES, Metrics
from relevance_gen.serve.problems import HTTPError, draining, problem_of, response_to
from relevance_gen.serve.rate import RateLimit
from relevance_gen.serve.searching import Searcher
from relevance_gen.settings import Settings
from relevance_gen.types import Stats

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

_EXPOSED_HEADERS = "X-Request-ID, Retry-After, RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset, RateLimit-Policy"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_CLIENT_LEFT = 499
_TIMED_OUT = 408


@define
class Service:
    """What the handlers of one process share.

    Attributes:
        state: tells the runners' state, wherever they live.
        draining: the end has begun: no new work.
        n_working: requests being answered now.
    """

    settings: Settings
    keys: Keys
    rate: RateLimit
    gate: Gate
    searcher: Searcher
    state: Callable[[], Awaitable[Stats]]
    budget: Budget
    metrics: Metrics
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
        """Let the work in the context go on until it is done, or `cut` is called.

        Raises:
            HTTPError: 503, it was cut.
        """
        limit = asyncio.timeout(None)
        try:
            async with limit:
                self._limits.add(limit)
                yield
        except TimeoutError:
            if limit.expired():
                raise draining() from None
            raise
        finally:
            self._limits.discard(limit)

    def cut(self) -> None:
        """End all work now."""
        for limit in self._limits:
            limit.reschedule(asyncio.get_running_loop().time())


SERVICE = web.AppKey("SERVICE", Service)
REQUEST_ID = web.RequestKey("REQUEST_ID", str)
KEY_ID = web.RequestKey("KEY_ID", str)
RATE_HEADERS = web.RequestKey("RATE_HEADERS", dict[str, str])


@define
class Route:
    """One path: its name in the metrics and its handler for GET (and HEAD) or POST."""

    path: str
    endpoint: str
    method: str
    handler: Handler


def make_app(service: Service, routes: tuple[Route, ...]) -> web.Application:
    """Make the application that answers `routes`."""
    app = web.Application()
    app[SERVICE] = service
    for route in routes:
        methods = (route.method, "HEAD") if route.method == "GET" else (route.method,)
        for method in methods:
            app.router.add_route(method, route.path, route.handler, expect_handler=_no_expectation_yet)
        app.router.add_route("OPTIONS", route.path, _options(", ".join(("OPTIONS", *methods))))
        refuse = _not_allowed(("OPTIONS", *methods))
        app.router.add_route("*", route.path, refuse, expect_handler=_no_expectation_yet)
    # What aiohttp itself refuses, it would ask for a body first.
    app.router.add_route("*", "/{path:.*}", _not_found, expect_handler=_no_expectation_yet)
    return app


async def _no_expectation_yet(request: web.Request) -> None:
    """Leave "100 Continue" to the moment when the body is wanted: see `bodies.read`."""
    if request.headers["Expect"].lower() != "100-continue":
        raise web.HTTPExpectationFailed


def _options(allow: str) -> Handler:
    async def options(_: web.Request) -> web.StreamResponse:
        return web.Response(status=204, headers={"Allow": allow})

    return options


def _not_allowed(allowed: tuple[str, ...]) -> Handler:
    async def not_allowed(request: web.Request) -> web.StreamResponse:
        raise web.HTTPMethodNotAllowed(request.method, allowed)

    return not_allowed


async def _not_found(_: web.Request) -> web.StreamResponse:
    raise web.HTTPNotFound


def surround(service: Service, routes: tuple[Route, ...]) -> Callable[[Handle], Handle]:
    """Return the wrapper of the whole application: request id, errors, CORS, metrics, access log."""
    endpoints = {route.path: route.endpoint for route in routes}

    def wrap(handle: Handle) -> Handle:
        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            exchange = Exchange(service, request, endpoints.get(request.path, "other"))
            with service.working():
                try:
                    return await exchange.run(handle)
                finally:
                    exchange.record()

        return answer

    return wrap


class Exchange:
    """One request and its response."""

    def __init__(self, service: Service, request: web.BaseRequest, endpoint: str) -> None:
        self._service = service
        self._request = request
        self._endpoint = endpoint
        self._started_s = time.perf_counter()
        self._status = _CLIENT_LEFT
        self._sent_bytes = 0
        given = request.headers.get("X-Request-ID", "")
        self.request_id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        request[REQUEST_ID] = self.request_id

    async def run(self, handle: Handle) -> web.StreamResponse:
        """Have the application answer, and send the answer."""
        token = logs.REQUEST_ID.set(self.request_id)
        try:
            try:
                async with self._service.until_cut():
                    response = await handle(self._request)
            except ConnectionError:
                raise
            except Exception as error:
                response = self._refuse(problem_of(error))
            if not response.prepared:
                self._add_headers(response)
            # Sent here and not by aiohttp, which would do it after the metrics and the log.
            await response.prepare(self._request)
            await response.write_eof()
            if response.status == _TIMED_OUT and self._request.transport is not None:
                self._request.transport.close()  # or aiohttp would wait for the rest of the body once more
            self._status = response.status
            self._sent_bytes = response.body_length
            return response
        finally:
            logs.REQUEST_ID.reset(token)

    def _refuse(self, problem: HTTPError) -> web.Response:
        if self._request.writer.output_size:
            transport = self._request.transport
            if transport is not None and not transport.is_closing():
                self._status = problem.status  # it is not the client who leaves
            raise ConnectionResetError("an answer was begun: all that is left is to cut it")
        return response_to(problem)

    def _add_headers(self, response: web.StreamResponse) -> None:
        response.headers.update(common_headers(self._request, self._service))
        if self._service.draining:
            response.force_close()

    def record(self) -> None:
        """Count and log the exchange."""
        seconds = time.perf_counter() - self._started_s
        metrics = self._service.metrics
        status = self._status if self._status in STATUSES else 500
        metrics.add("http_requests_total", 1, self._endpoint, str(status))
        metrics.observe("http_request_seconds", seconds, self._endpoint)
        if self._service.settings.access_log:
            logs.access(
                self._request,
                request_id=self.request_id,
                status=self._status,
                seconds=seconds,
                sent_bytes=self._sent_bytes,
                key_id=self._request.get(KEY_ID),
            )


def common_headers(request: web.BaseRequest, service: Service) -> dict[str, str]:
    """Return what every response carries: the request's id, and leave for other origins' pages where it is given."""
    headers = {"Server": "relevance_gen", "X-Request-ID": request[REQUEST_ID], "X-Content-Type-Options": "nosniff"}
    headers.update(request.get(RATE_HEADERS, {}))
    origin = request.headers.get("Origin")
    allowed = service.settings.cors_origins
    if origin is not None and (origin in allowed or "*" in allowed):
        headers["Vary"] = "Accept-Encoding, Origin"
        headers["Access-Control-Allow-Origin"] = "*" if "*" in allowed else origin
        headers["Access-Control-Allow-Headers"] = "Content-Type, X-API-Key, X-Request-ID"
        headers["Access-Control-Allow-Methods"] = "GET, HEAD, POST, OPTIONS"
        headers["Access-Control-Expose-Headers"] = _EXPOSED_HEADERS
        headers["Access-Control-Max-Age"] = "600"
    return headers
