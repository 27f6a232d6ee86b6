"""The encoder's part in the server's searches: the library's answers, bounded work, words alone where need be."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from relevance_gen import Encoder, ModelLoadError, SearchResponse, search
from relevance_gen.errors import EncoderError
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.serve.metrics import Layout, Metrics
from relevance_gen.serve.services.embedding import EmbeddingService
from relevance_gen.serve.services.model_registry import ModelRegistry
from relevance_gen.serve.services.search import (
    ExplanationTask,
    Searcher,
    SearchReport,
    SearchTask,
)
from relevance_gen.serve.services.search_encoder import SearchEncoderService
from relevance_gen.serve.settings import NamedModel, Settings, named_models
from small_models import ENCODER
from tests.serve.harness import eventually

CHUNKS: list[Any] = [
    "Cats purr.",
    {"text": "A cat sleeps.", "metadata": {"page": 2}},
    "Dogs bark at the cat.",
]
QUERY = "What does a cat do?"


def with_searcher(
    work: Callable[[Searcher, EmbeddingService], None],
    load: Callable[[NamedModel], Encoder] = lambda _: Encoder(ENCODER),
    **given: Any,
) -> None:
    """Do `work` with a searcher whose encoder is loaded, or could not be."""
    settings = Settings(encoder=named_models(str(ENCODER)), **given)

    async def live() -> None:
        metrics = Metrics.for_one_process(Layout(models=[("embed", "encoder")]))
        registry = ModelRegistry(settings, {"embed": load}, metrics)
        registry.preload()
        embedder = EmbeddingService(registry, settings, metrics)
        searcher = Searcher(
            settings,
            metrics,
            SearchEncoderService(settings, embedder, metrics),
        )
        while registry.is_loading:
            await asyncio.sleep(0.01)
        try:
            await asyncio.to_thread(work, searcher, embedder)
        finally:
            registry.close()

    asyncio.run(live())


def ask(searcher: Searcher, chunks: list[Any] = CHUNKS) -> tuple[list[str], SearchResponse]:
    """Search; return why the encoder was not used, if so, and the response."""
    task = SearchTask(SearchParams(QUERY, 10, False, rerank_top_n=0), chunks)
    report = SearchReport()
    response = searcher.search(task, "a-key", report)
    return [*report.skipped.values()], response


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_response_equals_library(cache_bytes: int) -> None:
    """First, second, cached, and cached with vectors: the response equals that of `search(encoder=)`."""

    def work(searcher: Searcher, _: EmbeddingService) -> None:
        with Encoder(ENCODER) as encoder:
            expected = search(QUERY, CHUNKS, 10, False, encoder=encoder)
        assert expected != search(QUERY, CHUNKS, 10, False)
        for _ in range(4):
            assert ask(searcher) == ([], expected)
        if cache_bytes:
            assert eventually(lambda: has_vectors(searcher))
            assert ask(searcher) == ([], expected)

    with_searcher(work, index_cache_bytes=cache_bytes)


def has_vectors(searcher: Searcher) -> bool:
    assert searcher._cache is not None
    ((_, kept),) = searcher._cache._indexes.items()
    return kept.index._encoder is not None  # type: ignore[attr-defined]


def test_explained_score_equals_search_score() -> None:
    """An explanation contains the semantic score, and its score equals that of the search."""

    def work(searcher: Searcher, _: EmbeddingService) -> None:
        _, found = ask(searcher)
        for result in found:
            explanation = searcher.explain(
                ExplanationTask(SearchParams(QUERY), CHUNKS, result.original_index), "a-key"
            )
            assert explanation.score == result.chunk_score
            assert explanation.passage is not None

    with_searcher(work)


def test_too_many_passages_skip_the_encoder() -> None:
    """A search with too many passages uses lexical scores, and reports the reason."""
    chunks = [f"cat number {n} does this" for n in range(20)]

    def work(searcher: Searcher, _: EmbeddingService) -> None:
        words = search(QUERY, chunks, 10, False)
        for _ in range(3):
            assert ask(searcher, chunks) == (["too-much"], words)

    with_searcher(work, encoder_search_passages=19, encoder_index_passages=0)


def test_too_long_texts_skip_the_encoder() -> None:
    """If texts are far longer than all allowed passages, not all tokens are counted."""
    chunks = ["cat " * 10_000, "does a cat?"]

    def work(searcher: Searcher, _: EmbeddingService) -> None:
        assert ask(searcher, chunks) == (["too-much"], search(QUERY, chunks, 10, False))

    with_searcher(work, encoder_search_passages=2, encoder_index_passages=0)


def test_many_chunks_use_the_encoder_after_background_encoding() -> None:
    """Chunks that are too many for one search are encoded in the background when they come a second time."""
    chunks = [f"cat number {n} does this" for n in range(20)]

    def work(searcher: Searcher, _: EmbeddingService) -> None:
        assert ask(searcher, chunks)[0] == ["too-much"]
        assert ask(searcher, chunks)[0] == ["too-much"]
        assert eventually(lambda: has_vectors(searcher))
        with Encoder(ENCODER) as encoder:
            assert ask(searcher, chunks) == ([], search(QUERY, chunks, 10, False, encoder=encoder))

    with_searcher(work, encoder_search_passages=19)


def test_blank_chunks_keep_their_positions() -> None:
    """With blank chunks among them, the chunks are found at their own positions also once their vectors are there."""
    chunks = ["", "Dogs bark at the cat.", " ", "Cats purr.", ""]
    asked = SearchTask(SearchParams(QUERY, 10, False), chunks, blank="skip")

    def work(searcher: Searcher, _: EmbeddingService) -> None:
        with Encoder(ENCODER) as encoder:
            expected = search(QUERY, chunks, 10, False, encoder=encoder, blank="skip")
        for _ in range(2):
            assert searcher.search(asked, "a-key") == expected
        assert eventually(lambda: has_vectors(searcher))
        assert searcher.search(asked, "a-key") == expected
        assert {result.original_index for result in expected} == {1, 3}

    with_searcher(work)


def test_unavailable_encoder_is_skipped() -> None:
    """If the encoder could not be loaded or is closed, searches are answered, and report that."""
    words = search(QUERY, CHUNKS, 10, False)

    def fail(_: NamedModel) -> Encoder:
        raise ModelLoadError("the file is missing")

    def closed(_: NamedModel) -> Encoder:
        encoder = Encoder(ENCODER)
        encoder.close()
        return encoder

    for load in (fail, closed):
        with_searcher(lambda searcher, _: _assert_skipped(searcher, "unavailable", words), load)


def _assert_skipped(searcher: Searcher, reason: str, words: Any) -> None:
    for _ in range(3):
        assert ask(searcher) == ([reason], words)


def test_busy_encoder_is_skipped() -> None:
    """If too many texts wait or encoding takes too long, searches use lexical scores."""
    words = search(QUERY, CHUNKS, 10, False)

    def refused(searcher: Searcher, _: EmbeddingService) -> None:
        _assert_skipped(searcher, "busy", words)

    with_searcher(refused, encoder_queue=2)

    def late(searcher: Searcher, embedder: EmbeddingService) -> None:
        (encoder,) = embedder.registry.loaded("embed")
        many = [encoder.submit(["a b c d e f g"] * 100_000) for _ in range(200)]
        assert ask(searcher) == (["busy"], words)
        for future in many:
            future.cancel()

    with_searcher(late, encoder_search_timeout_s=0.001)


def test_at_most_half_of_threads_wait_for_encoder() -> None:
    """Beyond the maximum number of searches with the encoder, a search uses lexical scores at once."""
    words = search(QUERY, CHUNKS, 10, False)

    def work(searcher: Searcher, _: EmbeddingService) -> None:
        lifting = searcher._encoder_service
        assert lifting is not None
        inside, done = threading.Event(), threading.Event()

        def hold(_: Any) -> None:
            inside.set()
            done.wait(60)

        holder = threading.Thread(target=lambda: lifting.run(hold))
        holder.start()
        assert inside.wait(60)
        assert ask(searcher) == (["busy"], words)
        done.set()
        holder.join(60)
        assert ask(searcher)[0] == []

    with_searcher(work, search_threads=2)


def test_evicted_chunks_are_not_encoded() -> None:
    """Work that is no longer required is skipped, and an exception in the background affects no search."""

    def work(searcher: Searcher, _: EmbeddingService) -> None:
        lifting = searcher._encoder_service
        assert lifting is not None
        made: list[str] = []

        def fail(_: Any) -> None:
            made.append("fails")
            raise EncoderError("no")

        def bug(_: Any) -> None:
            made.append("bug")
            raise ZeroDivisionError

        assert lifting.run_later(1, lambda _: made.append("unwanted"), lambda: False)
        assert lifting.run_later(1, fail, lambda: True)
        assert lifting.run_later(1, bug, lambda: True)
        assert lifting.run_later(1, lambda _: made.append("wanted"), lambda: True)
        assert eventually(lambda: "wanted" in made)
        assert made == ["fails", "bug", "wanted"]

    with_searcher(work)


def test_pending_encoding_does_not_hold_texts() -> None:
    """Only one of several simultaneous searches has the index encoded, and evicted texts are not retained for it."""

    def work(searcher: Searcher, _: EmbeddingService) -> None:
        lifting, cache = searcher._encoder_service, searcher._cache
        assert lifting is not None
        assert cache is not None
        begun, done = threading.Event(), threading.Event()

        def hold(_: Any) -> None:
            begun.set()
            done.wait(60)

        assert lifting.run_later(1, hold, lambda: True)
        assert begun.wait(60)
        ask(searcher)
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: ask(searcher), range(8)))
        assert lifting._pending.qsize() == 1
        ((_, kept),) = cache._indexes.items()
        index = weakref.ref(kept.index)
        del kept
        cache._indexes.clear()
        gc.collect()
        assert index() is None
        done.set()
        ask(searcher)
        assert eventually(lambda: has_vectors(searcher))

    with_searcher(work, search_threads=8)
