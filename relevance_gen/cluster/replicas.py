"""The actors that have the shards of an index: start those that are lacking, call them, and end those that fail."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np
import ray
from attrs import define, field
from ray.exceptions import RayActorError

from relevance_gen.cluster.actors import START_S, SilentError, check, get_from, start, wait_for
from relevance_gen.cluster.parts import Recipe
from relevance_gen.cluster.placing import least_loaded, living_nodes
from relevance_gen.cluster.shard import Contribution, Shard
from relevance_gen.cluster.state import PositionRuns, ShardState
from relevance_gen.errors import ClusterError
from relevance_gen.retrieval.segment.segment import Statistics
from relevance_gen.tokens import TokenCounter
from relevance_gen.types import WeightingName

_log = logging.getLogger(__name__)

_ATTEMPTS: Final = 3
"""How often a replica is started before a shard counts as lost: a node may die while it is chosen."""
_LONGEST_PAUSE_S: Final = 30.0
"""Between two attempts to restore a shard that cannot be restored."""
_THREADS: Final = 16
"""Shards that are started at once."""
_SILENT_S: Final = 2.0
"""A replica that has not answered a ping for so long is not asked any more, and made anew if another one answers."""
_BUILD_SILENT_S: Final = 30.0
"""An actor that unpickles gigabytes leaves a ping unanswered for so long at most."""
_FILL_S: Final = 30.0
"""How long further shards are restored together with others, before changes have their turn."""
_LOOK_S: Final = 0.2
_SPARES: Final = 2
"""Actors that are kept started where shards have several replicas: one that is lost is made again the sooner."""
NOT_MADE: Final = Contribution(Statistics(), PositionRuns.of(np.zeros(0, np.int64)), 0, 0, 0)


@define(eq=False)
class Replica:
    """An actor that has a shard.

    Attributes:
        handle: the actor.
        node_id: where it runs.
        end: an answer that never comes, but fails when it dies.
        has_adopted: whether it can be asked.
        ping: an answer that shows that it lives; None between two pings.
        next_ping_s: when to ping it again, in seconds of the monotonic clock.
        silent_s: how long a ping was not answered.
    """

    handle: Any
    node_id: str
    end: Any
    has_adopted: bool = False
    ping: Any = None
    next_ping_s: float = 0.0
    silent_s: float = 0.0

    @property
    def is_silent(self) -> bool:
        """Whether callers had better not wait for it."""
        return self.silent_s > _SILENT_S


@define(eq=False)
class KeptShard:
    """What the keeper knows of a shard.

    Attributes:
        recipe: how it is made.
        contribution: what it adds to the whole; `NOT_MADE` before it was made for the first time.
        replicas: those that live.
        newest: the actor that was started last; it may not be a replica yet.
        error: why it could not be restored.
        n_failures: how often in a row that failed.
        next_try_s: when to try again, in seconds of the monotonic clock.
    """

    recipe: Recipe
    contribution: Contribution = NOT_MADE
    replicas: list[Replica] = field(factory=list)
    newest: Any = None
    error: str | None = None
    n_failures: int = 0
    next_try_s: float = 0.0

    @property
    def statistics(self) -> Statistics:
        """Of its chunks."""
        return self.contribution.statistics

    def state(self, n_wanted: int) -> ShardState:
        """Return what callers are told, where so many replicas are wanted."""
        known = [one for one in self.replicas if one.has_adopted and not one.is_silent]
        handles, node_ids = tuple(one.handle for one in known), tuple(one.node_id for one in known)
        n_lacking = n_wanted - len(known)
        return ShardState(self.contribution.runs, self.statistics.n_chunks, handles, node_ids, n_lacking, self.error)


class _Call(NamedTuple):
    """What one replica is asked for, and the list that its answer goes to."""

    answers: list[Any]
    shard: KeptShard
    args: tuple[Any, ...]
    replica: Replica


class Replicas:
    """The replicas of all shards of an index.

    Args:
        weighting: the name of the weighting.
        counter: counts the tokens of chunks.
        n_wanted: how many actors shall have each shard.
        on_change: called, with `changed` held, when a replica was struck out, falls silent or is heard of again.

    Attributes:
        shards: the shards.
        changed: held for a moment while replicas come and go.
        n_wanted: how many actors shall have each shard.
        adopted: what was adopted last, as `Shard.adopt` takes it; None before anything was.
        closed: set when all replicas were ended.
    """

    def __init__(
        self, weighting: WeightingName, counter: TokenCounter, n_wanted: int, on_change: Callable[[], None]
    ) -> None:
        self.shards: list[KeptShard] = []
        self.changed = threading.Condition()
        self._made_with = weighting, counter
        self.n_wanted = n_wanted
        self.on_change = on_change
        self.adopted: tuple[int, Any] | None = None
        self._n_coming: Counter[str] = Counter()
        self._prepared: list[tuple[Any, str]] = []
        self.closed = threading.Event()

    @property
    def loads(self) -> Counter[str]:
        """How many replicas are, or will soon be, on each node, by its id."""
        loads = Counter(self._n_coming)
        loads.update(one.node_id for shard in self.shards for one in shard.replicas)
        return loads

    def lacking(self) -> list[KeptShard]:
        """Return the shards that lack replicas, and for which it is time to try again."""
        now_s = time.monotonic()
        if self.closed.is_set():
            return []
        return [one for one in self.shards if len(one.replicas) < self.n_wanted and one.next_try_s <= now_s]

    def call(self, shards: Sequence[KeptShard], verb: str, arguments: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
        """Call all replicas of some shards at once, and strike those out that turn out to be dead or silent.

        Args:
            shards: the shards.
            verb: the method of `Shard`.
            arguments: what it takes, for each shard.

        Returns:
            What the replicas of each shard answered.

        Raises:
            Exception: what one of them raised, when all have answered.
        """
        answers: list[list[Any]] = [[] for _ in shards]
        calls = zip(answers, shards, arguments, strict=True)
        self._call(verb, [_Call(*call, replica) for call in calls for replica in list(call[1].replicas)])
        return answers

    def call_one(self, shards: Sequence[KeptShard], verb: str, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Do so with one replica of each shard, and with others where these turn out to be dead or silent.

        Returns:
            For each shard a list of its answer; an empty one where no replica lives.
        """
        answers: list[list[Any]] = [[] for _ in shards]
        owed = list(zip(answers, shards, arguments, strict=True))
        while owed:
            calls = [
                _Call(found, shard, args, replica)
                for found, shard, args in owed
                if (replica := min(shard.replicas, key=lambda one: one.silent_s, default=None)) is not None
            ]
            owed = [(call.answers, call.shard, call.args) for call in self._call(verb, calls)]
        return answers

    def _call(self, verb: str, calls: Sequence[_Call]) -> list[_Call]:
        """Call replicas, all at once; return the calls of those that were dead or silent, and are struck out now."""
        sent = [(call, getattr(call.replica.handle, verb).remote(*call.args)) for call in calls]
        unanswered: list[_Call] = []
        failure: Exception | None = None
        for call, answer in sent:
            try:
                call.answers.append(get_from(call.replica.handle, answer))
            except (RayActorError, SilentError):
                self.strike(call.shard, call.replica)
                unanswered.append(call)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return unanswered

    def strike(self, shard: KeptShard, replica: Replica) -> None:
        """End a replica, if it still lives, and strike it out."""
        ray.kill(replica.handle)
        with self.changed:
            if replica in shard.replicas:
                shard.replicas.remove(replica)
                self.on_change()

    # ── Starting ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def prepare(self, n_shards: int) -> None:
        """Start the actors of shards that are to come, and do not wait for them."""
        with self.changed:
            self._prepared += [self._new() for _ in range(n_shards * self.n_wanted)]

    def fill(self) -> None:
        """Start the replicas that shards lack, also those that come to lack some for a while from now on."""
        end_s = time.monotonic() + _FILL_S
        with ThreadPoolExecutor(_THREADS) as pool:
            starting: dict[Future[bool], KeptShard] = {}
            while True:
                for shard in self.lacking() if time.monotonic() < end_s else ():
                    n_coming = sum(one is shard for one in starting.values())
                    for _ in range(self.n_wanted - len(shard.replicas) - n_coming):
                        starting[pool.submit(self.start, shard)] = shard
                if not starting:
                    break
                for ended in wait(starting, _LOOK_S, FIRST_COMPLETED).done:
                    del starting[ended]
                    ended.result()
        with self.changed:
            for handle, node_id in self._prepared[self._n_spares :]:
                self._n_coming[node_id] -= 1
                ray.kill(handle)
            del self._prepared[self._n_spares :]
            self._keep_spares()

    def start(self, shard: KeptShard, node_id: str | None = None) -> bool:
        """Start a replica, on a node with room unless one is named; tell whether that was done, or note why not."""
        for _ in range(_ATTEMPTS):
            if self.closed.is_set():
                return False
            with self.changed:
                handle, chosen = self._take_prepared(shard) if node_id is None else self._new(node_id)
                shard.newest = handle
            try:
                replica = self._made(shard, handle)
            except (RayActorError, SilentError) as error:
                ray.kill(handle)
                shard.error = f"the actor died: {str(error).splitlines()[0]}"
                continue
            except Exception as error:
                ray.kill(handle)
                shard.error = f"{type(error).__name__}: {error}"
                break
            finally:
                with self.changed:
                    self._n_coming[chosen] -= 1
            with self.changed:
                shard.replicas.append(replica)
                shard.error, shard.n_failures = None, 0
                self.on_change()
            return True
        with self.changed:
            shard.n_failures += 1
            shard.next_try_s = time.monotonic() + min(2.0**shard.n_failures - 1.0, _LONGEST_PAUSE_S)
            self.on_change()
        if not self.closed.is_set():
            _log.warning("a shard lacks a replica: %s", shard.error)
        return False

    def _made(self, shard: KeptShard, handle: Any) -> Replica:
        """Have an actor make a shard, and adopt what the others have adopted."""
        node_id = check(handle, START_S)
        made = self._make(shard, handle)
        with self.changed:
            if shard.contribution is NOT_MADE:
                shard.contribution = made
        if made.digest != shard.contribution.digest:
            raise ClusterError("its source has changed since the index was built")
        if self.adopted is not None:
            get_from(handle, handle.adopt.remote(*self.adopted))
        if self.closed.is_set():
            raise ClusterError("the index was closed")
        return Replica(handle, node_id, handle.end.remote(), has_adopted=self.adopted is not None)

    @staticmethod
    def _make(shard: KeptShard, handle: Any) -> Contribution:
        """Let an actor copy a replica that lives; where there is none, make the shard by its recipe.

        A saved file comes first, because it is mapped, and lies in memory once for all who read it.
        """

        def build() -> Contribution:
            made: Contribution = get_from(handle, handle.build.remote(shard.recipe), _BUILD_SILENT_S)
            return made

        def take(twin: Replica) -> Contribution:
            copy = twin.handle.copy.remote()
            wait_for(twin.handle, copy, _SILENT_S)
            taken: Contribution = get_from(handle, handle.take.remote(copy), _BUILD_SILENT_S)
            return taken

        living = [one for one in shard.replicas if one.has_adopted and not one.is_silent]
        copies = [partial(take, one) for one in living]
        ways: list[Callable[[], Contribution]] = [build, *copies] if shard.recipe.is_file else [*copies, build]
        for way in ways[:-1]:
            with suppress(Exception):  # there is another way
                return way()
        return ways[-1]()

    def _take_prepared(self, shard: KeptShard) -> tuple[Any, str]:
        """Return an actor that has started, on a node that does not have a shard yet, or else start one."""
        held = [one.node_id for one in shard.replicas]
        numbers = [number for number, (_, node_id) in enumerate(self._prepared) if node_id not in held]
        taken = self._prepared.pop(numbers[0]) if numbers else self._new(avoided=held)
        self._keep_spares()
        return taken

    @property
    def _n_spares(self) -> int:
        return 0 if self.adopted is None or self.n_wanted == 1 or self.closed.is_set() else _SPARES

    def _keep_spares(self) -> None:
        self._prepared += [self._new() for _ in range(self._n_spares - len(self._prepared))]

    def _new(self, node_id: str | None = None, avoided: Sequence[str] = ()) -> tuple[Any, str]:
        """Start an actor, on a node with room unless one is named; return it, and its node's id."""
        chosen = least_loaded(living_nodes(), self.loads, avoided).id if node_id is None else node_id
        handle = start(Shard, chosen, *self._made_with, max_concurrency=_THREADS)
        self._n_coming[chosen] += 1
        return handle, chosen

    def close(self) -> None:
        """End all replicas, and start no more."""
        self.closed.set()
        with self.changed:
            handles = [one.handle for shard in self.shards for one in shard.replicas]
            handles += [shard.newest for shard in self.shards if shard.newest is not None]
            handles += [handle for handle, _ in self._prepared]
        for handle in handles if ray.is_initialized() else []:  # Ray would start a cluster of its own
            with suppress(Exception):  # the cluster may be gone
                ray.kill(handle)
