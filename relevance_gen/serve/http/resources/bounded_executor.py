"""A thread pool with limits on running tasks, queued tasks and waiting time."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from attrs import define, field, frozen

from relevance_gen.errors import BusyError, OverloadedError, ShuttingDownError
from relevance_gen.quota import Quota
from relevance_gen.request_scope import cancel_scope
from relevance_gen.serve.metrics import Metrics

T = TypeVar("T")

CLIENT_FRACTION = 7 / 8
"""Part of the queue and of the memory of a pool that one client may occupy if it has a limit.

With the default settings, the memory suffices for the largest body at 14 times its size."""
_SMOOTHING = 0.1
"""Weight of the newest task in the running mean of task durations."""

_Settle: TypeAlias = Callable[[asyncio.Future[Any], Any], None]
"""`Future.set_result` or `Future.set_exception`."""


@frozen
class _Outcome:
    """A result or an exception, and the method that puts it into a future."""

    settle: _Settle
    value: Any


@define(eq=False, repr=False)
class _Task:
    """Work to do for a client.

    Attributes:
        work: the function to call.
        future: the future that the caller awaits; None once it is settled.
        client: the client on whose limits the task counts.
        is_queued: whether no thread has fetched the task yet.
    """

    work: Callable[[], Any]
    future: asyncio.Future[Any] | None
    client: Hashable
    _loop: asyncio.AbstractEventLoop = field(factory=asyncio.get_running_loop)
    is_queued: bool = True

    def run(self) -> _Outcome:
        """Call `work`, and return its result or its exception.

        `work` runs in a cancel scope, so that `raise_if_cancelled` raises if no caller waits any
        more.
        """
        try:
            with cancel_scope(self._is_required):
                return _Outcome(asyncio.Future.set_result, self.work())
        except BaseException as error:
            return _Outcome(asyncio.Future.set_exception, error)

    def _is_required(self) -> bool:
        return self.future is not None and not self.future.cancelled()

    def finish(self, outcome: _Outcome) -> None:
        """Settle the caller's future, from any thread, and drop the reference to it."""
        future = self.future
        self.future = None
        with suppress(RuntimeError):  # the event loop is closed: no caller waits
            self._loop.call_soon_threadsafe(_settle, future, outcome)


def _settle(future: asyncio.Future[Any] | None, outcome: _Outcome) -> None:
    if future is not None and not future.done():
        outcome.settle(future, outcome.value)


