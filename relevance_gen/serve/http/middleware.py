"""Middleware: request ids, error responses, CORS headers, metrics and the access log."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack

from aiohttp import web

from relevance_gen.serve import logs
from relevance_gen.serve.adapters import own
from relevance_gen.serve.http.access.auth import HEADER
from relevance_gen.serve.http.connections.connection import Handle, write_deadline
from relevance_gen.serve.http.http_errors import (
    CLIENT_DISCONNECTED,
    STATUSES,
    HTTPProblem,
    problem_of,
    response_to,
)
from relevance_gen.serve.http.route import ROUTE, Route, Router
from relevance_gen.serve.http.service import (
    KEY_ID,
    RATE_HEADERS,
    REQUEST_ID,
    RESERVATIONS,
    WRITE_ERROR,
    Service,
)
from relevance_gen.serve.settings import Settings

OTHER = "other"
"""The endpoint under which metrics count requests for paths without a route."""

_EXPOSED_HEADERS = (
    "X-Request-ID, X-Encoder-Skipped, X-Reranker-Skipped, X-Index, Retry-After, "
    "RateLimit-Limit, RateLimit-Remaining, RateLimit-Reset, RateLimit-Policy"
)
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:/+=-]{1,128}")
_REQUEST_TIMEOUT = 408


def middleware(service: Service, router: Router) -> Callable[[Handle], Handle]:
    """Return a function that wraps a handler of requests.

    The wrapped handler finds the route of each request, answers the request in an `Exchange`, and
    counts and logs it.
    """

    def wrap(handle: Handle) -> Handle:
        async def answer(request: web.BaseRequest) -> web.StreamResponse:
            exchange = Exchange(service, request, router.find(request.rel_url.path_safe))
            with service.active(), request[RESERVATIONS]:
                try:
                    return await exchange.run(handle)
                finally:
                    exchange.record()

        return answer

    return wrap


class Exchange:
    """One request and its response. `record` must be called after `run`, also after an error.

    Attributes:
        request_id: the id of the request: the client's ``X-Request-ID`` if it is valid, otherwise a
            new id.
    """

    def __init__(self, service: Service, request: web.BaseRequest, route: Route | None) -> None:
        self._service = service
        self._request = request
        self._endpoint = OTHER if route is None else route.endpoint
        self._started_s = time.perf_counter()
        self._status = CLIENT_DISCONNECTED
        self._sent_bytes = 0
        self.request_id = request.headers.get("X-Request-ID", "")
        if not _REQUEST_ID.fullmatch(self.request_id):
            self.request_id = uuid.uuid4().hex
        request[REQUEST_ID] = self.request_id
        request[RESERVATIONS] = ExitStack()
        request[WRITE_ERROR] = own.error
        if route is not None:
            request[ROUTE] = route
            request[WRITE_ERROR] = route.write_error

    async def run(self, handle: Handle) -> web.StreamResponse:
        """Answer the request with `handle`, and send the response; errors become responses.

        Raises:
            ConnectionError: the client has disconnected, or an error occurred after the beginning
                of the response was sent.
        """
        token = logs.REQUEST_ID.set(self.request_id)
        try:
            response = await self._answer(handle)
            await self._send(response)
            self._status = response.status
            self._sent_bytes = response.body_length
            return response
        finally:
            logs.REQUEST_ID.reset(token)

    async def _answer(self, handle: Handle) -> web.StreamResponse:
        try:
            async with self._service.abortable():
                response = await handle(self._request)
        except ConnectionError:
            raise
        except Exception as error:
            response = self._error_response(problem_of(error))
        if not response.prepared:
            response.headers.update(common_headers(self._request, self._service.settings))
            if self._service.is_draining:
                response.force_close()
        return response

    async def _send(self, response: web.StreamResponse) -> None:
        # aiohttp would send the response after the metrics and the log line.
        async with write_deadline(self._request, self._service.settings.write_timeout_s):
            await response.prepare(self._request)
            await response.write_eof()
        transport = self._request.transport
        if response.status == _REQUEST_TIMEOUT and transport is not None:
            # Otherwise aiohttp waits for the rest of the body again.
            transport.close()

    def _error_response(self, problem: HTTPProblem) -> web.Response:
        if not self._request.writer.output_size:
            return response_to(problem, self._request[WRITE_ERROR])
        transport = self._request.transport
        if transport is not None and not transport.is_closing():
            # The client is still connected: the server ends the exchange.
            self._status = problem.status
        raise ConnectionResetError("the response has begun; the connection must be closed")

    def record(self) -> None:
        """Add the request to the metrics, and log it if the settings require that."""
        seconds = time.perf_counter() - self._started_s
        metrics = self._service.http_metrics
        status = self._status if self._status in STATUSES else 500
        metrics.add("http_requests_total", 1, self._endpoint, str(status))
        metrics.observe("http_request_seconds", seconds, self._endpoint)
        if not self._service.settings.access_log:
            return
        logs.access(
            self._request.method,
            self._request.path,
            self._status,
            request_id=self.request_id,
            duration_ms=round(seconds * 1000, 3),
            request_bytes=self._request.content_length,
            response_bytes=self._sent_bytes,
            client=self._request.remote,
            key=self._request.get(KEY_ID),
        )


def common_headers(request: web.BaseRequest, settings: Settings) -> dict[str, str]:
    """Return the headers of every response: the request id, rate limits, and CORS if allowed."""
    headers = {
        "Server": "relevance_gen",
        "X-Request-ID": request[REQUEST_ID],
        "X-Content-Type-Options": "nosniff",
    }
    headers.update(request.get(RATE_HEADERS, {}))
    origin = request.headers.get("Origin")
    allowed = settings.cors_origins
    if origin is not None and (origin in allowed or "*" in allowed):
        headers["Vary"] = "Accept, Accept-Encoding, Origin"
        headers["Access-Control-Allow-Origin"] = "*" if "*" in allowed else origin
        headers["Access-Control-Allow-Headers"] = (
            f"Content-Type, {HEADER}, Authorization, X-Request-ID"
        )
        headers["Access-Control-Allow-Methods"] = "GET, HEAD, POST, OPTIONS"
        headers["Access-Control-Expose-Headers"] = _EXPOSED_HEADERS
        headers["Access-Control-Max-Age"] = "600"
    return headers
