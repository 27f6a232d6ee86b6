"""The actors that have the shards of an index: start those that are lacking, and take note of those that die."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, Final

import numpy as np
import ray
from attrs import define, field
from ray.exceptions import RayActorError

from relevance_gen.cluster.connection import check, get, start
from relevance_gen.cluster.parts import Recipe
from relevance_gen.cluster.placing import least_loaded, living_nodes
from relevance_gen.cluster.shard import Contribution, Shard
from relevance_gen.cluster.state import ShardState, Spans
from relevance_gen.retrieval.segment.segment import Statistics
from relevance_gen.tokens import TokenCounter
from relevance_gen.types import WeightingName

_log = logging.getLogger(__name__)

_ATTEMPTS: Final = 3
"""How often a replica is started before a shard counts as lost: a node may die while it is chosen."""
_WATCH_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 30.0
"""Between two attempts to restore a shard that cannot be restored."""
_THREADS: Final = 16
"""Shards that are started at once."""
NOT_MADE: Final = Contribution(Statistics(), Spans.of(np.zeros(0, np.int64)), 0, 0, 0)


@define(eq=False)
class Replica:
    """An actor that has a shard.

    Attributes:
        handle: the actor.
        node_id: where it runs.
        end: what is answered only when it dies.
        has_adopted: whether it can be asked.
    """

    handle: Any
    node_id: str
    end: Any
    has_adopted: bool = False


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

    def state(self) -> ShardState:
        """Return what callers are told."""
        known = [one for one in self.replicas if one.has_adopted]
        handles, node_ids = tuple(one.handle for one in known), tuple(one.node_id for one in known)
        return ShardState(self.contribution.spans, self.statistics.n_chunks, handles, node_ids, self.error)


class Replicas:
    """The replicas of all shards of an index.

    Args:
        weighting: the name of the weighting.
        counter: counts the tokens of chunks.
        n_wanted: how many actors shall have each shard.
        on_loss: called, with `changed` held, when a replica was struck out.
        restore: called in a thread of its own with shards that lack replicas.

    Attributes:
        shards: the shards.
        changed: held for a moment while replicas come and go.
    """

    def __init__(
        self,
        weighting: WeightingName,
        counter: TokenCounter,
        n_wanted: int,
        on_loss: Callable[[], None],
        restore: Callable[[Sequence[KeptShard]], None],
    ) -> None:
        self.shards: list[KeptShard] = []
        self.changed = threading.Condition()
        self._made_with = weighting, counter
        self._n_wanted = n_wanted
        self._on_loss = on_loss
        self._restore = restore
        self._n_coming: Counter[str] = Counter()
        self._prepared: list[tuple[Any, str]] = []
        self._closed = threading.Event()
        self._watching = threading.Thread(target=self._watch, name="watch-shards", daemon=True)

    @property
    def loads(self) -> Counter[str]:
        """How many replicas are, or will soon be, on each node, by its id."""
        loads = Counter(self._n_coming)
        loads.update(one.node_id for shard in self.shards for one in shard.replicas)
        return loads

    @property
    def closed(self) -> bool:
        """Whether all replicas were ended."""
        return self._closed.is_set()

    def call(self, shards: Sequence[KeptShard], verb: str, arguments: Sequence[tuple[Any, ...]]) -> list[list[Any]]:
        """Call all replicas of some shards at once, and strike those out that turn out to be dead.

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
        calls = [
            (found, shard, replica, getattr(replica.handle, verb).remote(*args))
            for found, shard, args in zip(answers, shards, arguments, strict=True)
            for replica in list(shard.replicas)
        ]
        failure: Exception | None = None
        for found, shard, replica, answer in calls:
            try:
                found.append(get(answer))
            except RayActorError:
                self.strike(shard, replica)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return answers

    def strike(self, shard: KeptShard, replica: Replica) -> None:
        """Strike a replica out."""
        with self.changed:
            if replica in shard.replicas:
                shard.replicas.remove(replica)
                self._on_loss()

    # ── Starting ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def prepare(self, n_shards: int) -> None:
        """Start the actors of shards that are to come, and do not wait for them."""
        with self.changed:
            self._prepared += [self._new() for _ in range(n_shards * self._n_wanted)]

    def fill(self, shards: Sequence[KeptShard]) -> None:
        """Start the replicas that shards lack; for those for which that fails, say when to try again."""
        lacking = [shard for shard in shards for _ in range(self._n_wanted - len(shard.replicas))]
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(self.start, lacking))
        with self.changed:
            while self._prepared:
                handle, node_id = self._prepared.pop()
                self._n_coming[node_id] -= 1
                ray.kill(handle)
        for shard in shards:
            shard.n_failures = 0 if len(shard.replicas) >= self._n_wanted else shard.n_failures + 1
            shard.next_try_s = time.monotonic() + min(2.0**shard.n_failures - 1.0, _LONGEST_PAUSE_S)
            if shard.n_failures and not self.closed:
                _log.warning("a shard lacks a replica: %s", shard.error)

    def start(self, shard: KeptShard, node_id: str | None = None) -> bool:
        """Start a replica, on a node with room unless one is named; tell whether that was done, or note why not."""
        for _ in range(_ATTEMPTS):
            if self.closed:
                break
            with self.changed:
                is_free = node_id is None and bool(self._prepared)
                held = [one.node_id for one in shard.replicas]
                handle, chosen = self._prepared.pop(0) if is_free else self._new(node_id, held)
                shard.newest = handle
            try:
                real_node_id = check(handle)
                made = get(handle.build.remote(shard.recipe))
            except RayActorError as error:
                shard.error = f"the actor died: {str(error).splitlines()[0]}"
                continue
            except Exception as error:
                shard.error = f"{type(error).__name__}: {error}"
                break
            finally:
                with self.changed:
                    self._n_coming[chosen] -= 1
            with self.changed:
                if shard.contribution is NOT_MADE:
                    shard.contribution = made
                if self.closed or made.digest != shard.contribution.digest:
                    ray.kill(handle)
                    shard.error = "its source has changed since the index was built"
                    break
                shard.replicas.append(Replica(handle, real_node_id, handle.end.remote()))
                shard.error = None
            return True
        return False

    def _new(self, node_id: str | None = None, avoided: Sequence[str] = ()) -> tuple[Any, str]:
        """Start an actor, on a node with room unless one is named; return it, and its node's id."""
        chosen = least_loaded(living_nodes(), self.loads, avoided).id if node_id is None else node_id
        handle = start(Shard, chosen, *self._made_with, max_concurrency=_THREADS)
        self._n_coming[chosen] += 1
        return handle, chosen

    # ── Watching ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def watch(self) -> None:
        """Take note of every replica that dies, and have lost ones restored, until this is closed."""
        self._watching.start()

    def _watch(self) -> None:
        restoring: threading.Thread | None = None
        while ray.is_initialized() and not self.closed:
            with self.changed:
                ends = {one.end: (shard, one) for shard in self.shards for one in shard.replicas}
            dead, _ = ray.wait(list(ends), timeout=_WATCH_S) if ends else ([], self._closed.wait(_WATCH_S))
            for end in [] if self.closed else dead:
                shard, replica = ends[end]
                _log.warning("a shard of %d chunks was lost on node %s", shard.statistics.n_chunks, replica.node_id)
                self.strike(shard, replica)
            lacking = [
                shard
                for shard in self.shards
                if len(shard.replicas) < self._n_wanted and shard.next_try_s <= time.monotonic()
            ]
            if lacking and not (restoring is not None and restoring.is_alive()):
                restoring = threading.Thread(target=self._restore, args=(lacking,), name="restore-shards", daemon=True)
                restoring.start()

    def close(self) -> None:
        """End all replicas, and the watching."""
        self._closed.set()
        with self.changed:
            handles = [one.handle for shard in self.shards for one in shard.replicas]
            handles += [shard.newest for shard in self.shards if shard.newest is not None]
            handles += [handle for handle, _ in self._prepared]
        for handle in handles if ray.is_initialized() else []:  # Ray would start a cluster of its own
            with suppress(Exception):  # the cluster may be gone
                ray.kill(handle)
        if self._watching.ident not in (None, threading.get_ident()):  # the collector may run this in any thread
            self._watching.join(2 * _WATCH_S)
