"""Calls of hosts: one that does not answer is asked around, and given up."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from ray import cloudpickle

from relevance_gen.cluster import ClusterIndex, calls
from relevance_gen.cluster.calls import Calls, Pace
from relevance_gen.cluster.shard import OutdatedError
from relevance_gen.cluster.state import IndexState, ShardState
from relevance_gen.errors import TimedOutError
from relevance_gen.retrieval.scorer import SegmentScorer
from tests.cluster.shared import process_of, texts

WHERE = cloudpickle.dumps(
    (
        lambda scorers: [(int(at[0]), os.getpid()) for at in scorers.ask(SegmentScorer.positions)],
        (),
        {},
        lambda told: [pair for pairs in told for pair in pairs],
    )
)
"""The question which process answers for which first position."""


def answering(calls: Calls, shards: Sequence[ShardState]) -> list[int]:
    """Return which process answered for each of some shards; each must be answered for once."""
    told = [pair for pairs in calls.ask(shards, WHERE) for pair in pairs]
    assert Counter(first for first, _ in told) == Counter(
        int(shard.runs.first[0]) for shard in shards
    )
    return [dict(told)[int(shard.runs.first[0])] for shard in shards]


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
        first = answering(one, state.shards)
        assert answering(one, state.shards) == first
        assert answering(one, state.shards[1:]) == first[1:]
        seen.add(tuple(first))
    assert len(seen) > 1


def test_who_answers_too_late_is_named(state: IndexState, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no replica answers in time, the error names the nodes of the shard that did not."""
    monkeypatch.setattr(calls, "ROUND_S", 0.5)
    silent, _ = state.shards
    pids = [process_of(host.handle) for host in silent.hosts]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(TimedOutError, match=r"did not answer within 0\.5 seconds") as refused:
            answering(Calls(state, Pace()), [silent])
        assert all(node_id in str(refused.value) for node_id in silent.node_ids)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_patience_follows_the_usual_time() -> None:
    """Another host is asked after three times the usual time, however long a few rounds take, and never at once."""
    pace = Pace()
    for time_s in [0.1] * 40 + [9.0] * 20:
        pace.note(time_s)
    assert pace.patience_s == pytest.approx(0.3)
    for _ in range(100):
        pace.note(0.0)
    assert pace.patience_s > 0.0


def test_another_replica_answers_for_one_that_is_stopped(state: IndexState) -> None:
    """Where a process is stopped, or dead, others are asked for its shards; where none is left, that is told."""
    one = Calls(state, Pace())
    pids = {process_of(host.handle) for shard in state.shards for host in shard.hosts}
    stopped = answering(one, state.shards)[0]
    os.kill(stopped, signal.SIGSTOP)
    assert stopped not in answering(one, state.shards)
    os.kill(stopped, signal.SIGKILL)
    assert stopped not in answering(Calls(state, Pace()), state.shards)
    for pid in pids - {stopped}:
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(OutdatedError):
        answering(Calls(state, Pace()), state.shards)
