"""Embedding service: encode texts as vectors, with bounded work."""

from __future__ import annotations

import asyncio
import math
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Final, Literal, TypeAlias

import attrs
import numpy as np
from attrs import frozen

from relevance_gen.arrays import starts_of
from relevance_gen.embedding.encoder import Embeddings, Encoder, Kind
from relevance_gen.errors import (
    ContextLengthError,
    OverloadedError,
    TimedOutError,
    TooLargeError,
)
from relevance_gen.quota import Quota
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.services.model_registry import ModelRegistry
from relevance_gen.serve.settings import NamedModel, Settings

_SMOOTHING: Final = 0.1
"""Weight of the newest request in the running mean of the seconds per text."""


LongTexts: TypeAlias = Literal["refuse", "truncate", "mean"]


@frozen
class EmbeddingTask:
    """Texts to encode.

    Attributes:
        texts: any strings.
        kind: "query" or "passage", for models that distinguish them; None adds no prefix to the
            texts.
        path: the name of the client's request field that has the texts, for errors.
        model: the name of the encoder; None for the first.
        long_texts: the treatment of texts that fill the encoder's context: "refuse" raises an
            error, "truncate" encodes their beginning, and "mean" divides them into passages and
            returns the mean of the passages' vectors.
    """

    texts: Sequence[str]
    kind: Kind | None = None
    path: str = "texts"
    model: str | None = None
    long_texts: LongTexts = "refuse"


def load_encoder(settings: Settings, model: NamedModel) -> Encoder:
    """Load an encoder; see `Encoder` for the exceptions."""
    return Encoder(str(model.file), n_threads=settings.n_threads_of(settings.encoder_threads))


