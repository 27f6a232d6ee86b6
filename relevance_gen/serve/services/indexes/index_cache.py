"""A cache of the indexes of recent chunks, with a digest of the chunks as key."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from relevance_gen.lru import LruCache, SharedCache
from relevance_gen.serve.metrics import Metrics

Index = TypeVar("Index")
CacheKey: TypeAlias = tuple[str, str]
"""The id of a client's API key, and the digest of chunks."""

_SEEN_BYTES = 3 << 19
"""Memory for the digests of chunks that were sent once: about four thousand."""


def content_key(
    texts: Sequence[str],
    titles: Mapping[int, str],
    client: str,
) -> CacheKey:
    """Return the cache key of chunks: `client`, and a hexadecimal SHA-256 digest of the chunks.

    The client is part of the key because the response time of a shared index would reveal the
    searches of other clients.

    Args:
        texts: the texts of the chunks, in order.
        titles: titles of chunks, by position; not every chunk has a title.
        client: the id of the client's API key.
    """
    joined = "".join(texts).encode("utf-8", "surrogatepass")
    lengths = np.asarray([len(text) for text in texts], dtype=np.int64)
    # The number of texts determines where the lengths end and the texts begin.
    digest = hashlib.sha256(b"%d " % len(texts) + lengths.tobytes() + joined)
    for position, title in titles.items():
        encoded = title.encode("utf-8", "surrogatepass")
        digest.update(b"%d %d " % (position, len(encoded)) + encoded)
    return client, digest.hexdigest()


class IndexCache(Generic[Index]):
    """The most recently used indexes, of at most `limit_bytes` together. Thread-safe.

    Most chunks are searched once, and building an index costs more than one search. Therefore an
    index is built when the same chunks are sent a second time, or when a client requests it. If
    the cache is full, the client with the most bytes loses its least recently used index, so that
    clients cannot evict the indexes of other clients.
    """

    def __init__(
        self,
        limit_bytes: int,
        size_of: Callable[[Index], int],
        metrics: Metrics,
    ) -> None:
        self._indexes = SharedCache(limit_bytes, size_of)
        self._seen = LruCache[bool](_SEEN_BYTES, lambda _: 0)
        self._metrics = metrics
        self._lock = threading.Lock()

    def get(self, key: CacheKey) -> Index | None:
        """Return the index of `key`, or ``None``, and count a hit or a miss."""
        index = self.peek(key)
        outcome = "misses" if index is None else "hits"
        with self._lock:
            self._metrics.add(f"search_index_cache_{outcome}_total")
        return index

    def peek(self, key: CacheKey) -> Index | None:
        """Return the index of `key`, or ``None``."""
        return self._indexes.get(key)

    def was_seen(self, key: CacheKey) -> bool:
        """Return whether `key` is among the most recent keys of earlier calls, and store it.

        The stored keys take at most `_SEEN_BYTES`; older keys are discarded.
        """
        with self._lock:
            was_seen = key in self._seen
            self._seen.put(key, True)
            return was_seen

    def put(self, key: CacheKey, index: Index) -> None:
        """Store `index` with its current size, if it fits; evict other indexes to free memory."""
        with self._lock:
            self._indexes.put(key, index)
            self._metrics.put("search_index_cache_bytes", self._indexes.nbytes)
