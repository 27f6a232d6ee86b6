"""Change an index while other writers change it.

Each change is a new version, and conflicting changes are retried.
"""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

import numpy as np
from attrs import evolve, frozen

from relevance_gen.arrays import Offsets
from relevance_gen.errors import IndexConflictError, IndexFormatError
from relevance_gen.shards.shard_files import ShardEditor, ShardWriter
from relevance_gen.shards.versions import IndexVersion, ShardRecord, VersionStore

FindInVersion: TypeAlias = Callable[[IndexVersion], Offsets]
"""A function that selects chunks of a version, and returns their ascending positions."""

MAX_SHARD_TOKENS: Final = 256 << 20
"""Maximum size of a merged shard, about 1 Gi characters: a larger shard takes long to fetch."""
_MIN_MERGED_SHARDS: Final = 8
"""Number of neighboring shards of similar size that are merged: a chunk is rewritten once for each
factor of 8."""
_SIZE_RATIO: Final = 4
_MIN_TOKENS: Final = 64
_MIN_BACKOFF_S: Final = 0.001
_MAX_BACKOFF_S: Final = 1.0
_MAX_RETRY_S: Final = 12 * 3600.0
"""Seconds after which a conflict is not retried: the files of an unpublished change may be removed
after 24 hours."""


@frozen(eq=False)
class IndexWriter:
    """Publishes changes of one index.

    Safe for several threads, processes and machines at the same time.
    """

    versions: VersionStore
    writer: ShardWriter
    editor: ShardEditor

    def create(self, shards: Sequence[ShardRecord]) -> IndexVersion:
        """Publish and return an index of these shards; it replaces an index at the location."""
        counter = self.writer.counter
        version = IndexVersion(
            number=1,
            index_id=secrets.token_hex(8),
            weighting=self.writer.weighting,
            encoding=counter.name,
            fingerprint=counter.fingerprint,
            n_positions=shards[-1].stop,
            shards=tuple(shards),
        )
        return self._publish(lambda _: version)

    def append(self, shard: ShardRecord, find_replaced: FindInVersion | None = None) -> range:
        """Add a shard at the end of the index, and return the positions of its chunks in the index.

        The same new version also omits the chunks at the positions that `find_replaced` returns.

        Args:
            shard: the new shard.
            find_replaced: returns the positions of the chunks to remove from a version, ascending;
                None removes nothing.
        """

        def add_shard(version: IndexVersion) -> IndexVersion:
            if find_replaced is not None:
                version = self._without(version, find_replaced(version))
            added = shard.at(version.n_positions)
            shards = [*version.shards, added] if added.n_chunks else version.shards
            return evolve(version, n_positions=added.stop, shards=tuple(shards))

        version = self._change(add_shard)
        self._merge_small_shards(version)
        return range(version.n_positions - shard.n_positions, version.n_positions)

    def remove(self, find_positions: FindInVersion) -> int:
        """Remove chunks and return their number.

        Args:
            find_positions: returns the positions of the chunks to remove from a version, ascending.
        """
        n_removed = 0

        def remove_chunks(version: IndexVersion) -> IndexVersion:
            nonlocal n_removed
            positions = find_positions(version)
            n_removed = positions.size
            return self._without(version, positions) if n_removed else version

        self._change(remove_chunks)
        return n_removed

    def _without(self, version: IndexVersion, positions: Offsets) -> IndexVersion:
        """Return a changed version without the chunks at these positions, which must ascend."""
        shards = []
        for shard in version.shards:
            start, stop = positions.searchsorted((shard.first, shard.stop))
            if start < stop:
                shard = self.editor.without(shard, positions[start:stop])
            shards.append(shard)
        remaining = [shard for shard in shards if shard.n_chunks] or shards[:1]
        return evolve(version, shards=tuple(remaining))

    def compact(self) -> int:
        """Merge neighboring shards; return by how many the number of shards has decreased.

        A merged shard has at most `MAX_SHARD_TOKENS`. A shard with removed chunks is written again
        without these chunks, even if it is not merged with another.

        Raises:
            IndexFormatError: the index does not exist any more.
        """
        n_merged = 0
        remaining = self.versions.read().shards
        while remaining:
            ends = np.cumsum([shard.n_tokens for shard in remaining])
            n_shards = max(1, int(ends.searchsorted(MAX_SHARD_TOKENS, "right")))
            group, remaining = remaining[:n_shards], remaining[n_shards:]
            is_clean = n_shards == 1 and not group[0].removed
            if not is_clean and self._replace(group):
                n_merged += n_shards - 1
        return n_merged

    def _merge_small_shards(self, version: IndexVersion) -> None:
        """Merge the last shards of a version if `_MIN_MERGED_SHARDS` or more have similar sizes."""
        small: list[ShardRecord] = []
        n_tokens = 0
        for shard in reversed(version.shards):
            is_larger = shard.n_tokens > _SIZE_RATIO * n_tokens + _MIN_TOKENS
            if (small and is_larger) or n_tokens + shard.n_tokens > MAX_SHARD_TOKENS:
                break
            small.insert(0, shard)
            n_tokens += shard.n_tokens
        if len(small) >= _MIN_MERGED_SHARDS:
            self._replace(small)

    def _replace(self, shards: Sequence[ShardRecord]) -> bool:
        """Replace neighboring shards by one merged shard, and return whether it was published.

        The merged shard is not published if another writer has changed a shard meanwhile.
        """
        try:
            merged = self.editor.merge(shards)
        except FileNotFoundError:  # another writer has replaced them
            return False

        def replace_shards(version: IndexVersion) -> IndexVersion:
            replaced = list(version.shards)
            start = replaced.index(shards[0]) if shards[0] in replaced else 0
            stop = start + len(shards)
            if replaced[start:stop] != list(shards):
                return version
            replaced[start:stop] = [merged]
            return evolve(version, shards=tuple(replaced))

        is_published = merged in self._change(replace_shards).shards
        if not is_published:
            self.versions.files.remove([merged.file.name])
        return is_published

    def _change(self, make: Callable[[IndexVersion], IndexVersion]) -> IndexVersion:
        """Publish a changed version of the index, and return it.

        Args:
            make: as for `_publish`.

        Raises:
            IndexFormatError: the index does not exist any more.
            IndexConflictError: the index was replaced by an index with another weighting or
                encoding.
        """
        return self._publish(lambda version: make(self._check(version)))

    def _check(self, version: IndexVersion | None) -> IndexVersion:
        location = self.versions.location
        if version is None:
            raise IndexFormatError(f"{location} holds no saved index any more")
        settings = (self.writer.weighting, self.writer.counter.fingerprint)
        if settings != (version.weighting, version.fingerprint):
            raise IndexConflictError(
                f"{location} was replaced by an index with another weighting or encoding; "
                "open it again"
            )
        return version

    def _publish(self, make: Callable[[IndexVersion | None], IndexVersion]) -> IndexVersion:
        """Publish a version, and return it; retry after a conflict with another writer.

        Args:
            make: returns the new version, given the newest version (None without an index); or the
                newest version, to publish nothing. Called for each attempt.
        """
        deadline_s = time.monotonic() + _MAX_RETRY_S
        max_pause_s = _MIN_BACKOFF_S
        while True:
            newest = self.versions.begin()
            version = make(newest.version)
            if version is newest.version:
                return version
            try:
                return self.versions.publish(version, newest)
            except IndexConflictError:
                if time.monotonic() > deadline_s:
                    raise
            time.sleep(random.uniform(0.0, max_pause_s))  # noqa: S311
            max_pause_s = min(2 * max_pause_s, _MAX_BACKOFF_S)


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
    for name in version.files.keys() - present.keys():
        target.files.write(name, version.files[name].read_from(source.files))
    return target.publish(version, newest)
