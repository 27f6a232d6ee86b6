"""Prefix routing: prompts go to the worker that has computed their prefix, without waiting long for it."""

import threading
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.generation.queue import request_queue
from relevance_gen.generation.queue.prefix_routing import (
    BLOCK_CHARS,
    MAX_EXTRA_REQUESTS,
    PrefixTable,
    WorkerLoad,
    blocks_of,
    should_defer,
)
from relevance_gen.generation.queue.request import QueuedRequest
from relevance_gen.generation.queue.request_queue import RequestQueue
from relevance_gen.lru import _ENTRY_BYTES
from relevance_gen.types import GenerationRequest
from tests.generation.scripted import QueueWorker, capacity
from tests.generation.test_runner import until

LONG = "x" * (4 * BLOCK_CHARS)
loads = st.builds(WorkerLoad, st.integers(0, 4), st.integers(0, 12), st.booleans())
prompts = st.lists(st.integers(0, 2), max_size=6).map(
    lambda parts: "".join(str(part) * BLOCK_CHARS for part in parts)
)


def queued_request(number, text=LONG):
    return QueuedRequest(number, GenerationRequest(text), 7, 0.0)


def n_shared(first, second):
    """Count the common leading blocks of two prompts."""
    size = min(len(first), len(second))
    parts = range(0, size - BLOCK_CHARS + 1, BLOCK_CHARS)
    same = takewhile(
        lambda start: first[start : start + BLOCK_CHARS] == second[start : start + BLOCK_CHARS],
        parts,
    )
    return len(list(same))


def without(loads, index):
    return [*loads[:index], *loads[index + 1 :]]


@given(st.lists(loads, min_size=1, max_size=5))
def test_should_defer_leaves_a_worker_that_takes_the_request(workers):
    """A worker defers only to a worker with capacity and a longer known prefix that is not much busier."""
    left = [should_defer(own, without(workers, index)) for index, own in enumerate(workers)]
    for own, is_left in zip(workers, left, strict=True):
        better = [
            other
            for other in workers
            if other.has_capacity
            and other.n_known_blocks > own.n_known_blocks
            and other.n_requests - own.n_requests <= MAX_EXTRA_REQUESTS
        ]
        assert is_left == bool(better)
    most = max((own.n_known_blocks for own in workers if own.has_capacity), default=None)
    assert not any(
        is_left
        for own, is_left in zip(workers, left, strict=True)
        if own.has_capacity and own.n_known_blocks == most
    )


@given(st.lists(prompts, max_size=8), prompts, st.integers(0, 12))
def test_n_known_blocks_is_longest_common_prefix(earlier, prompt, max_blocks):
    """A table has the longest prefix shared with a recent prompt, within its memory limit."""
    table, unlimited = PrefixTable(max_blocks * _ENTRY_BYTES), PrefixTable()
    for cached in earlier:
        table.add(blocks_of(cached))
        unlimited.add(blocks_of(cached))
        assert len(table._blocks) <= max_blocks
    shared = [n_shared(cached, prompt) for cached in earlier]
    assert unlimited.n_known_blocks(blocks_of(prompt)) == max(shared, default=0)
    blocks = blocks_of(prompt)
    n_known = table.n_known_blocks(blocks)
    assert [block in table._blocks for block in blocks] == [True] * n_known + [False] * (
        len(blocks) - n_known
    )
    if earlier:
        assert table.n_known_blocks(blocks_of(earlier[-1])) == min(
            max_blocks, len(blocks_of(earlier[-1]))
        )


@pytest.fixture
def pair():
    """Two workers of a queue, of which the first has computed a long prompt."""
    queue = RequestQueue(99)
    first, second = (QueueWorker(queue, lambda _: None) for _ in range(2))
    queue.put(queued_request(0))
    (done,) = first.take(capacity(8), timeout_s=0)
    assert second.take(capacity(8), timeout_s=0) == []
    first.finish(done, "x")
    return queue, first, second


def test_take_prompt_goes_to_worker_with_prefix(pair):
    """A worker defers a prompt that the first worker has computed, and takes an unknown prompt at once."""
    queue, first, second = pair
    queue.put(queued_request(1, LONG + " and more"))
    queue.put(queued_request(2, "y" * len(LONG)))
    assert [queued.id for queued in second.take(capacity(8), timeout_s=0)] == [2]
    assert second.take(capacity(8), timeout_s=0) == []
    assert [queued.id for queued in first.take(capacity(8), timeout_s=0)] == [1]


def test_take_does_not_defer_to_full_worker(pair):
    """A request is not deferred to a worker without capacity."""
    queue, first, second = pair
    first.take(capacity(0))
    queue.put(queued_request(1))
    assert [queued.id for queued in second.take(capacity(8), timeout_s=0)] == [1]


def test_take_does_not_defer_to_busy_worker(pair):
    """A request is not deferred to a worker with many more requests, even if it has computed the prefix."""
    queue, first, second = pair
    for number in range(1, 2 + MAX_EXTRA_REQUESTS):
        queue.put(queued_request(number))
        assert second.take(capacity(8), timeout_s=0) == []
        assert [queued.id for queued in first.take(capacity(8), timeout_s=0)] == [number]
    queue.put(queued_request(20))
    assert [queued.id for queued in second.take(capacity(8), timeout_s=0)] == [20]


def test_take_does_not_defer_to_failed_worker(pair):
    """A request is not deferred to a worker that has left."""
    queue, first, second = pair
    first.leave(RuntimeError("it died"))
    queue.put(queued_request(1))
    assert [queued.id for queued in second.take(capacity(8), timeout_s=0)] == [1]


def test_take_defers_for_limited_time(pair):
    """A deferred request is taken by the second worker after MAX_DEFER_S if the first worker is in a long step."""
    queue, _, second = pair
    queue.put(queued_request(1))
    assert second.take(capacity(8), timeout_s=0) == []
    assert [queued.id for queued in second.take(capacity(8), timeout_s=60)] == [1]


def test_take_idle_worker_with_prefix_gets_request(pair, monkeypatch):
    """Of two waiting workers, the worker that has computed the prompt gets the request, regardless of which wakes first."""
    monkeypatch.setattr(request_queue, "MAX_DEFER_S", 60)
    queue, first, second = pair
    got = {}

    def serve(name, worker, timeout_s):
        got[name] = worker.take(capacity(8), timeout_s=timeout_s)

    waiting = [
        threading.Thread(target=serve, args=args)
        for args in (("first", first, 60), ("second", second, 0.5))
    ]
    for n_waiting, thread in enumerate(waiting, 1):
        thread.start()
        until(lambda n=n_waiting: len(queue._condition._waiters) == n)
    queue.put(queued_request(1))
    for thread in waiting:
        thread.join()
    assert [queued.id for queued in got["first"]] == [1]
    assert got["second"] == []


def test_take_without_prefix_cache_does_not_defer():
    """If workers have no prefix cache, the first worker that calls takes the oldest request."""
    queue = RequestQueue(99, routes_by_prefix=False)
    first, second = (QueueWorker(queue, lambda _: None) for _ in range(2))
    queue.put(queued_request(0))
    first.take(capacity(8))
    first.take(capacity(8), timeout_s=0)
    queue.put(queued_request(1))
    assert [queued.id for queued in second.take(capacity(8), timeout_s=0)] == [1]
