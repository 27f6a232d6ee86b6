"""Search service: rank, explain, compress or cite chunks from a request or from a named index."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Literal, TypeAlias, TypeVar

import attrs
from attrs import define, field, frozen

from relevance_gen import types
from relevance_gen.checks import check_integer
from relevance_gen.errors import InvalidRequestError, TooLargeError, UnknownIndexError
from relevance_gen.index.chunks import Chunks, LazyTexts
from relevance_gen.index.passages import PASSAGE_CHARS, TextEncoder
from relevance_gen.index.records.validation import Blank, read_chunks
from relevance_gen.request_scope import reserve
from relevance_gen.retrieval.base_index import BaseIndex
from relevance_gen.retrieval.collapse import GroupKeys
from relevance_gen.retrieval.params import NO_MODELS, SearchModels, SearchParams
from relevance_gen.retrieval.query.filters import check_keys, mask_of
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.services.indexes.index_cache import CacheKey, IndexCache, content_key
from relevance_gen.serve.services.indexes.index_registry import (
    CACHED_PREFIX,
    MAX_RESULTS,
    IndexRef,
    IndexRegistry,
)
from relevance_gen.serve.services.prompts import PromptOptions
from relevance_gen.serve.services.reranking import RerankingService
from relevance_gen.serve.services.search_encoder import Reason, SearchEncoderService, SkippedError
from relevance_gen.serve.settings import Settings

if TYPE_CHECKING:
    from relevance_gen.retrieval.chunk_index import ChunkIndex

Result = TypeVar("Result")
SearchByName: TypeAlias = Callable[[str, int], types.SearchResponse]
"""A search of one index, given a query and the number of results."""
Work: TypeAlias = Callable[[SearchParams, SearchModels], Result]
"""A search or an explanation, given its parameters and models."""


@frozen
class IndexTask:
    """Work on chunks, or on the chunks of an index.

    Attributes:
        params: the search parameters.
        chunks: the chunks as the client sent them, not yet validated.
        path: the client's name of the field that has the chunks; an error in the chunk at position
            3 names this field followed by ``[3]``.
        index: the index that is searched instead of chunks; None to search the chunks.
        cache_index: whether an index of the chunks is cached when they are sent for the first time;
            otherwise it is cached when the same chunks are sent for the second time.
        reranker: the name of the reranker; None for the first.
        blank: the treatment of chunks of only white space: "skip" excludes them from the search;
            "error" and None reject the request.
    """

    params: SearchParams
    chunks: Sequence[object]
    path: str = field(default="chunk_txts", kw_only=True)
    index: IndexRef | None = field(default=None, kw_only=True)
    cache_index: bool = field(default=False, kw_only=True)
    reranker: str | None = field(default=None, kw_only=True)
    blank: Blank | None = field(default=None, kw_only=True)

    @property
    def digest(self) -> str | None:
        """The digest of the chunks if the task uses a cached index; otherwise None."""
        return None if self.index is None else self.index.digest


@frozen
class SearchTask(IndexTask):
    """A search."""


@frozen
class PromptTask(SearchTask):
    """A search from whose results a prompt for a model is written."""

    options: PromptOptions = field(kw_only=True)


@frozen
class CompressionTask(IndexTask):
    """A selection of sentences from chunks, or from the results of a search in an index.

    Attributes:
        max_tokens: maximum number of tokens of the selected sentences together.
    """

    max_tokens: int = field(kw_only=True)


@frozen
class CitationTask:
    """A request to find, for each sentence of a text, the chunks that support it.

    Attributes:
        text: the text.
        chunks: the chunks that can be cited, as the client sent them, not yet validated.
    """

    text: str
    chunks: Sequence[object]


@frozen
class ExplanationTask(IndexTask):
    """An explanation of the score of one chunk.

    Attributes:
        original_index: the position of the chunk in the input or in the index, from 0.
    """

    original_index: int


@define
class SearchReport:
    """Information about a search in addition to its response.

    Attributes:
        skipped: for each model that should have been used but was not ("Encoder" or "Reranker"),
            the reason.
        index_name: the name of the cached index of the chunks; None if the request did not ask for
            an index, or it was too large for the cache.
    """

    skipped: dict[Literal["Encoder", "Reranker"], Reason] = field(factory=dict)
    index_name: str | None = None

    @property
    def headers(self) -> dict[str, str]:
        """The HTTP headers of the response that contain this information."""
        headers: dict[str, str] = {
            f"X-{model}-Skipped": reason for model, reason in self.skipped.items()
        }
        if self.index_name is not None:
            headers["X-Index"] = self.index_name
        return headers

    def skip_reranker(self, reason: Reason) -> None:
        """Record the reason why the reranker was not used."""
        self.skipped["Reranker"] = reason


@define(eq=False)
class _CachedChunks:
    """A cached index of chunks.

    The index contains only the terms of the chunks, until the background thread has computed the
    vectors of the chunks and has replaced the index by an index with terms and vectors.
    """

    index: ChunkIndex
    encoding_state: Literal["not requested", "pending", "done"] = "not requested"


class Searcher:
    """Runs searches. Thread-safe."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        encoder_service: SearchEncoderService | None = None,
        reranking_service: RerankingService | None = None,
    ) -> None:
        self._settings = settings
        self._encoder_service = encoder_service
        self._reranking_service = reranking_service
        self.indexes = IndexRegistry(settings)
        self._cache_lock = threading.Lock()
        self._cache: IndexCache[_CachedChunks] | None = None
        if settings.index_cache_bytes:
            self._cache = IndexCache(
                settings.index_cache_bytes, lambda cached: cached.index.nbytes, metrics
            )

    def warm_up(self) -> None:
        """Run each kind of search once, so that clients do not wait for imports and tables."""
        texts = ["a text to begin with", "😀 a text to begin with \ud800", "猫が寝る" * 100]
        chunks = Chunks(texts, {})
        index = self.build_index(chunks)
        for where in (None, [True, False, True]):
            params = SearchParams("begin 猫", 3, where=where, spans=True, min_relative_score=0.5)
            self.rank_once(params, chunks)
            index.answer_all([params])
        index.explain_one(SearchParams("begin"), 0)

    async def refresh(self, index: IndexRef | None, client: str) -> None:
        """Check an index for changes before it is searched, without occupying a thread.

        Args:
            index: the index; None has no effect.
            client: the id of the client's API key.

        Raises:
            BusyError: the index is still being read for the first time.
        """
        if index is not None:
            await self.indexes.refresh(index.name, client)

    def offered_to(self, client: str) -> dict[str, SearchByName]:
        """Return a search function for each index of the server that a client may use.

        The keys are the names of the indexes. A function takes a query and the maximum number of
        results, and returns the response; its results are best first and have spans, and are not
        reranked. Indexes of a cluster are not included.

        Args:
            client: the id of the client's API key.
        """

        def search(name: str, query: str, top_n: int) -> types.SearchResponse:
            params = SearchParams(query, top_n, true_order=False, spans=True, rerank_top_n=0)
            return self.search(SearchTask(params, (), index=IndexRef(name)), client)

        return {name: partial(search, name) for name in self.indexes.names(client)}

    def search(
        self, task: SearchTask, client: str, report: SearchReport | None = None
    ) -> types.SearchResponse:
        """Rank the chunks of `task`.

        Args:
            task: the search.
            client: the id of the client's API key. Cached indexes are not shared between clients.
            report: receives skipped models and the name of the cached index.

        Raises:
            TooLargeError: more chunks than the settings allow.
            InvalidRequestError: a chunk or a search parameter is invalid, which the error names; or
                the task names an index, and the server was started without named indexes.
            UnknownModelError: there are several rerankers, and none has the requested name.
            IndexUnavailableError: the index of the server cannot be searched now.
            ClusterError: the index of a cluster is not available. Its subclass `UnknownIndexError`:
                no index has the name, the client may not use it, or the cache does not contain it
                any more.
        """
        report = report or SearchReport()
        if task.index is not None and task.digest is None:
            return self._search_named(task, task.index, client, report)
        chunks = self._chunks_of(task, client)
        params = _resolve_metadata(task.params, chunks)
        with self._cached_index(task, chunks, client, report) as index:
            work = partial(self._rank, index, chunks)
            response = self._run(task, params, work, report, len(chunks.texts))
        where = task.params.where
        if isinstance(where, Mapping) and not response.results and chunks.texts:
            check_keys(where, set().union(*chunks.metadata.values()))
        if task.digest is not None:
            _reserve_texts(response)
        # Cached indexes do not store metadata.
        results = [
            attrs.evolve(result, metadata=chunks.metadata_of(result.original_index))
            for result in response.results
        ]
        return attrs.evolve(response, results=tuple(results))

    def _rank(
        self, index: ChunkIndex | None, chunks: Chunks, params: SearchParams, models: SearchModels
    ) -> types.SearchResponse:
        if index is None:
            return self.rank_once(params, chunks, models)
        return index.answer_all([params], models)[0]

    def rank_once(
        self, params: SearchParams, chunks: Chunks, models: SearchModels = NO_MODELS
    ) -> types.SearchResponse:
        """Rank `chunks` in a single search, without an index for further searches."""
        from relevance_gen.retrieval.api import answer_once

        return answer_once(
            params,
            chunks,
            models,
            weighting=self._settings.weighting,
            encoding=self._settings.encoding,
            counts_now=True,
        )

    def build_index(self, chunks: Chunks, encoder: TextEncoder | None = None) -> ChunkIndex:
        """Return an index of `chunks`, with vectors if there is an `encoder`."""
        from relevance_gen.retrieval.chunk_index import ChunkIndex

        return ChunkIndex(
            chunks,
            weighting=self._settings.weighting,
            encoding=self._settings.encoding,
            encoder=encoder,
        )

    def _search_named(
        self, task: IndexTask, ref: IndexRef, client: str, report: SearchReport
    ) -> types.SearchResponse:
        """Rank the chunks of an index of the server or of a cluster."""
        check_integer("top_n", task.params.top_n, 1, MAX_RESULTS)

        def answer(
            index: BaseIndex, params: SearchParams, models: SearchModels
        ) -> types.SearchResponse:
            return index.answer_all([params], models, allow_partial=ref.allow_partial)[0]

        response = self._run_named(task, ref, client, answer, report)
        _reserve_texts(response)
        return response

    def explain(
        self, task: ExplanationTask, client: str, report: SearchReport | None = None
    ) -> types.Explanation:
        """Explain the score of one chunk of `task`; see `search`.

        Raises:
            InvalidRequestError: also if the position is out of range.
        """
        report = report or SearchReport()

        def explain(
            index: BaseIndex, params: SearchParams, models: SearchModels
        ) -> types.Explanation:
            try:
                return index.explain_one(params, task.original_index, models)
            except InvalidRequestError as error:
                field_name = "original_index" if error.field == "chunk" else error.field
                raise error.with_field(field_name) from None

        if task.index is not None and task.digest is None:
            return self._run_named(task, task.index, client, explain, report)
        chunks = self._chunks_of(task, client)
        if not chunks.texts:
            raise InvalidRequestError("must not be empty: there is no chunk to explain", task.path)
        if task.digest is None:
            check_integer("original_index", task.original_index, 0, len(chunks.texts) - 1)
        with self._cached_index(task, chunks, client, report) as cached:
            index = cached or self.build_index(chunks.without_metadata())
            work = partial(explain, index)
            return self._run(task, task.params, work, report, len(chunks.texts))

    def compress(self, task: CompressionTask, client: str) -> types.CompressionResponse:
        """Select the sentences that are most relevant to ``task.params.query``; see `search`.

        The sentences come from the chunks of the task, from a cached index, or from the results of
        a search in a named index. Their ``original_index`` is the position of the chunk in the
        task or in the index.
        """
        from relevance_gen.asking.compression import compress

        positions: Sequence[int] = ()
        if task.index is None:
            chunks = self._validate(task.chunks, task.path)
        elif task.digest is not None:
            cached_chunks = self._find_cached(task.digest, client).index.chunks
            chunks = read_chunks(list(cached_chunks))
            positions = cached_chunks.positions.tolist()
            reserve("result_char", sum(map(len, chunks.texts)))
        else:
            results = self._search_named(task, task.index, client, SearchReport()).results
            found_chunks = [types.Chunk(result.chunk_txt, title=result.title) for result in results]
            chunks = read_chunks(found_chunks)
            positions = [result.original_index for result in results]
        # Sentences are ranked as chunks, and are limited as these.
        limit = self._settings.max_chunks
        if sum(text.count(end) for text in chunks.texts for end in ".!?…\n。！？।") > limit:
            rule = f"must have at most {limit:,} ends of sentences and lines together"
            remedy = "send only the chunks that a search finds"
            raise TooLargeError(rule, "chunk_txts", remedy=remedy)
        response = compress(
            task.params.query,
            chunks,
            max_tokens=task.max_tokens,
            encoding=self._settings.encoding,
        )
        if not positions:
            return response
        sentences = [
            attrs.evolve(sentence, original_index=positions[sentence.original_index])
            for sentence in response.sentences
        ]
        return attrs.evolve(response, sentences=tuple(sentences))

    def cite(self, task: CitationTask) -> list[types.CitedSentence]:
        """Find the spans of chunks that support the sentences of a text; see `search`."""
        from relevance_gen.asking.citations import Attributor

        texts = self._validate(task.chunks, "chunk_txts").texts
        return [*Attributor(texts).cite(task.text)]

    def _run_named(
        self,
        task: IndexTask,
        ref: IndexRef,
        client: str,
        work: Callable[[BaseIndex, SearchParams, SearchModels], Result],
        report: SearchReport,
    ) -> Result:
        """Run `work` on a named index. Indexes of a cluster cannot use the encoder."""

        def run(index: BaseIndex, can_encode: bool) -> Result:
            return self._run(
                task, task.params, partial(work, index), report, use_encoder=can_encode
            )

        return self.indexes.query(ref.name, client, run)

    def _run(
        self,
        task: IndexTask,
        params: SearchParams,
        work: Work[Result],
        report: SearchReport,
        n_chunks: float = math.inf,
        *,
        use_encoder: bool = True,
    ) -> Result:
        """Run `work` with the reranker and the encoder; a model that is unavailable is left out.

        Args:
            task: the task, which names the reranker.
            params: the search parameters.
            work: the search or explanation.
            report: receives the reasons why models were left out.
            n_chunks: the number of chunks that are searched; infinite if it is not known.
            use_encoder: whether the chunks can be encoded.
        """
        n_reranked = self._n_reranked(params, n_chunks)
        models = NO_MODELS
        if n_reranked != 0 and self._reranking_service is not None:
            reranker = self._reranking_service.reranker(task.reranker, report.skip_reranker)
            models = SearchModels(reranker=reranker)
        elif params.rerank_top_n:
            report.skip_reranker("unavailable")
        params = attrs.evolve(params, rerank_top_n=n_reranked)
        if self._encoder_service is None or not use_encoder:
            return work(params, models)
        try:
            return self._encoder_service.run(
                lambda encoder: work(params, attrs.evolve(models, encoder=encoder))
            )
        except SkippedError as skipped:
            report.skipped["Encoder"] = skipped.reason
            return work(attrs.evolve(params, num_candidates=0), models)

    def _n_reranked(self, params: SearchParams, n_chunks: float) -> int | None:
        """Return how many results to rerank; 0 for none, and None for all chunks.

        The number is at most the setting ``reranker_texts``. It is 0 if the server has no reranker
        or the search requests no reranking.
        """
        if self._reranking_service is None or params.rerank_top_n == 0:
            return 0
        max_reranked = self._settings.reranker_texts
        if params.rerank_top_n is None and n_chunks <= max_reranked:
            return None
        return min(params.rerank_top_n or max_reranked, max_reranked)

    def _validate(
        self,
        chunks: Sequence[object],
        path: str,
        blank: Blank | None = None,
    ) -> Chunks:
        max_chunks = self._settings.max_chunks
        if len(chunks) > max_chunks:
            raise TooLargeError(f"must have at most {max_chunks} items", path, str(len(chunks)))
        validated = read_chunks(chunks, path=path, kinds="a string or an object", blank=blank)
        reserve("titled_chunk", len(validated.titles))
        return validated

    def _chunks_of(self, task: IndexTask, client: str) -> Chunks:
        """Return the validated chunks of a task, or the chunks of its cached index.

        A cached index stores no metadata, so that its chunks have none.
        """
        if task.digest is None:
            return self._validate(task.chunks, task.path, task.blank)
        chunks = self._find_cached(task.digest, client).index.chunks
        return Chunks(LazyTexts(len(chunks), lambda position: chunks[position].text), {})

    def _find_cached(self, digest: str, client: str) -> _CachedChunks:
        """Return a cached index of this client, and reserve the memory to read its chunks.

        Raises:
            UnknownIndexError: the cache does not contain it any more.
        """
        cached = self._cache.peek((client, digest)) if self._cache else None
        if cached is None:
            raise UnknownIndexError(
                "index: the cached index was evicted; send its chunks again", field="index"
            )
        reserve("chunk", len(cached.index.chunks))
        return cached

    @contextmanager
    def _cached_index(
        self, task: IndexTask, chunks: Chunks, client: str, report: SearchReport
    ) -> Iterator[ChunkIndex | None]:
        """Yield the cached index of `chunks`, and store it in the cache again afterwards.

        A missing index is built if the same chunks were sent before, or if the task requests an
        index. None is yielded if a missing index is not built: if there is no cache, if the chunks
        are sent for the first time, or if the task names a cached index that the cache does not
        contain any more.

        After the context, the computation of the vectors is queued if it was not yet, and `report`
        receives the name of the index if the task requests an index and the cache contains it.
        """
        cache = self._cache
        if cache is None:
            yield None
            return
        key = (client, task.digest or "")
        if task.digest is None:
            key = content_key(chunks.texts, chunks.titles, client)
        cached = cache.get(key)
        if cached is None and task.digest is None and (cache.was_seen(key) or task.cache_index):
            cached = _CachedChunks(self.build_index(chunks.without_metadata()))
        if cached is None:
            yield None
            return
        yield cached.index
        with self._cache_lock:
            # The first index of simultaneous searches is retained. It is stored again because it
            # caches queries, and so may have grown.
            cached = cache.peek(key) or cached
            cache.put(key, cached)
            encodes = bool(self._encoder_service) and task.digest is None
            encodes = encodes and cached.encoding_state == "not requested"
            if encodes:
                cached.encoding_state = "pending"
        if encodes:
            self._encode_later(cache, key, cached, chunks.texts)
        # An index larger than the whole cache is not stored.
        if task.cache_index and cache.peek(key) is not None:
            report.index_name = CACHED_PREFIX + key[1]

    def _encode_later(
        self,
        cache: IndexCache[_CachedChunks],
        key: CacheKey,
        cached: _CachedChunks,
        texts: Sequence[str],
    ) -> None:
        """Queue the computation of the vectors of cached chunks in the background.

        Until it begins, only the cache holds the texts, so that they can be evicted. If the work is
        not accepted, the next search of the chunks tries again.
        """
        # The index omits blank chunks; the positions of the others must stay the same.
        is_blank = bytes(not text for text in texts)

        def find_pending() -> _CachedChunks | None:
            current = cache.peek(key)
            return current if current is not None and current.encoding_state == "pending" else None

        def encode(encoder: TextEncoder) -> None:
            current = find_pending()
            if current is None:
                return
            chunks = iter(current.index.chunks)
            with_blanks = ("" if blank else next(chunks) for blank in is_blank)
            index = self.build_index(read_chunks(with_blanks, blank="skip"), encoder)
            if find_pending() is current:
                current.index = index
                current.encoding_state = "done"
                cache.put(key, current)

        n_passages = sum(1 + len(text) // PASSAGE_CHARS for text in texts)
        if self._encoder_service is None or not self._encoder_service.run_later(
            n_passages, encode, lambda: find_pending() is not None
        ):
            cached.encoding_state = "not requested"


def _resolve_metadata(params: SearchParams, chunks: Chunks) -> SearchParams:
    """Return `params` with values computed from the metadata of `chunks`.

    A metadata filter in `where` is replaced by a mask, which is True for each chunk that passes the
    filter. A metadata key in `distinct` is replaced by the `GroupKeys` of the chunks.
    """
    if isinstance(params.where, Mapping):
        params = attrs.evolve(params, where=mask_of(params.where, chunks))
    if isinstance(params.distinct, str):
        params = attrs.evolve(params, distinct=GroupKeys.of(params.distinct, chunks))
    return params


def _reserve_texts(response: types.SearchResponse) -> None:
    reserve("result_char", sum(len(result.chunk_txt) for result in response.results))


def every_chunk(
    response: types.SearchResponse, n_chunks: int
) -> list[tuple[int, types.SearchResult | None]]:
    """Return the position and the result of every chunk, in the order of the results.

    Chunks without a result follow in the order of the input.
    """
    results: dict[int, types.SearchResult | None] = {
        result.original_index: result for result in response.results
    }
    rest = {position: None for position in range(n_chunks) if position not in results}
    return [*(results | rest).items()]
