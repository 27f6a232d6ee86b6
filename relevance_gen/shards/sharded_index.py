"""An index in a folder or bucket that any number of processes can search and change."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from os import PathLike
from typing import Any, Self, TypeVar

from relevance_gen import forks
from relevance_gen.arrays import Offsets
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.records.sources import Source
from relevance_gen.index.spill import batches_of
from relevance_gen.retrieval.base_index import FindPositions, MutableIndex
from relevance_gen.retrieval.chunk_index import ChunkIndex, index_of_segments
from relevance_gen.retrieval.params import NO_MODELS, SearchModels, SearchParams
from relevance_gen.retrieval.ports import Segments
from relevance_gen.retrieval.weighting import weighting_named
from relevance_gen.shards.changes import IndexWriter
from relevance_gen.shards.object_store import as_address
from relevance_gen.shards.shard_cache import ShardCache
from relevance_gen.shards.shard_files import LocalShardEditor, ShardOpener, ShardWriter
from relevance_gen.shards.versions import IndexVersion, ShardRecord, VersionStore
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
        segments = self.opener.open(version.weighting, version.shards)
        self.opener.keep_only(version.shards)
        return index_of_segments(
            segments, version.weighting, version.n_positions, version.n_tokens, counter
        )


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
        shard_writer = ShardWriter(reader.location, version.weighting, reader.counter(version))
        editor = LocalShardEditor(reader.opener, shard_writer)
        self._reader = reader
        self._shard_writer = shard_writer
        self._writer = IndexWriter(reader.versions, shard_writer, editor)
        self._refresh_lock = threading.Lock()
        self._version = version
        self._index = reader.open(version)
        forks.register(self)

    def renew_after_fork(self) -> None:
        """Create the lock of refreshes again, which a thread of the parent process may hold."""
        self._refresh_lock = threading.Lock()

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
        shard = _build_shard(shard_writer, source, encoding, options)
        editor = LocalShardEditor(reader.opener, shard_writer)
        return cls(reader, IndexWriter(reader.versions, shard_writer, editor).create([shard]))

    # ── Search ──

    @property
    def version(self) -> int:
        """The number of the version that is searched."""
        return self._version.number

    @property
    def n_shards(self) -> int:
        """Number of shards."""
        return len(self._version.shards)

    def refresh(self) -> bool:
        """Open the newest version; return True if it was opened, False if it was open already.

        If an exception is raised, the version that was open before remains open.

        Raises:
            IndexFormatError: the index is missing or damaged.
            IndexUnavailableError: the cache is full, or this process may not open enough files.
            InvalidRequestError: the index was replaced by an index with another encoding.
            OSError: the store does not answer.
        """
        with self._refresh_lock:
            while True:
                version = self._reader.versions.read()
                if not version.replaces(self._version):
                    return False
                try:
                    self._index = self._reader.open(version)
                except FileNotFoundError:
                    if self._reader.versions.read() == version:
                        raise
                else:
                    self._version = version
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
        return self._index.answer_all(searches, models, allow_partial=allow_partial)

    def _read(self, work: Callable[[int, Segments], T]) -> T:
        return self._index._read(work)

    def __len__(self) -> int:
        return len(self._index)

    def __contains__(self, chunk: object) -> bool:
        return chunk in self._index

    def __iter__(self) -> Iterator[Chunk]:
        return iter(self._index)

    @property
    def nbytes(self) -> int:
        """Memory of texts, arrays and caches in bytes, without metadata."""
        return self._index.nbytes

    def __repr__(self) -> str:
        version = self._version
        return (
            f"<ShardedIndex of {version.n_chunks:,} chunks in {len(version.shards)} shards, "
            f"version {version.number}, {version.weighting} weighting>"
        )

    # ── Changes ──

    def _add(self, chunks: Chunks, find_replaced: FindPositions | None = None) -> range:
        shard = self._shard_writer.build(batches_of(chunks))
        find = None if find_replaced is None else partial(self._find_in, find_replaced)
        added = self._writer.append(shard, find)
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
        shard = _build_shard(self._shard_writer, source, self._reader.encoding, options)
        added = self._writer.append(shard)
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


def _build_shard(
    writer: ShardWriter, source: Source, encoding: Encoding | None, options: dict[str, Any]
) -> ShardRecord:
    """Build a shard with `ChunkIndex.build`, and return its record.

    Args:
        writer: writes the shard; its weighting is the weighting of the index.
        source: as for `ChunkIndex.build`.
        encoding: as for `ChunkIndex.build`.
        options: the other keyword arguments of `ChunkIndex.build`.
    """
    weighting = writer.weighting
    return writer.store(
        partial(ChunkIndex.build, source, weighting=weighting, encoding=encoding, **options)
    )
