"""Threads for work that computes: so many at once, so many waiting, so long a wait."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from attrs import define, field

from relevance_gen.errors import BusyError, OverloadedError, ShuttingDownError
from relevance_gen.quota import Quota
from relevance_gen.request_scope import cancel_scope
from relevance_gen.serve.metrics import Metrics

T = TypeVar("T")

_SMOOTHING = 0.1
"""Weight of the newest task in the running mean of the seconds that a task takes."""

_Settle: TypeAlias = Callable[[asyncio.Future[Any], Any], None]
"""`Future.set_result` or `Future.set_exception`."""


@define(eq=False, repr=False)
class _Task:
    """Work to do, the future of the caller who waits for it, and who that is."""

    work: Callable[[], Any]
    answer: asyncio.Future[Any] | None  # until it is settled
    client: Hashable
    _loop: asyncio.AbstractEventLoop = field(factory=asyncio.get_running_loop)
    waits: bool = True

    def attempt(self) -> tuple[_Settle, Any]:
        """Do the work while the caller waits, and return how the future is to be settled."""
        try:
            with cancel_scope(lambda: self.answer is not None and not self.answer.cancelled()):
                return asyncio.Future.set_result, self.work()
        except BaseException as error:
            return asyncio.Future.set_exception, error

    def tell(self, settle: _Settle, value: Any) -> None:
        """Settle the caller's future, from any thread, and let go of it."""
        answer, self.answer = self.answer, None

        def tell() -> None:
            if answer is not None and not answer.done():
                settle(answer, value)

        with suppress(RuntimeError):  # the loop is closed, so nobody waits any more
            self._loop.call_soon_threadsafe(tell)


class BoundedExecutor:
    """Run tasks in threads, first come, first served.

    The threads fetch the next task themselves, so that none is idle while the event loop is busy. A caller that is
    cancelled while it waits gives its place up at once. A thread cannot be stopped: of a caller that is cancelled later
    the work is told that it is not wanted any more, and keeps its place until it has noticed.

    One client may have a `share` of the threads at once, and as large a part of the places to wait; others pass what it
    has waiting beyond that.
    """

    def __init__(
        self,
        name: str,
        n_threads: int,
        *,
        max_waiting: int,
        max_wait_s: float,
        metrics: Metrics,
        share: float = math.inf,
    ) -> None:
        self._name = name
        self._places = Quota(n_threads + max_waiting, share * (n_threads + max_waiting) / n_threads)
        self._threads = Quota(n_threads, share)
        self._max_wait_s = max_wait_s
        self._metrics = metrics
        self._tasks: deque[_Task] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._mean_s = 0.0
        for number in range(n_threads):
            threading.Thread(target=self._serve, name=f"{name}-{number}", daemon=True).start()

    @property
    def n_waiting(self) -> int:
        """Tasks that no thread has fetched yet."""
        return len(self._tasks)

    @property
    def n_running(self) -> int:
        """Tasks that threads are working on."""
        return int(self._threads.held)

    async def run(self, work: Callable[[], T], client: Hashable = None) -> T:
        """Run `work` for a client in a thread and return what it returns.

        Raises:
            OverloadedError: too many wait already.
            BusyError: no thread became free in time.
            ShuttingDownError: the gate was closed before a thread was free.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()
        task = _Task(work, answer, client)
        with self._changed:
            if self._closed:
                raise ShuttingDownError
            if not self._places.acquire(1, client):
                self._metrics.add("requests_rejected_total", 1, self._name)
                raise OverloadedError(
                    "too much work is waiting", retry_after_s=self._expected_wait_s()
                )
            self._tasks.append(task)
            self._count_waiting()
            self._changed.notify()
        expiry = loop.call_later(self._max_wait_s, self._expire, task)
        try:
            return await answer
        finally:
            expiry.cancel()
            self._withdraw(task)
            del answer, task  # as at the end of `_work`

    def close(self) -> None:
        """Take no more work, and refuse what waits."""
        with self._changed:
            self._closed = True
            refused = list(self._tasks)
            self._tasks.clear()
            for task in refused:
                task.waits = False
                self._places.release(1, task.client)
            self._changed.notify_all()
        for task in refused:
            task.tell(asyncio.Future.set_exception, ShuttingDownError())

    # ── Waiting; the lock is held ────────────────────────────────────────────────────────────────────────────────────

    def _fetch(self) -> _Task | None:
        while True:
            for task in self._tasks:
                if self._threads.acquire(1, task.client):
                    self._tasks.remove(task)
                    task.waits = False
                    self._count_waiting()
                    return task
            if self._closed:
                return None
            self._changed.wait()

    def _count_waiting(self) -> None:
        self._metrics.put("requests_waiting", len(self._tasks), self._name)

    def _expected_wait_s(self) -> int:
        return max(1, math.ceil(self._mean_s * len(self._tasks) / self._threads.limit))

    # ── Leaving ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _withdraw(self, task: _Task) -> bool:
        """Take `task` out of the queue; return false if a thread had fetched it already."""
        with self._changed:
            was_waiting = task.waits
            if was_waiting:
                task.waits = False
                self._tasks.remove(task)
                self._places.release(1, task.client)
                self._count_waiting()
            return was_waiting

    def _expire(self, task: _Task) -> None:
        if self._withdraw(task):
            self._metrics.add("requests_rejected_total", 1, self._name)
            error = BusyError(
                "no thread became free in time", retry_after_s=self._expected_wait_s()
            )
            task.tell(asyncio.Future.set_exception, error)

    # ── The threads ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        while True:
            with self._changed:
                task = self._fetch()
            if task is None:
                return
            self._work(task)
            del task  # and with it the request's body

    def _work(self, task: _Task) -> None:
        started_s = time.perf_counter()
        outcome = task.attempt()
        with (
            self._changed
        ):  # before the caller is told, so that it finds the place free when it comes again
            self._mean_s += _SMOOTHING * (time.perf_counter() - started_s - self._mean_s)
            self._threads.release(1, task.client)
            self._places.release(1, task.client)
        task.tell(*outcome)
        # An error holds, by its traceback, the frames that it came through. A frame that in turn holds the error would
        # keep both, and with them the request's body, until the garbage collector comes by.
        del outcome
