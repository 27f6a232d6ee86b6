"""An actor that searches shards.

Any searcher can open any shard of any index, so all searchers are interchangeable.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final

import ray
from attrs import frozen
from ray import cloudpickle

from relevance_gen.arrays import Offsets
from relevance_gen.cluster.actors import HEALTH, Actor
from relevance_gen.cluster.search.sources import ChunkSource
from relevance_gen.errors import BusyError
from relevance_gen.folders.cache import default_folder
from relevance_gen.index.builder import merge
from relevance_gen.index.segment import Segment, Statistics
from relevance_gen.quota import Quota
from relevance_gen.retrieval.local_segments import LocalSegments, SegmentScorer
from relevance_gen.retrieval.weighting import weighting_named
from relevance_gen.shards.object_store import ObjectStore
from relevance_gen.shards.shard_cache import ShardCache
from relevance_gen.shards.shard_files import (
    LocalShardEditor,
    ShardOpener,
    ShardWriter,
    read_statistics,
)
from relevance_gen.shards.versions import IndexVersion, ShardRecord, VersionStore

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
IDLE_TIMEOUT_S: Final = 60.0
"""Seconds without a request or ping after which a searcher ends."""


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


class _OpenIndex:
    """The shards of the index at `location` that a searcher has open. Thread-safe."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._versions = VersionStore(location)
        self._opener = ShardOpener(location, _shard_cache())
        self._lock = threading.Lock()
        self._statistics: OrderedDict[str, Statistics] = OrderedDict()
        self._groups: OrderedDict[ShardGroup, _OpenGroup] = OrderedDict()
        self._merged: deque[_MergedShards] = deque(maxlen=_MAX_MERGED)

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
        version = self._version(group.version_name)
        names = set(group.shard_names)
        shards = [shard for shard in version.shards if shard.file.name in names]
        segments = self._opener.open(version.weighting, shards)
        weighting, statistics = weighting_named(version.weighting), self._statistics_of(version)
        # Postings that were looked up for other versions remain valid.
        cached = {
            id(scorer.segment): scorer.postings_cache
            for opened_group in self._groups.values()
            for scorer in opened_group.scorers
        }
        scorers = [
            SegmentScorer(segment, weighting, statistics, cached.get(id(segment)))
            for segment in self._merge_small(shards, segments)
        ]
        self._groups[group] = _OpenGroup(
            LocalSegments.of_scorers(scorers, weighting, statistics),
            scorers,
            version,
            shards,
        )
        while len(self._groups) > _MAX_OPEN_GROUPS:
            self._groups.popitem(last=False)
        open_shards = [shard for one in self._groups.values() for shard in one.shards]
        self._opener.keep_only(open_shards)
        return self._groups[group]

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
        result = []
        for shard, segment in zip(shards, segments, strict=True):
            if segment.postings.chunk.size <= _MAX_SMALL_POSTINGS:
                unmerged[shard] = segment
            else:
                result.append(segment)
        merged = []
        for earlier in self._merged:  # a change adds or replaces few shards
            if earlier.shards <= unmerged.keys():
                merged.append(earlier)
                unmerged = {one: unmerged[one] for one in unmerged.keys() - earlier.shards}
        parts = [*(earlier.segment for earlier in merged), *unmerged.values()]
        n_postings = sum(part.postings.chunk.size for part in parts)
        if len(unmerged) <= _MAX_SMALL_SEGMENTS or n_postings > _MAX_MERGED_POSTINGS:
            return [*result, *parts]
        names = frozenset(unmerged).union(*(earlier.shards for earlier in merged))
        self._merged.appendleft(_MergedShards(names, merge(parts)))
        return [*result, self._merged[0].segment]

    def _version(self, name: str) -> IndexVersion:
        for opened in self._groups.values():
            if opened.version.name == name:
                return opened.version
        return self._versions.read_named(name)

    def _statistics_of(self, version: IndexVersion) -> Statistics:
        if version.name not in self._statistics:
            store = ObjectStore(self._location)
            self._statistics[version.name] = read_statistics(store, version)
            if len(self._statistics) > _MAX_OPEN_GROUPS:
                self._statistics.popitem(last=False)
        return self._statistics[version.name]


@frozen(eq=False)
class _MergedShards:
    """A segment in memory that has the chunks of several small shards."""

    shards: frozenset[ShardRecord]
    segment: Segment


