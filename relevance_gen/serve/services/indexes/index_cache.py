"""Indexes of chunks that came before, found again by what the chunks say."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from relevance_gen.lru import LruCache, SharedCache
from relevance_gen.serve.metrics import Metrics

Index = TypeVar("Index")
Key: TypeAlias = tuple[str, str]

_SEEN_BYTES = 3 << 19
"""For the digests of chunks that came once: some four thousand."""


def content_key(texts: Sequence[str], titles: Mapping[int, str], scope: str) -> Key:
    """Return `scope`, and a digest of `texts`, in order, and of their titles, by number, in hexadecimal digits.

    The scope is the API key's id: were indexes shared between keys, the time of an answer would tell one client what
    another has searched.
    """
    joined = "".join(texts).encode("utf-8", "surrogatepass")
    lengths = np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
    # The number of texts fixes where the lengths end and the texts begin.
    digest = hashlib.sha256(b"%d " % len(texts) + lengths.tobytes() + joined)
    for number, title in titles.items():
        encoded = title.encode("utf-8", "surrogatepass")
        digest.update(b"%d %d " % (number, len(encoded)) + encoded)
    return scope, digest.hexdigest()


class IndexCache(Generic[Index]):
    """The most recently used indexes, together at most `limit_bytes`. Safe to use from several threads.

    Most chunks are searched once, and building an index costs more than one search. So an index is built when the same
    chunks come a second time, or when a client asks for that. A key is a scope and a `content_key`; of the scopes, none
    of which can push the others' indexes out, the one that has most forgets first.
    """

    def __init__(self, limit_bytes: int, size_of: Callable[[Index], int], metrics: Metrics) -> None:
        self._kept = SharedCache(limit_bytes, size_of)
        self._seen = LruCache[bool](_SEEN_BYTES, lambda _: 0)
        self._metrics = metrics
        self._lock = threading.Lock()

    def get(self, key: Key) -> Index | None:
        """Return the index kept under `key`, or ``None``, and count which of the two."""
        index = self.peek(key)
        with self._lock:
            self._metrics.add(
                "search_index_cache_misses_total"
                if index is None
                else "search_index_cache_hits_total"
            )
        return index

    def peek(self, key: Key) -> Index | None:
        """Return the index kept under `key`, or ``None``."""
        return self._kept.get(key)

    def has_come_before(self, key: Key) -> bool:
        """Tell whether this was asked about `key` before, and remember that it is asked now."""
        with self._lock:
            has_come = key in self._seen
            self._seen.put(key, True)
            return has_come

    def put(self, key: Key, index: Index) -> None:
        """Keep `index` by the size that it has now, if it fits at all; drop those used longest ago to make room."""
        with self._lock:
            self._kept.put(key, index)
            self._metrics.put("search_index_cache_bytes", self._kept.nbytes)
