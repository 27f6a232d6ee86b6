"""Remember what was computed last, in a bounded number of bytes."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar, cast

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_ENTRY_BYTES = 400
"""About what Python itself takes for one key, its value's object and the place in the dictionary."""


class LruCache(Generic[Value]):
    """The values used last, as many as `limit_bytes` hold, as `size_of` counts; safe to share between threads.

    Unlike `functools.lru_cache` over a method, it counts its bytes and is part of no reference cycle: what is
    remembered goes with its owner.
    """

    def __init__(self, limit_bytes: int, size_of: Callable[[Value], int]) -> None:
        self._limit_bytes = limit_bytes
        self._size_of = size_of
        self._values: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, key: Hashable) -> bool:
        """Whether there is a value under `key`; looking uses none."""
        return key in self._values

    def items(self) -> list[tuple[Hashable, Value]]:
        """Return all keys and values, those that were not used for longest first; looking uses none."""
        with self._lock:
            return [(key, value) for key, (value, _) in self._values.items()]

    def get(self, key: Hashable) -> Value | None:
        """Return the value under `key`, or None."""
        return self.get_all((key,)).get(key)

    def get_all(self, keys: Sequence[Key]) -> dict[Key, Value]:
        """Return the values under those of some keys that have one."""
        values, found = self._values, {}
        with self._lock:
            for key in keys:
                if key in values:
                    found[key] = values[key][0]
                    values.move_to_end(key)
        return found

    def put(self, key: Hashable, value: Value) -> None:
        """Remember a value, if it fits at all, and forget those that were not used for longest."""
        n_bytes = self._size_of(value) + _ENTRY_BYTES
        with self._lock:
            self._drop(key)
            if n_bytes > self._limit_bytes:
                return
            self._values[key] = value, n_bytes
            self.nbytes += n_bytes
            while self.nbytes > self._limit_bytes:
                self._drop(self._next_to_go())

    def drop(self, key: Hashable) -> None:
        """Forget the value under `key`, if there is one."""
        with self._lock:
            self._drop(key)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()
            self.nbytes = 0

    def _next_to_go(self) -> Hashable:
        return next(iter(self._values))

    def _drop(self, key: Hashable) -> None:
        _, freed_bytes = self._values.pop(key, (None, 0))
        self.nbytes -= freed_bytes


class SharedCache(LruCache[Value]):
    """The same for clients, none of whom can push the others out: who has most bytes forgets first.

    Every key is a pair, of which the first is whose it is. Whoever `evict_first` forgets before all others, however
    little it has.
    """

    def __init__(
        self,
        limit_bytes: int,
        size_of: Callable[[Value], int],
        evict_first: Callable[[Hashable], bool] = lambda _: False,
    ) -> None:
        super().__init__(limit_bytes, size_of)
        self._gives_way = evict_first

    def _next_to_go(self) -> Hashable:
        clients = {key: cast("tuple[Hashable, Hashable]", key)[0] for key in self._values}
        n_bytes: Counter[Hashable] = Counter()
        for key, (_, size) in self._values.items():
            n_bytes[clients[key]] += size
        most = max(n_bytes, key=lambda client: (self._gives_way(client), n_bytes[client]))
        return next(key for key in self._values if clients[key] == most)