@frozen(eq=False)
class _OpenGroup:
    segments: LocalSegments
    scorers: Sequence[SegmentScorer]
    version: IndexVersion
    shards: Sequence[ShardRecord]


class ShardSearcher(Actor):
    """The actor that searches and builds shards of any index.

    It ends after `IDLE_TIMEOUT_S` without a request or ping.
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
        """Postpone the end of this searcher to at least `IDLE_TIMEOUT_S` from now."""
        self._used_s = time.monotonic()

    @ray.method(concurrency_group=_SEARCH, num_returns=_N_RESPONSE_PARTS)
    def answer(self, group: ShardGroup, request: bytes) -> list[bytes]:
        """Call a function with the segments of a group of shards, and return its pickled response.

        The bytes of the response are divided into `_N_RESPONSE_PARTS` parts, some of which can be
        empty; `join_response` returns the response of these parts.

        Args:
            group: the shards to search.
            request: a pickled tuple: the function, usually a method of `LocalSegments`, its
                arguments after the segments, and its keyword arguments.

        Raises:
            BusyError: too many requests are in progress.
            OSError: a shard cannot be read.
        """
        self._used_s = time.monotonic()
        if not self._slots.acquire(1):
            raise BusyError("a searcher of the cluster has too many requests")
        try:
            segments = self._index(group.location).segments(group)
            function, args, kwargs = pickle.loads(request)  # noqa: S301 from a process of the cluster
            response = _pickled(function(segments, *args, **kwargs))
        finally:
            self._slots.release(1)
        part_bytes = max(_MIN_PART_BYTES, -(-len(response) // _N_RESPONSE_PARTS))
        starts = range(0, _N_RESPONSE_PARTS * part_bytes, part_bytes)
        return [response[start : start + part_bytes] for start in starts]

    @ray.method(concurrency_group=_BUILD)
    def open(self, group: ShardGroup) -> None:
        """Open shards before they are searched; ignore an `OSError`: the search raises it again."""
        with suppress(OSError):
            self._index(group.location).segments(group)

    @ray.method(concurrency_group=_BUILD)
    def build(self, writer: ShardWriter, source: ChunkSource) -> ShardRecord:
        """Build the shard of the chunks of a source, write it, and return its record.

        The positions of the chunks in the record begin at 0; the caller adds the number of
        positions of the shards before it.
        """
        self._used_s = time.monotonic()
        return writer.build(source.batches())

    @ray.method(concurrency_group=_BUILD)
    def without(self, writer: ShardWriter, shard: ShardRecord, positions: Offsets) -> ShardRecord:
        """Remove the chunks at `positions` from a shard; return the record of the changed shard.

        See `LocalShardEditor.without`.
        """
        return self._editor(writer).without(shard, positions)

    @ray.method(concurrency_group=_BUILD)
    def merge(self, writer: ShardWriter, shards: Sequence[ShardRecord]) -> ShardRecord:
        """Write one shard with the chunks of neighboring shards, and return its record.

        See `LocalShardEditor.merge`.
        """
        return self._editor(writer).merge(shards)

    @ray.method(concurrency_group=HEALTH)
    def close_index(self, location: str) -> None:
        """Close the shards of the index at `location`; do nothing if none is open."""
        with self._indexes_lock:
            self._indexes.pop(location, None)

    def _index(self, location: str) -> _OpenIndex:
        with self._indexes_lock:
            if location not in self._indexes:
                self._indexes[location] = _OpenIndex(location)
                if len(self._indexes) > _MAX_INDEXES:
                    self._indexes.popitem(last=False)
            self._indexes.move_to_end(location)
            return self._indexes[location]

    def _editor(self, writer: ShardWriter) -> LocalShardEditor:
        self._used_s = time.monotonic()
        return LocalShardEditor(ShardOpener(writer.location, _shard_cache()), writer)

    def _end_when_unused(self) -> None:
        while time.monotonic() - self._used_s < IDLE_TIMEOUT_S or self._slots.held:
            time.sleep(1.0)
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
        os._exit(0)


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


def join_response(parts: Sequence[bytes]) -> Any:
    """Return the response whose parts `ShardSearcher.answer` returned."""
    return pickle.loads(b"".join(parts))  # noqa: S301 from a process of the cluster
