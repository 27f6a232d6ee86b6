"""An index in a folder or bucket that any number of processes can search and change."""

from __future__ import annotations

import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Self, TypeVar

from attrs import frozen

from relevance_gen import forks
from relevance_gen.arrays import Offsets
from relevance_gen.index import storage
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.records.sources import Source
from relevance_gen.retrieval.chunk_index import ChunkIndex, opened
from relevance_gen.retrieval.mutable_index import MutableIndex
from relevance_gen.retrieval.params import NO_MODELS, SearchModels, SearchParams
from relevance_gen.retrieval.ports import Segments
from relevance_gen.retrieval.positions import FindPositions
from relevance_gen.retrieval.weighting import weighting_named
from relevance_gen.shards.building import batches_of, build_segment
from relevance_gen.shards.changes import IndexWriter, LocalShardEditor
from relevance_gen.shards.manifest import IndexVersion
from relevance_gen.shards.object_store import as_address
from relevance_gen.shards.shard_cache import ShardCache
from relevance_gen.shards.shard_files import ShardOpener, ShardWriter
from relevance_gen.shards.version_store import VersionStore
from relevance_gen.text.token_counting import (
    Encoding,
    TokenCounter,
    counter_of_saved,
    token_counter,
)
from relevance_gen.types import Chunk, SearchResponse, WeightingName

T = TypeVar("T")


class VersionReader:
    """Opens versions of the index at one location.

    Shards that versions have in common are opened once.

    Args:
        location: a path or an address.
        encoding: as for `relevance_gen.ChunkIndex.load`.
        cache: a folder of this machine for the shards of a remote index; None reads them into
            memory.
    """

    def __init__(
        self,
        location: str | PathLike[str],
        encoding: Encoding | None = None,
        cache: ShardCache | None = None,
    ) -> None:
        self.location = as_address(location)
        self.versions = VersionStore(self.location)
        self.opener = ShardOpener(self.location, cache)
        self.encoding = encoding
        self._opening = threading.Lock()
        forks.register(self)

    def renew_after_fork(self) -> None:
        """Create the lock again, which a thread of the parent process may hold."""
        self._opening = threading.Lock()

    def counter(self, version: IndexVersion) -> TokenCounter:
        """Return the counter of the encoding in which a version's tokens were counted.

        Raises:
            InvalidRequestError: this reader's encoding differs from the version's encoding.
        """
        return counter_of_saved(version.encoding, version.fingerprint, self.encoding, self.location)

    def open(self, version: IndexVersion) -> ChunkIndex:
        """Return an index of the chunks of a version, which does not change when the files do.

        Raises:
            IndexFormatError: a shard is damaged, or belongs to another index.
            IndexUnavailableError: the cache is full, or this process may not open enough files.
            InvalidRequestError: the index was saved with another encoding.
            OSError: a file cannot be read. A `FileNotFoundError` means that the version is no
                longer retained.
        """
        counter = self.counter(version)
        with self._opening:
            shards = self.opener.open(version.weighting, version.shards)
            self.opener.keep_only(version.shards)
        parts = [
            storage.SavedIndex(
                segment=segment,
                weighting=version.weighting,
                encoding=version.encoding,
                fingerprint=version.fingerprint,
                encoder=None,
                n_positions=version.n_positions,
                n_context_tokens=shard.n_tokens,
            )
            for segment, shard in zip(shards.segments, version.shards, strict=True)
        ]
        index = opened(parts, counter)
        weakref.finalize(index, shards.locks.close)
        return index


@frozen(eq=False)
class _Snapshot:
    """A version of an index, and the opened `ChunkIndex` of its chunks."""

    version: IndexVersion
    index: ChunkIndex


