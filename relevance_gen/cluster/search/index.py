"""An index that the machines of a cluster search.

Its state is a sharded index in shared storage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from os import PathLike
from typing import Any, Final, Self, TypeVar

from attrs import frozen

from relevance_gen.arrays import Offsets
from relevance_gen.checks import check_integer
from relevance_gen.cluster.connection import check_connected, check_name, connect, living_nodes
from relevance_gen.cluster.search import locations
from relevance_gen.cluster.search.remote_segments import RemoteSegments, ShardError
from relevance_gen.cluster.search.searchers import (
    SearcherPool,
    build_shard,
    edit_shards,
    searcher_pool,
)
from relevance_gen.cluster.search.sources import ChunkSource, Paths, divide_chunks, plan_reading
from relevance_gen.errors import (
    ChunksMissingError,
    ClusterError,
    IndexFormatError,
    InvalidRequestError,
    RelevanceGenError,
)
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.passages import TextEncoder
from relevance_gen.index.records.validation import Blank, read_chunks
from relevance_gen.index.spill import batches_of
from relevance_gen.progress import Progress, reporting
from relevance_gen.retrieval.answer import answer
from relevance_gen.retrieval.base_index import FindPositions, MutableIndex
from relevance_gen.retrieval.params import NO_MODELS, SearchModels, SearchParams
from relevance_gen.retrieval.ports import InventoryRequest, Segments
from relevance_gen.retrieval.weighting import weighting_named
from relevance_gen.shards.changes import IndexWriter, copy_version
from relevance_gen.shards.object_store import as_address, in_thread
from relevance_gen.shards.shard_files import LocalShardEditor, ShardWriter
from relevance_gen.shards.versions import IndexVersion, ShardRecord, VersionStore
from relevance_gen.text.token_counting import (
    Encoding,
    counter_of_saved,
    token_counter,
)
from relevance_gen.types import (
    Chunk,
    Metadata,
    SearchMetadata,
    SearchResponse,
    WeightingName,
)

T = TypeVar("T")

_MAX_SHARDS: Final = 4096
_MAX_AGE_S: Final = 1.0
"""Seconds for which a version is searched before the store is asked for a newer version. Changes by
other processes are visible after this time at the latest."""
_MAX_REFRESH_S: Final = 1.0
"""Seconds for which a search waits for the newest version. If the store does not answer in this
time, the known version is searched."""
_MAX_ATTEMPTS: Final = 8
_PARALLEL_SEARCHES: Final = 16
_POSITIONS_PER_REQUEST: Final = 1 << 10


@frozen
class ShardStats:
    """One shard of an index.

    Attributes:
        num_chunks: number of its chunks.
        nodes: ids of the nodes of the shard's first two searchers. The first searcher is asked
            first; if it does not respond, the second is asked. One id if both are on one node, or
            if there is only one searcher.
        size_bytes: size of its file.
    """

    num_chunks: int
    nodes: tuple[str, ...]
    size_bytes: int


@frozen
class IndexStats:
    """The state of an index in a cluster.

    Attributes:
        num_chunks: number of chunks of the newest version, missing chunks included.
        num_missing_chunks: number of chunks that could not be searched by the last search that
            failed; 0 if a later search had all chunks.
        shards: the shards, in the order of their positions.
        errors: why chunks are missing, and why the newest version is unknown; empty if neither.
    """

    num_chunks: int
    num_missing_chunks: int
    shards: tuple[ShardStats, ...]
    errors: tuple[str, ...]

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return len(self.shards)


class ClusterIndex(MutableIndex):
    """An index that a cluster of Ray searches.

    Its results equal the results of `relevance_gen.ChunkIndex`, bit for bit. The index is a folder
    or an address in object storage, as `relevance_gen.shards.sharded_index.ShardedIndex` has it.
    Every processor of the cluster has a searcher, which can search any shard. If a searcher dies or
    does not respond, another one searches its shards. A change is durable when the call returns;
    other processes see it within a second.

    Args:
        chunks: as for `relevance_gen.ChunkIndex`.
        location: a folder that all nodes share, or an address that `fsspec` supports, such as
            ``s3://bucket/index``. An index that is built replaces an index there. Without chunks
            and source, the index there is opened. None uses a temporary folder, if all nodes are on
            one machine.
        source: instead of chunks, files that the nodes read themselves: a file, a folder or a list
            of these, by paths that all nodes share or addresses that `fsspec` supports. Each line
            of ``.jsonl`` or ``.ndjson``, also with ``.gz`` or ``.zst``, and each row of
            ``.parquet`` is a chunk, as in `relevance_gen.ChunkIndex.build`; ``.txt`` and ``.md``
            are split as by `relevance_gen.split`. A line has at most 4 MiB. Other files of a folder
            are skipped.
        text: the field or column with the text of a chunk, as for `relevance_gen.ChunkIndex`.
        title: the field of a source with a chunk's title. All other fields are metadata.
        n_shards: maximum number of shards. By default there is one shard for each full 256 Mi
            characters of text, but at most one for each processor of the cluster. If a shard would
            then have more than 1 Gi characters, there are more shards.
        address: ``HOST:PORT`` of the head of a cluster; ``"local"`` for a new cluster on this
            machine; ``"auto"`` for the cluster that the environment variable ``RAY_ADDRESS`` names,
            or without the variable the cluster of this machine. None has the same effect as
            ``"auto"``, but starts a new cluster if the variable is not set and no cluster of this
            machine answers.
        name: the name by which other processes of the cluster find the index.
        blank: ``"error"`` refuses a blank chunk; ``"skip"`` leaves it out, and the others keep
            their positions.
        weighting: ``"pivoted"`` or ``"cosine"``.
        encoding: the encoding in which tokens are counted; a rank file must exist on every node.
        encoder: must be None: an index of a cluster stores no vectors.
        progress: called with (chunks indexed, chunks known so far) while the index is built; True
            shows a bar.

    Raises:
        InvalidRequestError: an argument is invalid; the error names it.
        ClusterError: the cluster does not answer, its nodes have other versions, or a shard cannot
            be built.
    """

    def __init__(
        self,
        chunks: Iterable[str | Metadata | Chunk] | None = None,
        *,
        location: str | PathLike[str] | None = None,
        source: Paths | None = None,
        text: str | None = None,
        title: str = "title",
        n_shards: int | None = None,
        address: str | None = None,
        name: str | None = None,
        blank: Blank = "error",
        weighting: WeightingName = "pivoted",
        encoding: Encoding | None = None,
        encoder: TextEncoder | None = None,
        progress: Progress | bool | None = None,
    ) -> None:
        _check_arguments(chunks, location, source, title, n_shards, name)
        _check_no_encoder(encoder)
        weighting = weighting_named(weighting).name
        checked = read_chunks(() if chunks is None else chunks, blank=blank, text=text)
        self._location = "" if location is None else as_address(location)
        connect(address)
        self._is_closed = False
        self._name: str | None = None
        self._temporary = None if self._location else _temporary_folder()
        self._encoding = encoding
        self._checked_s = 0.0
        self._refreshing: Future[RemoteSegments] | None = None
        self._refresh_error: str | None = None
        self._missing_error: ChunksMissingError | None = None
        try:
            if self._temporary is not None:
                self._location = str(self._temporary.path)
            self._pool = searcher_pool()
            self._versions = VersionStore(self._location)
            if source is not None or chunks is not None:
                writer = ShardWriter(self._location, weighting, token_counter(encoding))
                n_cpus = min(int(sum(node.n_cpus for node in living_nodes())), _MAX_SHARDS)
                parts: Sequence[ChunkSource]
                if source is not None:
                    field = "text" if text is None else text
                    parts = plan_reading(source, n_shards, field, title, blank, n_cpus)
                else:
                    parts = divide_chunks(checked, n_shards, n_cpus)
                with reporting(progress) as report:
                    self._build(writer, parts, len(checked.texts), report)
            self._open(self._versions.read())
            self._await_shards()
            if name is not None:
                locations.register(name, self._location, self._temporary is not None)
                self._name = name
                if self._temporary is not None:
                    self._temporary.keep()
        except BaseException:
            self.close()
            raise

    @classmethod
    def load(
        cls,
        location: str | PathLike[str],
        *,
        address: str | None = None,
        name: str | None = None,
        encoding: Encoding | None = None,
    ) -> Self:
        """Open the index at a location; changes of the returned object change the stored index.

        Args:
            location: as for the class.
            address: as for the class.
            name: as for the class.
            encoding: the encoding of the index; required only if it is neither the default encoding
                that is part of this package nor one of tiktoken's published encodings.

        Raises:
            IndexFormatError: the index is missing or damaged.
            InvalidRequestError: an argument is invalid, or the nodes do not share the location.
            ClusterError: the cluster does not answer, or its nodes have other versions.
        """
        return cls(location=as_address(location), address=address, name=name, encoding=encoding)

    @classmethod
    def named(cls, name: str, *, address: str | None = None) -> Self:
        """Open the index that a process of the cluster has registered under a name.

        Args:
            name: the name.
            address: as for the class.

        Raises:
            UnknownIndexError: no index has the name.
            ClusterError: the cluster does not answer, or this process has other versions.
        """
        check_name(name)
        connect(address)
        index = cls(location=locations.find(name), address=address)
        index._name = name
        return index

    # ── Building and opening ──

    def _build(
        self,
        writer: ShardWriter,
        parts: Sequence[ChunkSource],
        n_chunks: int,
        report: Progress | None,
    ) -> None:
        """Build one shard from each part on the searchers, and write the shards as the new index.

        The new index replaces an index at the location of this object.

        Args:
            writer: writes the shards.
            parts: the chunks of each shard, in order.
            n_chunks: number of all chunks, for `report`; 0 if it is unknown.
            report: called after each shard with the number of chunks done and the number of all
                chunks; if the latter is unknown, both numbers are equal. None for no reports.
        """
        self._versions.files.make_folder()
        self._versions.begin()  # refuse another program's file before the index is built
        tasks = [partial(build_shard, writer, part) for part in parts]
        built = {}
        n_done = 0
        try:
            for made in self._pool.run(tasks):
                built[made.task_ord] = made.shard
                n_done += made.shard.stop
                if report is not None:
                    report(n_done, max(n_done, n_chunks))
        except (RelevanceGenError, OSError) as error:
            raise ClusterError(f"a shard cannot be built: {error}") from None
        shards: list[ShardRecord] = []
        for part_ord in range(len(parts)):
            shard = built[part_ord]
            if not self._versions.files.exists(shard.file.name):
                raise self._not_shared()
            shards.append(shard.at(shards[-1].stop if shards else 0))
        self._index_writer(writer).create(shards)

    def _open(self, version: IndexVersion) -> None:
        self._counter = counter_of_saved(
            version.encoding, version.fingerprint, self._encoding, self._location
        )
        self._segments = RemoteSegments(self._pool, self._location, version)

    def _await_shards(self) -> None:
        """Wait until the shards of the opened version are open.

        A shard that no searcher can read is not an error here: a search raises the error.

        Raises:
            InvalidRequestError: a node does not find a file that this process finds.
        """
        self._segments.open_shards()
        try:
            self._segments.inventory(InventoryRequest())
        except ShardError as error:
            is_missing = isinstance(error.cause, FileNotFoundError)
            if is_missing and self._versions.files.exists(error.shard_name):
                raise self._not_shared() from None

    def _not_shared(self) -> InvalidRequestError:
        allowed = "the same folder for all nodes"
        return InvalidRequestError.must_be("location", allowed, self._location)

    # ── Chunks ──

    def __len__(self) -> int:
        return self._current().version.n_chunks

    def _read(self, work: Callable[[int, Segments], T]) -> T:
        return self._search(lambda segments: work(segments.version.n_positions, segments))

    def __iter__(self) -> Iterator[Chunk]:
        """Yield the chunks in the order of their positions.

        Chunks are fetched in batches, so changes during the iteration are visible in later batches.
        """
        first = 0
        while first < self._current().version.n_positions:
            yield from self[first : first + _POSITIONS_PER_REQUEST]
            first += _POSITIONS_PER_REQUEST

    @property
    def nbytes(self) -> int:
        """Size in bytes of the files of all shards, which searchers map into memory."""
        return sum(shard.file.n_bytes for shard in self._current().version.shards)

    def __repr__(self) -> str:
        version = self._current().version
        return (
            f"<ClusterIndex of {version.n_chunks:,} chunks in {len(version.shards)} shards, "
            f"{version.weighting} weighting, {self._counter.name} tokens>"
        )

    # ── Search ──

    def answer_all(
        self,
        searches: Sequence[SearchParams],
        models: SearchModels = NO_MODELS,
        *,
        allow_partial: bool = False,
    ) -> list[SearchResponse]:
        """Run searches in parallel, and return their responses in order.

        Args:
            searches: the searches.
            models: the models of the searches; a reranker runs in this process.
            allow_partial: whether to search without the shards that cannot be read, instead of
                raising a `ChunksMissingError`.
        """
        _check_no_encoder(models.encoder)
        answer_one = partial(self._answer, models, allow_partial)
        if len(searches) == 1:
            return [answer_one(searches[0])]
        self._current()  # otherwise the first searches could use an older version than the others
        with ThreadPoolExecutor(_PARALLEL_SEARCHES, "search-cluster") as threads:
            return list(threads.map(answer_one, searches))

    def _answer(
        self, models: SearchModels, allow_partial: bool, params: SearchParams
    ) -> SearchResponse:
        def search(segments: RemoteSegments) -> SearchResponse:
            version = segments.version
            n_query_tokens = self._counter.count(params.query)
            counts = SearchMetadata(
                n_query_tokens, version.n_tokens, num_missing_chunks=segments.n_missing_chunks
            )
            return answer(
                params, segments, version.n_positions, counts, models.rerank_stages(params)
            )

        return self._search(search, allow_partial)

    def _with_own_models(self, models: SearchModels) -> SearchModels:
        _check_no_encoder(models.encoder)
        return models

    def _search(self, work: Callable[[RemoteSegments], T], allow_partial: bool = False) -> T:
        """Run a function on the current version; after an error, again on a newer version, if any.

        Args:
            work: the function.
            allow_partial: whether to run it again without the shards that cannot be read.

        Raises:
            ChunksMissingError: a shard of the newest version cannot be read.
        """
        missing: dict[str, OSError] = {}
        segments = self._current()
        for _ in range(_MAX_ATTEMPTS + len(segments.version.shards)):
            try:
                result = work(segments.without(missing))
            except ShardError as error:
                newest = self._refresh()
                if newest.version != segments.version:
                    segments, missing = newest, {}
                else:
                    missing[error.shard_name] = error.cause
                    if not allow_partial:
                        break
            else:
                if not missing:
                    self._missing_error = None
                return result
        self._missing_error = _missing_error(segments, missing)
        raise self._missing_error

    # ── Changes ──

    def _add(self, chunks: Chunks, find_replaced: FindPositions | None = None) -> range:
        find = None if find_replaced is None else partial(self._find_in, find_replaced)

        def append(writer: IndexWriter, shard_writer: ShardWriter) -> range:
            return writer.append(shard_writer.build(batches_of(chunks)), find)

        return self._change(append)

    def _remove(self, find_positions: FindPositions) -> int:
        find = partial(self._find_in, find_positions)
        return self._change(lambda writer, _: writer.remove(find))

    def _find_in(self, find_positions: FindPositions, version: IndexVersion) -> Offsets:
        segments = RemoteSegments(self._pool, self._location, version)
        try:
            return find_positions(version.n_positions, segments)
        except ShardError as error:
            raise _missing_error(segments, {error.shard_name: error.cause}) from None

    def compact(self) -> int:
        """Merge neighboring shards and discard removed chunks.

        Returns the number of shards before, minus the number of shards afterwards.
        """
        return self._change(lambda writer, _: writer.compact())

    def save(self, location: str | PathLike[str]) -> None:
        """Copy the newest version of the index to another location, and replace the index there.

        Files that exist there already are not copied again. Does nothing at its own location.

        Raises:
            IndexConflictError: another writer has changed the index there meanwhile.
            IndexFormatError: there is an `index.json` of another program.
            OSError: a file cannot be read or written.
        """
        target = as_address(location)
        version = self._refresh().version
        if target != self._location:
            copy_version(self._versions, version, target)

    def _index_writer(self, shard_writer: ShardWriter) -> IndexWriter:
        editor = _RemoteShardEditor(self._pool, shard_writer)
        return IndexWriter(self._versions, shard_writer, editor)

    def _change(self, change: Callable[[IndexWriter, ShardWriter], T]) -> T:
        """Write and open a new version, and return the result of `change`.

        Args:
            change: writes the version with the given writers, which have the settings of the newest
                version. It runs in a thread, so that a KeyboardInterrupt does not stop it.
        """
        version = self._refresh().version
        shard_writer = ShardWriter(self._location, version.weighting, self._counter)
        writer = self._index_writer(shard_writer)
        result = in_thread(lambda: change(writer, shard_writer), "change-index").result()
        self._refresh()
        return result

    # ── State ──

    def stats(self) -> IndexStats:
        """Return the sizes of the newest version and its shards, their nodes, and recent errors."""
        segments = self._current()
        shards = []
        for shard in segments.version.shards:
            searchers = segments.orders[shard.file.name][:2]
            node_ids = dict.fromkeys(searcher.node_id for searcher in searchers)
            shards.append(ShardStats(shard.n_chunks, tuple(node_ids), shard.file.n_bytes))
        missing = self._missing_error
        n_missing_chunks = 0 if missing is None else missing.n_missing_chunks
        errors = [str(error) for error in (self._refresh_error, missing) if error is not None]
        return IndexStats(segments.version.n_chunks, n_missing_chunks, tuple(shards), tuple(errors))

    def close(self) -> None:
        """Release the index: delete its temporary folder, and remove its name for all processes.

        An index at a location that the caller named remains there. Safe to call twice.
        """
        if self._is_closed:
            return
        self._is_closed = True
        with suppress(Exception):  # the cluster may be gone
            check_connected()
            if self._name is not None:
                locations.unregister(self._name, self._location)
            if self._temporary is not None:
                self._pool.check_connected()
                for searcher in self._pool.searchers:
                    searcher.actor.close_index.remote(self._location)
        if self._temporary is not None:
            self._temporary.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClusterError("this index was closed")
        self._pool.check_connected()

    def _current(self) -> RemoteSegments:
        """Return the segments of the newest version; they are cached for `_MAX_AGE_S`.

        After that time the version is read from the store again. If the store fails, or does not
        answer within `_MAX_REFRESH_S`, the cached segments are returned.

        Raises:
            IndexFormatError: the index is missing or damaged.
        """
        self._check_open()
        known = self._segments
        if time.monotonic() - self._checked_s <= _MAX_AGE_S:
            return known
        refreshing = self._refreshing
        if refreshing is None or refreshing.done():
            refreshing = self._refreshing = in_thread(self._refresh, "refresh-index")
        if wait([refreshing], _MAX_REFRESH_S).done:
            try:
                return refreshing.result()
            except IndexFormatError:
                raise
            except OSError as error:
                self._refresh_error = f"the newest version is unknown: {error}"
                self._checked_s = time.monotonic()
        return known

    def _refresh(self) -> RemoteSegments:
        """Read the newest version, ask searchers to open its shards, and return its segments.

        The method does not wait until the shards are open. It returns the known segments if the
        version has not changed.

        Raises:
            ClusterError: the index was closed, also if the name was closed by another process.
        """
        self._check_open()
        if self._name is not None:
            self._check_name()
        version = self._versions.read()
        self._refresh_error = None
        self._checked_s = time.monotonic()
        if version.replaces(self._segments.version):
            self._open(version)
        self._segments.open_shards()
        return self._segments

    def _check_name(self) -> None:
        """Raise a `ClusterError` unless the index's name is still registered for its location."""
        with suppress(Exception):
            if locations.find(self._name or "") == self._location:
                return
        raise ClusterError("this index was closed")


