"""An index over the machines of a cluster, as its callers use it.

The file is long because it documents every method of the one public class; what the methods do is in other rooms.
"""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from functools import partial
from os import PathLike
from typing import Any, Final, Self, TypeVar, get_args, overload

import ray
from attrs import evolve
from ray.exceptions import RayActorError

from relevance_gen.checks import check_integer
from relevance_gen.cluster import saved_folder as folders
from relevance_gen.cluster.actors import SILENT_S, START_S, check, get_from, own_node, start
from relevance_gen.cluster.calls import Pace
from relevance_gen.cluster.collection import ClusterCollection
from relevance_gen.cluster.connection import NAMESPACE, check_name, connect
from relevance_gen.cluster.files import Paths, plan_reading
from relevance_gen.cluster.keeper import Keeper
from relevance_gen.cluster.parts import Part, ShardFile, StoredChunks
from relevance_gen.cluster.placing import living_nodes, optional_count
from relevance_gen.cluster.shard import OutdatedError
from relevance_gen.cluster.state import IndexStats, ShardStats
from relevance_gen.errors import (
    ChunksMissingError,
    ClusterError,
    InvalidRequestError,
    UnknownIndexError,
)
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.passages import TextEncoder
from relevance_gen.index.records.validation import Blank, read_chunks
from relevance_gen.progress import Progress, reporting
from relevance_gen.retrieval.answer import answer, explain
from relevance_gen.retrieval.base_index import BaseIndex
from relevance_gen.retrieval.models import NO_MODELS, Models
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.retrieval.positions import check_position, indexed
from relevance_gen.retrieval.query.filters import Where
from relevance_gen.retrieval.weighting import weighting_named
from relevance_gen.shards.background import in_thread
from relevance_gen.text.blocks import split_evenly
from relevance_gen.text.token_counting import (
    Encoding,
    TokenCounter,
    counter_of_saved,
    token_counter,
)
from relevance_gen.types import (
    Chunk,
    Explanation,
    Metadata,
    SearchMetadata,
    SearchResponse,
    WeightingName,
)

T = TypeVar("T")

_MAX_SHARDS: Final = 4096
_FRESH_S: Final = 1.0
"""How old what is known of an index may be: changes by other processes are seen so much later at most."""
_ATTEMPTS: Final = 8
_NEWS_S: Final = 5.0
"""How long a question waits for the news of a shard that did not answer."""
_QUESTIONS_AT_ONCE: Final = 16
_PROGRESS_S: Final = 0.1
_STEP: Final = 1 << 10
"""Positions of which the chunks are fetched together."""


