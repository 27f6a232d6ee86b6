"""Searches, once or by a kept index: what a client asks, in, and the ranked chunks or an explanation, out."""

from __future__ import annotations

import math
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import attrs
from attrs import define, field, frozen

from relevance_gen import types
from relevance_gen.checks import check_integer
from relevance_gen.errors import InvalidRequestError, TooLargeError, UnknownIndexError
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.lazy_values import LazyTexts
from relevance_gen.index.passages import PASSAGE_CHARS, TextEncoder
from relevance_gen.index.records.validation import Blank, read_chunks
from relevance_gen.request_scope import reserve
from relevance_gen.retrieval.base_index import BaseIndex
from relevance_gen.retrieval.collapse import GroupKeys
from relevance_gen.retrieval.models import NO_MODELS, Models
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.retrieval.query.filters import check_keys, mask_of
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.services.indexes.index_cache import IndexCache, Key, content_key
from relevance_gen.serve.services.indexes.index_registry import (
    KEPT,
    MAX_FOUND,
    IndexRef,
    IndexRegistry,
)
from relevance_gen.serve.services.prompts import PromptOptions
from relevance_gen.serve.services.reranking import RerankingService
from relevance_gen.serve.services.search_encoder import Reason, SearchEncoderService, SkippedError
from relevance_gen.serve.settings import Settings

if TYPE_CHECKING:
    from relevance_gen.retrieval.chunk_index import ChunkIndex

Found = TypeVar("Found")


@frozen
class _Task:
    """A question to some chunks.

    Attributes:
        question: what is asked.
        chunks: the chunks as the client sent them, not yet checked.
        path: what the client calls the chunks; errors name ``path[3]``.
        named: the index that is asked instead of chunks.
        keeps: keep an index of the chunks at once, not when they come again.
        reranker: the name of the reranker that is asked; None for the first.
        skipped: why a model had no part, where it was to have one; filled in by whoever answers.
        kept: the name of the index that is kept, where one was to be; likewise.
    """

    question: SearchParams
    chunks: Sequence[object]
    path: str = field(default="chunk_txts", kw_only=True)
    named: IndexRef | None = field(default=None, kw_only=True)
    keeps: bool = field(default=False, kw_only=True)
    reranker: str | None = field(default=None, kw_only=True)
    skipped: dict[Literal["Encoder", "Reranker"], Reason] = field(
        factory=dict, eq=False, kw_only=True
    )
    kept: list[str] = field(factory=list, eq=False, kw_only=True)

    @property
    def digest(self) -> str | None:
        """The digest of the chunks, where it asks an index that is kept of some."""
        return None if self.named is None else self.named.digest


@frozen
class SearchTask(_Task):
    """One search to do; `blank` says what to do with a chunk of only white space, and None refuses it."""

    blank: Blank | None = field(default=None, kw_only=True)


@frozen
class PromptTask(SearchTask):
    """A search whose results become a prompt for a model; `backend` runs the model, for the time of its lease."""

    options: PromptOptions = field(kw_only=True)
    model: str | None = field(default=None, kw_only=True)
    backend: Any = field(default=None, kw_only=True)


@frozen
class CompressionTask(_Task):
    """Chunks to compress; of an index those that a search finds."""

    max_tokens: int = field(kw_only=True)


@frozen
class CitationTask:
    """A text whose sentences are to be supported by chunks, which are not yet checked."""

    text: str
    chunks: Sequence[object]


@frozen
class ExplanationTask(_Task):
    """One score to explain: that of the chunk at a position, from 0, which clients call ``original_index``."""

    position: int


@frozen
class LibraryRetrieval:
    """The library's own search, with the options that the settings give; imported when it is first needed."""

    settings: Settings

    def answer(
        self, question: SearchParams, chunks: Chunks, models: Models = NO_MODELS
    ) -> types.SearchResponse:
        """Rank `chunks`, once."""
        from relevance_gen.retrieval.api import answer_once

        weighting, encoding = self.settings.weighting, self.settings.encoding
        return answer_once(
            question, chunks, models, weighting=weighting, encoding=encoding, counts_now=True
        )

    def index(self, chunks: Chunks, encoder: TextEncoder | None = None) -> ChunkIndex:
        """Index `chunks`, for more than one question; with an encoder also their vectors."""
        from relevance_gen.retrieval.chunk_index import ChunkIndex

        weighting, encoding = self.settings.weighting, self.settings.encoding
        return ChunkIndex(chunks, weighting=weighting, encoding=encoding, encoder=encoder)


