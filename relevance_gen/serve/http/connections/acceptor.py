"""Accept connections, and pause if the process lacks file descriptors or memory for more."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress

_log = logging.getLogger(__name__)

_ACCEPT_BATCH = 64
"""Connections accepted before other work of the event loop continues."""

_PAUSE_S = 0.075
"""Pause after an error, usually too many open files. Clients wait in the kernel's backlog."""

_LOG_INTERVAL_S = 1.0


class Acceptor:
    """Accepts connections from a listening socket.

    After an error such as too many open files, or if no further connection may be open, this class
    accepts nothing for `_PAUSE_S` seconds, and logs at most one line per `_LOG_INTERVAL_S` seconds.
    asyncio's own servers would instead retry immediately after an error, as many times as the
    backlog is long, and log one line per attempt.

    Args:
        listener: the listening socket, not blocking.
        make_protocol: creates the protocol of a connection.
        n_free: returns how many more connections may be open.
    """

    def __init__(
        self,
        listener: socket.socket,
        make_protocol: Callable[[], asyncio.Protocol],
        n_free: Callable[[], int],
    ) -> None:
        self._listener = listener
        self._make_protocol = make_protocol
        self._n_free = n_free
        self._loop = asyncio.get_running_loop()
        self._starting: set[asyncio.Task[None]] = set()
        self._resume_timer: asyncio.TimerHandle | None = None
        self._logged_s = -_LOG_INTERVAL_S

    def start(self) -> None:
        """Accept connections as they arrive."""
        self._resume_timer = None
        self._loop.add_reader(self._listener, self._accept)

    async def finish(self) -> None:
        """Accept the connections in the kernel's backlog, and then no more.

        Returns when the protocol of each of these connections has started.
        """
        self._loop.remove_reader(self._listener)
        if self._resume_timer is not None:
            self._resume_timer.cancel()
        with suppress(OSError):  # the backlog is empty, or file descriptors are used up
            while True:
                self._accept_connection()
        await asyncio.gather(*self._starting)

    def _accept(self) -> None:
        n_free = self._n_free() - len(self._starting)
        if n_free <= 0:
            self._pause("all connections that --max-buffered-bytes allows are open")
            return
        try:
            for _ in range(min(n_free, _ACCEPT_BATCH)):
                self._accept_connection()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self._pause(error.strerror)

    def _accept_connection(self) -> None:
        connection, _ = self._listener.accept()
        connection.setblocking(False)
        task = self._loop.create_task(self._start_connection(connection))
        self._starting.add(task)
        task.add_done_callback(self._starting.discard)

    async def _start_connection(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError:  # the client has disconnected, or the socket cannot be polled
            connection.close()

    def _pause(self, reason: str | None) -> None:
        self._loop.remove_reader(self._listener)
        self._resume_timer = self._loop.call_later(_PAUSE_S, self.start)
        if time.monotonic() - self._logged_s >= _LOG_INTERVAL_S:
            self._logged_s = time.monotonic()
            _log.error("no connection can be accepted now: %s", reason)
