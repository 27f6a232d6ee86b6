"""``POST /search``: the body in, the ranked chunks out, all of it off the event loop."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs
from attrs import frozen

from relevance_gen import wire
from relevance_gen.serve import bodies
from relevance_gen.serve.index_cache import IndexCache, content_key
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.problems import HTTPError
from relevance_gen.settings import Settings
from relevance_gen.types import Metadata, SearchRequest, SearchResponse


class Index(Protocol):
    """What the server needs of `relevance_gen.retrieval.index.ChunkIndex`."""

    @property
    def nbytes(self) -> int:
        """Its memory."""

    def search(self, query: str, top_n: int = 10, true_order: bool = True) -> SearchResponse:
        """Rank the chunks of this index."""


class Retrieval(Protocol):
    """What the server needs of `relevance_gen.retrieval`."""

    def search(self, query: str, texts: list[str], top_n: int, true_order: bool) -> SearchResponse:
        """Rank `texts`, once."""

    def index(self, texts: list[str]) -> Index:
        """Index `texts`, for more than one query."""


@frozen
class Answer:
    """A finished response, and what it took."""

    body: bytes
    headers: dict[str, str]
    n_chunks: int
    n_tokens: int
    seconds: float


class Searcher:
    """Answers search bodies. Safe to use from several threads."""

    def __init__(self, settings: Settings, retrieval: Retrieval, metrics: Metrics) -> None:
        self._settings = settings
        self._retrieval = retrieval
        self._cache: IndexCache[Index] = IndexCache(settings.index_cache_bytes, metrics)

    def warm_up(self) -> None:
        """Do one small search, so that the first client does not wait for imports and tables."""
        self._retrieval.search("begin", ["a text to begin with"], 1, True)

    def answer(self, body: bytes, encoding: str, wanted_encoding: str, scope: str) -> Answer:
        """Do everything between the request's bytes and the response's.

        Args:
            body: as received.
            encoding: its content coding.
            wanted_encoding: the response's content coding.
            scope: whose search this is; indexes are shared within one scope.

        Raises:
            InvalidRequestError: what the client sent is not allowed.
            HTTPError: 413, too large.
        """
        started_s = time.perf_counter()
        request, texts, metadata = self._read(body, encoding)
        response = self._search(request, texts, scope)
        out, headers = bodies.encoded(wire.serialize(_with_metadata(response, metadata)), wanted_encoding)
        n_tokens = response.metadata.num_query_tokens + response.metadata.num_context_tokens
        return Answer(out, headers, len(texts), n_tokens, time.perf_counter() - started_s)

    def _read(self, body: bytes, encoding: str) -> tuple[SearchRequest, list[str], Mapping[int, Metadata]]:
        plain = bodies.decoded(body, encoding, limit_bytes=self._settings.max_body_bytes)
        request = wire.structure(SearchRequest, wire.parse(plain, max_depth=self._settings.max_depth))
        if len(request.chunk_txts) > self._settings.max_chunks:
            raise HTTPError(
                413,
                "too_large",
                f"chunk_txts must have at most {self._settings.max_chunks} items, got {len(request.chunk_txts)}",
                field="chunk_txts",
            )
        return request, *_checked(request.chunk_txts)

    def _search(self, request: SearchRequest, texts: list[str], scope: str) -> SearchResponse:
        index = self._index(texts, scope) if self._settings.index_cache_bytes else None
        if index is None:
            return self._retrieval.search(request.query, texts, request.top_n, request.true_order)
        return index.search(request.query, request.top_n, request.true_order)

    def _index(self, texts: list[str], scope: str) -> Index | None:
        """Return the index of `texts`: none the first time they come, made and kept the second time."""
        key = content_key(texts, scope)
        index = self._cache.get(key)
        if index is None and self._cache.is_worth_it(key):
            index = self._retrieval.index(texts)
            self._cache.put(key, index, index.nbytes)
        return index


def _checked(values: Sequence[object]) -> tuple[list[str], Mapping[int, Metadata]]:
    from relevance_gen.retrieval.chunks import Chunks

    chunks = Chunks.read(values, path="chunk_txts", kinds="a string or an object")  # type: ignore[arg-type]
    return list(chunks.texts), chunks.metadata


def _with_metadata(response: SearchResponse, metadata: Mapping[int, Metadata]) -> SearchResponse:
    """Give each result the metadata its chunk came with: the index knows only texts."""
    results = tuple(
        attrs.evolve(result, metadata=metadata.get(result.original_index, {})) for result in response.results
    )
    return attrs.evolve(response, results=results)
