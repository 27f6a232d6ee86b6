"""Reranking service: rerankers for searches, with bounded work.

A search that cannot use a reranker keeps its ranking and reports the reason.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from functools import partial
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.embedding.reranker import Reranker, Scores
from relevance_gen.errors import ModelLoadError, RerankerError
from relevance_gen.index.passages import PASSAGE_CHARS
from relevance_gen.quota import Quota
from relevance_gen.request_scope import raise_if_cancelled
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.services.model_registry import ModelRegistry
from relevance_gen.serve.services.search_encoder import BUSY, Reason, SkippedError
from relevance_gen.serve.settings import NamedModel, Settings

MAX_CONCURRENT_SEARCHES: Final = 8
"""Maximum number of searches that wait for rerankers at once, each in a thread.

The search pool has this number of additional threads.
"""
_POLL_INTERVAL_S: Final = 0.05
"""How often a waiting thread checks whether its caller still needs the result."""


def load_reranker(settings: Settings, model: NamedModel) -> Reranker:
    """Load a reranker; see `Reranker` for the exceptions."""
    return Reranker(str(model.file), n_threads=settings.n_threads_of(settings.reranker_threads))


class RerankingService:
    """Scores texts with rerankers for searches, in the order of arrival. Thread-safe.

    The size of the queue is limited in passages: a text of n characters counts as 1 + n // 1,000
    passages. The limit is `MAX_CONCURRENT_SEARCHES` times the setting ``reranker_texts``, the
    maximum number of texts that one search reranks.
    """

    def __init__(self, registry: ModelRegistry, settings: Settings, metrics: Metrics) -> None:
        self._registry = registry
        self._metrics = metrics
        self._timeout_s = settings.reranker_timeout_s
        self._passage_quota = Quota(
            MAX_CONCURRENT_SEARCHES * settings.reranker_texts,
            on_change=partial(metrics.put, "reranker_passages_waiting"),
        )
        self._search_quota = Quota(MAX_CONCURRENT_SEARCHES)
        self._lock = threading.Lock()

    def reranker(self, name: str | None, skip: Callable[[Reason], object]) -> SearchReranker:
        """Return a reranker for one search.

        Args:
            name: the name of the reranker; None for the first.
            skip: called with the reason if the reranker cannot be used.

        Raises:
            UnknownModelError: see `ModelRegistry.name_of`.
        """
        return SearchReranker(self, self._registry.name_of("rerank", name), skip)

    def score(
        self,
        name: str,
        query: str,
        texts: Sequence[str],
    ) -> npt.NDArray[np.float32]:
        """Return the relevance of each text to the query, shape (n,), after waiting in this thread.

        Raises:
            SkippedError: the reranker is not loaded, has failed or has too much work; the texts
                have more passages than the queue can hold; or the scores are not available in time.
            UnknownModelError: there are several rerankers, and none has this name.
            RequestCancelledError: the result is no longer required.
        """
        n_passages = sum(1 + len(text) // PASSAGE_CHARS for text in texts)
        try:
            if n_passages > self._passage_quota.limit:
                raise SkippedError("too-much")
            with (
                self._search_quota.acquired(refusal=BUSY),
                self._passage_quota.acquired(n_passages, refusal=BUSY),
                self._registry.lease("rerank", name, may_evict=False) as loading,
            ):
                if not loading.done():
                    raise SkippedError("loading")
                return self._wait(loading.result().submit(query, texts))
        except (SkippedError, ModelLoadError, RerankerError) as error:
            with self._lock:
                self._metrics.add("searches_without_reranker_total")
            if isinstance(error, SkippedError):
                raise
            raise SkippedError("unavailable") from None

    def _wait(self, future: Future[Scores]) -> npt.NDArray[np.float32]:
        started_s = time.perf_counter()
        try:
            while not wait([future], min(_POLL_INTERVAL_S, self._timeout_s)).done:
                raise_if_cancelled()
                if time.perf_counter() - started_s > self._timeout_s:
                    raise SkippedError("busy")
        finally:
            future.cancel()
        scores, n_tokens = future.result()
        with self._lock:
            self._metrics.observe("reranking_seconds", time.perf_counter() - started_s)
            self._metrics.add("reranked_texts_total", scores.size)
            self._metrics.add("reranked_tokens_total", int(n_tokens.sum()))
        return scores


@frozen
class SearchReranker:
    """A reranker for one search. If it cannot be used, the ranking stays as it is."""

    service: RerankingService
    name: str
    skip: Callable[[Reason], object]

    def score(
        self,
        query: str,
        texts: Sequence[str],
    ) -> npt.NDArray[np.float32] | None:
        """Return the relevance of each text to the query, shape (n,).

        None means that the reranker cannot be used; then `skip` is called with the reason.
        """
        try:
            return self.service.score(self.name, query, texts)
        except SkippedError as skipped:
            self.skip(skipped.reason)
            return None
