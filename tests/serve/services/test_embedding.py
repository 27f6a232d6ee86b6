"""The embedding service: loading in the background, order of arrival, and the limit of the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from relevance_gen import Encoder, ModelLoadError, OverloadedError, TimedOutError, TooLargeError
from relevance_gen.errors import ContextLengthError
from relevance_gen.serve.metrics import Layout, Metrics
from relevance_gen.serve.services.embedding import EmbeddingService, EmbeddingTask, load_encoder
from relevance_gen.serve.services.model_registry import ModelRegistry
from relevance_gen.serve.settings import NamedModel, Settings, named_models
from small_models import ENCODER

LONG = ["a b c d e f g h"] * 100_000


def metric(metrics: Metrics, name: str) -> float:
    return float(metrics.table[0, metrics.layout.columns[name, ()]])


def with_embedder(
    work: Callable[[EmbeddingService, Metrics], Coroutine[Any, Any, None]],
    load: Callable[[NamedModel], Encoder] = lambda model: Encoder(str(model.file)),
    **given: Any,
) -> None:
    """Do `work` with an embedder whose encoder is loaded when it is asked for."""

    async def live() -> None:
        metrics = Metrics.for_one_process(Layout(models=[("embed", "encoder")]))
        settings = Settings(encoder=named_models(str(ENCODER)), **given)
        registry = ModelRegistry(settings, {"embed": load}, metrics)
        try:
            await work(EmbeddingService(registry, settings, metrics), metrics)
        finally:
            registry.close()

    asyncio.run(live())


def test_texts_become_vectors_and_are_counted() -> None:
    """Vectors and tokens equal the results of the encoder, and metrics count them."""

    async def work(embedder: EmbeddingService, metrics: Metrics) -> None:
        encoded = await embedder.embed(EmbeddingTask(["a b", "c"], "query"))
        with Encoder(ENCODER) as encoder:
            np.testing.assert_array_equal(encoded.vectors, encoder.encode(["a b", "c"]))
        assert encoded.n_tokens.tolist() == [4, 3]
        assert (await embedder.embed(EmbeddingTask([]))).vectors.shape == (0, 32)
        assert metrics.total("models", "embed", "encoder", "loaded") == 1
        assert metric(metrics, "encoded_texts_total") == 2
        assert metric(metrics, "encoded_tokens_total") == 7
        assert metric(metrics, "encoder_texts_waiting") == 0

    with_embedder(work)


def test_long_texts_are_refused_truncated_or_averaged() -> None:
    """The mean weights passages by tokens; a text that fits has the same bits in every case."""
    long_text = " ".join("abcdefgh"[index % 8] for index in range(100))

    async def work(embedder: EmbeddingService, _: Metrics) -> None:
        texts = ["a b", long_text]
        with pytest.raises(ContextLengthError) as raised:
            await embedder.embed(EmbeddingTask(texts, path="input"))
        assert raised.value.field == "input[1]"
        truncated = await embedder.embed(EmbeddingTask(texts, long_texts="truncate"))
        averaged = await embedder.embed(EmbeddingTask(texts, long_texts="mean"))
        assert truncated.n_tokens.tolist() == [4, 32]
        assert averaged.n_tokens[0] == 4
        assert averaged.n_tokens[1] > 100
        with Encoder(ENCODER) as encoder:
            np.testing.assert_array_equal(truncated.vectors, encoder.encode(texts))
            passages = encoder.passages_of(long_text)
            n_tokens = [encoder.count_tokens(passage) + 2 for passage in passages]
            mean = np.average(encoder.encode(passages), axis=0, weights=n_tokens)
        assert " ".join(passages) == long_text
        assert max(n_tokens) <= 32
        np.testing.assert_array_equal(averaged.vectors[0], truncated.vectors[0])
        np.testing.assert_allclose(averaged.vectors[1], mean / np.linalg.norm(mean), atol=1e-6)
        nothing = await embedder.embed(EmbeddingTask([], long_texts="mean"))
        assert nothing.vectors.shape == (0, 32)

    with_embedder(work)


def test_cancelled_request_frees_encoder() -> None:
    """Cancelling discards the remaining texts of 100,000, and frees their slots in the queue."""

    async def work(embedder: EmbeddingService, metrics: Metrics) -> None:
        task = asyncio.create_task(embedder.embed(EmbeddingTask(LONG)))
        async with asyncio.timeout(60):
            while metric(metrics, "encoder_texts_waiting") != len(LONG):
                await asyncio.sleep(0.001)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert metric(metrics, "encoder_texts_waiting") == 0
        assert (await embedder.embed(EmbeddingTask(["a"]))).vectors.shape == (1, 32)
        assert metric(metrics, "encoded_texts_total") == 1

    with_embedder(work, encoder_queue=len(LONG))


def test_more_texts_than_may_wait_are_refused() -> None:
    """More than could ever wait are too many; more than there is room for now may come again."""

    async def work(embedder: EmbeddingService, metrics: Metrics) -> None:
        with pytest.raises(
            TooLargeError, match="input must have at most 100000 items, got 100001"
        ) as caught:
            await embedder.embed(EmbeddingTask([*LONG, "a"], path="input"))
        assert caught.value.field == "input"
        task = asyncio.create_task(embedder.embed(EmbeddingTask(LONG)))
        async with asyncio.timeout(60):
            while metric(metrics, "encoder_texts_waiting") != len(LONG):
                await asyncio.sleep(0.001)
        with pytest.raises(OverloadedError, match="too many texts wait to be encoded") as refused:
            await embedder.embed(EmbeddingTask(["a"]))
        assert refused.value.retry_after_s >= 1
        task.cancel()

    with_embedder(work, encoder_queue=len(LONG))


def test_slow_encoding_times_out() -> None:
    """After the time that a request may take it fails, and the encoder is free."""

    async def work(embedder: EmbeddingService, _: Metrics) -> None:
        with pytest.raises(TimedOutError, match="were not encoded within"):
            await embedder.embed(EmbeddingTask(LONG))
        assert (await embedder.embed(EmbeddingTask(["a"]))).vectors.shape == (1, 32)

    with_embedder(work, encoder_queue=len(LONG), encoder_timeout_s=0.2)


def test_encoder_that_cannot_be_loaded_is_reported() -> None:
    """The server continues without encoder; requests get the reason, and their slots in the queue are freed."""

    def fail(_: NamedModel) -> Encoder:
        raise ModelLoadError("the file is missing")

    async def work(embedder: EmbeddingService, metrics: Metrics) -> None:
        for _ in range(2):
            with pytest.raises(
                ModelLoadError, match="the model cannot be loaded: the file is missing"
            ):
                await embedder.embed(EmbeddingTask(["a"]))
        assert metrics.total("models", "embed", "encoder", "failed") == 1
        assert metric(metrics, "encoder_texts_waiting") == 0

    with_embedder(work, fail)


def test_configured_encoder_is_loaded() -> None:
    """The configured file is loaded."""
    encoder = load_encoder(Settings(encoder_threads=1), NamedModel("any", str(ENCODER)))
    assert isinstance(encoder, Encoder)
    encoder.close()
