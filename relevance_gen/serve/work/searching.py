"""Searches, once or by a kept index: what a client asks, in, and the ranked chunks or an explanation, out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal, Protocol, TypeVar

import attrs
from attrs import define, field, frozen

from relevance_gen.caller import announce
from relevance_gen.checks import check_integer
from relevance_gen.errors import InvalidRequestError, TooLargeError
from relevance_gen.retrieval.question.distinct import Labels
from relevance_gen.retrieval.question.filtering import check_keys, mask_of
from relevance_gen.retrieval.question.query import Question
from relevance_gen.retrieval.segment.chunks import Blank, Chunks
from relevance_gen.retrieval.segment.passages import PASSAGE_CHARS, TextEncoder
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.settings import Settings
from relevance_gen.serve.work.index_cache import IndexCache, content_key
from relevance_gen.serve.work.lifting import Lifting, Reason, SkippedError
from relevance_gen.serve.work.named import Named, NamedIndexes
from relevance_gen.types import (
    Chunk,
    CompressionRequest,
    CompressionResponse,
    Explanation,
    PromptRequest,
    SearchResponse,
    SearchResult,
)

Found = TypeVar("Found")

_WARM_UP_TEXT = "a text to begin with " * 60_000
"""More than gigatoken counts without a library that it loads for large texts only."""


@frozen
class _Task:
    """A question to some chunks.

    Attributes:
        question: what is asked.
        chunks: the chunks as the client sent them, not yet checked.
        path: what the client calls the chunks; errors name ``path[3]``.
        named: the index of a cluster that is asked instead of chunks.
        skipped: why the encoder had no part, where it was to have one; filled in by whoever answers.
    """

    question: Question
    chunks: Sequence[object]
    path: str = field(default="chunk_txts", kw_only=True)
    named: Named | None = field(default=None, kw_only=True)
    skipped: list[Reason] = field(factory=list, eq=False, kw_only=True)


@frozen
class SearchTask(_Task):
    """One search to do; `blank` says what to do with a chunk of only white space, and None refuses it."""

    blank: Blank | None = field(default=None, kw_only=True)


@frozen
class PromptTask(SearchTask):
    """A search whose results are to become a prompt, as `request` says."""

    request: PromptRequest = field(kw_only=True)


@frozen
class ExplanationTask(_Task):
    """One score to explain: that of the chunk at a position, from 0, which the client calls `position_path`."""

    position: int
    position_path: str = "original_index"


class Index(Protocol):
    """What the server needs of `relevance_gen.retrieval.index.ChunkIndex`."""

    @property
    def chunks(self) -> Sequence[Chunk]:
        """Its chunks."""

    @property
    def nbytes(self) -> int:
        """Its memory."""

    def answer_all(self, asked: Sequence[Question], encoder: TextEncoder | None = None) -> list[SearchResponse]:
        """Rank the chunks of this index, for each of some questions."""

    def explain_one(self, question: Question, chunk: int, encoder: TextEncoder | None = None) -> Explanation:
        """Show where the score of the chunk at a position comes from."""


class Retrieval(Protocol):
    """What the server needs of `relevance_gen.retrieval`."""

    def answer(self, question: Question, chunks: Chunks, encoder: TextEncoder | None = None) -> SearchResponse:
        """Rank `chunks`, once."""

    def index(self, chunks: Chunks, encoder: TextEncoder | None = None) -> Index:
        """Index `chunks`, for more than one question; with an encoder also their vectors."""


@frozen
class LibraryRetrieval:
    """The library's own search, with the options that the settings give; imported when it is first needed."""

    settings: Settings

    def answer(self, question: Question, chunks: Chunks, encoder: TextEncoder | None = None) -> SearchResponse:
        """Rank `chunks`, once."""
        from relevance_gen.retrieval.api import answer_once

        weighting, encoding = self.settings.weighting, self.settings.encoding
        return answer_once(question, chunks, encoder=encoder, weighting=weighting, encoding=encoding, counts_now=True)

    def index(self, chunks: Chunks, encoder: TextEncoder | None = None) -> Index:
        """Index `chunks`, for more than one question; with an encoder also their vectors."""
        from relevance_gen.retrieval.index import ChunkIndex

        weighting, encoding = self.settings.weighting, self.settings.encoding
        return ChunkIndex(chunks, weighting=weighting, encoding=encoding, encoder=encoder)


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
        self._encoding = settings.encoding
        self._retrieval = retrieval
        self._lifting = lifting
        self._named = NamedIndexes(settings.cluster)
        self._keeping = threading.Lock()
        self._cache: IndexCache[_Kept] | None = (
            IndexCache(settings.index_cache_bytes, lambda kept: kept.index.nbytes, metrics)
            if settings.index_cache_bytes
            else None
        )

    def warm_up(self) -> None:
        """Search once in every way, so that no client waits for imports and tables, or meets one that fails."""
        much = Chunks([_WARM_UP_TEXT, "😀 a text to begin with \ud800", "猫が寝る" * 100], {})
        index = self._retrieval.index(much)
        for where in (None, [True, False, True]):
            question = Question("begin 猫", 3, where=where, spans=True, min_share=0.5)
            self._retrieval.answer(question, much)
            index.answer_all([question])
        index.explain_one(Question("begin"), 0)
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
            return self._named.search(task.named, task.question)
        chunks = self._check(task.chunks, task.path, task.blank)
        question = task.question
        if isinstance(question.where, Mapping):
            question = attrs.evolve(question, where=mask_of(question.where, chunks))
        if isinstance(question.distinct, str):
            question = attrs.evolve(question, distinct=Labels.of(question.distinct, chunks))
        with self._kept_index(chunks, scope) as index:
            response = self._lifted(
                task,
                question,
                lambda asked, encoder: (
                    self._retrieval.answer(asked, chunks, encoder)
                    if index is None
                    else index.answer_all([asked], encoder)[0]
                ),
            )
        if isinstance(task.question.where, Mapping) and not response.results and chunks.texts:
            check_keys(task.question.where, set().union(*chunks.metadata.values()))
        return _with_metadata(response, chunks)

    def explain(self, task: ExplanationTask, scope: str) -> Explanation:
        """Show where the score of one chunk of `task` comes from; `scope` as in `search`.

        Raises:
            TooLargeError: more chunks than the settings allow.
            InvalidRequestError: a chunk is not allowed, or there is none at the position; the error names it.
            ClusterError: an index of a cluster was asked, and cannot answer.
        """
        if task.named is not None:
            return self._named.explain(task.named, task.question, task.position, task.position_path)
        chunks = self._check(task.chunks, task.path)
        if not chunks.texts:
            raise InvalidRequestError("must not be empty: there is no chunk to explain", task.path)
        check_integer(task.position_path, task.position, 0, len(chunks.texts) - 1)
        with self._kept_index(chunks, scope) as kept:
            index = self._retrieval.index(chunks.without_metadata()) if kept is None else kept
            return self._lifted(
                task, task.question, lambda asked, encoder: index.explain_one(asked, task.position, encoder)
            )

    def compress(self, request: CompressionRequest) -> CompressionResponse:
        """Keep the sentences of chunks that say most about a question.

        Raises:
            TooLargeError: more chunks than the settings allow.
            InvalidRequestError: a chunk is not allowed; the error names it.
        """
        from relevance_gen.retrieval.compressing import compress

        chunks = self._check(request.chunk_txts, "chunk_txts")
        return compress(request.question, chunks, max_tokens=request.max_tokens, encoding=self._encoding)

    def _lifted(
        self,
        task: _Task,
        question: Question,
        do: Callable[[Question, TextEncoder | None], Found],
    ) -> Found:
        """Return what `do` finds with the encoder, or if that is not to be had, by words alone."""
        if self._lifting is None:
            return do(question, None)
        try:
            return self._lifting.lift(lambda encoder: do(question, encoder))
        except SkippedError as skipped:
            task.skipped.append(skipped.reason)
            return do(attrs.evolve(question, candidates=0), None)

    def _check(self, given: Sequence[object], path: str, blank: Blank | None = None) -> Chunks:
        if len(given) > self._max_chunks:
            raise TooLargeError(f"must have at most {self._max_chunks} items", path, str(len(given)))
        chunks = Chunks.read(given, path=path, kinds="a string or an object", blank=blank)
        announce("titled", len(chunks.titles))
        return chunks

    @contextmanager
    def _kept_index(self, chunks: Chunks, scope: str) -> Iterator[Index | None]:
        """Lend the index of `chunks`: none the first time they come, made and kept the second time."""
        if self._cache is None:
            yield None
            return
        key = content_key(chunks.texts, chunks.titles, scope)
        kept = self._cache.get(key)
        if kept is None and self._cache.has_come_before(key):
            kept = _Kept(self._retrieval.index(chunks.without_metadata()))
        yield None if kept is None else kept.index
        if kept is not None:
            with self._keeping:
                kept = self._cache.peek(key) or kept  # of simultaneous searches the first one's index stays
                self._cache.put(key, kept)  # it remembers what it was asked, and so may have grown
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
            same = Chunks.read(("" if blank else next(left) for blank in is_blank), blank="skip")
            index = self._retrieval.index(same, encoder=encoder)
            if wanted() is now:
                now.index, now.encoding = index, "done"
                cache.put(key, now)

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
