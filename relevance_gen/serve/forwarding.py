"""Generation in a server of several processes: every worker passes it on to the one process that holds the model."""

from __future__ import annotations

import asyncio
from pathlib import Path

import aiohttp
from aiohttp import web

from relevance_gen import wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.serve import bodies
from relevance_gen.serve.admission import admit_generation, read_body
from relevance_gen.serve.app import REQUEST_ID, SERVICE, Route, common_headers
from relevance_gen.serve.problems import HTTPError
from relevance_gen.types import Stats

_REQUEST_HEADERS = ("Content-Type", "Content-Encoding", "Accept-Encoding")
_RESPONSE_HEADERS = ("Content-Type", "Content-Encoding", "Cache-Control", "Retry-After", "Vary", "X-Accel-Buffering")

_STATE_TIMEOUT_S = 0.5
"""A model process that does not tell its state within this time is not available."""

_CONNECT_TIMEOUT_S = 2.0
"""The model process is on this machine: if its kernel queue takes nothing for so long, it does not live."""

_ORIGIN = "http://model"
"""A name for the host header only: the way there is a Unix socket."""


class Forwarder:
    """The way to the model process. Make it inside the event loop.

    Args:
        path: the Unix socket on which the model process listens.
        timeout_s: for a whole answer. The model process keeps the limit on a generation itself, so this is longer: it
            is for one that has stopped.
    """

    def __init__(self, path: Path, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        connector = aiohttp.UnixConnector(str(path), limit=0)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S)
        self._session = aiohttp.ClientSession(connector=connector, timeout=timeout, auto_decompress=False)

    is_loading = False
    """The model process loads, and tells in its state when it is done."""

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def state(self) -> Stats:
        """Ask the model process for its state; one that does not answer has no runners."""
        try:
            async with asyncio.timeout(_STATE_TIMEOUT_S), self._session.get(f"{_ORIGIN}/stats") as answer:
                return wire.structure(Stats, wire.parse(await answer.read()))
        except (aiohttp.ClientError, TimeoutError, InvalidRequestError):  # the last: it told of an error of its own
            return Stats(backlog=0, num_total_runners=0)

    async def post(self, request: web.Request, body: bytes) -> web.StreamResponse:
        """Pass `request` on and its answer back. A client that leaves closes the way behind it too.

        Raises:
            HTTPError: 503, the model process is not there, or does not answer.
        """
        headers = {name: request.headers[name] for name in _REQUEST_HEADERS if name in request.headers}
        headers["X-Request-ID"] = request[REQUEST_ID]
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._session.post(_ORIGIN + request.path, data=body, headers=headers) as answer,
            ):
                return await _passed_back(request, answer)
        except aiohttp.ClientError:
            raise HTTPError(503, "no_runner", "no runner is available", headers={"Retry-After": "5"}) from None
        except TimeoutError:
            message = f"the model process did not answer within {self._timeout_s:g} seconds"
            raise HTTPError(503, "timeout", message, headers={"Retry-After": "5"}) from None


async def _passed_back(request: web.Request, answer: aiohttp.ClientResponse) -> web.StreamResponse:
    headers = {name: answer.headers[name] for name in _RESPONSE_HEADERS if name in answer.headers}
    if answer.content_type != "text/event-stream":
        return web.Response(status=answer.status, headers=headers, body=await answer.read())
    headers.update(common_headers(request, request.app[SERVICE]))
    response = web.StreamResponse(status=answer.status, headers=headers)
    await response.prepare(request)
    try:
        async for piece in answer.content.iter_any():
            await response.write(piece)
    except aiohttp.ClientError:
        raise HTTPError(503, "no_runner", "the model process ended in mid-stream") from None
    return response


FORWARDER = web.AppKey("FORWARDER", Forwarder)


async def generation(request: web.Request) -> web.StreamResponse:
    """Answer POST /generate and /generate_stream with what the model process answers."""
    service = request.app[SERVICE]
    await admit_generation(service, request)
    bodies.require_exactly_json(request)
    with service.budget.account() as account:
        body = await read_body(service, request, account)
        return await request.app[FORWARDER].post(request, body)


FORWARDING_ROUTES = (
    Route("/generate", "generate", "POST", generation),
    Route("/generate_stream", "generate_stream", "POST", generation),
)
