"""Indexes of chunks already seen, found again by what the chunks say."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

from relevance_gen.serve.metrics import Metrics

Index = TypeVar("Index")


def content_key(texts: Sequence[str], scope: str) -> bytes:
    """Return a digest of `texts`, in order, apart from the digests of any other `scope`.

    Digests are kept apart by API key, so that the time an answer takes tells nobody what another key has searched.
    """
    joined = "".join(texts).encode("utf-8", "surrogatepass")
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    # The number of texts says where the lengths end, so that no text can pass for another's length.
    return hashlib.sha256(b"%b %d " % (scope.encode(), len(texts)) + lengths.tobytes() + joined).digest()


class IndexCache(Generic[Index]):
    """The most recently used indexes, `limit_bytes` of them in all. Safe to use from several threads.

    Most texts are searched once, and an index costs more than a search without one. So chunks are worth an index when
    they come a second time.
    """

    def __init__(self, limit_bytes: int, metrics: Metrics) -> None:
        self._limit_bytes = limit_bytes
        self._metrics = metrics
        self._kept: OrderedDict[bytes, tuple[Index, int]] = OrderedDict()
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()
        self.size_bytes = 0

    def get(self, key: bytes) -> Index | None:
        """Return the index kept under `key`, if it still is."""
        with self._lock:
            if key not in self._kept:
                self._metrics.add("search_index_cache_misses_total")
                return None
            self._metrics.add("search_index_cache_hits_total")
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def is_worth_it(self, key: bytes) -> bool:
        """Tell whether `key` was asked about before; remember that it was now."""
        with self._lock:
            if key in self._seen:
                self._seen.move_to_end(key)
                return True
            self._seen[key] = None
            if len(self._seen) > _MAX_SEEN:
                self._seen.popitem(last=False)
            return False

    def put(self, key: bytes, index: Index, n_bytes: int) -> None:
        """Keep `index` of `n_bytes` if it fits; push out what was not used for longest."""
        with self._lock:
            if n_bytes > self._limit_bytes or key in self._kept:
                return
            self._kept[key] = (index, n_bytes)
            self.size_bytes += n_bytes
            while self.size_bytes > self._limit_bytes:
                _, (_, freed_bytes) = self._kept.popitem(last=False)
                self.size_bytes -= freed_bytes
            self._metrics.put("search_index_cache_bytes", self.size_bytes)


_MAX_SEEN = 4096
"""Digests remembered of chunks that came: 4,096 of them are some hundred kilobytes."""
