"""What searches have of the server's encoder: a bounded part of each, and vectors of kept chunks in the background.

A search may have so many passages encoded, and wait so long for it; only half of the threads that search may wait at
once. What goes beyond is answered by words alone, and says so. Vectors of chunks that came twice are made by one
thread, a few hundred passages at a time, beside whatever else the encoder does.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Literal, TypeAlias, TypeVar

from relevance_gen import errors
from relevance_gen.embedding.encoder import Encoder
from relevance_gen.embedding.jobs import Vectors
from relevance_gen.quota import Quota
from relevance_gen.request_scope import cancel_scope, raise_if_cancelled
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.services.embedding import EmbeddingService, EmbeddingTask
from relevance_gen.serve.services.model_registry import ModelRegistry
from relevance_gen.serve.settings import Settings

Reason: TypeAlias = Literal["loading", "unavailable", "busy", "too-much"]
"""Why a search went by words alone: the encoder is being loaded, could not be or has failed, has too much to do, or
the chunks have too many passages."""

Found = TypeVar("Found")

_MOST_COUNTED: Final = 8192
"""Characters whose tokens may be counted for each passage that may be encoded: to cut one, some five times its own."""
_MAX_PENDING: Final = 16
"""Indexes that may wait for vectors."""
_log = logging.getLogger(__name__)


class SkippedError(errors.RelevanceGenError):
    """Give up the encoder's part in a search."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


BUSY: Final = partial(SkippedError, "busy")


class _SearchEncoder:
    """The encoder as one search has it.

    Raises:
        SkippedError: from both methods: this search must do without.
    """

    def __init__(self, embedder: EmbeddingService, encoder: Encoder, settings: Settings) -> None:
        self._embedder = embedder
        self._encoder = encoder
        self._n_left = settings.encoder_search_passages
        self._n_chars_left = self._n_left * _MOST_COUNTED
        self._timeout_s = settings.encoder_search_timeout_s
        self.fingerprint, self.passage_tokens = encoder.fingerprint, encoder.passage_tokens

    def count_tokens(self, text: str) -> int:
        """Return how many tokens a text is."""
        self._n_chars_left -= len(text)
        if self._n_chars_left < 0:
            raise SkippedError("too-much")
        return self._encoder.count_tokens(text)

    def encode(self, texts: Sequence[str], *, kind: Literal["query", "passage"]) -> Vectors:
        """Return the vectors of texts, shape (n, d)."""
        if kind == "passage":
            self._n_left -= len(texts)
            if self._n_left < 0:
                raise SkippedError("too-much")
        try:
            return self._embedder.embed_now(
                EmbeddingTask(texts, kind), self._encoder, self._timeout_s
            ).vectors
        except (errors.OverloadedError, errors.TimedOutError, errors.TooLargeError):
            raise BUSY() from None
        except errors.EncoderError:
            raise SkippedError("unavailable") from None


class _BackgroundEncoder:
    """The encoder as the background has it: it waits its turn as long as it takes, while it is wanted.

    It is lent for one call at a time, so that in between it can make room for other models.
    """

    def __init__(self, registry: ModelRegistry) -> None:
        self._registry = registry
        with registry.lent("embed", None) as encoder:
            self._encoder: Encoder = encoder.result()
        self.fingerprint, self.passage_tokens = (
            self._encoder.fingerprint,
            self._encoder.passage_tokens,
        )

    def count_tokens(self, text: str) -> int:
        """Return how many tokens a text is."""
        raise_if_cancelled()
        if self._encoder.closed:  # it has made room for another since
            with self._registry.lent("embed", None) as encoder:
                self._encoder = encoder.result()
        return self._encoder.count_tokens(text)

    def encode(self, texts: Sequence[str], *, kind: Literal["query", "passage"]) -> Vectors:
        """Return the vectors of texts, shape (n, d)."""
        raise_if_cancelled()
        with self._registry.lent("embed", None) as encoder:
            return encoder.result().submit(texts, kind=kind).result().vectors  # type: ignore[no-any-return]


IsWanted: TypeAlias = Callable[[], bool]
Make: TypeAlias = Callable[[_BackgroundEncoder], None]


class SearchEncoderService:
    """The encoder's part in searches. Safe to use from several threads."""

    def __init__(self, settings: Settings, embedder: EmbeddingService, metrics: Metrics) -> None:
        self._settings = settings
        self._embedder = embedder
        self._metrics = metrics
        self._lock = threading.Lock()
        self._places = Quota(max(1, settings.n_search_threads // 2))
        self._pending: queue.Queue[tuple[Make, IsWanted]] = queue.Queue(_MAX_PENDING)
        self._thread: threading.Thread | None = None

    def lift(self, search: Callable[[_SearchEncoder], Found]) -> Found:
        """Return what `search` finds with the encoder; where it must be done without, raise a `SkippedError`."""
        try:
            with self._embedder.registry.lent("embed", None, makes_room=False) as loading:
                if not loading.done():
                    raise SkippedError("loading")
                with self._places.acquired(refusal=BUSY):
                    return search(_SearchEncoder(self._embedder, loading.result(), self._settings))
        except (errors.ModelLoadError, SkippedError) as error:
            with self._lock:
                self._metrics.add("searches_without_encoder_total")
            raise (
                error if isinstance(error, SkippedError) else SkippedError("unavailable")
            ) from None

    def encode_later(self, n_passages: int, make: Make, is_wanted: IsWanted) -> bool:
        """Have `make` called with an encoder in the background, while it `is_wanted`; tell whether it will be.

        It is not where it would encode more passages than the settings allow. It may wait for long, and shall hold no
        texts until it is called.
        """
        if n_passages > self._settings.encoder_index_passages:
            return False
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._encode_pending, name="encode indexes", daemon=True
                )
                self._thread.start()
            try:
                self._pending.put_nowait((make, is_wanted))
            except queue.Full:
                return False
        return True

    def _encode_pending(self) -> None:
        while True:
            make, is_wanted = self._pending.get()
            if is_wanted():
                try:
                    with cancel_scope(is_wanted):
                        make(_BackgroundEncoder(self._embedder.registry))
                except errors.RelevanceGenError as error:
                    _log.info("chunks are kept without vectors: %s", error)
                except Exception:
                    _log.exception("chunks are kept without vectors")
