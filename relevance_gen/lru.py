"""Caches that hold a bounded number of bytes, and evict the least recently used values."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Final, Generic, TypeVar, cast

from relevance_gen import forks

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_ENTRY_BYTES: Final = 400
"""Approximate bytes that Python takes for a key, the object of its value and the dictionary
entry."""


class LruCache(Generic[Value]):
    """A cache of the most recently used values. Thread-safe.

    Unlike `functools.lru_cache` over a method, it limits bytes instead of entries, and is not part
    of a reference cycle, so it is freed with its owner.

    Args:
        limit_bytes: maximum bytes of all entries together.
        size_of: returns the bytes of a value; 400 bytes are added for each entry.

    Attributes:
        nbytes: bytes of all entries now.
    """

    def __init__(
        self,
        limit_bytes: int,
        size_of: Callable[[Value], int],
    ) -> None:
        self._limit_bytes = limit_bytes
        self._size_of = size_of
        self._entries: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.nbytes = 0
        forks.register(self)

    def renew_after_fork(self) -> None:
        """Replace the lock in a forked process, and compute `nbytes` again from the entries.

        A thread of the parent process may have held the lock while it changed the entries, and may
        not have changed `nbytes` yet.
        """
        self._lock = threading.Lock()
        self.nbytes = sum(n_bytes for _, n_bytes in self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Hashable) -> bool:
        """Return whether there is a value for `key`, without marking it as used."""
        return key in self._entries

    def items(self) -> list[tuple[Hashable, Value]]:
        """Return all keys and values, least recently used first, without marking their use."""
        with self._lock:
            return [(key, value) for key, (value, _) in self._entries.items()]

    def get(self, key: Hashable) -> Value | None:
        """Return the value for `key` and mark it as used; None if there is no value."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def get_all(self, keys: Sequence[Key]) -> dict[Key, Value]:
        """Return the values by key, and mark them as used; keys without a value are left out."""
        entries = self._entries
        hits = {}
        with self._lock:
            for key in keys:
                if key in entries:
                    hits[key] = entries[key][0]
                    entries.move_to_end(key)
        return hits

    def put(self, key: Hashable, value: Value) -> None:
        """Store a value in place of the value for `key`, if any, and evict others if necessary.

        A value larger than the limit is not stored, but the old value for `key` is removed.
        """
        n_bytes = self._size_of(value) + _ENTRY_BYTES
        with self._lock:
            if key in self._entries:
                self._drop(key)
            if n_bytes > self._limit_bytes:
                return
            self._entries[key] = value, n_bytes
            self.nbytes += n_bytes
            while self.nbytes > self._limit_bytes:
                self._drop(self._eviction_candidate())

    def drop(self, key: Hashable) -> None:
        """Remove the value for `key`; do nothing if there is none."""
        with self._lock:
            self._drop(key)

    def clear(self) -> None:
        """Remove all values."""
        with self._lock:
            self._entries.clear()
            self.nbytes = 0

    def _eviction_candidate(self) -> Hashable:
        return next(iter(self._entries))

    def _drop(self, key: Hashable) -> None:
        _, n_freed_bytes = self._entries.pop(key, (None, 0))
        self.nbytes -= n_freed_bytes


class SharedCache(LruCache[Value]):
    """A cache that clients share fairly. Thread-safe.

    When space is needed, the client with the most bytes loses its least recently used value.
    Every key must be a pair of the client and another value.

    Args:
        limit_bytes: maximum bytes of all entries together.
        size_of: returns the bytes of a value; 400 bytes are added for each entry.
        evict_first: returns whether the values of a client are evicted before the values of other
            clients, regardless of their bytes.
    """

    def __init__(
        self,
        limit_bytes: int,
        size_of: Callable[[Value], int],
        evict_first: Callable[[Hashable], bool] = lambda _: False,
    ) -> None:
        super().__init__(limit_bytes, size_of)
        self._evict_first = evict_first

    def _eviction_candidate(self) -> Hashable:
        n_bytes_of: Counter[Hashable] = Counter()
        for key, (_, n_bytes) in self._entries.items():
            n_bytes_of[_client_of(key)] += n_bytes
        largest = max(
            n_bytes_of, key=lambda client: (self._evict_first(client), n_bytes_of[client])
        )
        return next(key for key in self._entries if _client_of(key) == largest)


def _client_of(key: Hashable) -> Hashable:
    return cast("tuple[Hashable, Hashable]", key)[0]
