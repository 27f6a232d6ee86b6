"""Change an index while other writers change it.

Each change is a new version, and conflicting changes are retried.
"""

from __future__ import annotations

import itertools
import random
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

import numpy as np
from attrs import evolve, frozen

from relevance_gen.arrays import Offsets
from relevance_gen.errors import IndexConflictError, IndexFormatError
from relevance_gen.index.segment import Segment
from relevance_gen.shards.building import BuiltSegment, merge_segments
from relevance_gen.shards.manifest import IndexVersion, ShardRecord
from relevance_gen.shards.object_store import ObjectStore
from relevance_gen.shards.shard_files import ShardOpener, ShardWriter
from relevance_gen.shards.version_store import MAX_UNPUBLISHED_S, VersionStore

FindInVersion: TypeAlias = Callable[[IndexVersion], Offsets]
"""A function that selects chunks of a version, and returns their ascending positions."""

MAX_SHARD_TOKENS: Final = 256 << 20
"""Maximum size of a merged shard, about 1 Gi characters: a larger shard takes long to fetch."""
_MIN_MERGED_SHARDS: Final = 8
"""Number of neighboring shards of similar size that are merged: a chunk is rewritten once for each
factor of 8."""
_SIZE_RATIO: Final = 4
_MIN_TOKENS: Final = 64
_MAX_BACKOFF_S: Final = 1.0


class ShardEditor(Protocol):
    """Makes new shards from existing shards, in this process or on another machine."""

    def without(self, shard: ShardRecord, positions: Offsets) -> ShardRecord:
        """Return the record of a new shard without the chunks at `positions`, which `shard` has."""

    def merge(self, shards: Sequence[ShardRecord]) -> ShardRecord:
        """Return the record of a new shard with the chunks of neighboring shards."""


@frozen(eq=False)
class LocalShardEditor:
    """A `ShardEditor` that reads and writes shards in this process."""

    opener: ShardOpener
    writer: ShardWriter

    def without(self, shard: ShardRecord, positions: Offsets) -> ShardRecord:
        """Return the record of a shard without the chunks at `positions`, which the shard has.

        The shard is rewritten if at least one chunk, but fewer than half of the chunks in its file,
        remain. Otherwise the record refers to the same file.
        """
        segment = self._open([shard])[0]
        chunk_ords = segment.find(positions)
        texts = [segment.chunks.texts[chunk_ord] for chunk_ord in chunk_ords.tolist()]
        n_tokens = shard.n_tokens - self.writer.counter.count_all(texts)
        remaining = segment.without(chunk_ords)
        n_chunks = remaining.statistics.n_chunks
        if 0 < 2 * n_chunks < segment.size:
            return self._write(merge_segments([remaining]), shard.first, shard.stop, n_tokens)
        removed = np.union1d(shard.removed_positions, positions)
        changed = evolve(shard, removed=shard.encode_removed(removed), n_tokens=n_tokens)
        return self.writer.with_statistics(changed, remaining)

    def merge(self, shards: Sequence[ShardRecord]) -> ShardRecord:
        """Write a shard with the remaining chunks of neighboring shards, and return its record."""
        merged = merge_segments(self._open(shards))
        n_tokens = sum(shard.n_tokens for shard in shards)
        return self._write(merged, shards[0].first, shards[-1].stop, n_tokens)

    def _open(self, shards: Sequence[ShardRecord]) -> list[Segment]:
        opened = self.opener.open(self.writer.weighting, shards)
        opened.locks.close()  # a mapped file remains readable after it is removed from the cache
        return opened.segments

    def _write(self, segment: Segment, first: int, stop: int, n_tokens: int) -> ShardRecord:
        relative = evolve(segment, positions=segment.positions - first)
        return self.writer.write(BuiltSegment(relative, stop - first, n_tokens), first)