class ClusterIndex(BaseIndex):
    """Chunks spread over the machines of a cluster; results are those of `relevance_gen.ChunkIndex`, bit for bit.

    Chunks are cut into shards, which actors hold, at most one for each processor. A lost shard is made again from the
    file it was saved to, or from the chunks as they were handed over; these stay with the process that handed them
    over, so only a saved index outlives that process. Until a shard is back, questions are refused, never answered from
    less without a word. An index with a name is found by every process of the cluster, and lives until it is closed;
    others go with their process.

    Args:
        chunks: as for `relevance_gen.ChunkIndex`, tables among them.
        source: instead of chunks, what the nodes read themselves, each its own part, so that no machine ever holds all
            of it: a file, a folder or a list of these, by a path that all nodes share or an address that `fsspec`
            knows. Each line of ``.jsonl`` or ``.ndjson``, also with ``.gz`` or ``.zst``, and each row of ``.parquet``
            is a chunk, as `relevance_gen.ChunkIndex.build` has it; ``.txt`` and ``.md`` are cut as
            `relevance_gen.split` does. Other files of a folder are left alone. A line may have 4 MiB.
        text: the field, or column, that has the text of a chunk, as for `relevance_gen.ChunkIndex`.
        title: the field of a source that has a chunk's title, where it has one. All fields but these two are metadata.
            Nobody looks whether any record has it.
        n_shards: how many shards at most; by default one for each processor of the cluster that has 256 Mi characters
            of text, or of a source 256 MiB of files (those that are compressed count four times), and so many that none
            has more than 1 Gi, unless one compressed file has.
        replicas: how many nodes have each shard; with two or more, losing one changes nothing.
        address: ``"auto"`` for the cluster that this machine is in, or ``HOST:PORT`` of its head; ``"local"`` for one
            that is started on this machine; None for the first of ``RAY_ADDRESS``, ``"auto"`` and ``"local"``.
        name: what other processes find it by.
        blank: ``"error"`` refuses a blank chunk; ``"skip"`` leaves it out, and the others keep their positions.
        weighting: ``"pivoted"`` or ``"cosine"``.
        encoding: what tokens are counted in; a file of ranks must be there on every node.
        encoder: refused, for an index of a cluster goes by words alone.
        progress: called with (chunks done, all chunks known of) while the index is built; True shows a bar.

    Raises:
        InvalidRequestError: an argument is not allowed; the error names it.
        ClusterError: there is no such cluster, its nodes have other versions, or a shard cannot be built.
    """

    def __init__(
        self,
        chunks: Iterable[str | Metadata | Chunk] | None = None,
        *,
        source: Paths | None = None,
        text: str | None = None,
        title: str = "title",
        n_shards: int | None = None,
        replicas: int = 1,
        address: str | None = None,
        name: str | None = None,
        blank: Blank = "error",
        weighting: WeightingName = "pivoted",
        encoding: Encoding | None = None,
        encoder: TextEncoder | None = None,
        progress: Progress | bool | None = None,
    ) -> None:
        if (chunks is None) == (source is None):
            raise InvalidRequestError("must be given, or source instead, and not both", "chunks")
        _check_no_encoder(encoder)
        if blank not in get_args(Blank):
            raise InvalidRequestError.must_be("blank", '"error" or "skip"', blank)
        weighting_named(weighting)
        counter = token_counter(encoding)
        if n_shards is not None:
            check_integer("n_shards", n_shards, 1, _MAX_SHARDS)
        check_integer("replicas", replicas, 1)
        if not isinstance(title, str) or (source is None and title != "title"):
            raise InvalidRequestError.must_be(
                "title", 'the name of a field, and "title" without a source', title
            )
        checked = read_chunks(() if chunks is None else chunks, blank=blank, text=text)
        with reporting(progress) as report:
            connect(address)
            parts: Sequence[Part]
            if source is not None:
                parts = plan_reading(
                    source, n_shards, "text" if text is None else text, title, blank, _n_cpus()
                )
            else:
                n_parts = n_shards or optional_count(sum(map(len, checked.texts)), _n_cpus())
                parts = _hand_over(checked, max(1, min(n_parts, len(checked.texts))))
            self._begin(_start_keeper(name, weighting, counter, replicas))
            self._build(parts, report=report)

    @classmethod
    def load(
        cls,
        folder: str | PathLike[str],
        *,
        replicas: int = 1,
        address: str | None = None,
        name: str | None = None,
        encoding: Encoding | None = None,
    ) -> Self:
        """Open an index that `save` wrote, with the shards that it was saved with.

        Args:
            folder: a path that all nodes share, or an address that `fsspec` knows, such as ``s3://bucket/index``.
            replicas: as for the class.
            address: as for the class.
            name: as for the class.
            encoding: as for the index that was saved; may be left out if that was the embedded encoding or a
                published one.

        Raises:
            IndexFormatError: no index of a cluster was saved there, or it is damaged.
            InvalidRequestError: an argument is not allowed.
            ClusterError: there is no such cluster, its nodes have other versions, or a node cannot read a shard.
        """
        check_integer("replicas", replicas, 1)
        address_of = folders.as_address(folder, "folder")
        manifest = folders.read_manifest(address_of)
        counter = counter_of_saved(manifest.encoding, manifest.fingerprint, encoding, address_of)
        connect(address)
        parts = [
            ShardFile(address_of, name, shard.n_tokens) for name, shard in manifest.shards.items()
        ]
        index = cls.__new__(cls)
        index._begin(_start_keeper(name, manifest.weighting, counter, replicas))
        index._build(parts, manifest.n_positions)
        return index

    @classmethod
    def named(cls, name: str, *, address: str | None = None) -> Self:
        """Return the index that another process of the cluster made with a name.

        Raises:
            UnknownIndexError: there is none of that name.
            ClusterError: there is no such cluster, or this process has other versions.
        """
        check_name(name)
        connect(address)
        try:
            keeper = ray.get_actor(f"index {name}", namespace=NAMESPACE)
        except ValueError:
            raise UnknownIndexError(f"no index of the cluster has the name {name!r}") from None
        index = cls.__new__(cls)
        with _keeper_alive():
            check(keeper, SILENT_S)
        index._begin(keeper)
        index._refresh()
        return index

    def _begin(self, keeper: Any) -> None:
        self._keeper = keeper
        self._pace = Pace()
        self._collection: ClusterCollection | None = None
        self._known_s = 0.0
        self._closed = False
        self._pool = ThreadPoolExecutor(_QUESTIONS_AT_ONCE, thread_name_prefix="ask-shards")
        if isinstance(
            keeper, Keeper
        ):  # it goes with this object, and with the process before Ray does
            weakref.finalize(self, _end, keeper).atexit = False
            atexit.register(keeper.close)

    def _build(
        self, parts: Sequence[Part], n_positions: int | None = None, report: Progress | None = None
    ) -> None:
        """Have the shards made."""
        try:
            built = self._pool.submit(self._call, "build", parts, n_positions)
            while not wait([built], _PROGRESS_S).done:
                if report is not None:
                    report(*self._call("progress"))
            built.result()
            self._refresh()
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return self._fresh().state.statistics.n_chunks

    @overload
    def __getitem__(self, position: int) -> Chunk: ...
    @overload
    def __getitem__(self, position: slice) -> list[Chunk]: ...
    def __getitem__(self, position: int | slice) -> Chunk | list[Chunk]:
        """Return the chunk at a position, of which -1 is the last that was given, or those in a slice of positions.

        Raises:
            InvalidRequestError: no chunk is there; a slice leaves out those that were removed.
            ChunksMissingError: a shard is lost, and not restored yet.
        """
        return self._ask(
            lambda collection: indexed(collection, collection.state.n_positions, position)
        )

    def __iter__(self) -> Iterator[Chunk]:
        """Yield the chunks by position, fetched some at a time; of what changes meanwhile, what is there then."""
        first = 0
        while first < self._fresh().state.n_positions:
            yield from self[first : first + _STEP]
            first += _STEP

    def __contains__(self, chunk: object) -> bool:
        """Tell whether a chunk has this text or, as a `Chunk`, this text, metadata and title: it fetches all."""
        wanted = (chunk.text, chunk.metadata, chunk.title) if isinstance(chunk, Chunk) else (chunk,)
        return any((one.text, one.metadata, one.title)[: len(wanted)] == wanted for one in self)

    @property
    def metadata_keys(self) -> set[str]:
        """The keys under which any chunk has metadata."""
        return self._ask(lambda collection: collection.metadata_keys or set())

    @property
    def nbytes(self) -> int:
        """Memory of the texts and arrays of one replica of each shard, in bytes; of lost shards nothing is counted."""
        return sum(self._call("nbytes"))

    def __repr__(self) -> str:
        state = self._fresh().state
        return (
            f"<ClusterIndex of {state.statistics.n_chunks:,} chunks in {len(state.shards)} shards, "
            f"{state.weighting} weighting, {state.counter.name} tokens>"
        )

    # ── Asking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def answer_all(
        self,
        asked: Sequence[SearchParams],
        models: Models = NO_MODELS,
        *,
        allow_partial: bool = False,
    ) -> list[SearchResponse]:
        """Answer questions, several of them side by side. What a reranker reads, it reads in this process."""
        _check_no_encoder(models.encoder)
        if len(asked) == 1:
            return [self._answer(asked[0], models, allow_partial)]
        self._fresh()
        return list(
            self._pool.map(lambda question: self._answer(question, models, allow_partial), asked)
        )

    def _answer(
        self, question: SearchParams, models: Models, allow_partial: bool
    ) -> SearchResponse:
        rerankings = models.rerankings(question)

        def ask(collection: ClusterCollection) -> SearchResponse:
            state = collection.state
            counts = SearchMetadata(state.counter.count(question.query), state.n_tokens)
            response = answer(question, collection, state.n_positions, counts, rerankings)
            if not (missing := state.n_missing_chunks):
                return response
            return evolve(response, metadata=evolve(response.metadata, num_missing_chunks=missing))

        return self._ask(ask, allow_partial)

    def explain_one(
        self, question: SearchParams, chunk: int, models: Models = NO_MODELS
    ) -> Explanation:
        """Show what each term of the query, and a reranker, gave to the score of a chunk."""
        _check_no_encoder(models.encoder)
        rerankings = models.rerankings(question)

        def ask(collection: ClusterCollection) -> Explanation:
            at = check_position("chunk", chunk, collection.state.n_positions, collection.holds)
            return explain(collection, question, at, rerankings)

        return self._ask(ask)

    def _ask(self, work: Callable[[ClusterCollection], T], allow_partial: bool = False) -> T:
        """Do something with the shards, anew if they change meanwhile."""
        for _ in range(_ATTEMPTS):
            collection = self._fresh()
            state = collection.state
            if state.n_missing_chunks and not allow_partial:
                break
            try:
                return work(collection)
            except OutdatedError:
                self._refresh(collection)
        missing = state.n_missing_chunks
        raise ChunksMissingError(
            f"{missing:,} of {state.statistics.n_chunks:,} chunks cannot be searched now: a shard was lost and is "
            "being restored" + "".join(f"; {error}" for error in state.errors[:1]),
            missing,
        )

    # ── Changing ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def add(self, chunks: Iterable[str | Metadata | Chunk], *, blank: Blank = "error") -> range:
        """Add chunks, and return their positions. They go to the smallest shard, or if that lacks room to a new one.

        Chunks and `blank` are as for the class.

        Raises:
            InvalidRequestError: a chunk is not allowed; none was added.
            ChunksMissingError: no shard is there to take them; none was added.
        """
        checked = read_chunks(chunks, blank=blank)
        if n_positions := len(checked.texts):
            first = self._change("add", StoredChunks.put(checked), n_positions)
        else:
            first = self._fresh().state.n_positions
        return range(first, first + n_positions)

    def remove(self, positions: Iterable[int] | None = None, *, where: Where | None = None) -> int:
        """Remove the chunks at some positions, or all that `where` allows, and return how many these were.

        It is as in `search`, instead of the positions: ``index.remove(where={"source": "a.txt"})``.

        Raises:
            InvalidRequestError: no chunk is at one of the positions, or `where` is not allowed; none was removed.
            ChunksMissingError: a shard is lost, and not restored yet; none was removed.
        """
        listed = list(positions) if isinstance(positions, Iterator | range) else positions
        return int(self._change("remove", listed, where))

    def save(self, folder: str | PathLike[str]) -> None:
        """Write every shard to a file in a folder, from where lost ones are restored from now on.

        Shards that are as they were saved there are not written again. The folder is as for `load`.

        Raises:
            ChunksMissingError: a shard is lost, and not restored yet.
            IndexConflictError: another writer has saved there since this index was loaded from there, or since this
                began; what that one saved stays.
            IndexFormatError: there is an `index.json` that is no index's.
            InvalidRequestError: the folder is not the same for all nodes, or metadata is not JSON.
            OSError: the folder cannot be written.
        """
        self._change("save", folders.as_address(folder, "folder"))

    def rebalance(self) -> int:
        """Cut shards that are too large, and move shards to where there is less; return the number of cuts and moves.

        A shard is cut in two, each with half of its text, if it has more than 1 Gi characters; or more than 512 Mi, if
        there are fewer shards than processors. Moved are those of nodes, and of processes, that have more than their
        share, as when others have joined. Questions go on meanwhile, and changes between two steps of it. A shard that
        is lost meanwhile is made again, and cut by a later call.

        Raises:
            OSError: a node has no room for what it makes of a shard; what was done before stays done.
        """
        return int(self._change("rebalance"))

    def stats(self) -> IndexStats:
        """Return what the index holds, and where."""
        sizes = self._call("nbytes")
        state = self._refresh().state
        with_sizes = zip(state.shards, sizes, strict=False)
        shards = tuple(
            ShardStats(shard.n_chunks, shard.node_ids, size) for shard, size in with_sizes
        )
        return IndexStats(state.statistics.n_chunks, state.n_missing_chunks, shards, state.errors)

    def close(self) -> None:
        """Free the memory on all nodes; an index with a name is gone for everybody. Safe to call twice."""
        self._closed, self._collection = True, None
        self._pool.shutdown(wait=False)
        _end(self._keeper)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ── What is known ────────────────────────────────────────────────────────────────────────────────────────────────

    def _fresh(self) -> ClusterCollection:
        """Return the shards as they are known, if that is not too old."""
        if self._collection is None or time.monotonic() - self._known_s > _FRESH_S:
            return self._refresh()
        return self._collection

    def _refresh(self, outdated: ClusterCollection | None = None) -> ClusterCollection:
        """Ask the keeper for news; where what is known turned out to be outdated, wait a little for them."""
        known = self._collection
        timeout_s = _NEWS_S if known is not None and known is outdated else 0.0
        state = self._call("state", None if known is None else known.state.version, timeout_s)
        if known is None or state is not None:
            self._collection = known = ClusterCollection(state, self._pace, known)
        self._known_s = time.monotonic()
        return known

    def _change(self, verb: str, *args: Any) -> Any:
        """Have the keeper change something, and take note of what is so now.

        ^C ends the waiting for it, and not the change, of which half would be worse than all.
        """
        result = in_thread(partial(self._call, verb, *args), "change-index").result()
        self._refresh()
        return result

    def _call(self, verb: str, *args: Any) -> Any:
        """Have the keeper do something, and wait for it."""
        if self._closed:
            raise ClusterError("this index was closed")
        method = getattr(self._keeper, verb)
        if isinstance(self._keeper, Keeper):
            return method(*args)
        with _keeper_alive():
            return get_from(self._keeper, method.remote(*args))


