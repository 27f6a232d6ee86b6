"""The keeper of an index: the actor that knows all its shards, changes them together, and brings lost ones back.

Callers ask the shards themselves; the keeper only tells them which there are. It holds a recipe for each shard, from
which any node can make the shard again. The file is long because all that changes the state stands in it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final

import numpy as np
import ray
from attrs import define, evolve, field
from ray.exceptions import RayActorError

from relevance_gen.cluster import folder as folders
from relevance_gen.cluster.collection import ClusterCollection
from relevance_gen.cluster.connection import Actor, get, least_loaded, living_nodes, start_checked
from relevance_gen.cluster.parts import Part, Recipe, Saved
from relevance_gen.cluster.shard import Contribution, OutdatedError, Shard
from relevance_gen.cluster.state import IndexState, ShardState, add_span
from relevance_gen.errors import ChunksMissingError, ClusterError
from relevance_gen.retrieval.positions import check_positions
from relevance_gen.retrieval.segment import Statistics
from relevance_gen.retrieval.terms import Offsets
from relevance_gen.retrieval.vocabulary import Flags
from relevance_gen.retrieval.weighting import WeightingName
from relevance_gen.tokens import TokenCounter

_log = logging.getLogger(__name__)

_ATTEMPTS: Final = 3
"""How often a replica is started before a shard counts as lost: a node may die while it is chosen."""
_WATCH_S: Final = 0.2
_LONGEST_PAUSE_S: Final = 30.0
"""Between two attempts to restore a shard that cannot be restored."""
_THREADS: Final = 16
"""Shards that are started at once."""
_NOT_MADE: Final = Contribution(Statistics(), 0, 0, 0)


@define(eq=False)
class _Replica:
    """An actor that has a shard.

    Attributes:
        handle: the actor.
        node_id: where it runs.
        end: what is answered only when it dies.
        since: the first epoch that it knows; None before it has adopted any.
    """

    handle: Any
    node_id: str
    end: Any
    since: int | None = None


@define(eq=False)
class _Shard:
    """What the keeper knows of a shard.

    Attributes:
        recipe: how it is made.
        spans: runs of positions that hold its chunks.
        contribution: what it adds to the whole.
        n_tokens: tokens in its chunks.
        replicas: those that live.
        newest: the actor that was started last; it may not be a replica yet.
        error: why it could not be restored.
        n_failures: how often in a row that failed.
        next_try_s: when to try again, in seconds of the monotonic clock.
    """

    recipe: Recipe
    spans: tuple[tuple[int, int], ...] = ()
    contribution: Contribution = _NOT_MADE
    n_tokens: int = 0
    replicas: list[_Replica] = field(factory=list)
    newest: Any = None
    error: str | None = None
    n_failures: int = 0
    next_try_s: float = 0.0

    @property
    def statistics(self) -> Statistics:
        return self.contribution.statistics

    def covers(self, positions: Offsets) -> Flags:
        """Tell of some positions which are in its spans."""
        inside: Flags = np.zeros(positions.size, bool)
        for first, behind in self.spans:
            inside |= (positions >= first) & (positions < behind)
        return inside

    def state(self, epoch: int) -> ShardState:
        """Return what callers are told, who ask about this epoch."""
        known = [one for one in self.replicas if one.since is not None and one.since <= epoch]
        return ShardState(
            self.spans,
            self.statistics.n_chunks,
            tuple(one.handle for one in known),
            tuple(one.node_id for one in known),
            self.error,
        )


class Keeper(Actor):
    """Keeps one index. A change is seen whole by every question that begins after it, or not at all.

    Args:
        weighting: the name of the weighting.
        counter: counts the tokens of chunks.
        n_replicas: how many actors have each shard.
    """

    def __init__(self, weighting: WeightingName, counter: TokenCounter, n_replicas: int) -> None:
        self._weighting = weighting
        self._counter = counter
        self._n_replicas = n_replicas
        self._shards: list[_Shard] = []
        self._changing = threading.Lock()
        """Held while chunks change or shards are made."""
        self._told = threading.Condition()
        """Held for a moment, while replicas come and go and the state is put together."""
        self._n_coming: Counter[str] = Counter()
        self._state: IndexState | None = None
        self._epoch = self._version = self._n_positions = 0

    # ── Told to callers ──────────────────────────────────────────────────────────────────────────────────────────────

    def state(self, after: int = -1, timeout_s: float = 0.0) -> IndexState:
        """Return the state, once it is newer than `after` or the time is over."""
        with self._told:
            self._told.wait_for(lambda: self._state is not None and self._state.version > after, timeout_s)
            if self._state is None:
                raise ClusterError("this index is still being built")
            return self._state

    def progress(self) -> tuple[int, int]:
        """Return how many chunks are searchable, and how many will be as far as is known."""
        done = [(0, 0)]
        for shard in list(self._shards):
            if shard.newest is not None:
                with suppress(RayActorError):
                    done.append(get(shard.newest.progress.remote()))
        return sum(one for one, _ in done), sum(total for _, total in done)

    def nbytes(self) -> list[int]:
        """Return the memory of each shard's first replica, in bytes; 0 of a lost one."""
        with self._told:
            first = [shard.replicas[0].handle if shard.replicas else None for shard in self._shards]
        sizes = [0] * len(first)
        for place, handle in enumerate(first):
            if handle is not None:
                with suppress(RayActorError):
                    sizes[place] = get(handle.nbytes.remote())
        return sizes

    # ── Changes ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def build(self, parts: Sequence[Sequence[Part]], n_positions: int | None = None, spans: Any = None) -> None:
        """Make the shards.

        Args:
            parts: of each shard, in the order of their chunks' positions.
            n_positions: number of positions; None if the parts do not know theirs, and get them in this order.
            spans: of each shard, where the parts know their positions.
        """
        with self._changing:
            self._shards = [_Shard(Recipe(tuple(some))) for some in parts]
            self._fill(self._shards)
            if lost := [shard.error for shard in self._shards if not shard.replicas]:
                raise ClusterError(f"{len(lost)} of {len(parts)} shards could not be built: {lost[0]}")
            for place, shard in enumerate(self._shards):
                shard.n_tokens = shard.contribution.n_tokens
                if n_positions is None:
                    self._n_positions += self._place(shard, self._n_positions)
                else:
                    shard.spans = spans[place]
            self._n_positions = self._n_positions if n_positions is None else n_positions
            self._adopt(0)
        threading.Thread(target=self._watch, name="watch-shards", daemon=True).start()
        threading.Thread(target=self._mend, name="mend-shards", daemon=True).start()

    def _place(self, shard: _Shard, first: int) -> int:
        """Give the chunks of a shard that was just made their positions, and return how many these are."""
        n_positions = shard.contribution.n_positions
        shard.spans = add_span((), first, first + n_positions)
        shard.recipe = evolve(shard.recipe, parts=tuple(part.placed(first) for part in shard.recipe.parts))
        for replica in list(shard.replicas):
            with self._unless_dead(shard, replica):
                shard.contribution = get(replica.handle.move.remote(first))
        return n_positions

    def add(self, part: Part, n_positions: int) -> int:
        """Add chunks, and return the position of the first.

        Args:
            part: the chunks.
            n_positions: number of positions that they take.

        Raises:
            ChunksMissingError: no shard is there to take them; nothing was added.
        """
        with self._changing:
            first = self._n_positions
            living = [shard for shard in self._shards if shard.replicas]
            if not living:
                raise self._missing("no shard can take the chunks now")
            shard = min(living, key=lambda one: one.statistics.n_chunks)
            part = part.placed(first)
            contribution = self._change({id(shard): (shard, "add", part)})[0]
            shard.recipe = shard.recipe.with_part(part)
            shard.spans = add_span(shard.spans, first, first + n_positions)
            shard.n_tokens += contribution.n_tokens
            self._n_positions += n_positions
            self._adopt(self._epoch + 1)
        return first

    def remove(self, positions: Any) -> None:
        """Remove the chunks at some positions.

        Raises:
            InvalidRequestError: no chunk is at one of the positions; none was removed.
            ChunksMissingError: a shard is lost that may hold one; none was removed.
        """
        with self._changing:
            if self.state().n_missing_chunks:
                raise self._missing("chunks cannot be removed now")
            try:
                at = check_positions(positions, self._n_positions, ClusterCollection(self.state()).holds)
            except OutdatedError:
                raise self._missing("chunks cannot be removed now") from None
            changes: dict[int, Any] = {}
            for shard in self._shards:
                here = at[shard.covers(at)]
                if here.size:
                    changes[id(shard)] = shard, "remove", here
            for (shard, _, here), contribution in zip(changes.values(), self._change(changes), strict=True):
                shard.recipe = shard.recipe.without(here)
                shard.n_tokens -= contribution.n_tokens
            self._adopt(self._epoch + 1)

    def save(self, folder: str) -> None:
        """Write all shards to a folder, from where lost ones are restored from now on.

        Raises:
            ChunksMissingError: a shard is lost.
            OSError: the folder cannot be written.
        """
        with self._changing:
            folders.make_folder(folder)
            names = folders.new_files(len(self._shards))
            files = [folders.join(folder, name) for name in names]
            calls = []
            for shard, file in zip(self._shards, files, strict=True):
                if not shard.replicas:
                    raise self._missing("the index cannot be saved now")
                calls.append(shard.replicas[0].handle.save.remote(file, self._n_positions, shard.n_tokens))
            try:
                get(calls)
            except RayActorError:
                raise self._missing("the index cannot be saved now") from None
            counter = self._counter
            saved = [
                folders.SavedShard(name, shard.spans, shard.n_tokens)
                for name, shard in zip(names, self._shards, strict=True)
            ]
            folders.write_manifest(
                folder,
                folders.Manifest(
                    1, self._weighting, counter.name, counter.fingerprint, self._n_positions, tuple(saved)
                ),
            )
            for shard, file in zip(self._shards, files, strict=True):
                shard.recipe = Recipe((Saved(file, shard.n_tokens),))

    def rebalance(self) -> int:
        """Move shards from nodes that have more than their share to others; return how many were moved."""
        n_moved = 0
        unfit: set[str] = set()  # such as have died, which Ray does not know yet
        with self._changing:
            while (move := self._next_move(unfit)) is not None:
                shard, replica, node_id = move
                if not self._start(shard, node_id):
                    unfit.add(node_id)
                    continue
                self._adopt(self._epoch)
                self._strike(shard, replica)
                ray.kill(replica.handle)
                n_moved += 1
        return n_moved

    def _next_move(self, unfit: set[str]) -> tuple[_Shard, _Replica, str] | None:
        """Return a shard to move, from where, and to where, if that makes the nodes' loads more even."""
        nodes = [node for node in living_nodes() if node.id not in unfit]
        loads = self._loads()
        weight = {node.id: max(node.n_cpus, 1.0) for node in nodes}
        target = least_loaded(nodes, loads)
        there = (loads.get(target.id, 0.0) + 1) / weight[target.id]
        movable = [
            (loads[replica.node_id] / weight.get(replica.node_id, 1.0), place, shard, replica)
            for place, shard in enumerate(self._shards)
            for replica in shard.replicas
            if target.id not in {one.node_id for one in shard.replicas}
        ]
        load, _, shard, replica = max(movable, key=lambda one: one[:2], default=(0.0, 0, None, None))
        return None if shard is None or replica is None or load <= there else (shard, replica, target.id)

    # ── Inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _missing(self, what: str) -> ChunksMissingError:
        n_missing = sum(shard.statistics.n_chunks for shard in self._shards if not shard.replicas)
        return ChunksMissingError(f"{what}: a shard was lost and is being restored", n_missing)

    def _change(self, changes: dict[int, tuple[_Shard, str, Any]]) -> list[Contribution]:
        """Let all replicas of some shards make a change, and return what each shard adds to the whole afterwards.

        Raises:
            ChunksMissingError: all replicas of one died; nothing was changed.
            Exception: what a shard raised; nothing was changed.
        """
        contributions: list[list[Contribution]] = []
        try:
            for shard, verb, what in changes.values():
                calls = [(one, getattr(one.handle, verb).remote(what)) for one in list(shard.replicas)]
                found = []
                for replica, call in calls:
                    with self._unless_dead(shard, replica):
                        found.append(get(call))
                contributions.append(found)
            if not all(contributions):
                raise self._missing("the chunks cannot be changed now")  # noqa: TRY301
        except Exception:
            for shard, _, _ in changes.values():
                for replica in list(shard.replicas):
                    with self._unless_dead(shard, replica):
                        get(replica.handle.forget.remote())
            raise
        for (shard, _, _), found in zip(changes.values(), contributions, strict=True):
            shard.contribution = found[0]
        return [found[0] for found in contributions]

    @contextmanager
    def _unless_dead(self, shard: _Shard, replica: _Replica) -> Iterator[None]:
        """Strike a replica out if it turns out to be dead."""
        try:
            yield
        except RayActorError:
            self._strike(shard, replica)

    def _strike(self, shard: _Shard, replica: _Replica) -> None:
        """Strike a replica out, and tell callers at once: they shall ask another."""
        with self._told:
            if replica not in shard.replicas:
                return
            shard.replicas.remove(replica)
            if self._state is not None:
                known = self._state.shards
                shards = [
                    evolve(old, replicas=new.replicas, node_ids=new.node_ids)
                    for old, new in zip(known, (one.state(self._epoch) for one in self._shards), strict=True)
                ]
                self._tell(evolve(self._state, shards=tuple(shards)))

    def _adopt(self, epoch: int) -> None:
        """Make what was changed searchable everywhere, and tell callers."""
        total = sum((shard.statistics for shard in self._shards), Statistics())
        shared = ray.put(total) if total.ids.size else total
        calls = [
            (shard, replica, replica.handle.adopt.remote(epoch, shared))
            for shard in self._shards
            for replica in list(shard.replicas)
            if replica.since is None or epoch > self._epoch
        ]
        for shard, replica, call in calls:
            with self._unless_dead(shard, replica):
                get(call)
                replica.since = epoch if replica.since is None else replica.since
        with self._told:
            self._epoch = epoch
            self._tell(
                IndexState(
                    version=0,
                    epoch=epoch,
                    shards=tuple(shard.state(epoch) for shard in self._shards),
                    statistics=total,
                    n_positions=self._n_positions,
                    n_tokens=sum(shard.n_tokens for shard in self._shards),
                    weighting=self._weighting,
                    counter=self._counter,
                )
            )

    def _tell(self, state: IndexState) -> None:
        self._version += 1
        self._state = evolve(state, version=self._version)
        self._told.notify_all()

    # ── Replicas ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _loads(self) -> dict[str, float]:
        loads = Counter(self._n_coming)
        loads.update(one.node_id for shard in self._shards for one in shard.replicas)
        return dict(loads)

    def _fill(self, shards: Sequence[_Shard]) -> None:
        """Start the replicas that shards lack."""
        lacking = [shard for shard in shards for _ in range(self._n_replicas - len(shard.replicas))]
        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(self._start, lacking))

    def _start(self, shard: _Shard, node_id: str | None = None) -> bool:
        """Start a replica, on a node with room unless one is named; tell whether that was done, or note why not."""
        for _ in range(_ATTEMPTS):
            with self._told:
                if (chosen := node_id) is None:
                    held = [one.node_id for one in shard.replicas]
                    chosen = least_loaded(living_nodes(), self._loads(), held).id
                self._n_coming[chosen] += 1
            try:
                args = self._weighting, self._counter
                handle, real_node_id = start_checked(Shard, chosen, *args, max_concurrency=_THREADS)
                shard.newest = handle
                contribution = get(handle.build.remote(shard.recipe))
            except RayActorError as error:
                shard.error = f"the actor died: {str(error).splitlines()[0]}"
                continue
            except Exception as error:
                shard.error = f"{type(error).__name__}: {error}"
                return False
            finally:
                self._n_coming[chosen] -= 1
            with self._told:
                if shard.contribution is _NOT_MADE:
                    shard.contribution = contribution
                if contribution.digest != shard.contribution.digest:
                    ray.kill(handle)
                    shard.error = "its source has changed since the index was built"
                    return False
                shard.replicas.append(_Replica(handle, real_node_id, handle.end.remote()))
                shard.error = None
            return True
        return False

    def _watch(self) -> None:
        """Strike out every replica that dies, as soon as that is known."""
        while True:
            with self._told:
                ends = {one.end: (shard, one) for shard in self._shards for one in shard.replicas}
            dead, _ = ray.wait(list(ends), timeout=_WATCH_S) if ends else ([], [])
            for end in dead:
                shard, replica = ends[end]
                _log.warning("a shard of %d chunks was lost on node %s", shard.statistics.n_chunks, replica.node_id)
                self._strike(shard, replica)
            if not ends:
                time.sleep(_WATCH_S)

    def _mend(self) -> None:
        """Start what is lacking, again and again, for as long as the keeper lives."""
        while True:
            time.sleep(_WATCH_S)
            with self._told:
                now_s = time.monotonic()
                lacking = [
                    shard
                    for shard in self._shards
                    if len(shard.replicas) < self._n_replicas and shard.next_try_s <= now_s
                ]
            if not lacking:
                continue
            try:
                with self._changing:
                    self._restore(lacking)
            except Exception:
                _log.exception("lost shards could not be restored")

    def _restore(self, shards: Sequence[_Shard]) -> None:
        self._fill(shards)
        for shard in shards:
            is_whole = len(shard.replicas) == self._n_replicas
            shard.n_failures = 0 if is_whole else shard.n_failures + 1
            shard.next_try_s = time.monotonic() + min(2.0**shard.n_failures - 1.0, _LONGEST_PAUSE_S)
            if not is_whole:
                _log.warning("a shard of %d chunks is not restored: %s", shard.statistics.n_chunks, shard.error)
        self._adopt(self._epoch)
