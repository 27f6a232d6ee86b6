"""The gate: bounded work, bounded waiting."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.errors import BusyError, OverloadedError, ShuttingDownError
from relevance_gen.request_scope import raise_if_cancelled
from relevance_gen.serve.http.resources.bounded_executor import BoundedExecutor
from relevance_gen.serve.metrics import Metrics


def gate(n_threads: int, max_queued: int, max_wait_s: float = 5) -> BoundedExecutor:
    """Make a gate."""
    return BoundedExecutor(
        "search",
        n_threads,
        max_queued=max_queued,
        max_wait_s=max_wait_s,
        metrics=Metrics.for_one_process(),
    )


@given(n_threads=st.integers(1, 4), max_queued=st.integers(0, 6), callers=st.integers(0, 14))
def test_executor_rejects_tasks_beyond_threads_and_queue(
    n_threads: int, max_queued: int, callers: int
) -> None:
    """Of callers that come at once, exactly threads + waiting places are served, never more than threads at a time."""
    running = Counter[str]()
    lock = threading.Lock()

    def work() -> int:
        with lock:
            running["now"] += 1
            running["most"] = max(running["most"], running["now"])
        time.sleep(0.001)
        with lock:
            running["now"] -= 1
        return 1

    async def run() -> list[Any]:
        tried = gate(n_threads, max_queued)
        outcomes = await asyncio.gather(
            *(tried.run(work) for _ in range(callers)), return_exceptions=True
        )
        assert tried.n_queued == 0
        tried.close()
        return outcomes

    outcomes = asyncio.run(run())
    served = outcomes.count(1)
    assert served == min(callers, n_threads + max_queued)
    assert all(isinstance(outcome, OverloadedError) for outcome in outcomes if outcome != 1)
    assert running["most"] <= n_threads


def test_executor_runs_tasks_in_order_of_arrival() -> None:
    """Those who wait are served in the order in which they came."""
    order: list[int] = []

    async def run() -> None:
        tried = gate(1, 20)
        await asyncio.gather(*(tried.run(lambda n=n: order.append(n)) for n in range(20)))

    asyncio.run(run())
    assert order == list(range(20))


async def until(holds: Callable[[], bool]) -> None:
    """Wait until `holds`, a minute at most."""
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.001)


def test_cancelled_waiter_frees_its_slot() -> None:
    """A caller cancelled while it waits, or while its work runs, costs the gate no place."""

    async def run() -> None:
        tried, go_on = gate(1, 10), threading.Event()
        slow = asyncio.create_task(tried.run(go_on.wait))
        await until(lambda: tried.n_running == 1)
        waiting = asyncio.create_task(tried.run(lambda: None))
        await until(lambda: tried.n_queued == 1)
        waiting.cancel()
        slow.cancel()
        await asyncio.gather(waiting, slow, return_exceptions=True)
        assert (tried.n_queued, tried.n_running) == (0, 1)  # the thread is still at work
        last = asyncio.create_task(tried.run(lambda: 7))
        await until(lambda: tried.n_queued == 1)
        go_on.set()
        assert await last == 7
        await until(lambda: (tried.n_queued, tried.n_running) == (0, 0))

    asyncio.run(run())


def test_executor_raises_errors_and_frees_slots() -> None:
    """An exception in the work is the caller's, and the next is served."""

    async def run() -> None:
        tried = gate(1, 0)
        for _ in range(100):
            with pytest.raises(ZeroDivisionError):
                await tried.run(lambda: 1 / 0)

    asyncio.run(run())


def test_long_wait_is_rejected() -> None:
    """A task that waits too long is rejected with a time to retry."""

    async def run() -> None:
        tried, go_on = gate(1, 1, 0.02), threading.Event()
        first = asyncio.create_task(tried.run(go_on.wait))
        await until(lambda: tried.n_running == 1)
        with pytest.raises(BusyError) as caught:
            await tried.run(lambda: None)
        assert caught.value.retry_after_s == 1
        go_on.set()
        await first

    asyncio.run(run())


def test_closed_executor_rejects_tasks() -> None:
    """Tasks in the queue when the executor is closed, and later tasks, are rejected: the server ends."""

    async def run() -> list[Any]:
        tried, go_on = gate(1, 10), threading.Event()
        callers = [asyncio.create_task(tried.run(go_on.wait)) for _ in range(4)]
        await until(lambda: (tried.n_running, tried.n_queued) == (1, 3))
        tried.close()
        go_on.set()
        return await asyncio.gather(*callers, tried.run(lambda: None), return_exceptions=True)

    first, *others = asyncio.run(run())
    assert first is True
    assert [type(other) for other in others] == [ShuttingDownError] * 4


