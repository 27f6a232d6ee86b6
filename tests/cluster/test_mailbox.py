"""A mailbox stands in for the backlogs of several clients, and mixes nothing up."""

from __future__ import annotations

import threading

import pytest

from relevance_gen.cluster.generation import mailbox
from relevance_gen.cluster.generation.mailbox import Mailbox
from relevance_gen.generation.queue.request import QueuedRequest
from relevance_gen.types import GenerationRequest
from tests.generation.scripted import rooms


def ticket(number: int) -> QueuedRequest:
    return QueuedRequest(number, GenerationRequest("a"), seed=0, created=0.0)


def test_two_clients_with_the_same_numbers() -> None:
    """Each client is told of its own tickets, by its own numbers, when the step is over."""
    box = Mailbox()
    box.join(lambda _: None)
    box.exchange("x", [ticket(7)])
    box.exchange("y", [ticket(7)])
    first, second = box.take(rooms(4), timeout_s=0)
    assert first.id != second.id
    box.text(first, 0, "for x")
    box.text(second, 1, "for y")
    box.done(second, ValueError("no"))
    assert box.exchange("x", []).events == []
    assert box.take(rooms(1, 2), timeout_s=0) == []
    told = box.exchange("x", [])
    assert told.events == [("text", 7, 0, "for x")]
    assert told.rooms == rooms(1, 2)
    (_, done) = box.exchange("y", []).events
    assert done[:2] == ("done", 7)
    assert box.exchange("y", [ticket(8)]).rooms == rooms(0, 2)


def test_a_cancelled_ticket_is_dropped() -> None:
    """A ticket that waits is never taken, one that was taken is dropped by the worker; neither is told of again."""
    dropped: list[int] = []
    box = Mailbox()
    box.join(dropped.append)
    box.exchange("x", [ticket(1), ticket(2)])
    (taken,) = box.take(rooms(1), timeout_s=0)
    box.exchange("x", [ticket(3)], [1, 2, 3])
    assert taken.id in dropped
    box.text(taken, 0, "too late")
    assert box.take(rooms(4), timeout_s=0) == []
    assert box.exchange("x", []).events == []


def test_a_silent_client_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tickets of a client that is not heard of any more are dropped; those of others stay."""
    dropped: list[int] = []
    box = Mailbox()
    box.join(dropped.append)
    box.exchange("gone", [ticket(1)])
    (taken,) = box.take(rooms(1), timeout_s=0)
    monkeypatch.setattr(mailbox, "SILENCE_S", -1.0)
    assert box.take(rooms(1), timeout_s=0) == []
    assert dropped == [taken.id]


def test_a_worker_that_left_is_told_last() -> None:
    """What happened before is told first, then why the worker left; whoever waits is woken."""
    box = Mailbox()
    box.join(lambda _: None)
    box.exchange("x", [ticket(1)])
    (taken,) = box.take(rooms(1), timeout_s=0)
    box.text(taken, 0, "last words")
    box.take(rooms(0), timeout_s=0)
    threading.Timer(0.05, box.leave, [ValueError("broken")]).start()
    assert box.exchange("x", [], timeout_s=10).events
    with pytest.raises(ValueError, match="broken"):
        box.exchange("x", [], timeout_s=10)
    assert box.take(rooms(1)) is None
