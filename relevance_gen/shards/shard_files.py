"""Write, open and change shards.

A shard is a file with a part of an index, and a file with those statistics that are arrays.
"""

from __future__ import annotations

import io
import tempfile
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from attrs import evolve, frozen

from relevance_gen import forks
from relevance_gen.arrays import Bytes, Offsets
from relevance_gen.errors import IndexFormatError, IndexUnavailableError, pluralize
from relevance_gen.index import storage
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.segment import Segment, Statistics
from relevance_gen.index.spill import build_segment, merge_segments
from relevance_gen.retrieval.weighting import weighting_named
from relevance_gen.shards.object_store import ObjectStore
from relevance_gen.shards.shard_cache import ShardCache
from relevance_gen.shards.versions import IndexVersion, ShardRecord, StoredFile, new_name
from relevance_gen.text.token_counting import TokenCounter
from relevance_gen.types import WeightingName

try:
    import resource
except ModuleNotFoundError:  # Windows has no such limit
    HAS_LIMITS = False
else:
    HAS_LIMITS = True

_SPARE_FILES: Final = 256
"""Files that this process must be able to open in addition, for example for connections."""
_ARRAYS: Final = ("ids", "df", "titles", "title_df")
"""The arrays of `Statistics`."""

# ── Writing ──


@frozen(eq=False)
class ShardWriter:
    """Writes the shards of an index to new files.

    Args:
        location: a path or an address, as `as_address` returns it.
    """

    location: str
    weighting: WeightingName
    counter: TokenCounter

    def build(self, batches: Iterable[Chunks]) -> ShardRecord:
        """Build a shard of chunks, write it, and return its record, with positions from 0.

        Raises:
            InvalidRequestError: metadata is not JSON.
            OSError: the file cannot be written.
        """
        n_positions = n_tokens = 0

        def counted() -> Iterator[Chunks]:
            nonlocal n_positions, n_tokens
            for batch in batches:
                n_positions += len(batch.texts)
                n_tokens += self.counter.count_all(batch.texts)
                yield batch

        segment = build_segment(counted())
        return self.write(segment, 0, n_positions, n_tokens)

    def write(
        self,
        segment: Segment,
        first: int,
        stop: int,
        n_tokens: int,
    ) -> ShardRecord:
        """Write a shard with the positions from `first` to `stop`, and return its record.

        Args:
            segment: the chunks, with their positions in the index.
            first: position of the shard's first chunk.
            stop: position after the shard's last chunk.
            n_tokens: number of tokens of the chunks.

        Raises:
            InvalidRequestError: metadata is not JSON.
            OSError: the file cannot be written.
        """
        saved = storage.SavedIndex(
            segment=evolve(segment, positions=segment.positions - first),
            weighting=self.weighting,
            encoding=self.counter.name,
            fingerprint=self.counter.fingerprint,
            encoder=None,
            n_positions=stop - first,
            n_context_tokens=n_tokens,
        )
        return self.store(partial(storage.write, index=saved)).at(first)

    def store(self, write: Callable[[Path], object]) -> ShardRecord:
        """Write a shard with `write`, and return its record, with positions from 0.

        Args:
            write: writes a saved index to a new file at the given path.
        """
        name = new_name("shard")
        if "://" not in self.location:
            path = Path(self.location, name)
            write(path)
            return self._record(path)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, name)
            write(path)
            ObjectStore(self.location).upload(path, name)
            return self._record(path)

    def _record(self, path: Path) -> ShardRecord:
        content = np.memmap(path, np.uint8, "r")
        saved = storage.from_content(content, path.name, check=False)
        return ShardRecord(
            file=StoredFile.of(path.name, content.data),
            first=0,
            stop=saved.n_positions,
            n_tokens=saved.n_context_tokens,
            **self.statistics_fields(saved.segment),
        )

    def statistics_fields(self, segment: Segment) -> dict[str, Any]:
        """Return the fields of a shard's record that describe the chunks of `segment` that remain.

        The arrays of the statistics, if any, are written to a new file.
        """
        statistics = weighting_named(self.weighting).statistics(segment)
        arrays = {name: getattr(statistics, name) for name in _ARRAYS}
        statistics_file = None
        if any(array.size for array in arrays.values()):
            content = io.BytesIO()
            np.savez(content, **arrays)
            statistics_file = StoredFile.of(new_name("statistics"), content.getvalue())
            ObjectStore(self.location).write(statistics_file.name, content.getvalue())
        return {
            "n_chunks": statistics.n_chunks,
            "norm_sum": f"{statistics.norm_sum:x}",
            "english_margin": statistics.english_margin,
            "n_chunks_with_title": statistics.n_chunks_with_title,
            "statistics_file": statistics_file,
        }


# ── Opening ──


