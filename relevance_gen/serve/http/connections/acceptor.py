"""Accept connections, and wait a little where the process has no files or memory for more."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable
from contextlib import suppress

_log = logging.getLogger(__name__)

_AT_ONCE = 64
"""Connections accepted before other work of the loop goes on."""

_PAUSE_S = 0.075
"""After an error, mostly too many open files, which only others can end. Clients wait in the kernel meanwhile."""

_LOG_EVERY_S = 1.0


class Acceptor:
    """Take connections from a listening socket until it is to finish.

    asyncio's own servers try again as often as the backlog is long, at once and with a line of log for each try. The
    `listener` is not blocking; `n_free` tells how many more connections there may be.
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
        self._begun: set[asyncio.Task[None]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._logged_s = -_LOG_EVERY_S

    def start(self) -> None:
        """Accept connections as they come."""
        self._again = None
        self._loop.add_reader(self._listener, self._accept)

    async def finish(self) -> None:
        """Accept what waits in the kernel, and no more; return when all that was accepted has begun."""
        self._loop.remove_reader(self._listener)
        if self._again is not None:
            self._again.cancel()
        with suppress(OSError):  # none waits any more, or there are no files for it
            while True:
                self._accept_one()
        await asyncio.gather(*self._begun)

    def _accept(self) -> None:
        n_free = self._n_free() - len(self._begun)
        if n_free <= 0:
            self._pause("as many are open as --max-buffered-bytes has memory for")
            return
        try:
            for _ in range(min(n_free, _AT_ONCE)):
                self._accept_one()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:
            self._pause(error.strerror)

    def _accept_one(self) -> None:
        accepted, _ = self._listener.accept()
        accepted.setblocking(False)
        task = self._loop.create_task(self._begin(accepted))
        self._begun.add(task)
        task.add_done_callback(self._begun.discard)

    async def _begin(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, accepted)
        except OSError:  # the client has left, or there is no room to watch its socket
            accepted.close()

    def _pause(self, reason: str | None) -> None:
        self._loop.remove_reader(self._listener)
        self._again = self._loop.call_later(_PAUSE_S, self.start)
        if time.monotonic() - self._logged_s >= _LOG_EVERY_S:
            self._logged_s = time.monotonic()
            _log.error("no connection can be accepted now: %s", reason)
