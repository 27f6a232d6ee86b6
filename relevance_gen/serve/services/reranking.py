"""The server's rerankers, and what searches have of it: a bounded part, or none, and then they say why."""

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

AT_ONCE: Final = 8
"""Searches that may wait for the reranker at once, each in a thread. The lane of searches has as many more."""
_LOOK_S: Final = 0.05
"""How often a thread that waits looks whether that is still wanted."""


def load_reranker(settings: Settings, model: NamedModel) -> Reranker:
    """Load one of the rerankers that `settings` name; raise what `Reranker` raises."""
    return Reranker(str(model.file), n_threads=settings.n_threads_of(settings.reranker_threads))


class RerankingService:
    """Has rerankers read for searches, each in its turn. Safe to use from several threads.

    As many passages of 1,000 characters may wait as `AT_ONCE` searches have texts.
    """

    def __init__(self, registry: ModelRegistry, settings: Settings, metrics: Metrics) -> None:
        self._registry = registry
        self._metrics = metrics
        self._timeout_s = settings.reranker_timeout_s
        most = AT_ONCE * settings.reranker_texts
        self._passages = Quota(most, on_change=partial(metrics.put, "reranker_passages_waiting"))
        self._places = Quota(AT_ONCE)
        self._lock = threading.Lock()

    def of(self, name: str | None, skip: Callable[[Reason], object]) -> SearchReranker:
        """Return a reranker as one search has it, which tells `skip` why it has no part; raise as `name_of` does."""
        return SearchReranker(self, self._registry.name_of("rerank", name), skip)

    def read(self, name: str, query: str, texts: Sequence[str]) -> npt.NDArray[np.float32] | Reason:
        """Wait in this thread for how relevant texts are, shape (n,); or return why that is not to be had in time."""
        why: Reason = "unavailable"
        n_passages = sum(1 + len(text) // PASSAGE_CHARS for text in texts)
        try:
            if n_passages > self._passages.limit:
                raise SkippedError("too-much")
            with (
                self._places.acquired(refusal=BUSY),
                self._passages.acquired(n_passages, refusal=BUSY),
                self._registry.lent("rerank", name, makes_room=False) as loading,
            ):
                if not loading.done():
                    raise SkippedError("loading")
                return self._wait(loading.result().submit(query, texts))
        except SkippedError as skipped:
            why = skipped.reason
        except (ModelLoadError, RerankerError):
            pass
        with self._lock:
            self._metrics.add("searches_without_reranker_total")
        return why

    def _wait(self, future: Future[Scores]) -> npt.NDArray[np.float32]:
        started_s = time.perf_counter()
        try:
            while not wait([future], min(_LOOK_S, self._timeout_s)).done:
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
    """The reranker as one search has it: where it has no part, `skip` is told why, and all stays as it is."""

    service: RerankingService
    name: str
    skip: Callable[[Reason], object]

    def score(self, query: str, texts: Sequence[str]) -> npt.NDArray[np.float32] | None:
        """Return how relevant each text is, shape (n,), or None."""
        read = self.service.read(self.name, query, texts)
        return self.skip(read) if isinstance(read, str) else read  # type: ignore[return-value]