class IndexWriter:
    """Publishes changes of one index.

    Safe for several threads, processes and machines at the same time.
    """

    def __init__(self, versions: VersionStore, writer: ShardWriter, editor: ShardEditor) -> None:
        self._versions = versions
        self._writer = writer
        self._editor = editor

    def create(self, shards: Sequence[ShardRecord]) -> IndexVersion:
        """Publish and return an index of these shards; it replaces an index at the location."""
        counter = self._writer.counter
        while True:
            newest = self._versions.begin()
            before = newest.version
            version = IndexVersion(
                number=1 if before is None else before.number + 1,
                index_id=secrets.token_hex(8) if before is None else before.index_id,
                weighting=self._writer.weighting,
                encoding=counter.name,
                fingerprint=counter.fingerprint,
                n_positions=shards[-1].stop,
                shards=tuple(shards),
            )
            try:
                return self._versions.publish(version, newest)
            except IndexConflictError:
                continue

    def append(
        self,
        write: Callable[[], ShardRecord],
        find_replaced: FindInVersion | None = None,
    ) -> range:
        """Add a shard at the end of the index, and return the positions of its chunks in the index.

        The same new version also omits the chunks at the positions that `find_replaced` returns.

        Args:
            write: writes the shard with positions from 0, and returns its record; it is called
                again if its file has become too old.
            find_replaced: returns the positions of the chunks to remove from a version, ascending;
                None removes nothing.
        """
        shard = write()
        written_s = time.monotonic()

        def add_shard(version: IndexVersion) -> IndexVersion:
            nonlocal shard, written_s
            if time.monotonic() - written_s > MAX_UNPUBLISHED_S:
                shard, written_s = write(), time.monotonic()
            if find_replaced is not None:
                version = self._without(version, find_replaced(version))
            first = version.n_positions
            added = evolve(shard, first=first, stop=first + shard.stop)
            shards = [*version.shards, added] if added.n_chunks else version.shards
            return evolve(version, n_positions=added.stop, shards=tuple(shards))

        version = self._change(add_shard)
        self._merge_small_shards(version)
        return range(version.n_positions - shard.stop, version.n_positions)

    def remove(self, find_positions: FindInVersion) -> int:
        """Remove chunks and return their number.

        Args:
            find_positions: returns the positions of the chunks to remove from a version, ascending.
        """
        n_removed = 0

        def remove_chunks(version: IndexVersion) -> IndexVersion | None:
            nonlocal n_removed
            positions = find_positions(version)
            n_removed = positions.size
            return self._without(version, positions) if n_removed else None

        self._change(remove_chunks)
        return n_removed

    def _without(self, version: IndexVersion, positions: Offsets) -> IndexVersion:
        """Return a changed version without the chunks at these positions, which must ascend."""
        shards = []
        for shard in version.shards:
            start, stop = positions.searchsorted((shard.first, shard.stop))
            if start < stop:
                shard = self._editor.without(shard, positions[start:stop])
            shards.append(shard)
        remaining = [shard for shard in shards if shard.n_chunks] or shards[:1]
        return evolve(version, shards=tuple(remaining))

    def compact(self) -> int:
        """Merge neighboring shards; return by how many the number of shards has decreased.

        A merged shard has at most `MAX_SHARD_TOKENS`. A shard with removed chunks is written again
        without these chunks, even if it is not merged with another. 0 is returned if the index does
        not exist.
        """
        version = self._versions.begin().version
        if version is None:
            return 0
        n_merged = 0
        for group in _groups(version.shards):
            is_clean = len(group) == 1 and not group[0].removed
            if not is_clean and self._replace(group):
                n_merged += len(group) - 1
        return n_merged

    def _merge_small_shards(self, version: IndexVersion) -> None:
        """Merge the last shards of a version if `_MIN_MERGED_SHARDS` or more have similar sizes."""
        start = len(version.shards)
        n_tokens = 0
        for shard in reversed(version.shards):
            is_similar = shard.n_tokens <= _SIZE_RATIO * n_tokens + _MIN_TOKENS
            is_last = start == len(version.shards)
            if not (is_last or is_similar) or n_tokens + shard.n_tokens > MAX_SHARD_TOKENS:
                break
            start -= 1
            n_tokens += shard.n_tokens
        if len(version.shards) - start >= _MIN_MERGED_SHARDS:
            self._replace(version.shards[start:])

    def _replace(self, shards: Sequence[ShardRecord]) -> bool:
        """Replace neighboring shards by one merged shard, and return whether it was published.

        The merged shard is not published if another writer has changed a shard meanwhile.
        """
        try:
            merged = self._editor.merge(shards)
        except FileNotFoundError:  # another writer has replaced them
            return False
        is_published = False

        def replace_shards(version: IndexVersion) -> IndexVersion | None:
            nonlocal is_published
            is_published = shards[0] in version.shards
            start = version.shards.index(shards[0]) if is_published else 0
            stop = start + len(shards)
            is_published = is_published and version.shards[start:stop] == tuple(shards)
            if not is_published:
                return None
            replaced = (*version.shards[:start], merged, *version.shards[stop:])
            return evolve(version, shards=replaced)

        self._change(replace_shards)
        if not is_published:
            ObjectStore(self._versions.location).remove([merged.file.name])
        return is_published

    def _change(self, make: Callable[[IndexVersion], IndexVersion | None]) -> IndexVersion:
        """Publish a changed version, and return it; retry after a conflict with another writer.

        Args:
            make: returns the changed version of the newest version; None to publish nothing, and
                return the newest version. Called for each attempt.

        Raises:
            IndexFormatError: the index does not exist any more.
            IndexConflictError: the index was replaced by an index with another weighting or
                encoding.
        """
        for attempt in itertools.count():
            newest = self._versions.begin()
            before = newest.version
            if before is None:
                raise IndexFormatError(f"{self._versions.location} holds no saved index any more")
            self._check_unchanged_settings(before)
            version = make(before)
            if version is None:
                return before
            try:
                return self._versions.publish(evolve(version, number=before.number + 1), newest)
            except IndexConflictError:
                limit_s = min(0.001 * 2**attempt, _MAX_BACKOFF_S)
                time.sleep(random.uniform(0.0, limit_s))  # noqa: S311
        raise AssertionError("unreachable")

    def _check_unchanged_settings(self, version: IndexVersion) -> None:
        writer = self._writer
        current = (version.weighting, version.fingerprint)
        if current != (writer.weighting, writer.counter.fingerprint):
            raise IndexConflictError(
                f"{self._versions.location} was replaced by an index with another weighting or "
                "encoding; open it again"
            )