@define(eq=False)
class _Kept:
    """An index of chunks that came before: of their words at first, and with their vectors when these are there."""

    index: ChunkIndex
    encoding: Literal["not asked for", "waits", "done"] = "not asked for"


class Searcher:
    """Does searches. Safe to use from several threads."""

    def __init__(
        self,
        settings: Settings,
        retrieval: LibraryRetrieval,
        metrics: Metrics,
        lifting: SearchEncoderService | None = None,
        reranking: RerankingService | None = None,
    ) -> None:
        self._max_chunks = settings.max_chunks
        self._encoding = settings.encoding
        self._retrieval = retrieval
        self._lifting = lifting
        self._reranking = reranking
        self._most_reranked = settings.reranker_texts
        self.named = IndexRegistry(settings)
        self._keeping = threading.Lock()
        self._cache: IndexCache[_Kept] | None = None
        if settings.index_cache_bytes:
            self._cache = IndexCache(
                settings.index_cache_bytes, lambda kept: kept.index.nbytes, metrics
            )

    def warm_up(self) -> None:
        """Search once in every way, so that no client waits for imports and tables, or meets one that fails."""
        few = Chunks(
            ["a text to begin with", "😀 a text to begin with \ud800", "猫が寝る" * 100], {}
        )
        index = self._retrieval.index(few)
        for where in (None, [True, False, True]):
            question = SearchParams("begin 猫", 3, where=where, spans=True, min_relative_score=0.5)
            self._retrieval.answer(question, few)
            index.answer_all([question])
        index.explain_one(SearchParams("begin"), 0)

    def look(self, task: object, scope: str) -> Callable[[], Awaitable[None]] | None:
        """Begin to look at the index that a task names, and return what waits for that, if need be."""
        named = getattr(task, "named", None)
        return self.named.look(named.index, scope) if isinstance(named, IndexRef) else None

    def offered_to(self, scope: str) -> dict[str, Callable[[str, int], types.SearchResponse]]:
        """Return what searches each index that is offered to a client for a question; its results are best first."""

        def search(name: str, query: str, top_n: int) -> types.SearchResponse:
            asked = SearchParams(query, top_n, true_order=False, spans=True, rerank_top_n=0)
            return self.search(SearchTask(asked, (), named=IndexRef(name)), scope)

        return {name: partial(search, name) for name in self.named.names(scope)}

    def search(self, task: SearchTask, scope: str) -> types.SearchResponse:
        """Rank the chunks of `task`. The scope is whose search this is: within one, kept indexes are shared.

        Raises:
            TooLargeError: more chunks than the settings allow.
            InvalidRequestError: a chunk is not allowed; the error names it.
            UnknownModelError: there are several rerankers, and none of the name that is asked.
            ClusterError: an index was asked that cannot answer, or is not there.
        """
        if task.named is not None and task.digest is None:
            return self._search_named(task, task.named, scope)
        chunks = self._chunks_of(task, scope, task.blank)
        question = task.question
        if isinstance(question.where, Mapping):
            question = attrs.evolve(question, where=mask_of(question.where, chunks))
        if isinstance(question.distinct, str):
            question = attrs.evolve(question, distinct=GroupKeys.of(question.distinct, chunks))
        with self._kept_index(task, chunks, scope) as index:

            def answer(asked: SearchParams, models: Models) -> types.SearchResponse:
                if index is None:
                    return self._retrieval.answer(asked, chunks, models)
                return index.answer_all([asked], models)[0]

            response = self._lifted(task, question, answer, len(chunks.texts))
        if isinstance(task.question.where, Mapping) and not response.results and chunks.texts:
            check_keys(task.question.where, set().union(*chunks.metadata.values()))
        if task.digest is not None:
            reserve("result_char", sum(len(result.chunk_txt) for result in response.results))
        # Kept indexes have only texts.
        given = (
            attrs.evolve(one, metadata=chunks.metadata_of(one.original_index))
            for one in response.results
        )
        return attrs.evolve(response, results=tuple(given))

    def _search_named(self, task: _Task, named: IndexRef, scope: str) -> types.SearchResponse:
        """Rank the chunks of an index that is offered, or of one of a cluster."""
        check_integer("top_n", task.question.top_n, 1, MAX_FOUND)

        def answer(index: BaseIndex, asked: SearchParams, models: Models) -> types.SearchResponse:
            return index.answer_all([asked], models, allow_partial=named.allow_partial)[0]

        response = self.named.ask(named.index, scope, partial(self._lifted_by, task, answer))
        reserve("result_char", sum(len(result.chunk_txt) for result in response.results))
        return response

    def explain(self, task: ExplanationTask, scope: str) -> types.Explanation:
        """Show where the score of one chunk of `task` comes from; see `search`.

        Raises:
            InvalidRequestError: also where there is no chunk at the position.
        """

        def explain(index: BaseIndex, asked: SearchParams, models: Models) -> types.Explanation:
            try:
                return index.explain_one(asked, task.position, models)
            except InvalidRequestError as error:
                raise error.with_field(
                    "original_index" if error.field == "chunk" else error.field
                ) from None

        if task.named is not None and task.digest is None:
            return self.named.ask(task.named.index, scope, partial(self._lifted_by, task, explain))
        chunks = self._chunks_of(task, scope)
        if not chunks.texts:
            raise InvalidRequestError("must not be empty: there is no chunk to explain", task.path)
        if task.digest is None:
            check_integer("original_index", task.position, 0, len(chunks.texts) - 1)
        with self._kept_index(task, chunks, scope) as kept:
            index = self._retrieval.index(chunks.without_metadata()) if kept is None else kept
            return self._lifted(task, task.question, partial(explain, index), len(chunks.texts))

    def compress(self, task: CompressionTask, scope: str) -> types.CompressionResponse:
        """Keep the sentences that say most about a question: of chunks, or of the best of an index; see `search`."""
        from relevance_gen.asking.compression import compress

        positions: Sequence[int] = ()
        if task.named is not None and task.digest is None:
            found = self._search_named(task, task.named, scope).results
            chunks = read_chunks([types.Chunk(one.chunk_txt, title=one.title) for one in found])
            positions = [one.original_index for one in found]
        elif task.digest is not None:
            listed = self._kept(task.digest, scope).index.chunks
            chunks, positions = read_chunks(list(listed)), listed.positions.tolist()
            reserve("result_char", sum(map(len, chunks.texts)))
        else:
            chunks = self._check(task.chunks, task.path)
        kept = compress(
            task.question.query, chunks, max_tokens=task.max_tokens, encoding=self._encoding
        )
        if not positions:
            return kept
        placed = (
            attrs.evolve(one, original_index=positions[one.original_index])
            for one in kept.sentences
        )
        return attrs.evolve(kept, sentences=tuple(placed))

    def cite(self, task: CitationTask) -> list[types.CitedSentence]:
        """Say which places of chunks support the sentences of a text; see `search`."""
        from relevance_gen.asking.citations import Attributor

        return [*Attributor(self._check(task.chunks, "chunk_txts").texts).cite(task.text)]

    def _lifted_by(
        self, task: _Task, ask: Callable[..., Found], index: BaseIndex, lifts: bool
    ) -> Found:
        """Ask an index, with the encoder's part where it may have one: those of a cluster have none."""
        do = partial(ask, index)
        return (
            self._lifted(task, task.question, do)
            if lifts
            else do(*self._reranked(task, task.question))
        )

    def _lifted(
        self,
        task: _Task,
        question: SearchParams,
        do: Callable[[SearchParams, Models], Found],
        n_chunks: float = math.inf,
    ) -> Found:
        """Return what `do` finds with the models that the task is to have, as far as they are to be had."""
        question, models = self._reranked(task, question, n_chunks)
        if self._lifting is None:
            return do(question, models)
        try:
            return self._lifting.lift(
                lambda encoder: do(question, attrs.evolve(models, encoder=encoder))
            )
        except SkippedError as skipped:
            task.skipped["Encoder"] = skipped.reason
            return do(attrs.evolve(question, num_candidates=0), models)

    def _reranked(
        self, task: _Task, question: SearchParams, n_chunks: float = math.inf
    ) -> tuple[SearchParams, Models]:
        """Return a question with as many chunks to read as the reranker may, and the models for that."""
        wanted, most, skip = (
            question.rerank_top_n,
            self._most_reranked,
            partial(task.skipped.__setitem__, "Reranker"),
        )
        if self._reranking is None or wanted == 0:
            if wanted:
                skip("unavailable")
            return attrs.evolve(question, rerank_top_n=0), NO_MODELS
        n = None if wanted is None and n_chunks <= most else min(wanted or most, most)
        return attrs.evolve(question, rerank_top_n=n), Models(
            reranker=self._reranking.of(task.reranker, skip)
        )

    def _check(self, given: Sequence[object], path: str, blank: Blank | None = None) -> Chunks:
        if len(given) > self._max_chunks:
            raise TooLargeError(
                f"must have at most {self._max_chunks} items", path, str(len(given))
            )
        chunks = read_chunks(given, path=path, kinds="a string or an object", blank=blank)
        reserve("titled_chunk", len(chunks.titles))
        return chunks

    def _chunks_of(self, task: _Task, scope: str, blank: Blank | None = None) -> Chunks:
        """Return the chunks that a task brings, or those of the kept index that it names, without their metadata."""
        if task.digest is None:
            return self._check(task.chunks, task.path, blank)
        chunks = self._kept(task.digest, scope).index.chunks
        return Chunks(LazyTexts(len(chunks), lambda number: chunks[number].text), {})

    def _kept(self, digest: str, scope: str) -> _Kept:
        """Return what is kept of chunks, with an account of what reading them takes."""
        kept = self._cache.peek((scope, digest)) if self._cache else None
        if kept is None:
            raise UnknownIndexError(
                "index: no such index is kept any more; send its chunks again", field="index"
            )
        reserve("chunk", len(kept.index.chunks))
        return kept

    @contextmanager
    def _kept_index(self, task: _Task, chunks: Chunks, scope: str) -> Iterator[ChunkIndex | None]:
        """Lend the index of `chunks`: none the first time they come, unless it is to be kept at once."""
        if self._cache is None:
            yield None
            return
        key = (
            (scope, task.digest) if task.digest else content_key(chunks.texts, chunks.titles, scope)
        )
        kept = self._cache.get(key)
        if (
            kept is None
            and task.digest is None
            and (self._cache.has_come_before(key) or task.keeps)
        ):
            kept = _Kept(self._retrieval.index(chunks.without_metadata()))
        yield None if kept is None else kept.index
        if kept is not None:
            with self._keeping:
                kept = (
                    self._cache.peek(key) or kept
                )  # of simultaneous searches the first one's index stays
                self._cache.put(key, kept)  # it remembers what it was asked, and so may have grown
                has_vectors_to_make = (
                    kept.encoding == "not asked for" and self._lifting and task.digest is None
                )
                if has_vectors_to_make:
                    kept.encoding = "waits"
            if has_vectors_to_make:
                self._encode_later(self._cache, key, kept, chunks.texts)
            if (
                task.keeps and self._cache.peek(key) is not None
            ):  # else it is larger than all that may be kept
                task.kept.append(KEPT + key[1])

    def _encode_later(
        self, cache: IndexCache[_Kept], key: Key, kept: _Kept, texts: Sequence[str]
    ) -> None:
        """Have the vectors of kept chunks made in the background, once; until then only the cache holds their texts."""
        is_blank = bytes(
            not text for text in texts
        )  # an index leaves those out, and they keep their positions

        def wanted() -> _Kept | None:
            now = cache.peek(key)
            return now if now is not None and now.encoding == "waits" else None

        def make(encoder: TextEncoder) -> None:
            if (now := wanted()) is None:
                return
            left = iter(now.index.chunks)
            same = read_chunks(("" if blank else next(left) for blank in is_blank), blank="skip")
            index = self._retrieval.index(same, encoder=encoder)
            if wanted() is now:
                now.index, now.encoding = index, "done"
                cache.put(key, now)

        n_passages = sum(1 + len(text) // PASSAGE_CHARS for text in texts)
        if self._lifting is None or not self._lifting.encode_later(
            n_passages, make, lambda: wanted() is not None
        ):
            kept.encoding = "not asked for"


def every_chunk(
    response: types.SearchResponse, n_chunks: int
) -> list[tuple[int, types.SearchResult | None]]:
    """Return the position of every chunk with what was found in it, in the order of the results.

    The chunks that share nothing with the query come last, in the order of the input.
    """
    found = {result.original_index: result for result in response.results}
    missed = (place for place in range(n_chunks) if place not in found)
    return [*found.items(), *((place, None) for place in missed)]
