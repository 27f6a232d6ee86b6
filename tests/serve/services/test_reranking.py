"""The reranker's part in the server's searches: the library's answers, bounded work, and none of it where need be."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relevance_gen import ChunkIndex, ModelLoadError, Reranker, search
from relevance_gen.embedding.reranker import Scores
from relevance_gen.errors import RequestCancelledError
from relevance_gen.request_scope import cancel_scope
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.serve.metrics import Layout, Metrics
from relevance_gen.serve.services.model_registry import ModelRegistry
from relevance_gen.serve.services.reranking import MAX_CONCURRENT_SEARCHES, RerankingService
from relevance_gen.serve.services.search import (
    ExplanationTask,
    Searcher,
    SearchReport,
    SearchTask,
)
from relevance_gen.serve.settings import Settings, named_models
from small_models import RERANKER
from tests.retrieval.test_cross_encoder import HashReranker, relevance

CHUNKS: list[Any] = [
    "Cats purr.",
    {"text": "A cat sleeps.", "metadata": {"page": 2}},
    "zebra",
    "Dogs bark at the cat.",
]
TEXTS = [chunk if isinstance(chunk, str) else chunk["text"] for chunk in CHUNKS]
QUERY = "What does a small cat do?"


class HeldReranker:
    """Answers when it is released, and records its calls and futures."""

    closed = False

    def __init__(self) -> None:
        self.asked = threading.Semaphore(0)
        self.futures: list[Future[Scores]] = []

    def submit(self, *_: object) -> Future[Scores]:
        """Return a future that stays pending."""
        self.futures.append(Future())
        self.asked.release()
        return self.futures[-1]

    def close(self) -> None:
        """Do nothing."""


def with_searcher(
    work: Callable[[Searcher, RerankingService, Metrics], None],
    load: Callable[[], Any] = lambda: Reranker(RERANKER),
    **given: Any,
) -> None:
    """Do `work` with a searcher whose reranker is loaded, or could not be."""
    settings = Settings(reranker=named_models(str(RERANKER)), **given)

    async def live() -> None:
        metrics = Metrics.for_one_process(Layout(models=[("rerank", "reranker")]))
        registry = ModelRegistry(settings, {"rerank": lambda _: load()}, metrics)
        registry.preload()
        service = RerankingService(registry, settings, metrics)
        searcher = Searcher(settings, metrics, None, service)
        while registry.is_loading:
            await asyncio.sleep(0.01)
        try:
            await asyncio.to_thread(work, searcher, service, metrics)
        finally:
            registry.close()

    asyncio.run(live())


def ask(
    searcher: Searcher, rerank_top_n: int | None, chunks: list[Any] = CHUNKS
) -> tuple[dict[str, str], list[Any]]:
    """Search; return why the reranker was not used, if so, and the positions and scores of the results."""
    task = SearchTask(SearchParams(QUERY, 1000, False, rerank_top_n=rerank_top_n), chunks)
    report = SearchReport()
    response = searcher.search(task, "a-key", report)
    return {**report.skipped}, [(result.original_index, result.chunk_score) for result in response]


def expected(**options: Any) -> list[Any]:
    return [
        (result.original_index, result.chunk_score)
        for result in search(QUERY, CHUNKS, 1000, False, **options)
    ]


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_reranked_response_and_explanation_equal_library(cache_bytes: int) -> None:
    """Once, again and from a kept index, with a number and for all, the response is that of `search(reranker=)`."""

    def work(searcher: Searcher, _: RerankingService, metrics: Metrics) -> None:
        with Reranker(RERANKER) as reranker:
            for n in (2, None, 0, 2):
                assert ask(searcher, n) == ({}, expected(reranker=reranker, rerank_top_n=n))
        assert ask(searcher, 0) == ({}, expected())
        explanation = searcher.explain(
            ExplanationTask(SearchParams(QUERY, rerank_top_n=None), CHUNKS, 2), "a-key"
        )
        assert (
            explanation.score
            == explanation.relevance
            == explanation.reranker
            == dict(ask(searcher, None)[1])[2]
        )
        text = metrics.exposition({})
        assert "relevance_gen_searches_without_reranker_total 0" in text
        assert "relevance_gen_reranked_texts_total 0" not in text
        assert "relevance_gen_reranker_passages_waiting 0" in text

    with_searcher(work, index_cache_bytes=cache_bytes)


def test_agents_search_without_it(tmp_path: Path) -> None:
    """Named indexes without reranking do not wait for the reranker."""
    ChunkIndex(CHUNKS).save(tmp_path / "facts.index")

    def work(searcher: Searcher, _: RerankingService, metrics: Metrics) -> None:
        searcher.indexes.start()
        searcher.indexes._served_indexes["facts"].refresh().result(60)
        found = searcher.offered_to("")["facts"](QUERY, 1000)
        assert [
            (result.original_index, result.chunk_score) for result in found.results
        ] == expected()
        assert "relevance_gen_reranked_texts_total 0" in metrics.exposition({})

    with_searcher(work, index=(("facts", str(tmp_path / "facts.index")),))


def test_reranker_reads_best_candidates_within_limit() -> None:
    """If more texts are requested than the settings allow, the best texts by lexical score are reranked."""

    def work(searcher: Searcher, _: RerankingService, __: Metrics) -> None:
        with Reranker(RERANKER) as reranker:
            for n in (None, 3, 10**9):
                assert ask(searcher, n) == ({}, expected(reranker=reranker, rerank_top_n=2))

    with_searcher(work, reranker_texts=2)


def test_missing_reranker_leaves_results_unchanged() -> None:
    """If the reranker could not be loaded or is closed, searches are answered, with the reason."""

    def fail() -> Reranker:
        raise ModelLoadError("the file is missing")

    def closed() -> Reranker:
        reranker = Reranker(RERANKER)
        reranker.close()
        return reranker

    def work(searcher: Searcher, _: RerankingService, metrics: Metrics) -> None:
        assert ask(searcher, 2) == ask(searcher, None) == ({"Reranker": "unavailable"}, expected())
        assert "relevance_gen_searches_without_reranker_total 2" in metrics.exposition({})

    for load in (fail, closed):
        with_searcher(work, load)
    settings = Settings()
    none = Searcher(settings, Metrics.for_one_process())
    assert ask(none, 2) == ({"Reranker": "unavailable"}, expected())
    assert ask(none, None) == ({}, expected())


def test_more_passages_than_may_wait_are_not_read() -> None:
    """A search with more passages than may wait is not reranked; a search with short texts is."""
    chunks = ["cat " * 3000, "a small cat"]

    def work(searcher: Searcher, _: RerankingService, __: Metrics) -> None:
        assert ask(searcher, None, chunks)[0] == {"Reranker": "too-much"}
        assert ask(searcher, None)[0] == {}

    with_searcher(work, reranker_texts=1)


def test_busy_reranker_is_skipped() -> None:
    """Slow scores are abandoned, and excess searches are not started; afterwards all quotas are free."""
    held = HeldReranker()

    def late(searcher: Searcher, service: RerankingService, _: Metrics) -> None:
        assert ask(searcher, 2) == ({"Reranker": "busy"}, expected())
        assert [future.cancelled() for future in held.futures] == [True]
        assert service._passage_quota.held == service._search_quota.held == 0

    with_searcher(late, lambda: held, reranker_timeout_s=0.001)
    full = HeldReranker()

    def crowded(searcher: Searcher, service: RerankingService, _: Metrics) -> None:
        with ThreadPoolExecutor(MAX_CONCURRENT_SEARCHES) as pool:
            waiting = [pool.submit(ask, searcher, 2) for _ in range(MAX_CONCURRENT_SEARCHES)]
            for _ in waiting:
                assert full.asked.acquire(timeout=60)
            assert ask(searcher, 2) == ({"Reranker": "busy"}, expected())
            for future in full.futures:
                future.set_result(Scores(np.array([0.25, 0.5], np.float32), np.array([3, 3])))
            assert len({str(one.result(60)) for one in waiting}) == 1
            assert waiting[0].result()[0] == {}
        assert service._passage_quota.held == service._search_quota.held == 0

    with_searcher(crowded, lambda: full)


def test_cancelled_search_leaves_the_reranker() -> None:
    """After a disconnect the wait for the reranker ends, and its future is cancelled."""
    held = HeldReranker()

    def work(searcher: Searcher, service: RerankingService, metrics: Metrics) -> None:
        left = threading.Event()

        def wait() -> None:
            with cancel_scope(lambda: not left.is_set()):
                ask(searcher, 2)

        with ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(wait)
            assert held.asked.acquire(timeout=60)
            left.set()
            with pytest.raises(RequestCancelledError):
                waiting.result(60)
        assert held.futures[0].cancelled()
        assert service._passage_quota.held == service._search_quota.held == 0
        assert "relevance_gen_searches_without_reranker_total 0" in metrics.exposition({})

    with_searcher(work, lambda: held)


def test_scripted_reranker_scores_equal_library() -> None:
    """Scores with a scripted reranker equal those of `search` with the same reranker."""

    class Scripted(HeldReranker):
        def submit(self, query: Any, texts: Any) -> Future[Scores]:  # type: ignore[override]
            future: Future[Scores] = Future()
            scores = np.array([relevance(query, text) for text in texts], np.float32)
            future.set_result(Scores(scores, np.ones(len(texts), np.int64)))
            return future

    def work(searcher: Searcher, _: RerankingService, __: Metrics) -> None:
        for n in (1, 2, None):
            assert ask(searcher, n) == ({}, expected(reranker=HashReranker(), rerank_top_n=n))

    with_searcher(work, Scripted)
