"""Calls of shards: a replica that does not answer is asked around, and given up."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from ray import cloudpickle

from relevance_gen.cluster import ClusterIndex, calls
from relevance_gen.cluster.calls import Calls, Pace
from relevance_gen.cluster.shard import OutdatedError
from relevance_gen.cluster.state import IndexState
from relevance_gen.errors import TimedOutError
from tests.cluster.shared import process_of, texts

Ask = Callable[[IndexState, Calls], list[Any]]
WHERE = cloudpickle.dumps((lambda _: os.getpid(), (), {}))
"""The question which process answers."""


@pytest.fixture(scope="module")
def state(cluster: Any) -> Iterator[IndexState]:
    """Two shards, with two replicas each, which only the last test kills."""
    with ClusterIndex(texts(20), n_shards=2, replicas=2) as index:
        yield index._fresh().state


def test_a_question_asks_the_same_replicas_in_all_rounds(state: IndexState) -> None:
    """All rounds of a question go to the same processes; questions are divided among the replicas."""
    seen = set()
    for _ in range(30):
        one = Calls(state, Pace())
        first = one.ask(state.shards, WHERE)
        assert one.ask(state.shards, WHERE) == first
        assert one.ask(state.shards[1:], WHERE) == first[1:]
        seen.add(tuple(first))
    assert len(seen) > 1


def test_who_answers_too_late_is_named(state: IndexState, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no replica answers in time, the error names the nodes of the shard that did not."""
    monkeypatch.setattr(calls, "ROUND_S", 0.5)
    silent, other = state.shards
    pids = [process_of(replica) for replica in silent.replicas]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(TimedOutError, match=r"did not answer within 0\.5 seconds") as refused:
            Calls(state, Pace()).ask(state.shards, WHERE)
        assert all(node_id in str(refused.value) for node_id in silent.node_ids)
        assert len(Calls(state, Pace()).ask([other], WHERE)) == 1
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_patience_follows_the_usual_time() -> None:
    """Another replica is asked after three times the usual time, however long a few rounds take, and never at once."""
    pace = Pace()
    for time_s in [0.1] * 40 + [9.0] * 20:
        pace.note(time_s)
    assert pace.patience_s == pytest.approx(0.3)
    for _ in range(100):
        pace.note(0.0)
    assert pace.patience_s > 0.0


def test_another_replica_answers_for_one_that_is_stopped(state: IndexState) -> None:
    """Where a process is stopped, or dead, the question goes to the other replica, and stays there."""
    one = Calls(state, Pace())
    first = one.ask(state.shards, WHERE)
    os.kill(first[0], signal.SIGSTOP)
    second = one.ask(state.shards, WHERE)
    assert second[0] != first[0]
    assert second[1] == first[1]
    os.kill(first[1], signal.SIGKILL)
    third = one.ask(state.shards, WHERE)
    assert third[0] == second[0]
    assert third[1] != second[1]
    for pid in third:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(OutdatedError):
        Calls(state, Pace()).ask(state.shards[1:], WHERE)
