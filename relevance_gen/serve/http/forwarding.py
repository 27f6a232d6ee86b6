"""Forward generation requests from the worker processes to the process that holds the model."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence

import aiohttp
from aiohttp import web

from relevance_gen import wire
from relevance_gen.errors import InvalidRequestError, RunnerClosedError, TimedOutError
from relevance_gen.serve.http.access.auth import KEY_ID_HEADER
from relevance_gen.serve.http.bodies.body import Body, receive
from relevance_gen.serve.http.connections.connection import write_deadline
from relevance_gen.serve.http.middleware import common_headers
from relevance_gen.serve.http.service import KEY_ID, REQUEST_ID, Service
from relevance_gen.serve.settings import Settings
from relevance_gen.types import Stats

_REQUEST_HEADERS = "Content-Type Content-Encoding Accept-Encoding".split()
_RESPONSE_HEADERS = (
    "Content-Type Content-Encoding Cache-Control Retry-After Vary X-Accel-Buffering "
    "X-Encoder-Skipped X-Reranker-Skipped X-Index"
).split()

_STATS_TIMEOUT_S = 0.5
"""A model process that does not answer within this time counts as unavailable."""

_CONNECT_TIMEOUT_S = 2.0
"""The model process runs on this machine: after this time without a connection it is not alive."""

_ORIGIN = "http://model"
"""HTTP requires a host name; the connection itself is a Unix socket."""


class Forwarder:
    """A client of the model process. Must be created inside the event loop.

    Args:
        path: the Unix socket of the model process.
        timeout_s: time limit for a complete answer; longer than a generation may take, so that
            only a process that hangs reaches it.
    """

    def __init__(self, path: os.PathLike[str], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(os.fspath(path), limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
            auto_decompress=False,
            # Otherwise aiohttp requests gzip for clients that do not accept it.
            skip_auto_headers=("Accept-Encoding",),
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def stats(self) -> Stats:
        """Return the state of the model process.

        If it does not answer within `_STATS_TIMEOUT_S`, or with an error, the state has 0 runners.
        """
        try:
            async with (
                asyncio.timeout(_STATS_TIMEOUT_S),
                self._session.get(f"{_ORIGIN}/stats") as response,
            ):
                return wire.structure(Stats, wire.parse(await response.read()))
        # An InvalidRequestError: the process answered with an error.
        except (aiohttp.ClientError, TimeoutError, InvalidRequestError):
            return Stats(backlog=0, num_total_runners=0)

    async def answer(self, service: Service, request: web.BaseRequest) -> web.StreamResponse:
        """Receive the body, forward the request, and return the response of the model process.

        If the client disconnects, this coroutine is cancelled, which closes the connection to the
        model process.

        Raises:
            RelevanceGenError: the exceptions of `receive` and `forward`.
        """
        return await self.forward(service.settings, request, await receive(service, request))

    async def forward(
        self, settings: Settings, request: web.BaseRequest, body: Body
    ) -> web.StreamResponse:
        """Forward a request whose body has been received, and return the model process's response.

        Raises:
            RunnerClosedError: the model process is not running, or ended before its answer did.
            TimedOutError: the answer is not complete within the time limit.
        """
        headers = _select(request.headers, _REQUEST_HEADERS)
        headers["X-Request-ID"] = request[REQUEST_ID]
        if KEY_ID in request:
            headers[KEY_ID_HEADER] = request[KEY_ID]
        url = _ORIGIN + request.path
        data = _request_body(body.pieces)
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._session.post(url, data=data, headers=headers) as response,
            ):
                if response.content_type == "text/event-stream":
                    return await _stream(settings, request, response)
                content = await response.read()
        except aiohttp.ClientError:
            raise RunnerClosedError("the model process does not answer") from None
        except TimeoutError:
            raise TimedOutError(
                f"the model process did not answer within {self._timeout_s:g} seconds"
            ) from None
        body.memory.resize(len(content))
        headers = _select(response.headers, _RESPONSE_HEADERS)
        return web.Response(status=response.status, headers=headers, body=content)


def _request_body(pieces: Sequence[bytes]) -> bytes | AsyncIterator[bytes]:
    """Return the body for aiohttp: the only piece, or an iterator over several pieces.

    Joining many pieces would take too long for the event loop.
    """
    if len(pieces) > 1:
        return _iterate(pieces)
    return b"".join(pieces)


async def _iterate(pieces: Sequence[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def _select(
    headers: Mapping[str, str],
    names: Sequence[str],
) -> dict[str, str]:
    return {name: headers[name] for name in names if name in headers}


async def _stream(
    settings: Settings, request: web.BaseRequest, forwarded: aiohttp.ClientResponse
) -> web.StreamResponse:
    headers = _select(forwarded.headers, _RESPONSE_HEADERS) | common_headers(request, settings)
    response = web.StreamResponse(status=forwarded.status, headers=headers)
    async with write_deadline(request, settings.write_timeout_s):
        await response.prepare(request)
    async for piece in forwarded.content.iter_any():
        async with write_deadline(request, settings.write_timeout_s):
            await response.write(piece)
    return response
