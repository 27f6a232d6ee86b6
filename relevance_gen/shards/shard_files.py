"""Write shards and their statistics to files, and open them again."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np
from attrs import evolve, frozen

from relevance_gen.errors import IndexFormatError, IndexUnavailableError, pluralize
from relevance_gen.index import storage
from relevance_gen.index.segment import Segment, Statistics
from relevance_gen.retrieval.weighting import weighting_named
from relevance_gen.shards.building import BuiltSegment
from relevance_gen.shards.manifest import IndexVersion, ShardRecord, StoredFile, new_name
from relevance_gen.shards.object_store import ObjectStore
from relevance_gen.shards.shard_cache import ShardCache
from relevance_gen.text.token_counting import TokenCounter
from relevance_gen.types import WeightingName

try:
    import resource
except ModuleNotFoundError:  # Windows has no such limit
    HAS_LIMITS = False
else:
    HAS_LIMITS = True

_FILES_PER_SHARD: Final = 2
"""Files that this process opens for each shard: a locked file and a memory-mapped file."""
_SPARE_FILES: Final = 256
"""Files that this process must be able to open in addition, for example for connections."""
_ARRAYS: Final = ("ids", "df", "titles", "title_df")
"""The arrays of `Statistics`."""


@frozen(eq=False)
class ShardWriter:
    """Writes the shards of an index to new files.

    Args:
        location: a path or an address, as `as_address` returns it.
    """

    location: str
    weighting: WeightingName
    counter: TokenCounter

    def write(self, built: BuiltSegment, first: int) -> ShardRecord:
        """Write a shard, whose first position in the index is `first`, and return its record.

        Raises:
            InvalidRequestError: metadata is not JSON.
            OSError: the file cannot be written.
        """
        counter = self.counter
        saved = storage.SavedIndex(
            segment=built.segment,
            weighting=self.weighting,
            encoding=counter.name,
            fingerprint=counter.fingerprint,
            encoder=None,
            n_positions=built.n_positions,
            n_context_tokens=built.n_tokens,
        )
        name = new_name("shard")
        if "://" in self.location:
            content = storage.to_bytes(saved)
            ObjectStore(self.location).write(name, content)
            return self._record(StoredFile.of(name, content), saved, first)
        path = Path(self.location, name)
        storage.write(path, saved)
        file = StoredFile.of(name, np.memmap(path, np.uint8, "r").data)
        return self._record(file, saved, first)

    def write_file(self, path: Path, first: int) -> ShardRecord:
        """Copy a file that `ChunkIndex` saved to a new shard, and return the shard's record.

        Args:
            path: the file.
            first: position in the index of the shard's first chunk.
        """
        name = new_name("shard")
        ObjectStore(self.location).upload(path, name)
        file = StoredFile.of(name, np.memmap(path, np.uint8, "r").data)
        return self._record(file, storage.read(path, check=False), first)

    def _record(self, file: StoredFile, saved: storage.SavedIndex, first: int) -> ShardRecord:
        record = ShardRecord(
            file=file,
            first=first,
            stop=first + saved.n_positions,
            n_tokens=saved.n_context_tokens,
            n_chunks=0,
            norm_sum="0",
            english_margin=0,
            n_chunks_with_title=0,
        )
        return self.with_statistics(record, saved.segment)

    def with_statistics(self, record: ShardRecord, segment: Segment) -> ShardRecord:
        """Return a shard's record with the statistics of the chunks of `segment` that remain.

        The arrays of the statistics, if any, are written to a new file.
        """
        statistics = weighting_named(self.weighting).statistics(segment)
        arrays = {name: getattr(statistics, name) for name in _ARRAYS}
        statistics_file = None
        if any(array.size for array in arrays.values()):
            content = io.BytesIO()
            np.savez(content, **arrays)
            name = new_name("statistics")
            ObjectStore(self.location).write(name, content.getvalue())
            statistics_file = StoredFile.of(name, content.getvalue())
        return evolve(
            record,
            n_chunks=statistics.n_chunks,
            norm_sum=f"{statistics.norm_sum:x}",
            english_margin=statistics.english_margin,
            n_chunks_with_title=statistics.n_chunks_with_title,
            statistics_file=statistics_file,
        )


@frozen(eq=False)
class OpenedShards:
    """The segments of opened shards, and the locks of their cached files.

    Attributes:
        segments: the segment of each shard, in order, with positions in the index and without
            removed chunks.
        locks: the locks of the cached files; the caller must close it after the last use of the
            segments.
    """

    segments: list[Segment]  # at their positions in the index, without removed chunks
    locks: ExitStack


class ShardOpener:
    """Opens the shards of an index. A file that is open already is not read again.

    Args:
        location: a path or an address, as `as_address` returns it.
        cache: a folder of this machine for the files of a remote index; None reads them into
            memory.
    """

    def __init__(self, location: str, cache: ShardCache | None = None) -> None:
        self._location = location
        self._cache = cache if "://" in location else None
        self._files: dict[str, Segment] = {}
        self._segments: dict[ShardRecord, Segment] = {}

    def open(self, weighting: WeightingName, shards: Sequence[ShardRecord]) -> OpenedShards:
        """Open shards of one version, and return their segments in order.

        Raises:
            IndexFormatError: a shard is damaged, or belongs to another index.
            IndexUnavailableError: the cache is full, or this process may not open enough files.
            OSError: a file cannot be read. A `FileNotFoundError` means that the version is no
                longer retained.
        """
        files = [shard.file for shard in shards]
        with ExitStack() as stack:
            paths: Mapping[str, Path] = {}
            is_local = "://" not in self._location
            if is_local or self._cache is not None:
                check_open_files(len(files))
            if is_local:
                paths = {file.name: Path(self._location, file.name) for file in files}
            elif self._cache is not None:
                paths = self._cache.fetch(self._location, files, stack)
            segments = []
            for shard in shards:
                if shard not in self._segments:
                    base = self._open_file(weighting, shard, paths.get(shard.file.name))
                    self._segments[shard] = _at_positions(base, shard)
                segments.append(self._segments[shard])
            return OpenedShards(segments, stack.pop_all())

    def keep_only(self, shards: Collection[ShardRecord]) -> None:
        """Release all open shards except these; memory is freed when no search uses the shards."""
        names = {shard.file.name for shard in shards}
        self._files = {name: file for name, file in self._files.items() if name in names}
        kept = set(shards)
        self._segments = {shard: one for shard, one in self._segments.items() if shard in kept}

    def _open_file(
        self, weighting: WeightingName, shard: ShardRecord, path: Path | None
    ) -> Segment:
        name = shard.file.name
        if name in self._files:
            return self._files[name]
        if path is None:
            content = ObjectStore(self._location).read_all(name)
            shard.file.check(content)
            saved = storage.from_bytes(content, name)
        else:
            if self._cache is None:
                shard.file.check(np.memmap(path, np.uint8, "r").data)
            saved = storage.read(path, check=False)
        if saved.weighting != weighting or saved.n_positions != shard.n_positions:
            raise IndexFormatError(f"{name} is not the file that belongs to this index")
        segment = evolve(saved.segment, passages=None)
        self._files[name] = segment
        return segment


def _at_positions(segment: Segment, shard: ShardRecord) -> Segment:
    """Return a shard's segment with positions in the index, and without removed chunks.

    Args:
        segment: the segment of the shard's file, whose positions begin at 0.
        shard: the shard.
    """
    moved = evolve(segment, positions=segment.positions + shard.first)
    removed = shard.removed_positions
    return moved.without(moved.find(removed)) if removed.size else moved


def read_statistics(store: ObjectStore, version: IndexVersion) -> Statistics:
    """Return the statistics of all chunks of a version, with the arrays in the statistics files."""
    return sum((_statistics_of(store, shard) for shard in version.shards), Statistics())


def _statistics_of(store: ObjectStore, shard: ShardRecord) -> Statistics:
    file = shard.statistics_file
    if file is None:
        return shard.scalars
    content = store.read_all(file.name)
    file.check(content)
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return evolve(shard.scalars, **{name: arrays[name] for name in _ARRAYS})


def check_open_files(n_shards: int) -> None:
    """Raise an `IndexUnavailableError` if the limit on open files is too low for `n_shards`."""
    if not HAS_LIMITS:
        return
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit == resource.RLIM_INFINITY:
        return
    n_free = soft_limit - sum(1 for _ in Path("/dev/fd").iterdir())
    if _FILES_PER_SHARD * n_shards + _SPARE_FILES > n_free:
        needs = f"its {pluralize(n_shards, 'shard')} take {_FILES_PER_SHARD} open files each"
        remedy = "raise the limit with `ulimit -n`, or compact the index"
        raise IndexUnavailableError(f"{needs}, and this process may open {n_free:,} more; {remedy}")