def test_executor_error_frees_objects_of_the_work() -> None:
    """After the caller has handled an error, the objects of the work are freed without the garbage collector."""
    held: list[weakref.ref[Any]] = []

    def work() -> None:
        body = {1, 2, 3}
        held.append(weakref.ref(body))
        raise ValueError("refused")

    async def run() -> None:
        tried = gate(1, 0)
        with suppress(ValueError):
            await tried.run(work)
        await tried.run(lambda: None)  # the thread has released the first task
        tried.close()

    gc.disable()
    try:
        asyncio.run(run())
        assert held[0]() is None
    finally:
        gc.enable()


def test_executor_client_limit_applies_to_threads() -> None:
    """While a client occupies its share of threads, its further tasks wait, and later tasks of other clients overtake them."""

    async def run() -> list[str]:
        tried = BoundedExecutor(
            "extraction",
            3,
            max_queued=12,
            max_wait_s=60,
            metrics=Metrics.for_one_process(),
            client_limit=1,
        )
        done: list[str] = []
        held = threading.Event()
        begun = threading.Event()
        slow = asyncio.create_task(tried.run(lambda: (begun.set(), held.wait()), "greedy"))
        await asyncio.to_thread(begun.wait)
        more = [
            asyncio.create_task(tried.run(lambda: done.append("greedy"), "greedy"))
            for _ in range(4)
        ]
        await tried.run(lambda: done.append("modest"), "modest")
        assert (tried.n_running, tried.n_queued) == (1, 4)
        held.set()
        await asyncio.gather(slow, *more)
        tried.close()
        return done

    assert asyncio.run(run()) == ["modest", *["greedy"] * 4]


def test_executor_client_limit_applies_to_queue() -> None:
    """A client cannot fill the queue for other clients; it can queue again after its work is done."""

    async def run() -> None:
        tried = BoundedExecutor(
            "extraction",
            4,
            max_queued=8,
            max_wait_s=60,
            metrics=Metrics.for_one_process(),
            client_limit=1,
        )
        held = threading.Event()
        asked = [asyncio.create_task(tried.run(held.wait, "greedy")) for _ in range(12)]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
        assert await tried.run(lambda: "done", "modest") == "done"
        held.set()
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [bool] * 3 + [OverloadedError] * 9
        assert await asyncio.gather(*(tried.run(lambda: 1, "greedy") for _ in range(3))) == [
            1,
            1,
            1,
        ]
        tried.close()

    asyncio.run(run())


def test_executor_cancelled_caller_cancels_work() -> None:
    """When a caller is cancelled, the next check in its work raises, and the thread becomes free."""

    async def run() -> None:
        tried, begun = gate(1, 1), threading.Event()

        def work() -> None:
            begun.set()
            while True:
                raise_if_cancelled()

        caller = asyncio.create_task(tried.run(work))
        await until(begun.is_set)
        caller.cancel()
        assert await tried.run(lambda: "the next") == "the next"
        tried.close()

    asyncio.run(run())


def test_executor_with_one_thread_serves_clients_in_turns() -> None:
    """A client that queues later is served after one task of another client, before its further tasks."""

    async def run() -> list[str]:
        tried = gate(1, 20)
        done: list[str] = []
        held, begun = threading.Event(), threading.Event()
        slow = asyncio.create_task(tried.run(lambda: (begun.set(), held.wait()), "greedy"))
        await asyncio.to_thread(begun.wait)
        clients = [*["greedy"] * 4, "modest", "modest", "third"]
        tasks = []
        for number, client in enumerate(clients):
            name = f"{client} {number}"
            work = partial(done.append, name)
            tasks.append(asyncio.create_task(tried.run(work, client)))
        await until(lambda: tried.n_queued == len(clients))
        held.set()
        await asyncio.gather(slow, *tasks)
        tried.close()
        return done

    order = asyncio.run(run())
    assert order == [
        "modest 4",
        "third 6",
        "greedy 0",
        "modest 5",
        "greedy 1",
        "greedy 2",
        "greedy 3",
    ]


def test_executor_with_one_thread_leaves_queue_places_to_other_clients() -> None:
    """With one thread, a client that has used its part of the queue is refused, and others are not."""

    async def run() -> None:
        tried = BoundedExecutor(
            "search",
            1,
            max_queued=7,
            max_wait_s=60,
            metrics=Metrics.for_one_process(),
            client_limit=1,
        )
        held = threading.Event()
        tasks = [asyncio.create_task(tried.run(held.wait, "greedy")) for _ in range(9)]
        other = asyncio.create_task(tried.run(lambda: "done", "modest"))
        await until(lambda: tried.n_queued == 7)
        held.set()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [bool] * 7 + [OverloadedError] * 2
        assert await other == "done"
        tried.close()

    asyncio.run(run())
