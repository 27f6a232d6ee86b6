"""Threads for work that computes: so many at once, so many waiting, so long a wait."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

from relevance_gen.errors import OverloadedError
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.problems import HTTPError, draining

_log = logging.getLogger(__name__)

T = TypeVar("T")

_SMOOTHING = 0.1
"""Weight of the newest piece of work in the running mean of their seconds."""


class Gate:
    """Run work in threads, first come, first served.

    A caller that is cancelled while it waits costs nothing more. A thread cannot be stopped, so a caller that is
    cancelled later leaves its place taken until the thread is done: there are never more than `n_threads` at work.

    Args:
        n_threads: pieces of work at once.
        max_waiting: callers that may wait.
        max_wait_s: longest wait.
        metrics: counts those refused.
    """

    def __init__(self, n_threads: int, *, max_waiting: int, max_wait_s: float, metrics: Metrics) -> None:
        self._executor = ThreadPoolExecutor(n_threads, thread_name_prefix="search")
        self._places = asyncio.Semaphore(n_threads)
        self._n_threads = n_threads
        self._max_waiting = max_waiting
        self._max_wait_s = max_wait_s
        self._mean_s = 0.0
        self._metrics = metrics
        self.waiting = 0
        self.n_running = 0

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread and return what it returns.

        Raises:
            OverloadedError: too many wait already.
            HTTPError: 503, the wait was too long, or the gate was closed meanwhile.
        """
        await self._enter()
        loop = asyncio.get_running_loop()
        started_s = time.perf_counter()

        def leave(_: Future[T]) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(self._leave, started_s)

        try:
            future = self._executor.submit(work)
        except RuntimeError:  # closed
            self._places.release()
            raise draining() from None
        self.n_running += 1
        future.add_done_callback(leave)
        return await asyncio.wrap_future(future)

    def submit(self, work: Callable[[], object]) -> None:
        """Run `work` when a thread is free, for nobody who waits."""
        self._executor.submit(work).add_done_callback(_log_failure)

    def close(self) -> None:
        """Take no more work."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    async def _enter(self) -> None:
        if not self._places.locked():
            await self._places.acquire()
            return
        if self.waiting >= self._max_waiting:
            self._metrics.add("search_rejections_total")
            raise OverloadedError("too much work is waiting", retry_after_s=self._expected_wait_s())
        self._wait(+1)
        try:
            async with asyncio.timeout(self._max_wait_s):
                await self._places.acquire()
        except TimeoutError:
            self._metrics.add("search_rejections_total")
            retry_after = {"Retry-After": str(self._expected_wait_s())}
            raise HTTPError(503, "overloaded", "no thread became free in time", headers=retry_after) from None
        finally:
            self._wait(-1)

    def _wait(self, change: int) -> None:
        self.waiting += change
        self._metrics.put("search_waiting", self.waiting)

    def _leave(self, started_s: float) -> None:
        self._mean_s += _SMOOTHING * (time.perf_counter() - started_s - self._mean_s)
        self.n_running -= 1
        self._places.release()

    def _expected_wait_s(self) -> int:
        return max(1, math.ceil(self._mean_s * self.waiting / self._n_threads))


def _log_failure(future: Future[object]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        _log.error("work in the background failed", exc_info=error)
