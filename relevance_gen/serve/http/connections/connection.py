"""Connections: aiohttp's protocol with our error responses, time limits and disconnect checks."""

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
"""Connections that the kernel queues while the event loop is busy."""

_UNACKNOWLEDGED_TIMEOUT_S = 60
"""A connection is closed if the client acknowledges no data of its response for this time."""

_READ_BUFFER_BYTES = 1 << 14
"""Bytes received ahead of a handler, and of pipelined requests; temporarily up to three times this.
`bodies.body` reads further ahead while it receives a body, and accounts for that."""

PER_CONNECTION_BYTES = 1 << 17
"""Maximum memory of a connection in addition to the memory reserved by its request: the read
buffer, the headers, and the 64 KiB of a response that asyncio buffers before it pauses the
writer."""

_CHECK_INTERVAL_S = 0.5
_FULL_BYTES = 32 << 10
_FULL_TIMEOUT_S = 10.0
"""While a request is answered, few bytes of pipelined requests are read. If more than `_FULL_BYTES`
wait in the kernel, its buffer may be full, and a disconnect may not be noticed: such a connection
is aborted after this time."""
_DISCONNECT_EVENTS = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR

MAX_ANONYMOUS_FRACTION = 0.75
"""Fraction of all connections that anonymous clients may have if other clients need some."""

_FIRST_REQUEST_TIMEOUT_S = 0.5
"""At shutdown, time for the first request on a connection that was just accepted."""
_POLL_INTERVAL_S = 0.01

_LINGER_S = 2.0
"""How long the rest of a rejected body is read and discarded, so that the client receives the
response and not a connection reset."""


@asynccontextmanager
async def write_deadline(request: web.BaseRequest, timeout_s: float) -> AsyncIterator[None]:
    """Abort the connection if the client does not read the context's output in `timeout_s`.

    Raises:
        ConnectionResetError: the connection was aborted.
    """
    timeout = asyncio.timeout(timeout_s)
    try:
        async with timeout:
            yield
    except TimeoutError:
        if not timeout.expired():
            raise
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the client did not read its answer in time") from None


