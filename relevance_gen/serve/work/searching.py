"""Searches, once or by a kept index: what a client asks, in, and the ranked chunks or an explanation, out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, Protocol, TypeVar

import attrs
from attrs import define, field, frozen

from relevance_gen.checks import check_integer
from relevance_gen.errors import InvalidRequestError, TooLargeError
from relevance_gen.retrieval.arrays import Flags
from relevance_gen.retrieval.question.filtering import mask_of
from relevance_gen.retrieval.segment.chunks import Blank, Chunks
from relevance_gen.retrieval.segment.passages import PASSAGE_CHARS, TextEncoder
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.settings import Settings
from relevance_gen.serve.work.index_cache import IndexCache, content_key
from relevance_gen.serve.work.lifting import Lifting, Reason, SkippedError
from relevance_gen.serve.work.named import Named, NamedIndexes
from relevance_gen.types import Chunk, Explanation, Metadata, SearchResponse, SearchResult

Found = TypeVar("Found")

_WARM_UP_TEXT = "a text to begin with " * 60_000
"""More than gigatoken counts without a library that it loads for large texts only."""


@frozen
class SearchTask:
    """One search to do.

    Attributes:
        query: the question; not blank.
        chunks: the chunks as the client sent them, not yet checked.
        top_n: most results, at least 1.
        true_order: results in input order (true) or best first (false).
        where: metadata that a chunk must have to be a result; None allows all.
        spans: whether to say where in each result the answer stands.
        min_share: least share of the best score that a result has, in [0, 1].
        path: what the client calls the chunks; errors name ``path[3]``.
        blank: what to do with a chunk of only white space; None refuses it.
        named: the index of a cluster that is asked instead of chunks.
        skipped: why the encoder had no part, where it was to have one; filled in by whoever does the search.
    """

    query: str
    chunks: Sequence[object]
    top_n: int
    true_order: bool
    where: Metadata | None = None
    spans: bool = False
    min_share: float = 0.0
    path: str = "chunk_txts"
    blank: Blank | None = None
    named: Named | None = None
    skipped: list[Reason] = field(factory=list, eq=False, kw_only=True)


@frozen
class ExplanationTask:
    """One score to explain.

    Attributes:
        query: the question; not blank.
        chunks: the chunks as the client sent them, not yet checked.
        position: which of them to explain, from 0.
        path: what the client calls the chunks; errors name ``path[3]``.
        position_path: what the client calls the position.
        named: as of a `SearchTask`.
        skipped: as of a `SearchTask`.
    """

    query: str
    chunks: Sequence[object]
    position: int
    path: str = "chunk_txts"
    position_path: str = "original_index"
    named: Named | None = None
    skipped: list[Reason] = field(factory=list, eq=False, kw_only=True)


class Index(Protocol):
    """What the server needs of `relevance_gen.retrieval.index.ChunkIndex`."""

    @property
    def chunks(self) -> Sequence[Chunk]:
        """Its chunks."""

    @property
    def nbytes(self) -> int:
        """Its memory."""

    def search(
        self,
        query: str,
        top_n: int,
        true_order: bool,
        *,
        where: Flags | None,
        spans: bool,
        min_share: float,
        encoder: TextEncoder | None = None,
        candidates: int | None = 50,
    ) -> SearchResponse:
        """Rank the chunks of this index; `where` tells which of them may be results."""

    def explain(
        self, query: str, chunk: int, *, encoder: TextEncoder | None = None, candidates: int | None = 50
    ) -> Explanation:
        """Show where the score of the chunk at a position comes from."""


class Retrieval(Protocol):
    """What the server needs of `relevance_gen.retrieval`."""

    def search(self, query: str, chunks: Chunks, top_n: int, true_order: bool, **options: Any) -> SearchResponse:
        """Rank `chunks`, once; the options are those of `Index.search`."""

    def index(self, chunks: Chunks, **meaning: Any) -> Index:
        """Index `chunks`, for more than one query; with an ``encoder`` also their vectors."""


@frozen
class LibraryRetrieval:
    """The library's own search, with the options that the settings give; imported when it is first needed."""

    settings: Settings

    def search(self, query: str, chunks: Chunks, top_n: int, true_order: bool, **options: Any) -> SearchResponse:
        """Rank `chunks`, once; the options are those of `Index.search`."""
        from relevance_gen.retrieval.api import search

        weighting, encoding = self.settings.weighting, self.settings.encoding
        return search(query, chunks, top_n, true_order, weighting=weighting, encoding=encoding, **options)

    def index(self, chunks: Chunks, **meaning: Any) -> Index:
        """Index `chunks`, for more than one query; with an ``encoder`` also their vectors."""
        from relevance_gen.retrieval.index import ChunkIndex

        return ChunkIndex(chunks, weighting=self.settings.weighting, encoding=self.settings.encoding, **meaning)