class ShardOpener:
    """Opens the shards of an index. A file that is open already is not read again. Thread-safe.

    Args:
        location: a path or an address, as `as_address` returns it.
        cache: a folder of this machine for the files of a remote index; None reads them into
            memory.
    """

    def __init__(self, location: str, cache: ShardCache | None = None) -> None:
        self._location = location
        self._cache = cache
        self._files: dict[str, Segment] = {}
        self._segments: dict[ShardRecord, Segment] = {}
        self._lock = threading.Lock()
        forks.register(self)

    def renew_after_fork(self) -> None:
        """Create the lock again, which a thread of the parent process may hold."""
        self._lock = threading.Lock()

    def open(self, weighting: WeightingName, shards: Sequence[ShardRecord]) -> list[Segment]:
        """Open shards of one version, and return their segments in order.

        The segments have positions in the index, and lack removed chunks.

        Raises:
            IndexFormatError: a shard is damaged, or belongs to another index.
            IndexUnavailableError: the cache is full, or this process may not open enough files.
            OSError: a file cannot be read. A `FileNotFoundError` means that the version is no
                longer retained.
        """
        with self._lock:
            new = [shard for shard in shards if shard.file.name not in self._files]
            contents = self._contents([shard.file for shard in new]) if new else ()
            for shard, content in zip(new, contents, strict=True):
                name = shard.file.name
                saved = storage.from_content(content, name, check=False)
                if saved.weighting != weighting or saved.n_positions != shard.n_positions:
                    raise IndexFormatError(f"{name} is not the file that belongs to this index")
                self._files[name] = evolve(saved.segment, passages=None)
            for shard in shards:
                if shard not in self._segments:
                    self._segments[shard] = _at_positions(self._files[shard.file.name], shard)
            return [self._segments[shard] for shard in shards]

    def _contents(self, files: Sequence[StoredFile]) -> Iterable[Bytes]:
        """Return the contents of files, in order, after comparing their hashes."""
        is_local = "://" not in self._location
        if is_local or self._cache is not None:
            check_open_files(len(files))
        if is_local:
            return map(self._map, files)
        if self._cache is not None:
            return self._cache.fetch(self._location, files)
        store = ObjectStore(self._location)
        return (np.frombuffer(file.read_from(store), np.uint8) for file in files)

    def _map(self, file: StoredFile) -> Bytes:
        content = np.memmap(Path(self._location, file.name), np.uint8, "r")
        file.check(content.data)
        return content

    def keep_only(self, shards: Collection[ShardRecord]) -> None:
        """Release all open shards except these; memory is freed when no search uses the shards."""
        names = {shard.file.name for shard in shards}
        with self._lock:
            for name in self._files.keys() - names:
                del self._files[name]
            for shard in self._segments.keys() - set(shards):
                del self._segments[shard]


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
    total = Statistics()
    for shard in version.shards:
        statistics = shard.scalars
        if shard.statistics_file is not None:
            content = io.BytesIO(shard.statistics_file.read_from(store))
            with np.load(content, allow_pickle=False) as arrays:
                statistics = evolve(statistics, **arrays)
        total += statistics
    return total


def check_open_files(n_shards: int) -> None:
    """Raise an `IndexUnavailableError` if the limit on open files is too low for `n_shards`."""
    if not HAS_LIMITS:
        return
    soft_limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft_limit == resource.RLIM_INFINITY:
        return
    n_free = soft_limit - sum(1 for _ in Path("/dev/fd").iterdir())
    if n_shards + _SPARE_FILES > n_free:
        needs = f"its {pluralize(n_shards, 'shard')} take an open file each"
        remedy = "raise the limit with `ulimit -n`, or compact the index"
        raise IndexUnavailableError(f"{needs}, and this process may open {n_free:,} more; {remedy}")


# ── Changing ──


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
        (segment,) = self.opener.open(self.writer.weighting, [shard])
        chunk_ords = segment.find(positions)
        texts = [segment.chunks.texts[chunk_ord] for chunk_ord in chunk_ords.tolist()]
        n_tokens = shard.n_tokens - self.writer.counter.count_all(texts)
        remaining = segment.without(chunk_ords)
        if 0 < 2 * remaining.statistics.n_chunks < segment.size:
            rewritten = merge_segments([remaining])
            return self.writer.write(rewritten, shard.first, shard.stop, n_tokens)
        return evolve(
            shard,
            removed=shard.encode_removed(positions),
            n_tokens=n_tokens,
            **self.writer.statistics_fields(remaining),
        )

    def merge(self, shards: Sequence[ShardRecord]) -> ShardRecord:
        """Write a shard with the remaining chunks of neighboring shards, and return its record."""
        merged = merge_segments(self.opener.open(self.writer.weighting, shards))
        first, stop = shards[0].first, shards[-1].stop
        return self.writer.write(merged, first, stop, sum(shard.n_tokens for shard in shards))
