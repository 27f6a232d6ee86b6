"""A mailbox stands in for the backlogs of several clients, and mixes nothing up."""

from __future__ import annotations

import threading

import pytest

from relevance_gen.cluster.generation import mailbox
from relevance_gen.cluster.generation.mailbox import Mailbox
from relevance_gen.generation.queue.events import Failed, TextDelta
from relevance_gen.generation.queue.request import QueuedRequest
from relevance_gen.types import GenerationRequest
from tests.generation.scripted import capacity


def ticket(number: int) -> QueuedRequest:
    return QueuedRequest(number, GenerationRequest("a"), seed=0, created=0.0)


def test_two_clients_with_the_same_numbers() -> None:
    """Each client is told of its own tickets, by its own numbers, when the step is over."""
    box = Mailbox()
    box.register(lambda _: None)
    box.exchange("x", [ticket(7)])
    box.exchange("y", [ticket(7)])
    first, second = box.take(0, capacity(4), timeout_s=0)
    assert first.id != second.id
    box.deliver(0, TextDelta(first.id, 0, "for x"))
    box.deliver(0, TextDelta(second.id, 1, "for y"))
    box.deliver(0, Failed(second.id, ValueError("no")))
    assert box.exchange("x", []).events == []
    assert box.take(0, capacity(1, 2), timeout_s=0) == []
    told = box.exchange("x", [])
    assert told.events == [TextDelta(7, 0, "for x")]
    assert told.capacity == capacity(1, 2)
    (_, done) = box.exchange("y", []).events
    assert isinstance(done, Failed)
    assert done.request_id == 7
    assert box.exchange("y", [ticket(8)]).capacity == capacity(0, 2)


def test_a_cancelled_ticket_is_dropped() -> None:
    """A ticket that waits is never taken, one that was taken is dropped by the worker; neither is told of again."""
    dropped: list[int] = []
    box = Mailbox()
    box.register(dropped.append)
    box.exchange("x", [ticket(1), ticket(2)])
    (taken,) = box.take(0, capacity(1), timeout_s=0)
    box.exchange("x", [ticket(3)], [1, 2, 3])
    assert taken.id in dropped
    box.deliver(0, TextDelta(taken.id, 0, "too late"))
    assert box.take(0, capacity(4), timeout_s=0) == []
    assert box.exchange("x", []).events == []


def test_a_silent_client_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tickets of a client that is not heard of any more are dropped; those of others stay."""
    dropped: list[int] = []
    box = Mailbox()
    box.register(dropped.append)
    box.exchange("gone", [ticket(1)])
    (taken,) = box.take(0, capacity(1), timeout_s=0)
    monkeypatch.setattr(mailbox, "CLIENT_TIMEOUT_S", -1.0)
    assert box.take(0, capacity(1), timeout_s=0) == []
    assert dropped == [taken.id]


def test_a_worker_that_left_is_told_last() -> None:
    """What happened before is told first, then why the worker left; whoever waits is woken."""
    box = Mailbox()
    box.register(lambda _: None)
    box.exchange("x", [ticket(1)])
    (taken,) = box.take(0, capacity(1), timeout_s=0)
    box.deliver(0, TextDelta(taken.id, 0, "last words"))
    box.take(0, capacity(0), timeout_s=0)
    threading.Timer(0.05, box.leave, [0, ValueError("broken")]).start()
    assert box.exchange("x", [], timeout_s=10).events
    with pytest.raises(ValueError, match="broken"):
        box.exchange("x", [], timeout_s=10)
    assert box.take(0, capacity(1)) is None
