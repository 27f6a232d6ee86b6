"""Vectors of texts: the server's encoder, loaded behind the start, with bounded work."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Final, Protocol

from attrs import frozen

from relevance_gen.embedding.encoder import Encoder, Kind
from relevance_gen.embedding.jobs import Embeddings
from relevance_gen.errors import EncoderError, OverloadedError, TimedOutError, TooLargeError
from relevance_gen.machine import usable_cores
from relevance_gen.quota import Quota
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.settings import Settings
from relevance_gen.serve.work.loading import load_in_thread

_SMOOTHING: Final = 0.1
"""Weight of the newest texts in the running mean of the seconds that one takes."""


@frozen
class EmbeddingTask:
    """Texts to encode.

    Attributes:
        texts: any strings.
        kind: what they are, where the model tells questions from passages.
        path: what the client calls them.
    """

    texts: Sequence[str]
    kind: Kind | None = None
    path: str = "texts"


class ServedEncoder(Protocol):
    """What the server needs of `relevance_gen.embedding.encoder.Encoder`."""

    @property
    def fingerprint(self) -> str:
        """A hash of all that a passage's vector depends on."""

    def submit(self, texts: Sequence[str], *, kind: Kind | None = None) -> Future[Embeddings]:
        """Return a future of the vectors; cancelling it drops the texts that are left."""

    def close(self) -> None:
        """Give up what waits."""


def load_encoder(settings: Settings) -> ServedEncoder | None:
    """Load the encoder that `settings` name, if they name one.

    Raises:
        ModelLoadError: it cannot be loaded.
    """
    if settings.encoder is None:
        return None
    n_threads = settings.encoder_threads or max(1, usable_cores() // settings.workers)
    return Encoder(settings.encoder, n_threads=n_threads)


class EmbeddingService:
    """Encodes texts for clients and for searches, each in its turn. Safe to use from several threads.

    Args:
        settings: how many texts may wait, and how long.
        metrics: counts texts and tokens, and shows whether there is an encoder.

    Attributes:
        is_loading: whether an encoder is wanted and not there yet.
        encoder: the encoder; None while there is none.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._metrics = metrics
        self._texts = Quota(settings.encoder_queue, watch=partial(metrics.put, "encoder_texts_waiting"))
        self._timeout_s = settings.encoder_timeout_s
        self.encoder: ServedEncoder | None = None
        self._lock = threading.Lock()
        self._mean_s = 0.0
        self.is_loading = False

    def start_loading(self, load: Callable[[], ServedEncoder | None]) -> None:
        """Load the encoder in a thread; until that is done there is none, and none if it fails."""
        self.is_loading = True

        def adopt(encoder: ServedEncoder | None) -> None:
            self.encoder, self.is_loading = encoder, False
            self._metrics.put("encoders", int(encoder is not None))

        load_in_thread(load, adopt, "the encoder")

    async def close(self) -> None:
        """Give up what still runs."""
        if self.encoder is not None:
            await asyncio.to_thread(self.encoder.close)

    async def embed(self, task: EmbeddingTask) -> Embeddings:
        """Return the vectors of texts, and how many tokens of each were read. Cancelling this drops what is left.

        Of a long text the beginning counts; where the task tells a kind, the model's prefix of that kind goes in front.

        Raises:
            EncoderError: the server has no encoder, or none yet, or it failed.
            TooLargeError: more texts than may ever wait.
            OverloadedError: too many texts wait already.
            TimedOutError: it was not done in time.
        """
        with self._encoding(task) as future:
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await asyncio.wrap_future(future)
            except TimeoutError:
                raise _timed_out(self._timeout_s) from None

    def embed_now(self, task: EmbeddingTask, timeout_s: float) -> Embeddings:
        """Do the same and wait in this thread, for so long."""
        with self._encoding(task) as future:
            try:
                return future.result(timeout_s)
            except TimeoutError:
                raise _timed_out(timeout_s) from None

    @contextmanager
    def _encoding(self, task: EmbeddingTask) -> Iterator[Future[Embeddings]]:
        """Submit texts; at the end drop what is not done, and count what was."""
        n_texts = len(task.texts)
        encoder = self.encoder
        if encoder is None:
            raise EncoderError("the encoder is still being loaded" if self.is_loading else "this server has no encoder")
        if n_texts > self._texts.whole:
            raise TooLargeError(f"must have at most {self._texts.whole} items", task.path, str(n_texts))
        started_s = time.perf_counter()
        if not self._texts.take(n_texts):
            expected_s = math.ceil(self._mean_s * self._texts.held)
            raise OverloadedError("too many texts wait to be encoded", retry_after_s=max(1, expected_s))
        try:
            future = encoder.submit(task.texts, kind=task.kind)
            try:
                yield future
            finally:
                future.cancel()
            self._count(future.result(), time.perf_counter() - started_s)
        finally:
            self._texts.give_back(n_texts)

    def _count(self, encoded: Embeddings, seconds: float) -> None:
        n_texts, n_tokens = encoded.n_tokens.size, int(encoded.n_tokens.sum())
        with self._lock:
            self._mean_s += _SMOOTHING * (seconds / max(n_texts, 1) - self._mean_s)
            self._metrics.observe("encoding_seconds", seconds)
            self._metrics.add("encoded_texts_total", n_texts)
            self._metrics.add("encoded_tokens_total", n_tokens)


def _timed_out(timeout_s: float) -> TimedOutError:
    return TimedOutError(f"the texts were not encoded within {timeout_s:g} seconds")