class EmbeddingService:
    """Encodes texts for clients and for searches, in the order of arrival. Thread-safe."""

    def __init__(self, registry: ModelRegistry, settings: Settings, metrics: Metrics) -> None:
        self.registry = registry
        self._metrics = metrics
        names = [model.name for model in settings.models["embed"]]
        self._n_waiting = dict.fromkeys(names, 0.0)
        self._text_quotas = {
            name: Quota(settings.encoder_queue, on_change=partial(self._show_waiting, name))
            for name in names
        }
        self._timeout_s = settings.encoder_timeout_s
        self._lock = threading.Lock()
        self._mean_s = 0.0

    async def embed(self, task: EmbeddingTask) -> Embeddings:
        """Return the vectors of texts, and the number of tokens of each that were encoded.

        If the task has a kind, the model's prefix for that kind is added
        to each text. Cancelling this coroutine discards the remaining texts.

        Raises:
            RelevanceGenError: the exceptions of the registry; an `EncoderError` if encoding failed.
            ContextLengthError: a text fills the encoder's context, so that its end may be missing,
                and such texts are refused.
            TooLargeError: more texts than may ever wait.
            OverloadedError: too many texts wait.
            TimedOutError: the texts were not encoded in time.
        """
        name = self.registry.name_of("embed", task.model)
        n_bytes = sum(map(sys.getsizeof, task.texts))
        with self._waiting(task, name):
            try:
                async with asyncio.timeout(self._timeout_s):
                    with self.registry.lease("embed", name, n_bytes=n_bytes) as loading:
                        encoder = await asyncio.wrap_future(loading)
                        if task.long_texts == "mean":
                            return await self._embed_passages(task, encoder, name)
                        with self._encoding(task, encoder) as future:
                            embeddings = await asyncio.wrap_future(future)
            except TimeoutError:
                raise _timed_out(self._timeout_s) from None
        if task.long_texts == "truncate":
            return embeddings
        for index, n_tokens in enumerate(embeddings.n_tokens):
            if n_tokens >= encoder.n_ctx:
                rule = f"must hold fewer than {encoder.n_ctx} tokens for this encoder"
                raise ContextLengthError(rule, f"{task.path}[{index}]", remedy="split it")
        return embeddings

    async def _embed_passages(self, task: EmbeddingTask, encoder: Encoder, name: str) -> Embeddings:
        """Return for each text the mean of the vectors of its passages, weighted by tokens."""

        def split() -> list[list[str]]:
            return [encoder.passages_of(text, kind=task.kind) for text in task.texts]

        passages_of_texts = await asyncio.to_thread(split)
        passages = [passage for passages in passages_of_texts for passage in passages]
        passages_task = attrs.evolve(task, texts=passages)
        with (
            self._waiting(passages_task, name),
            self._encoding(passages_task, encoder) as future,
        ):
            embeddings = await asyncio.wrap_future(future)
        return _mean_of_passages(embeddings, [*map(len, passages_of_texts)])

    def embed_in_thread(
        self, task: EmbeddingTask, encoder: Encoder, timeout_s: float
    ) -> Embeddings:
        """Encode texts with a leased encoder, and wait in this thread; see `embed`.

        Unlike `embed`, this method ignores `task.long_texts`: long texts are truncated.

        Args:
            task: the texts.
            encoder: the encoder, which the caller has leased.
            timeout_s: maximum seconds to wait.

        Raises:
            TooLargeError: more texts than may ever wait.
            OverloadedError: too many texts wait.
            TimedOutError: the texts were not encoded in time.
            EncoderError: encoding failed.
        """
        name = self.registry.name_of("embed", task.model)
        with self._waiting(task, name), self._encoding(task, encoder) as future:
            try:
                return future.result(timeout_s)
            except TimeoutError:
                raise _timed_out(timeout_s) from None

    def _waiting(self, task: EmbeddingTask, name: str) -> AbstractContextManager[None]:
        """Return a context in which the texts of a task count as waiting for their encoder.

        At most as many texts as the setting ``encoder_queue`` wait for one encoder.

        Args:
            task: the texts.
            name: the name of the encoder.

        Raises:
            TooLargeError: the task has more texts than this limit.
            OverloadedError: too many texts wait.
        """
        n_texts = len(task.texts)
        quota = self._text_quotas[name]
        if n_texts > quota.limit:
            raise TooLargeError(f"must have at most {quota.limit} items", task.path, str(n_texts))

        def overloaded() -> OverloadedError:
            retry_after_s = max(1, math.ceil(self._mean_s * quota.held))
            return OverloadedError("too many texts wait to be encoded", retry_after_s=retry_after_s)

        return quota.acquired(n_texts, refusal=overloaded)

    def _show_waiting(self, name: str, n_texts: float) -> None:
        self._n_waiting[name] = n_texts
        self._metrics.put("encoder_texts_waiting", sum(self._n_waiting.values()))

    @contextmanager
    def _encoding(self, task: EmbeddingTask, encoder: Encoder) -> Iterator[Future[Embeddings]]:
        """Submit the texts of a task, and yield the future of their vectors.

        At the end of the context, texts that are not encoded yet are cancelled. If the context
        ended without an exception, the texts, their tokens and the time are added to the metrics.
        """
        started_s = time.perf_counter()
        future = encoder.submit(task.texts, kind=task.kind)
        try:
            yield future
        finally:
            future.cancel()
        n_tokens = future.result().n_tokens
        seconds = time.perf_counter() - started_s
        with self._lock:
            seconds_per_text = seconds / max(n_tokens.size, 1)
            self._mean_s += _SMOOTHING * (seconds_per_text - self._mean_s)
            self._metrics.observe("encoding_seconds", seconds)
            self._metrics.add("encoded_texts_total", n_tokens.size)
            self._metrics.add("encoded_tokens_total", int(n_tokens.sum()))


def _mean_of_passages(passages: Embeddings, counts: Sequence[int]) -> Embeddings:
    """Return the vectors of n texts, and their numbers of tokens, from those of their passages.

    The vector of a text is the sum of the vectors of its passages, weighted by their numbers of
    tokens, and normalized to length 1. The vector of a text with one passage is that of the
    passage, bit for bit. The number of tokens of a text is the sum over its passages.

    Args:
        passages: vectors and numbers of tokens of all passages, text after text.
        counts: number of passages of each text, at least 1, shape (n,).
    """
    if not counts:
        return passages
    first = starts_of(np.array(counts))
    n_tokens = np.add.reduceat(passages.n_tokens, first)
    sums = np.add.reduceat(passages.vectors * passages.n_tokens[:, np.newaxis], first)
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    vectors = (sums / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    for text_ord, count in enumerate(counts):
        if count == 1:  # the same bits as without passages
            vectors[text_ord] = passages.vectors[first[text_ord]]
    return Embeddings(vectors, n_tokens)


def _timed_out(timeout_s: float) -> TimedOutError:
    return TimedOutError(f"the texts were not encoded within {timeout_s:g} seconds")