@define(eq=False)
class _Kept:
    """An index of chunks that came before: of their words at first, and with their vectors when these are there."""

    index: Index
    encoding: Literal["not asked for", "waits", "done"] = "not asked for"


class Searcher:
    """Does searches. Safe to use from several threads."""

    def __init__(
        self, settings: Settings, retrieval: Retrieval, metrics: Metrics, lifting: Lifting | None = None
    ) -> None:
        self._max_chunks = settings.max_chunks
        self._retrieval = retrieval
        self._lifting = lifting
        self._named = NamedIndexes(settings.cluster)
        self._keeping = threading.Lock()
        self._cache: IndexCache[_Kept] | None = (
            IndexCache(settings.index_cache_bytes, metrics) if settings.index_cache_bytes else None
        )

    def warm_up(self) -> None:
        """Search once in every way, so that no client waits for imports and tables, or meets one that fails."""
        much = Chunks([_WARM_UP_TEXT, "😀 a text to begin with \ud800", "猫が寝る" * 100], {})
        index = self._retrieval.index(much)
        for where in (None, [True, False, True]):
            asked: dict[str, Any] = {"top_n": 3, "true_order": True, "where": where, "spans": True, "min_share": 0.5}
            self._retrieval.search("begin 猫", much, **asked)
            index.search("begin 猫", **asked)
        index.explain("begin", 0)
        self._named.join()

    def search(self, task: SearchTask, scope: str) -> SearchResponse:
        """Rank the chunks of `task`.

        Args:
            task: what to search.
            scope: whose search this is; kept indexes are shared within one scope only.

        Raises:
            TooLargeError: more chunks than the settings allow.
            InvalidRequestError: a chunk is not allowed; the error names it.
            ClusterError: an index of a cluster was asked, and cannot answer.
        """
        if task.named is not None:
            return self._named.search(
                task.named,
                task.query,
                task.top_n,
                task.true_order,
                where=task.where,
                spans=task.spans,
                min_share=task.min_share,
            )
        chunks = self._check(task.chunks, task.path, task.blank)
        asked: dict[str, Any] = {
            "top_n": task.top_n,
            "true_order": task.true_order,
            "where": None if task.where is None else mask_of(task.where, chunks),
            "spans": task.spans,
            "min_share": task.min_share,
        }
        with self._kept_index(chunks, scope) as index:
            find = partial(self._retrieval.search, chunks=chunks) if index is None else index.search
            response = self._lifted(task, lambda **meaning: find(task.query, **asked, **meaning))
        return _with_metadata(response, chunks)

    def explain(self, task: ExplanationTask, scope: str) -> Explanation:
        """Show where the score of one chunk of `task` comes from; `scope` as in `search`.

        Raises:
            TooLargeError: more chunks than the settings allow.
            InvalidRequestError: a chunk is not allowed, or there is none at the position; the error names it.
            ClusterError: an index of a cluster was asked, and cannot answer.
        """
        if task.named is not None:
            return self._named.explain(task.named, task.query, task.position, task.position_path)
        chunks = self._check(task.chunks, task.path)
        if not chunks.texts:
            raise InvalidRequestError("must not be empty: there is no chunk to explain", task.path)
        check_integer(task.position_path, task.position, 0, len(chunks.texts) - 1)
        with self._kept_index(chunks, scope) as kept:
            index = self._retrieval.index(Chunks(chunks.texts, {})) if kept is None else kept
            return self._lifted(task, lambda **meaning: index.explain(task.query, task.position, **meaning))

    def _lifted(self, task: SearchTask | ExplanationTask, do: Callable[..., Found]) -> Found:
        """Return what `do` finds with the encoder, or if that is not to be had, by words alone."""
        if self._lifting is None:
            return do()
        try:
            return self._lifting.lift(lambda encoder: do(encoder=encoder))
        except SkippedError as skipped:
            task.skipped.append(skipped.reason)
            return do(candidates=0)

    def _check(self, given: Sequence[object], path: str, blank: Blank | None = None) -> Chunks:
        if len(given) > self._max_chunks:
            raise TooLargeError(f"must have at most {self._max_chunks} items", path, str(len(given)))
        return Chunks.read(given, path=path, kinds="a string or an object", blank=blank)

    @contextmanager
    def _kept_index(self, chunks: Chunks, scope: str) -> Iterator[Index | None]:
        """Lend the index of `chunks`: none the first time they come, made and kept the second time."""
        if self._cache is None:
            yield None
            return
        key = content_key(chunks.texts, scope)
        kept = self._cache.get(key)
        if kept is None and self._cache.has_come_before(key):
            kept = _Kept(self._retrieval.index(Chunks(chunks.texts, {})))
        yield None if kept is None else kept.index
        if kept is not None:
            with self._keeping:
                kept = self._cache.peek(key) or kept  # of simultaneous searches the first one's index stays
                self._cache.put(key, kept, kept.index.nbytes)  # it remembers what it was asked, and so may have grown
                self._encode_later(self._cache, key, kept, chunks.texts)

    def _encode_later(self, cache: IndexCache[_Kept], key: bytes, kept: _Kept, texts: Sequence[str]) -> None:
        """Have the vectors of kept chunks made in the background, once; until then only the cache holds their texts."""
        if self._lifting is None or kept.encoding != "not asked for":
            return
        is_blank = bytes(not text for text in texts)  # an index leaves those out, and they keep their positions

        def wanted() -> _Kept | None:
            now = cache.peek(key)
            return now if now is not None and now.encoding == "waits" else None

        def make(encoder: TextEncoder) -> None:
            if (now := wanted()) is None:
                return
            left = iter(now.index.chunks)
            same = Chunks(["" if blank else next(left).text for blank in is_blank], {})
            index = self._retrieval.index(same, encoder=encoder)
            if wanted() is now:
                now.index, now.encoding = index, "done"
                cache.put(key, now, index.nbytes)

        kept.encoding = "waits"
        n_passages = sum(1 + len(text) // PASSAGE_CHARS for text in texts)
        if not self._lifting.encode_later(n_passages, make, lambda: wanted() is not None):
            kept.encoding = "not asked for"


def every_chunk(response: SearchResponse, n_chunks: int) -> list[tuple[int, SearchResult | None]]:
    """Return the position of every chunk with what was found in it, in the order of the results.

    The chunks that share nothing with the query come last, in the order of the input.
    """
    found = {result.original_index: result for result in response.results}
    missed = (place for place in range(n_chunks) if place not in found)
    return [*found.items(), *((place, None) for place in missed)]


def _with_metadata(response: SearchResponse, chunks: Chunks) -> SearchResponse:
    """Give each result the metadata that its chunk came with: kept indexes have only texts."""
    results = tuple(
        attrs.evolve(result, metadata=chunks.metadata_of(result.original_index)) for result in response.results
    )
    return attrs.evolve(response, results=results)
