"""Connections as aiohttp has them, made to answer everything in our own form, also what is no HTTP at all."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import select
import socket
import sys
import termios
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeAlias, cast

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong

from relevance_gen.errors import InvalidRequestError
from relevance_gen.serve.http.connections.acceptor import Acceptor
from relevance_gen.serve.http.http_errors import problem_of, response_to

Handle: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

BACKLOG = 1024
"""Connections that the kernel holds while the loop is busy."""

_UNREAD_TIMEOUT_S = 60
"""A client that takes nothing of its response for this long is gone."""

_READ_BUFFER_BYTES = 1 << 14
"""Received ahead of a handler, and of what is pipelined behind its request; at times up to three times as much.
`bodies` reads further ahead where a body is wanted, and accounts for it."""

PER_CONNECTION_BYTES = 1 << 17
"""What a connection holds at most beside the accounts of its request: the above, a head, and of an answer as much as
asyncio takes before it has its writer wait, 64 KiB."""

_LOOK_EVERY_S = 0.5
_FULL_BYTES = 32 << 10
_FULL_FOR_S = 10.0
"""While a request is answered, little of what is pipelined behind it is read. Where more than `_FULL_BYTES` wait in the
kernel, it may take no more, and not hear either that the client has left: such a connection is cut after this time."""
_LEFT = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR

STRANGERS_SHARE = 0.75
"""Of all connections, those that clients without a key may have where others want some."""

_FIRST_REQUEST_S = 0.5
"""At the end, for the requests on connections that were just accepted."""
_LOOK_AGAIN_S = 0.01

_LINGER_S = 2.0
"""How long the rest of a refused body is read and dropped, so that the client sees the answer and not a reset."""


@asynccontextmanager
async def until_read(request: web.BaseRequest, timeout_s: float) -> AsyncIterator[None]:
    """Give the client this long to read what the context writes; else cut it, and raise a ConnectionResetError."""
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():
            raise
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the client did not read its answer in time") from None


class Connection(web.RequestHandler):
    """One client's connection; `has_key` tells whether the client has shown a valid key."""

    __slots__ = ("_look", "_n_looks", "has_key")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.has_key = False
        self._look: asyncio.TimerHandle | None = None
        self._n_looks = 0

    @property
    def is_new(self) -> bool:
        """Whether it is open, and nothing has been asked yet."""
        return self.transport is not None and not self._request_count

    @property
    def is_idle(self) -> bool:
        """Whether it is open, and nothing is being answered."""
        return self.transport is not None and self._current_request is None

    def _pause_transport_reading(self) -> None:
        super()._pause_transport_reading()
        if self._look is None:
            self._look = self._loop.call_later(_LOOK_EVERY_S, self._look_for_the_client)

    def _resume_transport_reading(self) -> None:
        super()._resume_transport_reading()
        self._n_looks = 0

    def _look_for_the_client(self) -> None:
        """Notice a client that leaves while nothing is read from it, as a read would."""
        self._look = None
        transport = self.transport
        if transport is None or transport.is_closing() or transport.is_reading():
            return
        descriptor = transport.get_extra_info("socket").fileno()
        ends = select.poll()
        ends.register(descriptor, _LEFT)
        waiting_bytes = int.from_bytes(
            fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)), sys.byteorder
        )
        self._n_looks = self._n_looks + 1 if waiting_bytes > _FULL_BYTES else 0
        if ends.poll(0) or self._n_looks * _LOOK_EVERY_S > _FULL_FOR_S:
            transport.abort()
        else:
            self._look = self._loop.call_later(_LOOK_EVERY_S, self._look_for_the_client)

    def _make_error_handler(self, err_info: Any) -> Handle:
        """Log and count the answer to what could not be parsed like any other."""
        handler = super()._make_error_handler(err_info)
        server = cast("Server | None", self._manager)
        return (
            handler if server is None else server.around(handler)
        )  # None where the client has left

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Give up on clients that do not read, which nothing above TCP would notice."""
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if hasattr(socket, "TCP_USER_TIMEOUT") and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_TIMEOUT_S * 1000)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 may repeat what the client sent
    ) -> web.StreamResponse:
        """Answer what could not be parsed, or what went wrong even in the wrapper around the application."""
        if request.writer.output_size:
            raise ConnectionResetError("an answer was begun: all that is left is to cut it")
        if status == 400:
            what = (
                "has a line that is too long"
                if isinstance(exc, LineTooLong)
                else "is not valid HTTP"
            )
            error: Exception = InvalidRequestError(f"the request {what}")
        else:
            error = exc if isinstance(exc, Exception) else RuntimeError(f"status {status}")
        response = response_to(problem_of(error))
        response.headers["Server"] = "relevance_gen"
        response.force_close()
        return response


class Server(web.Server):
    """Make a `Connection` for each client; without a complete request head it may stay for `idle_timeout_s`.

    `around` wraps what answers, whatever becomes of it: `answer`, and what tells of a request that is no HTTP.
    """

    def __init__(
        self, answer: Handle, around: Callable[[Handle], Handle], idle_timeout_s: float
    ) -> None:
        super().__init__(around(answer), handler_cancellation=True)
        self.around = around
        self._idle_timeout_s = idle_timeout_s

    def __call__(self) -> Connection:
        """Make the protocol of a new connection."""
        return Connection(
            self,
            loop=self._loop,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=self._idle_timeout_s,
            lingering_time=_LINGER_S,
            read_bufsize=_READ_BUFFER_BYTES,
        )


class Listener:
    """Serves the connections that a socket takes. Make it inside the event loop.

    Where more than `STRANGERS_SHARE` of the connections are open, idle ones whose clients have shown no key are closed,
    the oldest first, so that there is room for clients with a key. Beyond `most_connections`, others wait in the kernel
    until some are closed.
    """

    def __init__(self, sock: socket.socket, server: Server, most_connections: int) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._server = server
        self._most_connections = most_connections
        self._acceptor = Acceptor(sock, server, self._make_room)
        self._acceptor.start()

    def _make_room(self) -> int:
        connections = self._server.connections
        n_left = self._most_connections - len(connections)
        n_kept = int((1 - STRANGERS_SHARE) * self._most_connections)
        if n_left < n_kept:
            idle = (
                one
                for one in connections
                if isinstance(one, Connection) and one.is_idle and not one.has_key
            )
            for stranger in itertools.islice(idle, n_kept - n_left):
                stranger.force_close()
        return n_left

    async def stop(self) -> None:
        """Stop listening, once what was asked on connections that wait in the kernel has begun to be answered."""
        if self._sock.fileno() < 0:
            return
        await self._acceptor.finish()
        self._sock.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_REQUEST_S):
                await asyncio.sleep(
                    _LOOK_AGAIN_S
                )  # what the kernel has received on other connections begins, too
                while any(
                    isinstance(one, Connection) and one.is_new for one in self._server.connections
                ):
                    await asyncio.sleep(_LOOK_AGAIN_S)

    async def close(self, timeout_s: float) -> None:
        """Stop listening and close all connections; give requests that still run so long."""
        await self.stop()
        self._server.pre_shutdown()
        await self._server.shutdown(timeout_s)
