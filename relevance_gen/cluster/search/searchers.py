"""The searchers of a cluster: actors that search shards, and the pool that selects them.

Any searcher can open any shard of any index, so all searchers are interchangeable. Each shard has an
order of searchers, by rendezvous hashing with bounded load: when a searcher joins or leaves, few
shards change their first searcher, and no searcher is first for much more than its share. Every
process computes the same order.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import os
import pickle
import statistics
import threading
import time
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final

import ray
from attrs import define, frozen
from ray import cloudpickle
from ray.exceptions import ActorDiedError, ActorUnschedulableError, RayError, RayTaskError

from relevance_gen.cluster.actors import HEALTH, START_TIMEOUT_S, Actor, check_versions, start
from relevance_gen.cluster.connection import NAMESPACE, living_nodes
from relevance_gen.cluster.search.sources import ChunkSource
from relevance_gen.errors import BusyError, ClusterError
from relevance_gen.folders.cache import default_folder
from relevance_gen.index.builder import merge
from relevance_gen.index.segment import Segment, Statistics
from relevance_gen.quota import Quota
from relevance_gen.retrieval.local_segments import LocalSegments, SegmentScorer
from relevance_gen.retrieval.weighting import weighting_named
from relevance_gen.shards.shard_cache import ShardCache
from relevance_gen.shards.shard_files import (
    LocalShardEditor,
    ShardOpener,
    ShardWriter,
    read_statistics,
)
from relevance_gen.shards.versions import IndexVersion, ShardRecord, VersionStore

_log = logging.getLogger(__name__)

_SEARCH: Final = "search"
_BUILD: Final = "build"
_MAX_SEARCHES: Final = 64
"""Requests that a searcher processes at the same time. Further requests are refused."""
_REFUSING_THREADS: Final = 8
_MAX_OPEN_GROUPS: Final = 8
"""Groups of shards of one version that remain open for each index."""
_MAX_INDEXES: Final = 64
_MAX_SMALL_SEGMENTS: Final = 4
"""Number of small segments of a group that are searched without merging them."""
_MAX_SMALL_POSTINGS: Final = 1 << 19
"""Maximum number of postings of a small segment, about 4 MiB of text: the cost of searching a
larger segment is determined by its content."""
_MAX_MERGED_POSTINGS: Final = 1 << 23
"""Maximum number of postings of a merged segment: merging it takes about half a second and 100 MiB
of memory."""
_MAX_MERGED: Final = 4
"""Number of merged segments that are cached for each index."""
_N_RESPONSE_PARTS: Final = 4
_MIN_PART_BYTES: Final = 64 << 10
"""A response is returned in parts, because Ray sends less than 100 KiB with the reply itself and
stores larger objects, from which fetching takes longer than a search."""
_CACHE_BYTES: Final = 64 << 30
"""Maximum total size of the shards of remote indexes that a machine caches on disk."""
_IDLE_TIMEOUT_S: Final = 60.0
"""Seconds without a request or ping after which a searcher ends."""
MIN_SEARCHER_TOKENS: Final = 8 << 20
"""Size of the shards of an index from which a further searcher searches a part of them: with
smaller parts, the messages take more processor time than the search."""
_FAILURE_PENALTY_S: Final = 1.0
"""Time for which a searcher that failed comes last in every order."""
RETRY_DELAY_S: Final = 0.1
_REFRESH_S: Final = 1.0
"""Seconds between two checks for nodes that joined or left."""
_REFRESHES_PER_PING: Final = 15
_MAX_START_WAIT_S: Final = 20.0
"""Time to wait for all searchers when the first index is opened. Then it is enough that any searcher
is ready; other searchers are used when they are ready."""
_MAX_BUILD_ATTEMPTS: Final = 5
_FIRST_DURATION_S: Final = 0.3
_N_DURATIONS: Final = 65
_SLOW_FACTOR: Final = 3.0
"""After this multiple of the median duration of recent requests, the next searchers are asked,
too."""
_MIN_HEDGE_DELAY_S: Final = 0.05


# ── The actor ─────────────────────────────────────────────────────────────────────────────────────


@frozen
class ShardGroup:
    """Shards of one version of an index that a searcher searches together.

    Attributes:
        location: the location of the index.
        version_name: the name of the version.
        shard_names: the names of the shards' files, ascending.
    """

    location: str
    version_name: str
    shard_names: tuple[str, ...]


class ShardSearcher(Actor):
    """The actor that searches and builds shards of any index.

    It ends after `_IDLE_TIMEOUT_S` without a request or ping.
    """

    groups: ClassVar[dict[str, int]] = {
        HEALTH: 2,
        _SEARCH: _MAX_SEARCHES + _REFUSING_THREADS,
        _BUILD: 2,
    }

    def __init__(self) -> None:
        self._indexes: OrderedDict[str, _OpenIndex] = OrderedDict()
        self._indexes_lock = threading.Lock()
        self._slots = Quota(_MAX_SEARCHES)
        self._used_s = time.monotonic()
        threading.Thread(target=self._end_when_unused, name="end-unused", daemon=True).start()

    @ray.method(concurrency_group=HEALTH)
    def ping(self) -> None:
        """Postpone the end of this searcher to at least `_IDLE_TIMEOUT_S` from now."""
        self._used_s = time.monotonic()

    @ray.method(concurrency_group=_SEARCH, num_returns=_N_RESPONSE_PARTS)
    def answer(self, group: ShardGroup, request: bytes) -> list[bytes]:
        """Call a function with the segments of a group of shards, and return its pickled response.

        The bytes of the response are divided into `_N_RESPONSE_PARTS` parts, some of which can be
        empty; `join_response` returns the response of these parts.

        Args:
            group: the shards to search.
            request: a pickled pair: the function, usually a method of `LocalSegments`, and its
                argument after the segments.

        Raises:
            BusyError: too many requests are in progress.
            OSError: a shard cannot be read.
        """
        self._used_s = time.monotonic()
        with self._slots.acquired(refusal=_busy):
            segments = self._index(group.location).segments(group)
            function, argument = pickle.loads(request)  # noqa: S301 from a process of the cluster
            response = _pickled(function(segments, argument))
        part_bytes = max(_MIN_PART_BYTES, -(-len(response) // _N_RESPONSE_PARTS))
        starts = range(0, _N_RESPONSE_PARTS * part_bytes, part_bytes)
        return [response[start : start + part_bytes] for start in starts]

    @ray.method(concurrency_group=_BUILD)
    def open(self, group: ShardGroup) -> None:
        """Open shards before they are searched; ignore errors: the search raises them again."""
        with suppress(Exception):
            self._index(group.location).segments(group)

    @ray.method(concurrency_group=_BUILD)
    def make_shard(self, make: Callable[[], ShardRecord]) -> ShardRecord:
        """Return ``make()``, for example of a partial object of `build_shard` or `edit_shards`."""
        self._used_s = time.monotonic()
        return make()

    @ray.method(concurrency_group=HEALTH)
    def close_index(self, location: str) -> None:
        """Close the shards of the index at `location`; do nothing if none is open."""
        with self._indexes_lock:
            self._indexes.pop(location, None)

    def _index(self, location: str) -> _OpenIndex:
        with self._indexes_lock:
            index = self._indexes.pop(location, None) or _OpenIndex(location)
            self._indexes[location] = index
            if len(self._indexes) > _MAX_INDEXES:
                self._indexes.popitem(last=False)
        return index

    def _end_when_unused(self) -> None:
        while time.monotonic() - self._used_s < _IDLE_TIMEOUT_S or self._slots.held:
            time.sleep(1.0)
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
        os._exit(0)


@frozen(eq=False)
class _OpenVersion:
    version: IndexVersion
    statistics: Statistics  # of all chunks of the version


@frozen(eq=False)
class _OpenGroup:
    segments: LocalSegments
    shards: Sequence[ShardRecord]


class _OpenIndex:
    """The shards of the index at `location` that a searcher has open. Thread-safe."""

    def __init__(self, location: str) -> None:
        self._store = VersionStore(location)
        self._opener = ShardOpener(location, _shard_cache())
        self._lock = threading.Lock()
        self._versions: OrderedDict[str, _OpenVersion] = OrderedDict()
        self._groups: OrderedDict[ShardGroup, _OpenGroup] = OrderedDict()
        self._merged: deque[tuple[frozenset[ShardRecord], Segment]] = deque(maxlen=_MAX_MERGED)

    def segments(self, group: ShardGroup) -> LocalSegments:
        """Return the segments of a group of shards, which are opened if they are not open yet.

        Raises:
            OSError: a shard cannot be read.
        """
        opened = self._groups.get(group)
        if opened is None:
            with self._lock:
                opened = self._groups.get(group) or self._open(group)
        return opened.segments

    def _open(self, group: ShardGroup) -> _OpenGroup:
        opened_version = self._version(group.version_name)
        version = opened_version.version
        names = set(group.shard_names)
        shards = [shard for shard in version.shards if shard.file.name in names]
        opened = self._opener.open(version.weighting, shards)
        weighting = weighting_named(version.weighting)
        # Postings that were looked up for other versions remain valid.
        caches = {}
        for open_group in self._groups.values():
            for scorer in open_group.segments.scorers:
                caches[id(scorer.segment)] = scorer.postings_cache
        scorers = []
        for segment in self._merge_small(shards, opened):
            cache = caches.get(id(segment))
            scorers.append(SegmentScorer(segment, weighting, opened_version.statistics, cache))
        segments = LocalSegments.of_scorers(scorers, weighting, opened_version.statistics)
        self._groups[group] = _OpenGroup(segments, shards)
        if len(self._groups) > _MAX_OPEN_GROUPS:
            self._groups.popitem(last=False)
        open_shards = [open_group.shards for open_group in self._groups.values()]
        self._opener.keep_only([*itertools.chain.from_iterable(open_shards)])
        return self._groups[group]

    def _version(self, name: str) -> _OpenVersion:
        """Return the version with this name."""
        if name not in self._versions:
            version = self._store.read_named(name)
            statistics = read_statistics(self._store.files, version)
            self._versions[name] = _OpenVersion(version, statistics)
            if len(self._versions) > _MAX_OPEN_GROUPS:
                self._versions.popitem(last=False)
        return self._versions[name]

    def _merge_small(
        self, shards: Sequence[ShardRecord], segments: Sequence[Segment]
    ) -> list[Segment]:
        """Return segments that have together the same chunks as `segments`.

        If there are many small segments, they are merged into one segment, because scoring has a
        fixed cost for each segment. Merged segments are cached. The order can be another one.

        Args:
            shards: the shard of each segment.
            segments: the segments, in the order of `shards`.
        """
        unmerged = {}
        large = []
        for shard, segment in zip(shards, segments, strict=True):
            if segment.postings.chunk.size <= _MAX_SMALL_POSTINGS:
                unmerged[shard] = segment
            else:
                large.append(segment)
        small_shards = frozenset(unmerged)
        small = []
        for merged_shards, merged in self._merged:  # a change adds or replaces few shards
            if merged_shards <= unmerged.keys():
                small.append(merged)
                for shard in merged_shards:
                    del unmerged[shard]
        small += unmerged.values()
        n_postings = sum(segment.postings.chunk.size for segment in small)
        if len(unmerged) > _MAX_SMALL_SEGMENTS and n_postings <= _MAX_MERGED_POSTINGS:
            small = [merge(small)]
            self._merged.appendleft((small_shards, small[0]))
        return [*large, *small]


def build_shard(writer: ShardWriter, source: ChunkSource) -> ShardRecord:
    """Build the shard of the chunks of a source, write it, and return its record.

    The positions of the chunks in the record begin at 0; the caller adds the number of positions of
    the shards before it.
    """
    return writer.build(source.batches())


def edit_shards(method: Callable[..., ShardRecord], writer: ShardWriter, *args: Any) -> ShardRecord:
    """Call a method of `LocalShardEditor` with these arguments, and return its result.

    Args:
        method: the method.
        writer: writes the new shard.
        *args: the arguments of the method.
    """
    opener = ShardOpener(writer.location, _shard_cache())
    return method(LocalShardEditor(opener, writer), *args)


def join_response(parts: Sequence[bytes]) -> Any:
    """Return the response whose parts `ShardSearcher.answer` returned."""
    return pickle.loads(b"".join(parts))  # noqa: S301 from a process of the cluster


def _busy() -> BusyError:
    return BusyError("a searcher of the cluster has too many requests")


def _shard_cache() -> ShardCache | None:
    folder = default_folder()
    return None if folder is None else ShardCache(folder / "shards", _CACHE_BYTES)


def _pickled(response: Any) -> bytes:
    """Pickle a response, with cloudpickle if pickle fails.

    Only metadata of the caller's own classes needs cloudpickle, which takes twice the time.
    """
    try:
        return pickle.dumps(response, pickle.HIGHEST_PROTOCOL)
    except Exception:  # pickle raises errors of many types
        pickled: bytes = cloudpickle.dumps(response)
        return pickled


# ── The pool ──────────────────────────────────────────────────────────────────────────────────────


@define(eq=False)
class SearcherHandle:
    """A searcher of the pool.

    Attributes:
        name: its name.
        node_id: the id of its node.
        actor: Ray's handle of the actor.
        starting: reference of the response to `node_versions`; None when the searcher is ready.
        avoided_until_s: until this time, other searchers are asked before it.
    """

    name: str
    node_id: str
    actor: Any
    starting: Any = None
    avoided_until_s: float = 0.0


@frozen(eq=False)
class MadeShard:
    """The result of a task that ran on a searcher."""

    task_ord: int  # index of the task
    shard: ShardRecord


@frozen(eq=False)
class _RunningTask:
    task_ord: int  # index of the task
    searcher: SearcherHandle


class SearcherPool:
    """The searchers of a cluster, a searcher for each processor.

    All indexes and all processes of the cluster share them.

    Attributes:
        session: the `session_id` of the connection to the cluster.
        durations_s: durations of recent requests: seconds from sending a request until all its
            shards have answered.

    Raises:
        ClusterError: no searcher was ready after `START_TIMEOUT_S` seconds, or a searcher has other
            versions than this process.
    """

    def __init__(self) -> None:
        self.session = session_id()
        self.durations_s = deque([_FIRST_DURATION_S], maxlen=_N_DURATIONS)
        self._lock = threading.Lock()
        self._searchers: dict[str, SearcherHandle] = {}
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self.searchers:
            if time.monotonic() > deadline_s:
                raise ClusterError("no node of the cluster can run relevance_gen")
            self.refresh(_MAX_START_WAIT_S)
        threading.Thread(target=self._watch_nodes, daemon=True, name="watch-nodes").start()

    @property
    def searchers(self) -> list[SearcherHandle]:
        """The searchers that are ready for requests."""
        with self._lock:
            searchers = list(self._searchers.values())
        return [searcher for searcher in searchers if searcher.starting is None]

    @property
    def hedge_delay_s(self) -> float:
        """Seconds from the beginning of a request until further searchers are asked.

        Then each shard without an answer is requested from the next searcher in its order, too.
        """
        median_s = statistics.median(self.durations_s.copy())
        return max(_SLOW_FACTOR * median_s, _MIN_HEDGE_DELAY_S)

    def orders(
        self, shards: Sequence[ShardRecord], index_id: str
    ) -> dict[str, list[SearcherHandle]]:
        """Return the order in which searchers are asked for each shard, by the name of its file.

        The number of different searchers that are first in an order is limited to one for each full
        `MIN_SEARCHER_TOKENS` tokens of all shards, at least 1, so that each of them searches about
        this number of tokens or more.

        Args:
            shards: the shards of a version of an index, at least one.
            index_id: the id of the index; different indexes have different first searchers.

        Raises:
            ClusterError: there is no searcher.
        """
        searchers = sorted(self.searchers, key=lambda searcher: _score(searcher, index_id))
        if not searchers:
            raise ClusterError("no node of the cluster can run a searcher")
        sizes = {shard.file.name: shard.n_tokens + 1 for shard in shards}
        total = sum(sizes.values())
        n_first = min(max(total // MIN_SEARCHER_TOKENS, 1), len(searchers))
        primary, others = searchers[:n_first], searchers[n_first:]
        max_load = max(total / n_first, *sizes.values())
        loads = dict.fromkeys(primary, 0)
        orders = {}
        for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
            ranked = sorted(primary, key=lambda searcher: _score(searcher, name))
            # The first searcher in `ranked` with enough capacity; if none has, the least loaded.
            capacity = max_load - sizes[name]
            first = min(ranked, key=lambda searcher: max(loads[searcher] - capacity, 0))
            loads[first] += sizes[name]
            ranked.remove(first)
            orders[name] = [first, *ranked, *others]
        return orders

    def run(self, tasks: Sequence[Callable[[], ShardRecord]]) -> Iterator[MadeShard]:
        """Run tasks on searchers, at most one task per searcher; yield each result when it is made.

        A task whose searcher dies is started again on another searcher.

        Args:
            tasks: the arguments of `ShardSearcher.make_shard`.

        Raises:
            Exception: the exception that a task raised.
            ClusterError: the searchers of one task died repeatedly.
        """
        waiting = deque(range(len(tasks)))
        running: dict[Any, _RunningTask] = {}
        n_failures = Counter[int]()
        try:
            while waiting or running:
                busy = [task.searcher for task in running.values()]
                free = [searcher for searcher in self.searchers if searcher not in busy]
                for searcher in by_preference(free)[: len(waiting)]:
                    task_ord = waiting.popleft()
                    reference = searcher.actor.make_shard.remote(tasks[task_ord])
                    running[reference] = _RunningTask(task_ord, searcher)
                if not running:
                    time.sleep(RETRY_DELAY_S)
                    self.refresh()
                ready, _ = ray.wait(list(running), timeout=_REFRESH_S)
                for reference in ready:
                    task = running.pop(reference)
                    try:
                        yield MadeShard(task.task_ord, ray.get(reference))
                    except RayTaskError as error:
                        raise error.cause from None
                    except RayError as error:
                        self.note_failure(task.searcher, error)
                        n_failures[task.task_ord] += 1
                        if n_failures[task.task_ord] == _MAX_BUILD_ATTEMPTS:
                            message = f"processes of the cluster died repeatedly: {error}"
                            raise ClusterError(message) from None
                        waiting.append(task.task_ord)
        finally:
            ignore_errors(running)

    def note_failure(self, searcher: SearcherHandle, error: RayError) -> None:
        """Put a searcher that failed at the end of every order for `_FAILURE_PENALTY_S` seconds.

        Args:
            searcher: the searcher that failed.
            error: its error; after an `ActorDiedError` or an `ActorUnschedulableError`, the
                searcher is removed from the pool.
        """
        searcher.avoided_until_s = time.monotonic() + _FAILURE_PENALTY_S
        if isinstance(error, ActorDiedError | ActorUnschedulableError):
            self._remove(searcher)

    def check_connected(self) -> None:
        """Raise a `ClusterError` if this process is not connected to the cluster any more."""
        if session_id() != self.session:
            raise ClusterError("the connection to the cluster was closed; open the index again")

    def refresh(self, timeout_s: float = 0.0) -> None:
        """Start searchers on nodes that joined, and remove the searchers of nodes that left.

        Searchers that have started are marked as ready, and those that failed are removed. Does
        nothing if the connection to the cluster was closed.

        Args:
            timeout_s: maximum seconds to wait until all starting searchers are ready.

        Raises:
            ClusterError: a searcher has other versions than this process.
        """
        if session_id() != self.session:
            return
        node_ids = {}
        for node in living_nodes():
            for ordinal in range(max(1, int(node.n_cpus))):
                node_ids[f"searcher {node.id} {ordinal}"] = node.id
        with self._lock:
            new_names = node_ids.keys() - self._searchers.keys()
        # Without the lock: Ray waits for the cluster's head, and searches must not wait for it.
        started = {name: _start_searcher(name, node_ids[name]) for name in new_names}
        with self._lock:
            known = self._searchers | started
            self._searchers = {name: known[name] for name in node_ids if name in known}
            searchers = self._searchers.values()
            starting = {searcher.starting: searcher for searcher in searchers if searcher.starting}
        ready, _ = ray.wait(list(starting), num_returns=len(starting), timeout=timeout_s)
        for reference in ready:
            try:
                check_versions(ray.get(reference))
                starting[reference].starting = None
            except RayError:  # its process or node died; the next refresh starts another one
                self._remove(starting[reference])

    def _remove(self, searcher: SearcherHandle) -> None:
        with self._lock:
            if self._searchers.get(searcher.name) is searcher:
                del self._searchers[searcher.name]

    def _watch_nodes(self) -> None:
        """Refresh the pool repeatedly, and ping the searchers so that they do not end."""
        for n_refreshes in itertools.count():
            if session_id() != self.session:
                return
            try:
                self.refresh()
                if n_refreshes % _REFRESHES_PER_PING == 0:
                    for searcher in self.searchers:
                        searcher.actor.ping.remote()
            except Exception:  # the cluster's head may be away
                _log.warning("the nodes of the cluster cannot be listed", exc_info=True)
            time.sleep(_REFRESH_S)


def by_preference(searchers: Iterable[SearcherHandle]) -> list[SearcherHandle]:
    """Return searchers in the same order, but avoided searchers last."""
    now_s = time.monotonic()
    return sorted(searchers, key=lambda searcher: searcher.avoided_until_s > now_s)


def group_by_searcher(searchers: Mapping[str, SearcherHandle]) -> dict[SearcherHandle, list[str]]:
    """Return the ascending names of the shards of each searcher, given the searcher of each."""
    groups: defaultdict[SearcherHandle, list[str]] = defaultdict(list)
    for name in sorted(searchers):
        groups[searchers[name]].append(name)
    return groups


def ignore_errors(references: Iterable[Any]) -> None:
    """Discard the results of tasks; Ray would log the errors of results that nothing reads."""
    for reference in references:
        reference.future()


def session_id() -> str:
    """Return the address and job id of this process's connection to a cluster; "" without one."""
    if not ray.is_initialized():
        return ""
    context = ray.get_runtime_context()
    return f"{context.gcs_address} {context.get_job_id()}"


_pools: Final[list[SearcherPool]] = []
_pools_lock: Final = threading.Lock()


def searcher_pool() -> SearcherPool:
    """Return the pool of the cluster that this process is connected to.

    The pool is created by the first call after a connection, which waits for searchers to start.
    """
    with _pools_lock:
        if not _pools or _pools[0].session != session_id():
            _pools[:] = [SearcherPool()]
        return _pools[0]


def _start_searcher(name: str, node_id: str) -> SearcherHandle:
    """Start the searcher with a name, or find its actor if another process has started it."""
    options = {"name": name, "namespace": NAMESPACE, "lifetime": "detached"}
    actor = start(ShardSearcher, node_id, get_if_exists=True, max_restarts=-1, **options)
    return SearcherHandle(name, node_id, actor, actor.node_versions.remote())


def _score(searcher: SearcherHandle, key: str) -> bytes:
    """Return the pseudo-random rank of a searcher for a shard or an index."""
    content = f"{searcher.name} {key}".encode()
    return hashlib.blake2b(content, digest_size=8).digest()