class ShardedIndex(MutableIndex):
    """An index in a folder or bucket.

    `ChunkIndex` with the same chunks gives the same results, bit for bit. Any number of processes
    can search and change it at the same time. A change is durable when the call returns, and is
    visible to other objects after their `refresh`. Each object searches the version that it opened
    or refreshed last, and never returns to an older version. Thread-safe.

    An index in S3 or in a local folder accepts several writers at a time. In other stores, two
    writers that finish within some milliseconds can overwrite each other's change: use one writer
    there.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> index = ShardedIndex.build(["Cats purr.", "Dogs bark."], folder.name)
    >>> index.add(["Cows moo."])
    range(2, 3)
    >>> ShardedIndex.open(folder.name).search("cows").results[0].chunk_txt
    'Cows moo.'
    >>> folder.cleanup()
    """

    def __init__(self, reader: VersionReader, version: IndexVersion) -> None:
        counter = reader.counter(version)
        shard_writer = ShardWriter(reader.location, version.weighting, counter)
        editor = LocalShardEditor(ShardOpener(reader.location), shard_writer)
        self._reader = reader
        self._shard_writer = shard_writer
        self._counter = counter
        self._writer = IndexWriter(reader.versions, shard_writer, editor)
        self._refreshing = threading.Lock()
        self._snapshot = _Snapshot(version, reader.open(version))
        forks.register(self)

    def renew_after_fork(self) -> None:
        """Create the lock of refreshes again, which a thread of the parent process may hold."""
        self._refreshing = threading.Lock()

    @classmethod
    def open(
        cls,
        location: str | PathLike[str],
        *,
        encoding: Encoding | None = None,
        cache: ShardCache | None = None,
    ) -> Self:
        """Open and return the index at a location.

        Args:
            location: the path of a folder, or an address that `fsspec` supports, such as
                ``s3://bucket/index``.
            encoding: the encoding of the index; required only if it is neither the embedded
                encoding nor a published encoding.
            cache: a folder of this machine for the shards of a remote index; None reads them into
                memory.

        Raises:
            IndexFormatError: the index is missing or damaged.
            IndexUnavailableError: the cache is full, or this process may not open enough files.
            InvalidRequestError: the location is neither a path nor an address that `fsspec` can
                open, or the index has another encoding.
            OSError: the store does not answer.
        """
        reader = VersionReader(location, encoding, cache)
        return cls(reader, reader.versions.read())

    @classmethod
    def build(
        cls,
        source: Source,
        location: str | PathLike[str],
        *,
        weighting: WeightingName = "pivoted",
        encoding: Encoding | None = None,
        **options: Any,
    ) -> Self:
        """Build an index, which replaces an index at the same location, and open it.

        Args:
            source: as for `relevance_gen.ChunkIndex.build`.
            location: as for `open`; a folder is created if it does not exist.
            weighting: as for `relevance_gen.ChunkIndex`.
            encoding: as for `relevance_gen.ChunkIndex`.
            **options: ``text``, ``title``, ``blank``, ``n_jobs``, ``memory_bytes`` and
                ``progress``, as for `relevance_gen.ChunkIndex.build`.

        Raises:
            IndexFormatError: the location has an `index.json` of another program, or an index that
                is damaged or of another format version, which is not replaced.
            IndexUnavailableError: this process may not open enough files.
            InvalidRequestError: an argument or a chunk is invalid.
            OSError: the source cannot be read, or the store does not answer.
        """
        reader = VersionReader(location, encoding)
        shard_writer = ShardWriter(
            reader.location, weighting_named(weighting).name, token_counter(encoding)
        )
        reader.versions.files.make_folder()
        reader.versions.begin()  # refuse another program's file before the index is built
        with _built_file(shard_writer, source, encoding, options) as path:
            shard = shard_writer.write_file(path, 0)
        editor = LocalShardEditor(reader.opener, shard_writer)
        return cls(reader, IndexWriter(reader.versions, shard_writer, editor).create([shard]))

    # ── Search ──

    @property
    def version(self) -> int:
        """The number of the version that is searched."""
        return self._snapshot.version.number

    @property
    def n_shards(self) -> int:
        """Number of shards."""
        return len(self._snapshot.version.shards)

    def refresh(self) -> bool:
        """Open the newest version; return True if it was opened, False if it was open already.

        If an exception is raised, the version that was open before remains open.

        Raises:
            IndexFormatError: the index is missing or damaged.
            IndexUnavailableError: the cache is full, or this process may not open enough files.
            InvalidRequestError: the index was replaced by an index with another encoding.
            OSError: the store does not answer.
        """
        with self._refreshing:
            while True:
                version = self._reader.versions.read()
                if not version.replaces(self._snapshot.version):
                    return False
                try:
                    self._snapshot = _Snapshot(version, self._reader.open(version))
                except FileNotFoundError:
                    if self._reader.versions.read() == version:
                        raise
                else:
                    return True

    def answer_all(
        self,
        searches: Sequence[SearchParams],
        models: SearchModels = NO_MODELS,
        *,
        allow_partial: bool = False,
    ) -> list[SearchResponse]:
        """Run searches on the opened version, and return their responses in order.

        `allow_partial` has no effect, because all chunks of a version can be searched.
        """
        return self._snapshot.index.answer_all(searches, models, allow_partial=allow_partial)

    def _read(self, work: Callable[[int, Segments], T]) -> T:
        return self._snapshot.index._read(work)

    def __len__(self) -> int:
        return len(self._snapshot.index)

    def __contains__(self, chunk: object) -> bool:
        return chunk in self._snapshot.index

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self._snapshot.index)

    @property
    def nbytes(self) -> int:
        """Memory of texts, arrays and caches in bytes, without metadata."""
        return self._snapshot.index.nbytes

    def __repr__(self) -> str:
        version = self._snapshot.version
        return (
            f"<ShardedIndex of {version.n_chunks:,} chunks in {len(version.shards)} shards, "
            f"version {version.number}, {version.weighting} weighting>"
        )

    # ── Changes ──

    def _add(self, chunks: Chunks, find_replaced: FindPositions | None = None) -> range:
        built = build_segment(batches_of(chunks), self._counter)
        find = None if find_replaced is None else partial(self._find_in, find_replaced)
        added = self._writer.append(lambda: self._shard_writer.write(built, 0), find)
        self.refresh()
        return added

    def add_source(self, source: Source, **options: Any) -> range:
        """Add the chunks of a source, which may be larger than memory, and return their positions.

        Args:
            source: as for `relevance_gen.ChunkIndex.build`.
            **options: as for `build`.

        Raises:
            IndexConflictError: the index was replaced by an index with another weighting or
                encoding.
            IndexFormatError: the index does not exist any more, or is damaged.
            InvalidRequestError: an argument or a chunk is invalid; none was added.
            OSError: the source cannot be read, or the store does not answer.
        """
        with _built_file(self._shard_writer, source, self._reader.encoding, options) as path:
            added = self._writer.append(lambda: self._shard_writer.write_file(path, 0))
        self.refresh()
        return added

    def _remove(self, find_positions: FindPositions) -> int:
        n_removed = self._writer.remove(partial(self._find_in, find_positions))
        self.refresh()
        return n_removed

    def _find_in(self, find_positions: FindPositions, version: IndexVersion) -> Offsets:
        return self._reader.open(version)._read(find_positions)

    def compact(self) -> int:
        """Merge neighboring shards, discard removed chunks; return the decrease in shards.

        The result is the number of shards before, minus the number of shards after the merging.
        `add` already merges small shards; `compact` makes searches of an index with many changes
        faster.

        Raises:
            IndexConflictError: the index was replaced by an index with another weighting or
                encoding.
            OSError: the store does not answer.
        """
        n_merged = self._writer.compact()
        self.refresh()
        return n_merged


@contextmanager
def _built_file(
    writer: ShardWriter, source: Source, encoding: Encoding | None, options: dict[str, Any]
) -> Iterator[Path]:
    """Build an index with `ChunkIndex.build`, and yield the path of its temporary file.

    The file exists until the context ends.

    Args:
        writer: its weighting is the weighting of the index.
        source: as for `ChunkIndex.build`.
        encoding: as for `ChunkIndex.build`.
        options: the other keyword arguments of `ChunkIndex.build`.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "built")
        ChunkIndex.build(source, path, weighting=writer.weighting, encoding=encoding, **options)
        yield path
