"""Generation in a server of several processes: every worker passes it on to the one process that holds the model."""

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
from relevance_gen.serve.http.connections.connection import until_read
from relevance_gen.serve.http.middleware import common_headers
from relevance_gen.serve.http.service import KEY_ID, REQUEST_ID, Service
from relevance_gen.serve.settings import Settings
from relevance_gen.types import Stats

_REQUEST_HEADERS = ("Content-Type", "Content-Encoding", "Accept-Encoding")
_RESPONSE_HEADERS = (
    *(
        "Content-Type",
        "Content-Encoding",
        "Cache-Control",
        "Retry-After",
        "Vary",
        "X-Accel-Buffering",
    ),
    *("X-Encoder-Skipped", "X-Reranker-Skipped", "X-Index"),
)

_STATS_TIMEOUT_S = 0.5
"""A model process that does not answer within this time is not available."""

_CONNECT_TIMEOUT_S = 2.0
"""The model process is on this machine: one that takes no connection for so long does not live."""

_ORIGIN = "http://model"
"""HTTP wants a host; the connection itself is a Unix socket."""


class Forwarder:
    """The way to the model process, by the Unix socket on which that listens. Make it inside the event loop.

    A whole answer may take longer than a generation, so that only a process that hangs meets `timeout_s`.
    """

    def __init__(self, path: os.PathLike[str], timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._session = aiohttp.ClientSession(
            connector=aiohttp.UnixConnector(os.fspath(path), limit=0),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
            auto_decompress=False,
            skip_auto_headers=(
                "Accept-Encoding",
            ),  # aiohttp would ask for gzip where the client did not
        )

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def stats(self) -> Stats:
        """Ask the model process for its state; one that does not answer has no runners."""
        try:
            async with (
                asyncio.timeout(_STATS_TIMEOUT_S),
                self._session.get(f"{_ORIGIN}/stats") as answer,
            ):
                return wire.structure(Stats, wire.parse(await answer.read()))
        except (
            aiohttp.ClientError,
            TimeoutError,
            InvalidRequestError,
        ):  # the last: it answered with an error
            return Stats(backlog=0, num_total_runners=0)

    async def answer(self, service: Service, request: web.BaseRequest) -> web.StreamResponse:
        """Answer with what the model process answers. A client that leaves cancels this, and closes the way on."""
        return await self.pass_on(service.settings, request, await receive(service, request))

    async def pass_on(
        self, settings: Settings, request: web.BaseRequest, body: Body
    ) -> web.StreamResponse:
        """Do so once the body is there.

        Raises:
            RunnerClosedError: the model process is not there, or ended in mid-stream.
            TimedOutError: it does not answer.
        """
        headers = {
            name: request.headers[name] for name in _REQUEST_HEADERS if name in request.headers
        }
        headers["X-Request-ID"] = request[REQUEST_ID]
        if KEY_ID in request:
            headers[KEY_ID_HEADER] = request[KEY_ID]
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._session.post(
                    _ORIGIN + request.path, data=_body(body.pieces), headers=headers
                ) as answer,
            ):
                if answer.content_type == "text/event-stream":
                    return await _stream(settings, request, answer)
                out = await answer.read()
        except aiohttp.ClientError:
            raise RunnerClosedError("the model process does not answer") from None
        except TimeoutError:
            raise TimedOutError(
                f"the model process did not answer within {self._timeout_s:g} seconds"
            ) from None
        body.held.replace(len(out))
        return web.Response(status=answer.status, headers=_kept(answer.headers), body=out)


def _body(pieces: Sequence[bytes]) -> bytes | AsyncIterator[bytes]:
    """Return what aiohttp sends: joining many pieces would take too long for the event loop."""

    async def each() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    return each() if len(pieces) > 1 else b"".join(pieces)


def _kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: headers[name] for name in _RESPONSE_HEADERS if name in headers}


async def _stream(
    settings: Settings, request: web.BaseRequest, answer: aiohttp.ClientResponse
) -> web.StreamResponse:
    headers = _kept(answer.headers) | common_headers(request, settings)
    response = web.StreamResponse(status=answer.status, headers=headers)
    async with until_read(request, settings.write_timeout_s):
        await response.prepare(request)
    async for piece in answer.content.iter_any():
        async with until_read(request, settings.write_timeout_s):
            await response.write(piece)
    return response
