"""Indexes of chunks that came before, found again by what the chunks say."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Generic, TypeVar

import numpy as np

from relevance_gen.serve.metrics import Metrics

Index = TypeVar("Index")

_MAX_SEEN = 4096
"""Digests remembered of chunks that came once: so many are some hundred kilobytes."""


def content_key(texts: Sequence[str], titles: Mapping[int, str], scope: str) -> bytes:
    """Return a digest of `texts`, in order, and of their titles, by number, that differs for every `scope`.

    The scope is the API key's id: were indexes shared between keys, the time of an answer would tell one client what
    another has searched.
    """
    joined = "".join(texts).encode("utf-8", "surrogatepass")
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    # The number of texts fixes where the lengths end and the texts begin.
    digest = hashlib.sha256(b"%b %d " % (scope.encode(), len(texts)) + lengths.tobytes() + joined)
    for number, title in titles.items():
        encoded = title.encode("utf-8", "surrogatepass")
        digest.update(b"%d %d " % (number, len(encoded)) + encoded)
    return digest.digest()


class IndexCache(Generic[Index]):
    """The most recently used indexes, together at most `limit_bytes`. Safe to use from several threads.

    Most chunks are searched once, and building an index costs more than one search. So an index is built when the same
    chunks come a second time.
    """

    def __init__(self, limit_bytes: int, metrics: Metrics) -> None:
        self._limit_bytes = limit_bytes
        self._metrics = metrics
        self._kept: OrderedDict[bytes, tuple[Index, int]] = OrderedDict()
        self._seen: OrderedDict[bytes, None] = OrderedDict()
        self._lock = threading.Lock()
        self.size_bytes = 0

    def get(self, key: bytes) -> Index | None:
        """Return the index kept under `key`, or ``None``."""
        with self._lock:
            if key not in self._kept:
                self._metrics.add("search_index_cache_misses_total")
                return None
            self._metrics.add("search_index_cache_hits_total")
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def peek(self, key: bytes) -> Index | None:
        """Return the index kept under `key`, or ``None``, and count this as no use."""
        with self._lock:
            return self._kept[key][0] if key in self._kept else None

    def has_come_before(self, key: bytes) -> bool:
        """Tell whether this was asked about `key` before, and remember that it is asked now."""
        with self._lock:
            if key in self._seen:
                self._seen.move_to_end(key)
                return True
            self._seen[key] = None
            if len(self._seen) > _MAX_SEEN:
                self._seen.popitem(last=False)
            return False

    def put(self, key: bytes, index: Index, n_bytes: int) -> None:
        """Keep `index`, which has `n_bytes` now, if it fits at all; drop those used longest ago to make room."""
        with self._lock:
            _, n_bytes_before = self._kept.pop(key, (None, 0))
            self.size_bytes -= n_bytes_before
            if n_bytes <= self._limit_bytes:
                self._kept[key] = (index, n_bytes)
                self.size_bytes += n_bytes
            while self.size_bytes > self._limit_bytes:
                _, (_, freed_bytes) = self._kept.popitem(last=False)
                self.size_bytes -= freed_bytes
            self._metrics.put("search_index_cache_bytes", self.size_bytes)
