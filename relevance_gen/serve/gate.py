"""Threads for work that computes: so many at once, so many waiting, so long a wait."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from attrs import define, field

from relevance_gen.errors import OverloadedError
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.problems import HTTPError, draining

_log = logging.getLogger(__name__)

T = TypeVar("T")

_SMOOTHING = 0.1
"""Weight of the newest piece of work in the running mean of their seconds."""


_Outcome: TypeAlias = tuple[Callable[[asyncio.Future[Any], Any], None], Any]
_REFUSE = asyncio.Future.set_exception


@define(eq=False, repr=False)
class _Task:
    """A piece of work, and the future of the caller who waits for it, if one does."""

    work: Callable[[], Any]
    answer: asyncio.Future[Any] | None = None
    _loop: asyncio.AbstractEventLoop = field(factory=asyncio.get_running_loop)
    waits: bool = True

    def attempt(self) -> _Outcome:
        """Do the work."""
        try:
            return asyncio.Future.set_result, self.work()
        except BaseException as error:
            return _REFUSE, error

    def tell(self, settle: Callable[[asyncio.Future[Any], Any], None], value: Any) -> None:
        """Tell the outcome to the caller, from any thread."""
        answer = self.answer
        if answer is None:
            if settle is _REFUSE:
                _log.error("work in the background failed", exc_info=value)
            return

        def tell() -> None:
            if not answer.done():
                settle(answer, value)

        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(tell)


class Gate:
    """Run work in threads, first come, first served.

    The threads take the next piece of work themselves, so that none is idle while the event loop is busy. A caller that
    is cancelled while it waits costs nothing more. A thread cannot be stopped, so a caller that is cancelled later
    leaves its place taken until the thread is done: there are never more than `n_threads` at work.

    Args:
        n_threads: pieces of work at once.
        max_waiting: callers that may wait.
        max_wait_s: longest wait.
        metrics: counts those refused.
    """

    def __init__(self, n_threads: int, *, max_waiting: int, max_wait_s: float, metrics: Metrics) -> None:
        self._n_threads = n_threads
        self._max_waiting = max_waiting
        self._max_wait_s = max_wait_s
        self._metrics = metrics
        self._tasks: deque[_Task] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._mean_s = 0.0
        self.n_running = 0
        for number in range(n_threads):
            threading.Thread(target=self._serve, name=f"search-{number}", daemon=True).start()

    @property
    def waiting(self) -> int:
        """Pieces of work that no thread has taken yet."""
        return len(self._tasks)

    async def run(self, work: Callable[[], T]) -> T:
        """Run `work` in a thread and return what it returns.

        Raises:
            OverloadedError: too many wait already.
            HTTPError: 503, the wait was too long, or the gate was closed meanwhile.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        task = _Task(work, answer)
        with self._changed:
            if len(self._tasks) + self.n_running >= self._n_threads + self._max_waiting and not self._closed:
                self._metrics.add("search_rejections_total")
                raise OverloadedError("too much work is waiting", retry_after_s=self._expected_wait_s())
            self._put(task)
        expiry = loop.call_later(self._max_wait_s, self._expire, task)
        try:
            return await answer
        finally:
            expiry.cancel()
            self._withdraw(task)

    def submit(self, work: Callable[[], object]) -> None:
        """Run `work` when a thread is free, for nobody who waits."""
        with self._changed:
            self._put(_Task(work))

    def close(self) -> None:
        """Take no more work, and refuse what waits."""
        with self._changed:
            self._closed = True
            refused = list(self._tasks)
            self._tasks.clear()
            for task in refused:
                task.waits = False
            self._changed.notify_all()
        for task in refused:
            if task.answer is not None:
                task.tell(_REFUSE, draining())

    # ── Waiting; the lock is held ────────────────────────────────────────────────────────────────────────────────────

    def _put(self, task: _Task) -> None:
        if self._closed:
            raise draining()
        self._tasks.append(task)
        self._metrics.put("search_waiting", len(self._tasks))
        self._changed.notify()

    def _take(self) -> _Task | None:
        while not self._tasks:
            if self._closed:
                return None
            self._changed.wait()
        task = self._tasks.popleft()
        task.waits = False
        self._metrics.put("search_waiting", len(self._tasks))
        self.n_running += 1
        return task

    def _expected_wait_s(self) -> int:
        return max(1, math.ceil(self._mean_s * len(self._tasks) / self._n_threads))

    # ── Leaving ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _withdraw(self, task: _Task) -> bool:
        """Take back what no thread has taken; tell whether it was so."""
        with self._changed:
            was_waiting = task.waits
            if was_waiting:
                task.waits = False
                self._tasks.remove(task)
                self._metrics.put("search_waiting", len(self._tasks))
            return was_waiting

    def _expire(self, task: _Task) -> None:
        if self._withdraw(task):
            self._metrics.add("search_rejections_total")
            retry_after = {"Retry-After": str(self._expected_wait_s())}
            task.tell(_REFUSE, HTTPError(503, "overloaded", "no thread became free in time", headers=retry_after))

    # ── The threads ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        while True:
            with self._changed:
                task = self._take()
            if task is None:
                return
            self._work(task)
            del task  # and with it the request's body

    def _work(self, task: _Task) -> None:
        started_s = time.perf_counter()
        outcome = task.attempt()
        with self._changed:  # first, so that who hears of the end finds the place free
            self._mean_s += _SMOOTHING * (time.perf_counter() - started_s - self._mean_s)
            self.n_running -= 1
        task.tell(*outcome)
