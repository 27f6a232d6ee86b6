"""Mailbox: serves the queues of several clients without mixing their requests."""

from __future__ import annotations

import threading

import pytest

from relevance_gen.cluster.generation import mailbox
from relevance_gen.cluster.generation.mailbox import Mailbox
from relevance_gen.generation.queue.events import Failed, TextDelta
from relevance_gen.generation.queue.request import QueuedRequest
from relevance_gen.types import GenerationRequest
from tests.generation.scripted import capacity


def queued_request(number: int) -> QueuedRequest:
    return QueuedRequest(number, GenerationRequest("a"), seed=0, created=0.0)


def test_exchange_two_clients_with_equal_ids() -> None:
    """Each client receives the events of its own requests, with its own ids, after the step."""
    box = Mailbox()
    box.register(lambda _: None)
    box.exchange("x", [queued_request(7)])
    box.exchange("y", [queued_request(7)])
    first, second = box.take(0, capacity(4), timeout_s=0)
    assert first.id != second.id
    box.deliver(0, TextDelta(first.id, 0, "for x"))
    box.deliver(0, TextDelta(second.id, 1, "for y"))
    box.deliver(0, Failed(second.id, ValueError("no")))
    assert box.exchange("x", []).events == []
    assert box.take(0, capacity(1, 2), timeout_s=0) == []
    delivery = box.exchange("x", [])
    assert delivery.events == [TextDelta(7, 0, "for x")]
    assert delivery.capacity == capacity(1, 2)
    (_, done) = box.exchange("y", []).events
    assert isinstance(done, Failed)
    assert done.request_id == 7
    assert box.exchange("y", [queued_request(8)]).capacity == capacity(0, 2)


def test_exchange_cancelled_request_is_dropped() -> None:
    """A waiting request is never taken, a taken request is dropped by the worker, and no event of either is delivered."""
    dropped: list[int] = []
    box = Mailbox()
    box.register(dropped.append)
    box.exchange("x", [queued_request(1), queued_request(2)])
    (taken,) = box.take(0, capacity(1), timeout_s=0)
    box.exchange("x", [queued_request(3)], [1, 2, 3])
    assert taken.id in dropped
    box.deliver(0, TextDelta(taken.id, 0, "too late"))
    assert box.take(0, capacity(4), timeout_s=0) == []
    assert box.exchange("x", []).events == []


def test_take_drops_requests_of_lost_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """The requests of a client that has not called for too long are dropped."""
    dropped: list[int] = []
    box = Mailbox()
    box.register(dropped.append)
    box.exchange("gone", [queued_request(1)])
    (taken,) = box.take(0, capacity(1), timeout_s=0)
    monkeypatch.setattr(mailbox, "CLIENT_TIMEOUT_S", -1.0)
    assert box.take(0, capacity(1), timeout_s=0) == []
    assert dropped == [taken.id]


def test_exchange_raises_worker_error_after_events() -> None:
    """Earlier events are delivered first, then the worker's error, which also wakes a waiting client."""
    box = Mailbox()
    box.register(lambda _: None)
    box.exchange("x", [queued_request(1)])
    (taken,) = box.take(0, capacity(1), timeout_s=0)
    box.deliver(0, TextDelta(taken.id, 0, "last words"))
    box.take(0, capacity(0), timeout_s=0)
    threading.Timer(0.05, box.unregister, [0, ValueError("broken")]).start()
    assert box.exchange("x", [], timeout_s=10).events
    with pytest.raises(ValueError, match="broken"):
        box.exchange("x", [], timeout_s=10)
    assert box.take(0, capacity(1)) is None
