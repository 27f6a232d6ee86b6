"""The encoder in searches: bounded work in each search, and background work for cached chunks.

A search may have a limited number of passages encoded, and wait for that for a limited time; at
most half of the search threads may wait at once. Beyond these limits, a search uses lexical scores
only and reports why. The vectors of cached chunks are computed by one background thread, a few
hundred passages at a time, in turn with all other work of the encoder. Chunks are cached if they
were sent twice, or if the client requests an index of them.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal, TypeAlias, TypeVar

from attrs import frozen

from relevance_gen import errors
from relevance_gen.embedding.encoder import Encoder, Kind, Vectors
from relevance_gen.quota import Quota
from relevance_gen.request_scope import cancel_scope, raise_if_cancelled
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.services.embedding import EmbeddingService, EmbeddingTask
from relevance_gen.serve.services.model_registry import ModelRegistry
from relevance_gen.serve.settings import Settings

Reason: TypeAlias = Literal["loading", "unavailable", "busy", "too-much"]
"""Why a model was not used in a search.

It is being loaded; it could not be loaded or has failed; it has too much work; or the chunks have
too many passages.
"""

Result = TypeVar("Result")

_MAX_COUNTED_CHARS: Final = 8192
"""Characters that may be tokenized for each passage that may be encoded: about five times its
length."""
_MAX_PENDING: Final = 16
"""Indexes that may wait for vectors."""
_log = logging.getLogger(__name__)


class SkippedError(errors.RelevanceGenError):
    """A search must continue without a model."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


BUSY: Final = partial(SkippedError, "busy")


class _SearchEncoder:
    """The encoder for one search, with limits for the whole search.

    `encode` accepts at most `encoder_search_passages` passages, and `count_tokens` a number of
    characters in proportion.

    Raises:
        SkippedError: from `count_tokens` and `encode`: a limit was exceeded, or the encoder failed
            or was too slow; the search must continue without the encoder.
    """

    def __init__(self, service: EmbeddingService, encoder: Encoder, settings: Settings) -> None:
        self._service = service
        self._encoder = encoder
        self._n_passages_left = settings.encoder_search_passages
        self._n_chars_left = self._n_passages_left * _MAX_COUNTED_CHARS
        self._timeout_s = settings.encoder_search_timeout_s
        self.fingerprint = encoder.fingerprint
        self.passage_tokens = encoder.passage_tokens

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text."""
        self._n_chars_left -= len(text)
        if self._n_chars_left < 0:
            raise SkippedError("too-much")
        return self._encoder.count_tokens(text)

    def encode(self, texts: Sequence[str], *, kind: Kind) -> Vectors:
        """Return the vectors of texts, shape (n, d)."""
        if kind == "passage":
            self._n_passages_left -= len(texts)
            if self._n_passages_left < 0:
                raise SkippedError("too-much")
        task = EmbeddingTask(texts, kind)
        try:
            return self._service.embed_in_thread(task, self._encoder, self._timeout_s).vectors
        except (errors.OverloadedError, errors.TimedOutError, errors.TooLargeError):
            raise BUSY() from None
        except errors.EncoderError:
            raise SkippedError("unavailable") from None


class _BackgroundEncoder:
    """The encoder for background work, which waits in the queue without a time limit.

    It is leased separately for each call of `encode`, so that between two calls it can be unloaded
    for other models.

    Raises:
        RequestCancelledError: from `count_tokens` and `encode`: the result is no longer required.
    """

    def __init__(self, registry: ModelRegistry) -> None:
        self._registry = registry
        self._encoder = self._load()
        self.fingerprint = self._encoder.fingerprint
        self.passage_tokens = self._encoder.passage_tokens

    def _load(self) -> Encoder:
        with self._registry.lease("embed", None) as loading:
            encoder: Encoder = loading.result()
            return encoder

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text."""
        raise_if_cancelled()
        if self._encoder.closed:  # it was unloaded for another model
            self._encoder = self._load()
        return self._encoder.count_tokens(text)

    def encode(self, texts: Sequence[str], *, kind: Kind) -> Vectors:
        """Return the vectors of texts, shape (n, d)."""
        raise_if_cancelled()
        with self._registry.lease("embed", None) as loading:
            encoder: Encoder = loading.result()
            return encoder.submit(texts, kind=kind).result().vectors


@frozen
class _BackgroundJob:
    """Work with the encoder, and whether its result is still required."""

    work: Callable[[_BackgroundEncoder], None]
    is_required: Callable[[], bool]


class SearchEncoderService:
    """Runs searches, and background jobs, that need vectors of texts from an encoder. Thread-safe.

    `run` executes a search with the encoder, within limits of passages and time. `run_later` queues
    a job that encodes the passages of a cached index.
    """

    def __init__(self, settings: Settings, embedder: EmbeddingService, metrics: Metrics) -> None:
        self._settings = settings
        self._embedder = embedder
        self._metrics = metrics
        self._lock = threading.Lock()
        self._search_quota = Quota(max(1, settings.n_search_threads // 2))
        self._pending: queue.Queue[_BackgroundJob] = queue.Queue(_MAX_PENDING)
        self._thread: threading.Thread | None = None

    def run(self, search: Callable[[_SearchEncoder], Result]) -> Result:
        """Return the result of `search`, which is called with the encoder if it is loaded.

        Raises:
            SkippedError: the encoder is not available, or exceeded a limit in `search`: the search
                must be repeated without it.
        """
        try:
            with self._embedder.registry.lease("embed", None, may_evict=False) as loading:
                if not loading.done():
                    raise SkippedError("loading")
                with self._search_quota.acquired(refusal=BUSY):
                    return search(_SearchEncoder(self._embedder, loading.result(), self._settings))
        except (errors.ModelLoadError, SkippedError) as error:
            with self._lock:
                self._metrics.add("searches_without_encoder_total")
            if isinstance(error, SkippedError):
                raise error from None
            raise SkippedError("unavailable") from None

    def run_later(
        self,
        n_passages: int,
        work: Callable[[_BackgroundEncoder], None],
        is_required: Callable[[], bool],
    ) -> bool:
        """Queue `work` for the background thread; return whether it was accepted.

        It is not accepted if it has too many passages, or the queue is full.

        Args:
            n_passages: the number of passages that the work encodes.
            work: called with the encoder. Because it can be queued for long, it must not hold texts
                until it is called.
            is_required: returns whether the result is still required.
        """
        if n_passages > self._settings.encoder_index_passages:
            return False
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run_pending, name="encode indexes", daemon=True
                )
                self._thread.start()
            try:
                self._pending.put_nowait(_BackgroundJob(work, is_required))
            except queue.Full:
                return False
        return True

    def _run_pending(self) -> None:
        while True:
            job = self._pending.get()
            if not job.is_required():
                continue
            try:
                with cancel_scope(job.is_required):
                    job.work(_BackgroundEncoder(self._embedder.registry))
            except errors.RelevanceGenError as error:
                _log.info("chunks are kept without vectors: %s", error)
            except Exception:
                _log.exception("chunks are kept without vectors")
