"""Prompts go rather where their beginning was computed, and never wait for long because of it."""

import threading
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.generation.queue import request_queue as backlog_module
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
standings = st.builds(WorkerLoad, st.integers(0, 4), st.integers(0, 12), st.booleans())
prompts = st.lists(st.integers(0, 2), max_size=6).map(
    lambda parts: "".join(str(part) * BLOCK_CHARS for part in parts)
)


def ticket(number, text=LONG):
    return QueuedRequest(number, GenerationRequest(text), 7, 0.0)


def n_shared(one, other):
    """Count the blocks with which both prompts begin, slowly."""
    size = min(len(one), len(other))
    parts = range(0, size - BLOCK_CHARS + 1, BLOCK_CHARS)
    same = takewhile(
        lambda start: one[start : start + BLOCK_CHARS] == other[start : start + BLOCK_CHARS], parts
    )
    return len(list(same))


def without(standings, place):
    return [*standings[:place], *standings[place + 1 :]]


@given(st.lists(standings, min_size=1, max_size=5))
def test_somebody_with_room_always_takes_it(workers):
    """Wherever a ticket is left by one worker, another has room, knows more, is not much busier, and takes it."""
    left = [should_defer(one, without(workers, place)) for place, one in enumerate(workers)]
    for one, is_left in zip(workers, left, strict=True):
        better = [
            other
            for other in workers
            if other.has_capacity
            and other.n_known_blocks > one.n_known_blocks
            and other.n_requests - one.n_requests <= MAX_EXTRA_REQUESTS
        ]
        assert is_left == bool(better)
    most = max((one.n_known_blocks for one in workers if one.has_capacity), default=None)
    assert not any(
        is_left
        for one, is_left in zip(workers, left, strict=True)
        if one.has_capacity and one.n_known_blocks == most
    )


@given(st.lists(prompts, max_size=8), prompts, st.integers(0, 12))
def test_what_is_known_is_the_longest_common_beginning(seen, asked, max_blocks):
    """A worker knows of a prompt as many blocks as any of its recent ones shares, and remembers no more than it may."""
    known, everything = PrefixTable(max_blocks * _ENTRY_BYTES), PrefixTable()
    for prompt in seen:
        known.add(blocks_of(prompt))
        everything.add(blocks_of(prompt))
        assert len(known._blocks) <= max_blocks
    shared = [n_shared(prompt, asked) for prompt in seen]
    assert everything.n_known_blocks(blocks_of(asked)) == max(shared, default=0)
    blocks = blocks_of(asked)
    found = known.n_known_blocks(blocks)
    assert [block in known._blocks for block in blocks] == [True] * found + [False] * (
        len(blocks) - found
    )
    if seen:
        assert known.n_known_blocks(blocks_of(seen[-1])) == min(
            max_blocks, len(blocks_of(seen[-1]))
        )


@pytest.fixture
def pair():
    """Two workers of a backlog, of which the first has computed a long prompt."""
    backlog = RequestQueue(99)
    first, second = (QueueWorker(backlog, lambda _: None) for _ in range(2))
    backlog.put(ticket(0))
    (done,) = first.take(capacity(8), timeout_s=0)
    assert second.take(capacity(8), timeout_s=0) == []
    first.finish(done, "x")
    return backlog, first, second


def test_a_prompt_goes_where_its_beginning_was_computed(pair):
    """A worker leaves it to the one that knows it, and takes at once what nobody knows."""
    backlog, first, second = pair
    backlog.put(ticket(1, LONG + " and more"))
    backlog.put(ticket(2, "y" * len(LONG)))
    assert [each.id for each in second.take(capacity(8), timeout_s=0)] == [2]
    assert second.take(capacity(8), timeout_s=0) == []
    assert [each.id for each in first.take(capacity(8), timeout_s=0)] == [1]


def test_nothing_is_left_to_one_without_room(pair):
    """A worker that is full is not waited for."""
    backlog, first, second = pair
    first.take(capacity(0))
    backlog.put(ticket(1))
    assert [each.id for each in second.take(capacity(8), timeout_s=0)] == [1]


def test_nothing_is_left_to_one_that_is_much_busier(pair):
    """A worker with many more tickets is not waited for, whatever it knows."""
    backlog, first, second = pair
    for number in range(1, 2 + MAX_EXTRA_REQUESTS):
        backlog.put(ticket(number))
        assert second.take(capacity(8), timeout_s=0) == []
        assert [each.id for each in first.take(capacity(8), timeout_s=0)] == [number]
    backlog.put(ticket(20))
    assert [each.id for each in second.take(capacity(8), timeout_s=0)] == [20]


def test_nothing_is_left_to_one_that_is_gone(pair):
    """A worker that died is not waited for."""
    backlog, first, second = pair
    first.leave(RuntimeError("it died"))
    backlog.put(ticket(1))
    assert [each.id for each in second.take(capacity(8), timeout_s=0)] == [1]


def test_a_worker_that_does_not_come_is_not_waited_for_long(pair):
    """What is left to a worker in a long step is taken by another one soon."""
    backlog, _, second = pair
    backlog.put(ticket(1))
    assert second.take(capacity(8), timeout_s=0) == []
    assert [each.id for each in second.take(capacity(8), timeout_s=60)] == [1]


def test_an_idle_worker_wakes_for_what_it_knows(pair, monkeypatch):
    """Of two that wait, the one that knows the prompt gets it, whoever wakes first."""
    monkeypatch.setattr(backlog_module, "MAX_DEFER_S", 60)
    backlog, first, second = pair
    got = {}

    def serve(name, puller, timeout_s):
        got[name] = puller.take(capacity(8), timeout_s=timeout_s)

    waiting = [
        threading.Thread(target=serve, args=args)
        for args in (("first", first, 60), ("second", second, 0.5))
    ]
    for n_waiting, thread in enumerate(waiting, 1):
        thread.start()
        until(lambda n=n_waiting: len(backlog._changed._waiters) == n)
    backlog.put(ticket(1))
    for thread in waiting:
        thread.join()
    assert [each.id for each in got["first"]] == [1]
    assert got["second"] == []


def test_without_a_prefix_cache_nothing_is_left():
    """Where workers keep no prompts, whoever comes first takes the oldest."""
    backlog = RequestQueue(99, routes_by_prefix=False)
    first, second = (QueueWorker(backlog, lambda _: None) for _ in range(2))
    backlog.put(ticket(0))
    first.take(capacity(8))
    first.take(capacity(8), timeout_s=0)
    backlog.put(ticket(1))
    assert [each.id for each in second.take(capacity(8), timeout_s=0)] == [1]
