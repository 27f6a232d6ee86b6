"""Calls of shards: which replica is asked, and what happens when it does not answer.

A question asks the same replica of a shard in all its rounds, because that one remembers what it computed in the round
before. One that takes much longer than usual may be stopped, or cut off: another is asked, and the first answer counts.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final

import ray
from attrs import frozen
from ray.exceptions import RayActorError

from relevance_gen.cluster.actors import get
from relevance_gen.cluster.shard import OutdatedError
from relevance_gen.cluster.state import IndexState, ShardState
from relevance_gen.errors import TimedOutError

ROUND_S: Final = 60.0
"""Longest time that shards may take for one round of a question."""
_SILENT_S: Final = 3.0
"""After so long, shards that have not answered must show that they live, again and again."""
_PING_S: Final = 1.0
"""How long they may take for that."""
_FIRST_GUESS_S: Final = 0.3
_SLOW: Final = 3.0
"""Another replica is asked after so many times the usual time of a round."""
_SHORTEST_PATIENCE_S: Final = 0.05
_REMEMBERED: Final = 65


class Pace:
    """How long rounds take. One is shared by all questions of a caller."""

    def __init__(self) -> None:
        self._times_s = deque([_FIRST_GUESS_S], maxlen=_REMEMBERED)

    def note(self, time_s: float) -> None:
        """Take note of the time of a round."""
        self._times_s.append(time_s)

    @property
    def patience_s(self) -> float:
        """How long a replica is waited for before another one is asked, in seconds."""
        return max(_SLOW * statistics.median(self._times_s.copy()), _SHORTEST_PATIENCE_S)


@frozen(eq=False)
class _Call:
    shard: ShardState
    replica: Any
    sent_s: float


class Calls:
    """The calls of one question.

    Args:
        state: of the index that is asked.
        pace: of this caller.
    """

    def __init__(self, state: IndexState, pace: Pace) -> None:
        self.epoch = state.epoch
        self.pace = pace
        self.replicas: dict[ShardState, Any] = {}
        """The replica of each shard that is asked."""

    def ask(self, shards: Iterable[ShardState], question: bytes) -> list[Any]:
        """Ask shards the same, all at once, and return what is told of each of their segments.

        Args:
            shards: some that have replicas.
            question: as `Shard.ask` takes it; pickled only once, for there may be a thousand shards.

        Raises:
            OutdatedError: all replicas of a shard died or are silent, or one has forgotten this state.
            TimedOutError: a shard did not answer, though it lives; the error names its nodes.
        """
        return _Round(self, list(shards), question).answers()


class _Round:
    """What `Calls.ask` asks: the shards are at work on it from now on."""

    def __init__(self, calls: Calls, shards: Sequence[ShardState], question: bytes) -> None:
        self._calls = calls
        self._question = question
        self._shards = shards
        self._untried = {shard: self._ordered(shard) for shard in shards}
        self._answers: dict[ShardState, list[Any]] = {}
        self._open: dict[Any, _Call] = {}
        self._begun_s = time.monotonic()
        for shard in shards:
            self._send(shard)

    def answers(self) -> list[Any]:
        """Wait until all shards have answered; return what is told of each of their segments, in order."""
        self._wait(self._begun_s + self._calls.pace.patience_s, is_patient=True)
        for call in list(self._open.values()):
            self._send(call.shard)
        self._wait(self._begun_s + _SILENT_S, is_patient=False)
        while self._open and time.monotonic() < self._begun_s + ROUND_S:
            self._check_alive()
        if self._open:
            nodes = sorted({node_id for call in self._open.values() for node_id in call.shard.node_ids})
            raise TimedOutError(f"shards did not answer within {ROUND_S:g} seconds, on nodes {', '.join(nodes)}")
        return list(itertools.chain.from_iterable(self._answers[shard] for shard in self._shards))

    def _ordered(self, shard: ShardState) -> list[Any]:
        """Return the replicas of a shard, the one to be asked first last."""
        asked_before = self._calls.replicas.get(shard)
        some_order = random.sample(shard.replicas, len(shard.replicas))
        return sorted(some_order, key=lambda replica: replica is asked_before)

    def _send(self, shard: ShardState) -> bool:
        """Ask a replica that was not asked yet; tell whether there is one."""
        if not (untried := self._untried[shard]):
            return False
        call = _Call(shard, untried.pop(), time.monotonic())
        self._open[call.replica.ask.remote(self._calls.epoch, self._question)] = call
        return True

    def _wait(self, end_s: float, is_patient: bool) -> None:
        """Take answers in until there are all, or the time is over; a patient one looks only when all have come."""
        while self._open:
            n_wanted = len(self._open) if is_patient else 1
            ray.wait(list(self._open), num_returns=n_wanted, timeout=max(0.0, end_s - time.monotonic()))
            ready, _ = ray.wait(list(self._open), num_returns=len(self._open), timeout=0)
            for ref in ready:
                if (call := self._open.pop(ref, None)) is not None:
                    self._take(call, ref)
            if not ready:
                return

    def _check_alive(self) -> None:
        """Wait a little for answers, while those who owe them are pinged."""
        pings = {call.replica.ping.remote(): call.shard for call in self._open.values()}
        self._wait(time.monotonic() + _PING_S, is_patient=False)
        answered, _ = ray.wait(list(pings), num_returns=len(pings), timeout=0)
        living = {pings[ping] for ping in answered}
        if any(call.shard not in living for call in self._open.values()):
            raise OutdatedError

    def _take(self, call: _Call, ref: Any) -> None:
        try:
            answer = get(ref)
        except RayActorError:
            is_asked = any(other.shard is call.shard for other in self._open.values())
            if not is_asked and not self._send(call.shard):
                raise OutdatedError from None
            return
        self._answers[call.shard] = answer
        self._calls.replicas[call.shard] = call.replica
        self._open = {ref: other for ref, other in self._open.items() if other.shard is not call.shard}
        if not self._open:
            self._calls.pace.note(time.monotonic() - call.sent_s)
