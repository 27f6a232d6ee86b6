"""The keeper of an index: it knows all shards, changes them together, and has lost ones brought back.

It lives in the process that made the index; where the index has a name, by which other processes find it, the keeper
is an actor of its own. Callers ask the hosts themselves; the keeper only tells them which there are. It holds a recipe
for each shard, from which any node can make the shard again.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final

import ray
from attrs import evolve
from ray.exceptions import RayActorError

from relevance_gen.cluster import saved_folder as folders
from relevance_gen.cluster.actors import HEALTH, Actor, get
from relevance_gen.cluster.balance import Balance, has_room, too_large
from relevance_gen.cluster.calls import Pace
from relevance_gen.cluster.collection import ClusterCollection
from relevance_gen.cluster.hosts import Hosts
from relevance_gen.cluster.kept import KeptShard
from relevance_gen.cluster.parts import Part, Recipe, ShardFile
from relevance_gen.cluster.placing import living_nodes
from relevance_gen.cluster.shard import OutdatedError
from relevance_gen.cluster.state import IndexState
from relevance_gen.cluster.watch import Watch
from relevance_gen.errors import (
    ChunksMissingError,
    ClusterError,
    InvalidRequestError,
    TimedOutError,
)
from relevance_gen.index.segment import Statistics
from relevance_gen.retrieval.positions import positions_to_remove
from relevance_gen.retrieval.query.filters import Where
from relevance_gen.shards.object_store import ObjectStore
from relevance_gen.text.token_counting import TokenCounter
from relevance_gen.types import WeightingName

_log = logging.getLogger(__name__)

_TELLING: Final = "telling"
"""The calls of whoever asks the index, which do not wait for changes."""

_BREATH_S: Final = 0.01
"""How long others have their turn between two steps of making loads even: whoever waits for a lock is not first."""
_PROGRESS_S: Final = 1.0
"""How long to wait for the progress of a shard."""


class Keeper(Actor):
    """Keeps one index. A change is seen whole by every question that begins after it, or not at all."""

    groups: ClassVar[dict[str, int]] = {HEALTH: 2, _TELLING: 32}

    def __init__(self, weighting: WeightingName, counter: TokenCounter, n_replicas: int) -> None:
        self._weighting = weighting
        self._counter = counter
        self._hosts = Hosts(weighting, counter, n_replicas, self._tell_hosts)
        self._watch = Watch(self._hosts, self._restore)
        self._changing = threading.Lock()
        """Held while chunks change or shards are made."""
        self._pace = Pace()
        self._numbers = itertools.count()  # of shards
        self._state: IndexState | None = None
        self._epoch = self._n_positions = 0

    # ── Told to callers ──────────────────────────────────────────────────────────────────────────────────────────────

    @ray.method(concurrency_group=_TELLING)
    def state(self, known: int | None = None, timeout_s: float = 0.0) -> IndexState | None:
        """Return the state; None if it still has the version that is known when the time is over."""
        with self._hosts.changed:
            self._hosts.changed.wait_for(
                lambda: self._state is not None and self._state.version != known, timeout_s
            )
            if self._state is None:
                raise ClusterError("this index is still being built")
            return None if self._state.version == known else self._state

    @ray.method(concurrency_group=_TELLING)
    def progress(self) -> tuple[int, int]:
        """Return how many chunks are searchable, and how many will be as far as is known."""
        done = [(0, 0)]
        for shard in list(self._shards):
            for host in [*shard.coming, *shard.replicas][:1]:
                with suppress(RayActorError, TimedOutError, KeyError):  # it may wait for its turn
                    done.append(get(host.handle.call.remote(shard.number, "progress"), _PROGRESS_S))
        return sum(one for one, _ in done), sum(total for _, total in done)

    def nbytes(self) -> list[int]:
        """Return the memory of each shard in one replica, in bytes; 0 of a lost one."""
        sizes = self._hosts.call_one(self._shards, "nbytes", [()] * len(self._shards))
        return [some[0] if some else 0 for some in sizes]

    # ── Changes ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def build(self, parts: Sequence[Part], n_positions: int | None = None) -> None:
        """Make a shard of each part; without a number of positions the chunks get theirs now, in this order."""
        with self._changing:
            self._hosts.shards = [KeptShard(next(self._numbers), Recipe.of(part)) for part in parts]
            self._hosts.fill()
            if lost := [shard.error for shard in self._shards if not shard.replicas]:
                raise ClusterError(
                    f"{len(lost)} of {len(parts)} shards could not be built: {lost[0]}"
                )
            self._n_positions = self._place() if n_positions is None else n_positions
            self._adopt(0)
        self._watch.start()

    def _place(self) -> int:
        """Give the chunks of all shards, which count from 0 in each, their positions; return how many these are."""
        *firsts, n_positions = itertools.accumulate(
            (shard.contribution.n_positions for shard in self._shards), initial=0
        )
        for shard, first in zip(self._shards, firsts, strict=True):
            ((part, _),) = shard.recipe.parts
            shard.recipe = Recipe.of(part, first)
        self._change(self._shards, "move", [(first,) for first in firsts])
        return n_positions

    def add(self, part: Part, n_positions: int) -> int:
        """Add chunks, which take so many positions, and return the first; whatever is raised, nothing was added."""
        with self._changing:
            first = self._n_positions
            living = [shard for shard in self._shards if shard.replicas]
            if not living:
                raise self._missing("no shard can take the chunks now")
            shard = min(living, key=lambda one: one.size)
            if has_room(shard, part.n_chars):
                self._change([shard], "add", [(part, first)])
                shard.recipe = shard.recipe.with_part(part, first)
            else:
                self._make_shard(part, first)
            self._n_positions += n_positions
            self._adopt(self._epoch + 1)
        return first

    def _make_shard(self, part: Part, first: int) -> None:
        """Make a new shard of a part."""
        shard = KeptShard(next(self._numbers), Recipe.of(part, first))
        self._shards.append(shard)
        for _ in range(self._hosts.n_wanted):
            self._hosts.make(shard)
        if not shard.replicas:
            self._shards.remove(shard)
            raise ClusterError(f"no shard could be made of the chunks: {shard.error}")

    def remove(self, positions: Any, where: Where | None = None) -> int:
        """Remove chunks as `ClusterIndex.remove` does."""
        with self._changing:
            state = self._state
            if state is None or state.n_missing_chunks:
                raise self._missing("chunks cannot be removed now")
            try:
                collection = ClusterCollection(state, self._pace)
                at = positions_to_remove(positions, where, self._n_positions, collection)
            except OutdatedError:
                raise self._missing("chunks cannot be removed now") from None
            here = [(shard, at[shard.contribution.runs.hold(at)]) for shard in self._shards]
            changed = [(shard, some) for shard, some in here if some.size]
            self._change(
                [shard for shard, _ in changed], "remove", [(some,) for _, some in changed]
            )
            for shard, some in changed:
                shard.recipe = shard.recipe.without(some)
            self._adopt(self._epoch + 1)
        return at.size

    def save(self, folder: str) -> None:
        """Write all shards to a folder, but for those that it has, as `ClusterIndex.save` does."""
        with self._changing:
            if not all(shard.replicas for shard in self._shards):
                raise self._missing("the index cannot be saved now")
            before = _, manifest = folders.begin(folder)
            there = {} if manifest is None else manifest.shards
            ours = {
                file.name
                for shard in self._shards
                for file in shard.recipe.files
                if file.folder == folder
            }
            if there and ours and ours != there.keys():
                raise folders.conflict(folder)
            names = folders.new_files(len(self._shards))
            for number, shard in enumerate(self._shards):
                if shard.recipe.is_file and (name := shard.recipe.files[0].name) in there:
                    names[number] = name
            try:
                saved = self._write(folder, names, before)
            except Exception:
                with suppress(OSError):
                    ObjectStore(folder).remove(set(names) - there.keys())
                raise
            counter = self._counter
            manifest = folders.Manifest(
                self._weighting, counter.name, counter.fingerprint, self._n_positions, saved
            )
            folders.publish(folder, manifest, before)
            for shard, (name, one) in zip(self._shards, saved.items(), strict=True):
                shard.recipe = Recipe.of(ShardFile(folder, name, one.n_tokens))

    def _write(
        self, folder: str, names: Sequence[str], before: folders.Before
    ) -> dict[str, folders.SavedShard]:
        """Write those files of shards that the folder lacks, and have other shards' processes look for each."""
        _, manifest = before
        saved = {} if manifest is None else manifest.shards
        new = {
            name: shard
            for name, shard in zip(names, self._shards, strict=True)
            if name not in saved
        }
        arguments = [(folder, name, self._n_positions) for name in new]
        written = self._hosts.call_one(list(new.values()), "save", arguments)
        found = self._hosts.call(
            self._shards, "finds", [(folder, name) for name in (*names[1:], *names[:1])]
        )
        if not all(written) or not all(found):
            raise self._missing("the index cannot be saved now")
        if not all(map(all, found)) or not set(names) <= set(ObjectStore(folder).list_names()):
            if (
                folders.begin(folder) != before
            ):  # and that writer removed what no index seemed to need
                raise folders.conflict(folder)
            remedy = "name one on a file system that they share, or an address as s3://…"
            raise InvalidRequestError.must_be(
                "folder", "the same for all nodes", folder, remedy=remedy
            )
        saved = saved | {name: one for name, (one,) in zip(new, written, strict=True)}
        return {name: saved[name] for name in names}

    def rebalance(self) -> int:
        """Cut and move shards as `ClusterIndex.rebalance` does; between two steps others may change the index."""
        n_done = 0
        whole: set[KeptShard] = set()  # shards that cannot be cut
        unfit: set[str] = (
            set()
        )  # nodes where nothing can be made, such as have died, which Ray does not know yet
        try:
            while n_new := self._cut_some(whole) or self._move_one(unfit):
                n_done += n_new
                time.sleep(_BREATH_S)
        finally:
            self._hosts.end_idle()
        return n_done

    def _cut_some(self, whole: set[KeptShard]) -> int:
        """Cut in two where they are all shards that are too large, and return how many these are.

        Those that have only one chunk, or were lost, are `whole` from now on. Whatever is raised, nothing was changed.
        """
        with self._changing:
            self._hosts.fill()
            n_cpus = int(sum(node.n_cpus for node in living_nodes()))
            while shards := too_large(self._shards, n_cpus, whole):
                middles = self._hosts.call_one(shards, "middle", [()] * len(shards))
                cuts = [
                    (
                        shard,
                        at,
                        KeptShard(next(self._numbers), shard.recipe.cut(at, self._n_positions)[1]),
                    )
                    for shard, told in zip(shards, middles, strict=True)
                    for at in told
                    if at is not None
                ]
                done = self._cut(cuts)
                whole.update(set(shards) - done)
                if done:
                    return len(done)
        return 0

    def _cut(self, cuts: Sequence[tuple[KeptShard, int, KeptShard]]) -> set[KeptShard]:
        """Cut shards, each at a position into itself and another; return those that were not lost meanwhile."""
        try:
            told = self._hosts.cut(cuts)
        except Exception:
            for shard, _, rest in cuts:
                for host in shard.replicas:
                    self._hosts.drop(rest, host)
            self._hosts.call([shard for shard, *_ in cuts], "forget", [()] * len(cuts))
            raise
        done = {
            shard: (at, rest, of_both[0])
            for (shard, at, rest), of_both in zip(cuts, told, strict=True)
            if of_both
        }
        with self._hosts.changed:
            for shard, (at, rest, (of_shard, of_rest)) in done.items():
                shard.recipe, _ = shard.recipe.cut(at, self._n_positions)
                shard.contribution, rest.contribution = of_shard, of_rest
                rest.replicas = [*shard.replicas]
                self._shards.append(rest)
        if done:
            self._adopt(self._epoch + 1)
        return {*done}

    def _move_one(self, unfit: set[str]) -> int:
        """Move a replica to where there is less, if that is worth it, and return how many were moved: one or none."""
        with self._changing:
            self._hosts.fill()
            while move := Balance(self._shards, self._hosts.all).next_move(living_nodes(), unfit):
                if self._hosts.make(move.shard, move.node):
                    self._hosts.drop(move.shard, move.host)
                    return 1
                unfit.add(move.node.id)
        return 0

    def close(self) -> None:
        """End all hosts."""
        self._hosts.close()
        self._watch.join()

    # ── Inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def _shards(self) -> list[KeptShard]:
        return self._hosts.shards

    def _missing(self, what: str) -> ChunksMissingError:
        n_missing = sum(shard.statistics.n_chunks for shard in self._shards if not shard.replicas)
        return ChunksMissingError(f"{what}: a shard was lost and is being restored", n_missing)

    def _change(
        self, shards: Sequence[KeptShard], verb: str, arguments: Sequence[tuple[Any, ...]]
    ) -> None:
        """Let all replicas of some shards make a change, all or none of them; `_adopt` makes it searchable.

        The method of `Shard` that makes it tells what the shard contributes then. Whatever is raised, because all
        replicas of one died or a shard refused, nothing was changed.
        """
        try:
            answers = self._hosts.call(shards, verb, arguments)
            if not all(answers):
                raise self._missing("the chunks cannot be changed now")
        except Exception:
            self._hosts.call(shards, "forget", [()] * len(shards))
            raise
        for shard, (contribution, *_) in zip(shards, answers, strict=True):
            shard.contribution = contribution

    def _adopt(self, epoch: int) -> None:
        """Make what was changed searchable everywhere, and tell callers."""
        total = sum((shard.statistics for shard in self._shards), Statistics())
        self._hosts.adopt(epoch, ray.put(total) if total.ids.size or total.titles.size else total)
        with self._hosts.changed:
            self._epoch = epoch
            self._tell(
                IndexState(
                    version=0,
                    epoch=epoch,
                    shards=tuple(shard.state(self._hosts.n_wanted) for shard in self._shards),
                    statistics=total.scalars,
                    n_positions=self._n_positions,
                    n_tokens=sum(shard.contribution.n_tokens for shard in self._shards),
                    weighting=self._weighting,
                    counter=self._counter,
                )
            )

    def _tell(self, state: IndexState) -> None:
        self._state = evolve(state, version=0 if self._state is None else self._state.version + 1)
        self._hosts.changed.notify_all()

    def _tell_hosts(self) -> None:
        """Tell callers at once which hosts are left; of chunks that are being changed they hear later."""
        if self._state is not None:
            now = [shard.state(self._hosts.n_wanted) for shard in self._shards]
            shards = [
                evolve(new, runs=old.runs, n_chunks=old.n_chunks)
                for old, new in zip(
                    self._state.shards, now, strict=False
                )  # one more may be in the making
            ]
            self._tell(evolve(self._state, shards=tuple(shards)))

    def _restore(self) -> None:
        """Start the replicas that shards lack."""
        try:
            with self._changing:
                self._hosts.fill()
        except Exception:
            _log.exception("lost shards could not be restored")