class BoundedExecutor:
    """Runs tasks in threads. Clients take turns; the tasks of one client run in order of arrival.

    The threads fetch the next task themselves, so that none is idle while the event loop is busy.
    A caller that is cancelled while its task is queued leaves the queue at once. A running thread
    cannot be stopped: if its caller is cancelled, the next call of
    `request_scope.raise_if_cancelled` in the work raises. The task keeps its thread until the work
    ends.

    Args:
        name: the name of the pool, in thread names and metrics.
        n_threads: number of threads.
        max_queued: tasks that may wait for a thread.
        max_wait_s: how long a task may wait for a thread.
        metrics: counts queued and rejected tasks.
        client_limit: threads that one client may occupy at once. Its running and queued tasks
            together may occupy the same fraction of all places (threads and queue), but at most
            `CLIENT_FRACTION`.
    """

    def __init__(
        self,
        name: str,
        n_threads: int,
        *,
        max_queued: int,
        max_wait_s: float,
        metrics: Metrics,
        client_limit: float = math.inf,
    ) -> None:
        n_slots = n_threads + max_queued
        client_slots = math.inf
        if client_limit < math.inf:
            client_slots = math.ceil(n_slots * min(client_limit / n_threads, CLIENT_FRACTION))
        self._name = name
        self._slots = Quota(n_slots, client_slots)
        self._threads = Quota(n_threads, client_limit)
        self._max_wait_s = max_wait_s
        self._metrics = metrics
        # The queued tasks of each client. The first client has the next turn.
        self._queues: dict[Hashable, deque[_Task]] = defaultdict(deque)
        self._condition = threading.Condition()
        self._is_closed = False
        self._mean_s = 0.0
        for number in range(n_threads):
            threading.Thread(target=self._serve, name=f"{name}-{number}", daemon=True).start()

    @property
    def n_queued(self) -> int:
        """Tasks that wait for a thread."""
        return sum(map(len, self._queues.values()))

    @property
    def n_running(self) -> int:
        """Tasks that threads are working on."""
        return int(self._threads.held)

    async def run(self, work: Callable[[], T], client: Hashable = None) -> T:
        """Run `work` for a client in a thread and return its result.

        An exception of `work` is raised to the caller.

        Raises:
            OverloadedError: the queue is full, or the client has reached its limit.
            BusyError: no thread became free in time.
            ShuttingDownError: the executor is closed, or was closed before a thread was free.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        task = _Task(work, future, client)
        self._enqueue(task)
        timer = loop.call_later(self._max_wait_s, self._expire, task)
        try:
            return await future
        finally:
            timer.cancel()
            self._withdraw(task)
            del future, task  # see the end of `_work`

    def _enqueue(self, task: _Task) -> None:
        with self._condition:
            if self._is_closed:
                raise ShuttingDownError
            if not self._slots.acquire(1, task.client):
                self._metrics.add("requests_rejected_total", 1, self._name)
                raise OverloadedError(
                    "too much work is waiting", retry_after_s=self._expected_wait_s()
                )
            self._queues[task.client].append(task)
            self._show_queued()
            self._condition.notify()

    def close(self) -> None:
        """Accept no more work, and reject the queued tasks."""
        with self._condition:
            self._is_closed = True
            rejected = list(itertools.chain.from_iterable(self._queues.values()))
            self._queues.clear()
            for task in rejected:
                task.is_queued = False
                self._slots.release(1, task.client)
            self._condition.notify_all()
        for task in rejected:
            task.finish(_Outcome(asyncio.Future.set_exception, ShuttingDownError()))

    def _show_queued(self) -> None:
        self._metrics.put("requests_waiting", self.n_queued, self._name)

    def _expected_wait_s(self) -> int:
        n_tasks_per_thread = self.n_queued / self._threads.limit
        return max(1, math.ceil(self._mean_s * n_tasks_per_thread))

    def _withdraw(self, task: _Task) -> bool:
        """Remove `task` from the queue; return false if a thread has fetched it already."""
        with self._condition:
            was_queued = task.is_queued
            if was_queued:
                task.is_queued = False
                self._queues[task.client].remove(task)
                self._slots.release(1, task.client)
                self._show_queued()
            return was_queued

    def _expire(self, task: _Task) -> None:
        if self._withdraw(task):
            self._metrics.add("requests_rejected_total", 1, self._name)
            error = BusyError(
                "no thread became free in time", retry_after_s=self._expected_wait_s()
            )
            task.finish(_Outcome(asyncio.Future.set_exception, error))

    def _serve(self) -> None:
        """Run tasks in this thread until the executor is closed."""
        while True:
            with self._condition:
                task = self._fetch()
            if task is None:
                return
            self._work(task)
            del task  # and with it the body of the request

    def _fetch(self) -> _Task | None:
        """Remove and return a queued task of the next client below its limit of threads.

        Waits until there is such a task; returns None if there is none and the executor is closed.
        The caller must hold the lock of `_condition`.
        """
        while True:
            for client, tasks in self._queues.items():
                if tasks and self._threads.acquire(1, client):
                    task = tasks.popleft()
                    task.is_queued = False
                    # The next turn of this client comes after those of all others.
                    self._queues[client] = self._queues.pop(client)
                    self._show_queued()
                    return task
            if self._is_closed:
                return None
            self._condition.wait()

    def _work(self, task: _Task) -> None:
        started_s = time.perf_counter()
        outcome = task.run()
        # Release the slot before the caller continues: its next task must find it free.
        with self._condition:
            self._mean_s += _SMOOTHING * (time.perf_counter() - started_s - self._mean_s)
            self._threads.release(1, task.client)
            self._slots.release(1, task.client)
            # Other clients come first, also those whose tasks arrived after the last turn.
            self._queues[task.client] = self._queues.pop(task.client, deque())
        task.finish(outcome)
        # The traceback of an exception refers to the frames that it passed through. A frame that
        # refers to the exception would keep both, and the body of the request, until the garbage
        # collector runs.
        del outcome