class Connection(web.RequestHandler):
    """The connection of one client.

    Attributes:
        has_key: whether the client has presented a valid API key.
    """

    __slots__ = ("_check_timer", "_n_full_checks", "has_key")

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.has_key = False
        self._check_timer: asyncio.TimerHandle | None = None
        self._n_full_checks = 0

    @property
    def is_new(self) -> bool:
        """Whether the connection is open and no request has begun on it."""
        return self.transport is not None and not self._request_count

    @property
    def is_idle(self) -> bool:
        """Whether the connection is open and no request is being answered."""
        return self.transport is not None and self._current_request is None

    def _pause_transport_reading(self) -> None:
        super()._pause_transport_reading()
        if self._check_timer is None:
            self._schedule_check()

    def _resume_transport_reading(self) -> None:
        super()._resume_transport_reading()
        self._n_full_checks = 0

    def _schedule_check(self) -> None:
        self._check_timer = self._loop.call_later(_CHECK_INTERVAL_S, self._check_disconnect)

    def _check_disconnect(self) -> None:
        """Abort the connection if the client has disconnected while the server does not read.

        This check repeats every `_CHECK_INTERVAL_S` while reading from the connection is paused.
        While reading is not paused, a read reports a disconnect, and nothing is checked. The
        connection is also aborted if more than `_FULL_BYTES` bytes wait in the kernel for longer
        than `_FULL_TIMEOUT_S`, because a disconnect may then remain undetected.
        """
        self._check_timer = None
        transport = self.transport
        if transport is None or transport.is_closing() or transport.is_reading():
            return
        descriptor = transport.get_extra_info("socket").fileno()
        poll = select.poll()
        poll.register(descriptor, _DISCONNECT_EVENTS)
        n_bytes = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
        is_full = int.from_bytes(n_bytes, sys.byteorder) > _FULL_BYTES
        self._n_full_checks = self._n_full_checks + 1 if is_full else 0
        if poll.poll(0) or self._n_full_checks * _CHECK_INTERVAL_S > _FULL_TIMEOUT_S:
            transport.abort()
        else:
            self._schedule_check()

    def _make_error_handler(self, err_info: Any) -> Handle:
        """Return the handler that answers an unparsable request.

        The handler is wrapped in the middleware, so that its response is logged and counted.
        """
        handler = super()._make_error_handler(err_info)
        server = cast("Server | None", self._manager)
        if server is None:  # the client has disconnected
            return handler
        return server.wrap(handler)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the time after which the system closes the connection if data is not acknowledged.

        It is `_UNACKNOWLEDGED_TIMEOUT_S`, for TCP connections on systems that have this option.
        """
        super().connection_made(transport)
        sock = transport.get_extra_info("socket")
        if hasattr(socket, "TCP_USER_TIMEOUT") and sock.family in (socket.AF_INET, socket.AF_INET6):
            timeout_ms = _UNACKNOWLEDGED_TIMEOUT_S * 1000
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, timeout_ms)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002 can repeat what the client sent
    ) -> web.StreamResponse:
        """Return the response to an unparsable request, or to an exception in the middleware.

        `status` is 400 for an unparsable request. The connection is closed after the response.

        Raises:
            ConnectionResetError: the beginning of another response was sent already.
        """
        if request.writer.output_size:
            raise ConnectionResetError("the response has begun; the connection must be closed")
        error: Exception
        if status == 400 and isinstance(exc, LineTooLong):
            error = InvalidRequestError("the request has a line that is too long")
        elif status == 400:
            error = InvalidRequestError("the request is not valid HTTP")
        elif isinstance(exc, Exception):
            error = exc
        else:
            error = RuntimeError(f"status {status}")
        response = response_to(problem_of(error))
        response.headers["Server"] = "relevance_gen"
        response.force_close()
        return response


class Server(web.Server):
    """Creates a `Connection` for each client.

    Args:
        answer: answers requests.
        wrap: the middleware, applied to `answer` and to the responses to unparsable requests.
        idle_timeout_s: how long a connection may stay open without a complete request head.
    """

    def __init__(
        self, answer: Handle, wrap: Callable[[Handle], Handle], idle_timeout_s: float
    ) -> None:
        super().__init__(wrap(answer), handler_cancellation=True)
        self.wrap = wrap
        self._idle_timeout_s = idle_timeout_s

    def __call__(self) -> Connection:
        """Return a `Connection`, the `asyncio.Protocol` object of one client's connection.

        asyncio calls this for each connection that it accepts.
        """
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
    """Serves the connections of a listening socket. Must be created inside the event loop.

    If the open connections exceed the fraction `MAX_ANONYMOUS_FRACTION` of `max_connections`, idle
    connections of anonymous clients are closed, oldest first, to leave some for authenticated
    clients. Beyond `max_connections`, clients wait in the kernel until a connection is closed.
    """

    def __init__(self, sock: socket.socket, server: Server, max_connections: int) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._server = server
        self._max_connections = max_connections
        self._acceptor = Acceptor(sock, server, self._n_free)
        self._acceptor.start()

    def _connections(self) -> list[Connection]:
        connections = self._server.connections
        return [connection for connection in connections if isinstance(connection, Connection)]

    def _n_free(self) -> int:
        """Return how many more connections may be open.

        If fewer may be open than are reserved for authenticated clients, idle connections of
        anonymous clients are closed. Connections that this call closes are still counted as open.
        """
        n_free = self._max_connections - len(self._server.connections)
        n_reserved = int((1 - MAX_ANONYMOUS_FRACTION) * self._max_connections)
        if n_free < n_reserved:
            idle_connections = (
                connection
                for connection in self._connections()
                if connection.is_idle and not connection.has_key
            )
            for connection in itertools.islice(idle_connections, n_reserved - n_free):
                connection.force_close()
        return n_free

    async def stop(self) -> None:
        """Accept the connections in the kernel's backlog, stop listening, and wait for requests.

        Returns when a request has begun on each connection that was just accepted, or after
        `_FIRST_REQUEST_TIMEOUT_S`.
        """
        if self._sock.fileno() < 0:
            return
        await self._acceptor.finish()
        self._sock.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_REQUEST_TIMEOUT_S):
                # Requests that the kernel has received on other connections begin, too.
                await asyncio.sleep(_POLL_INTERVAL_S)
                while any(connection.is_new for connection in self._connections()):
                    await asyncio.sleep(_POLL_INTERVAL_S)

    async def close(self, timeout_s: float) -> None:
        """Stop listening and close all connections; running requests get `timeout_s` to end."""
        await self.stop()
        self._server.pre_shutdown()
        await self._server.shutdown(timeout_s)