def _check_no_encoder(encoder: TextEncoder | None) -> None:
    if encoder is not None:
        remedy = "leave it out: indexes of a cluster go by words alone"
        raise InvalidRequestError.must_be("encoder", "None", encoder, remedy=remedy)


def _n_cpus() -> int:
    return min(int(sum(node.n_cpus for node in living_nodes())), _MAX_SHARDS)


def _hand_over(chunks: Chunks, n_parts: int) -> list[StoredChunks]:
    """Put chunks where other processes can fetch them, in at most so many parts of about as many characters."""
    cuts = list(split_evenly(chunks.texts, n_parts)) or [slice(0, 0)]
    return [StoredChunks.put(chunks.take(range(cut.start, cut.stop))) for cut in cuts]


def _start_keeper(
    name: str | None, weighting: WeightingName, counter: TokenCounter, replicas: int
) -> Any:
    """Return a keeper in this process, or where other processes are to find it by a name, the handle of an actor."""
    if name is None:
        return Keeper(weighting, counter, replicas)
    check_name(name)
    options = {
        "name": f"index {name}",
        "namespace": NAMESPACE,
        "lifetime": "detached",
        "max_concurrency": 64,
    }
    try:
        keeper = start(Keeper, own_node(), weighting, counter, replicas, **options)
    except ValueError:
        raise ClusterError(
            f"another index of the cluster has the name {name!r}; close it, or take another"
        ) from None
    check(keeper, START_S)
    return keeper


@contextmanager
def _keeper_alive() -> Iterator[None]:
    """Say what it means if a keeper turns out to be dead."""
    try:
        yield
    except RayActorError:
        raise ClusterError(
            "this index was closed, or the node that kept it is gone; load it again"
        ) from None


def _end(keeper: Any) -> None:
    """End a keeper, and so its shards."""
    if isinstance(keeper, Keeper):
        atexit.unregister(keeper.close)
        keeper.close()
    else:
        with suppress(Exception):  # the cluster may be gone
            ray.kill(keeper)