def copy_version(source: VersionStore, version: IndexVersion, location: str) -> IndexVersion:
    """Copy a version of an index to another location and replace the index there.

    Return the version at the other location.

    Raises:
        IndexConflictError: another writer has changed the index there meanwhile.
        OSError: a file cannot be read or written.
    """
    target = VersionStore(location)
    target.files.make_folder()
    newest = target.begin()
    present = {} if newest.version is None else newest.version.files
    for name, file in version.files.items():
        if name not in present:
            content = source.files.read_all(name)
            file.check(content)
            target.files.write(name, content)
    number = 1 if newest.version is None else newest.version.number + 1
    index_id = version.index_id if newest.version is None else newest.version.index_id
    copy = evolve(version, number=number, index_id=index_id, replaced={})
    return target.publish(copy, newest)


def _groups(shards: Sequence[ShardRecord]) -> list[list[ShardRecord]]:
    """Return runs of neighboring shards, each with at most `MAX_SHARD_TOKENS` or a single shard."""
    groups: list[list[ShardRecord]] = []
    n_tokens = 0
    for shard in shards:
        n_tokens += shard.n_tokens
        if not groups or n_tokens > MAX_SHARD_TOKENS:
            groups.append([])
            n_tokens = shard.n_tokens
        groups[-1].append(shard)
    return groups
