"""Calls of hosts: which of those that hold a shard is asked, and what happens when it does not answer.

One host of each node is asked for all that is wanted of the node. A question asks the same hosts in all its rounds,
because these remember what they computed in the round before. A node that takes much longer than usual may be stopped,
or cut off: others are asked for its shards, and whoever has answered first counts, so that no shard counts twice.
"""

from __future__ import annotations

import pickle
import random
import statistics
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import ray
from attrs import define, field
from ray.exceptions import RayActorError

from relevance_gen.cluster.actors import get
from relevance_gen.cluster.host import whole
from relevance_gen.cluster.shard import OutdatedError
from relevance_gen.cluster.state import HostState, IndexState, ShardState
from relevance_gen.errors import TimedOutError

ROUND_S: Final = 60.0
"""Longest time that nodes may take for one round of a question."""
_SILENT_S: Final = 3.0
"""After so long, hosts that have not answered must show that they live, again and again."""
_PING_S: Final = 1.0
"""How long they may take for that."""
_FIRST_GUESS_S: Final = 0.3
_SLOW: Final = 3.0
"""Other hosts are asked after so many times the usual time of a round."""
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
        """How long a node is waited for before others are asked, in seconds."""
        return max(_SLOW * statistics.median(self._times_s.copy()), _SHORTEST_PATIENCE_S)


@define(eq=False)
class _Part:
    """Some shards that one node was asked for."""

    hosts: Mapping[ShardState, HostState]  # which host is asked for each
    pieces: Any  # of the answer to come; None if that failed
    answer: list[Any] = field(
        factory=list
    )  # the answer, in a list; an empty one before it has come
    # the same shards, asked of others; empty if nobody else was asked, or could be
    instead: list[_Part] = field(factory=list)

    def answers(self) -> list[Any] | None:
        """Return what was told of the shards, of each once; None as long as that is not all."""
        if self.answer or not self.instead:
            return self.answer or None
        told = [part.answers() for part in self.instead]
        return None if None in told else [answer for some in told for answer in some or ()]

    def may_come(self, living: set[HostState] | None = None) -> bool:
        """Tell whether an answer may come, or has come, if only some hosts live; None if all may."""
        if self.answer or (
            self.pieces is not None and (living is None or living >= {*self.hosts.values()})
        ):
            return True
        return bool(self.instead) and all(one.may_come(living) for one in self.instead)

    def asked(self) -> Iterator[HostState]:
        """Yield the hosts that were asked, at first and instead."""
        yield from self.hosts.values()
        for part in self.instead:
            yield from part.asked()


class Calls:
    """The calls of one question, at a caller's pace."""

    def __init__(self, state: IndexState, pace: Pace) -> None:
        self.epoch = state.epoch
        self.pace = pace
        self.hosts: dict[ShardState, HostState] = {}  # the one that is asked for each shard

    def ask(self, shards: Iterable[ShardState], question: bytes) -> list[Any]:
        """Ask for shards that have hosts, all nodes at once; return what is told, in any order: of each shard once.

        The question, as `Host.ask` takes it, is pickled only once, for there may be many nodes.

        Raises:
            OutdatedError: all hosts of a shard died or are silent, or one has forgotten this state.
            TimedOutError: a node did not answer, though it lives; the error names such nodes.
            BusyError: a host works at too many questions.
        """
        return _Round(self, list(shards), question).answers()


class _Round:
    """What `Calls.ask` asks: the hosts are at work on it from now on."""

    def __init__(self, calls: Calls, shards: list[ShardState], question: bytes) -> None:
        self._calls = calls
        self._question = question
        self._untried = {shard: self._ordered(shard) for shard in shards}
        self._open: dict[Any, _Part] = {}
        self._begun_s = time.monotonic()
        self._parts = self._send(shards)

    def answers(self) -> list[Any]:
        """Wait until all parts are answered, and return the answers."""
        self._wait(self._begun_s + self._calls.pace.patience_s, is_patient=True)
        for part in self._owed():
            part.instead = part.instead or self._send(part.hosts)
        self._wait(self._begun_s + _SILENT_S, is_patient=False)
        while owed := self._owed():
            if time.monotonic() >= self._begun_s + ROUND_S:
                nodes = sorted(
                    {host.node_id for part in owed for shard in part.hosts for host in shard.hosts}
                )
                raise TimedOutError(
                    f"shards did not answer within {ROUND_S:g} seconds, on nodes {', '.join(nodes)}"
                )
            self._check_alive(owed)
        self._calls.pace.note(time.monotonic() - self._begun_s)
        return [answer for part in self._parts for answer in part.answers() or ()]

    def _ordered(self, shard: ShardState) -> list[HostState]:
        """Return the hosts of a shard, the one to be asked first last."""
        if len(shard.hosts) == 1:  # as most have: there may be a thousand shards
            return [*shard.hosts]
        asked_before = self._calls.hosts.get(shard)
        some_order = random.sample(shard.hosts, len(shard.hosts))
        return sorted(some_order, key=lambda host: host is asked_before)

    def _owed(self) -> list[_Part]:
        return [part for part in self._parts if part.answers() is None]

    def _send(self, shards: Iterable[ShardState]) -> list[_Part]:
        """Ask hosts that were not asked yet, one of each node for all of it; nobody if a shard has no such host."""
        by_node: defaultdict[str, dict[ShardState, HostState]] = defaultdict(dict)
        if not all(self._untried[shard] for shard in shards):
            return []
        for shard in shards:
            host = self._untried[shard].pop()
            by_node[host.node_id][shard] = host
        parts = []
        for hosts in by_node.values():
            wanted: defaultdict[int, list[int]] = defaultdict(list)
            for shard, host in hosts.items():
                wanted[host.number].append(shard.number)
            first = random.choice([*hosts.values()])  # noqa: S311
            whom = pickle.dumps((self._calls.epoch, dict(wanted)))
            parts.append(_Part(hosts, first.handle.ask.remote(whom, self._question)))
            self._open[parts[-1].pieces[0]] = parts[-1]
        return parts

    def _wait(self, end_s: float, is_patient: bool) -> None:
        """Take answers in until all parts are answered, or the time is over; a patient one looks only when all came."""
        while self._open and self._owed():
            n_wanted = len(self._open) if is_patient else 1
            timeout_s = max(0.0, end_s - time.monotonic())
            ready, _ = ray.wait(list(self._open), num_returns=n_wanted, timeout=timeout_s)
            for ref in ready:
                self._take(self._open.pop(ref))
            if not ready:
                return

    def _take(self, part: _Part) -> None:
        pieces, part.pieces = part.pieces, None
        try:
            part.answer = [whole(get(pieces))]
        except (RayActorError, OutdatedError):
            part.instead = part.instead or self._send(part.hosts)
            if not all(one.may_come() for one in self._parts):
                raise OutdatedError from None
            return
        self._calls.hosts |= part.hosts

    def _check_alive(self, owed: Iterable[_Part]) -> None:
        """Wait a little for answers, while those who owe them are pinged."""
        pings = {
            host.handle.ping.remote(): host
            for host in {host for part in owed for host in part.asked()}
        }
        self._wait(time.monotonic() + _PING_S, is_patient=False)
        answered, _ = ray.wait(list(pings), num_returns=len(pings), timeout=0)
        living = {pings[ping] for ping in answered}
        if not all(part.may_come(living) for part in self._owed()):
            raise OutdatedError