@frozen(eq=False)
class _RemoteShardEditor:
    """Makes new shards from existing shards.

    A searcher of `pool` does the work and writes the new shards with `writer`.
    """

    pool: SearcherPool
    writer: ShardWriter

    def without(self, shard: ShardRecord, positions: Offsets) -> ShardRecord:
        """Remove the chunks at `positions` from a shard; return the record of the changed shard.

        The shard must have a chunk at each of the positions.
        """
        return self._run(LocalShardEditor.without, shard, positions)

    def merge(self, shards: Sequence[ShardRecord]) -> ShardRecord:
        """Write one shard with the chunks of neighboring shards, and return its record."""
        return self._run(LocalShardEditor.merge, shards)

    def _run(self, method: Callable[..., ShardRecord], *args: Any) -> ShardRecord:
        task = partial(edit_shards, method, self.writer, *args)
        (made,) = self.pool.run([task])
        return made.shard


def _check_arguments(
    chunks: object,
    location: object,
    source: object,
    title: object,
    n_shards: int | None,
    name: object,
) -> None:
    if chunks is not None and source is not None:
        raise InvalidRequestError("must be given, or source instead, and not both", "chunks")
    if chunks is None and source is None and location is None:
        raise InvalidRequestError("must be given, or source or location instead", "chunks")
    if n_shards is not None:
        check_integer("n_shards", n_shards, 1, _MAX_SHARDS)
    if not isinstance(title, str) or (source is None and title != "title"):
        allowed = 'the name of a field, and "title" without a source'
        raise InvalidRequestError.must_be("title", allowed, title)
    if name is not None:
        check_name(name)


def _temporary_folder() -> locations.TemporaryFolder:
    n_machines = len({node.address for node in living_nodes()})
    if n_machines > 1:
        rule = f"must be given, because the cluster has {n_machines} machines"
        remedy = "name a folder that all nodes share, or a bucket such as s3://bucket/index"
        raise InvalidRequestError(rule, "location", remedy=remedy)
    return locations.TemporaryFolder()


def _missing_error(segments: RemoteSegments, missing: dict[str, OSError]) -> ChunksMissingError:
    n_missing_chunks = segments.without(missing).n_missing_chunks
    n_chunks = segments.version.n_chunks
    reason = str(next(iter(missing.values()), ""))
    message = f"{n_missing_chunks:,} of {n_chunks:,} chunks cannot be searched now: {reason}"
    return ChunksMissingError(message, n_missing_chunks)


def _check_no_encoder(encoder: TextEncoder | None) -> None:
    if encoder is not None:
        remedy = "leave it out: indexes of a cluster have no vectors"
        raise InvalidRequestError.must_be("encoder", "None", encoder, remedy=remedy)
