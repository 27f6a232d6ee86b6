"""The actor of a runner serves several clients without mixing their requests."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

from relevance_gen.cluster.generation import runner_actor
from relevance_gen.cluster.generation.runner_actor import RunnerActor, RunnerSpec
from relevance_gen.generation.queue.events import Failed, TextDelta
from relevance_gen.generation.queue.request import QueuedRequest
from relevance_gen.generation.worker import Worker
from relevance_gen.llama.options import ModelOptions
from relevance_gen.types import GenerationRequest
from tests.cluster.shared import until
from tests.generation.scripted import capacity


def queued_request(number: int) -> QueuedRequest:
    return QueuedRequest(number, GenerationRequest("a"), seed=0, created=0.0)


@pytest.fixture
def create_actor(monkeypatch: pytest.MonkeyPatch) -> Callable[..., RunnerActor]:
    """Return a function that creates an actor in this process, whose worker has no thread."""
    monkeypatch.setattr(runner_actor.ray, "get_gpu_ids", list)
    monkeypatch.setattr(Worker, "start", lambda _: None)

    def create(name: str | None = None) -> RunnerActor:
        return RunnerActor(RunnerSpec(None, ModelOptions(), 0, name))

    return create


@pytest.fixture
def actor(create_actor: Callable[..., RunnerActor]) -> RunnerActor:
    return create_actor()


def test_exchange_two_clients_with_equal_ids(actor: RunnerActor) -> None:
    """Each client receives the events of its own requests, with its own ids."""
    actor.exchange("x", [queued_request(7)])
    actor.exchange("y", [queued_request(7)])
    first, second = actor.take(0, capacity(4), timeout_s=0)
    assert first.id != second.id
    actor.deliver(0, TextDelta(first.id, 0, "for x"))
    actor.deliver(0, TextDelta(second.id, 1, "for y"))
    actor.deliver(0, Failed(second.id, ValueError("no")))
    assert actor.take(0, capacity(1, 2), timeout_s=0) == []
    delivery = actor.exchange("x", [])
    assert delivery.events == [TextDelta(7, 0, "for x")]
    assert delivery.capacity == capacity(1, 2)
    (_, done) = actor.exchange("y", []).events
    assert isinstance(done, Failed)
    assert done.request_id == 7
    assert actor.exchange("y", [queued_request(8)]).capacity == capacity(0, 2)


def test_exchange_cancelled_request_is_dropped(actor: RunnerActor) -> None:
    """A waiting request is never taken, a taken request is dropped by the worker, and no event of either is delivered."""
    dropped: list[int] = []
    actor.register(dropped.append)
    actor.exchange("x", [queued_request(1), queued_request(2)])
    taken = actor.take(0, capacity(4), timeout_s=0)
    actor.exchange("x", [queued_request(3)], [1, 2, 3])
    assert {queued.id for queued in taken} < set(dropped)
    actor.deliver(0, TextDelta(taken[0].id, 0, "too late"))
    assert actor.take(0, capacity(4), timeout_s=0) == []
    assert actor.exchange("x", []).events == []


def test_take_drops_requests_of_lost_client(
    actor: RunnerActor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The requests of a client that has not called for too long are dropped."""
    dropped: list[int] = []
    actor.register(dropped.append)
    actor.exchange("gone", [queued_request(1)])
    (taken,) = actor.take(0, capacity(1), timeout_s=0)
    monkeypatch.setattr(runner_actor, "CLIENT_TIMEOUT_S", -1.0)
    assert actor.take(0, capacity(1), timeout_s=0) == []
    assert dropped == [taken.id]


def test_exchange_raises_worker_error_after_events(actor: RunnerActor) -> None:
    """Earlier events are delivered first, then the worker's error, which also wakes a waiting client."""
    actor.exchange("x", [queued_request(1)])
    (taken,) = actor.take(0, capacity(1), timeout_s=0)
    actor.deliver(0, TextDelta(taken.id, 0, "last words"))
    threading.Timer(0.05, actor.unregister, [0, ValueError("broken")]).start()
    assert actor.exchange("x", [], timeout_s=10).events
    with pytest.raises(ValueError, match="broken"):
        actor.exchange("x", [], timeout_s=10)
    assert actor.take(0, capacity(1)) is None


def test_unused_shared_runner_ends_after_loading(
    create_actor: Callable[..., RunnerActor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time without calls counts from the end of loading, however long loading takes."""
    ended: list[Any] = []
    monkeypatch.setattr(runner_actor, "_UNUSED_TIMEOUT_S", 0.0)
    monkeypatch.setattr(os, "_exit", ended.append)
    worker = create_actor("shared")._worker
    assert not worker.wait_loaded(0.1)
    assert not ended
    worker.stop()
    until(lambda: ended == [0], "the process ends")
