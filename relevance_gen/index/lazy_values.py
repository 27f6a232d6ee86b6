"""Sequences and mappings whose values are computed when they are read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, overload

import numpy as np

from relevance_gen.arrays import Flags

T = TypeVar("T")

_MAX_CACHED_VALUES: Final = 1 << 17
"""Maximum number of values that a mapping caches: filters stay fast and memory stays bounded."""


class LazyTexts(Sequence[str]):
    """A sequence of texts that are computed when they are read; pickled as a list.

    Args:
        size: number of texts.
        make: returns the text at an index in [0, size).
    """

    def __init__(
        self,
        size: int,
        make: Callable[[int], str],
    ) -> None:
        self._size = size
        self._make = make

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._make(chunk_ord) for chunk_ord in range(self._size)[index]]
        return self._make(index)

    def __iter__(self) -> Iterator[str]:
        return map(self._make, range(self._size))

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ([*self],)


class LazyValues(Mapping[int, T]):
    """A mapping from chunk ordinals to values that are computed when they are read.

    The first `_MAX_CACHED_VALUES` values that are read are cached.

    Args:
        present: whether each chunk has a value, shape (N,).
        make: returns the value of a chunk for which `present` is True.
    """

    def __init__(
        self,
        present: Flags,
        make: Callable[[int], T],
    ) -> None:
        self._present = present
        self._size = int(np.count_nonzero(present))
        self._make = make
        self._cache: dict[int, T] = {}

    def __contains__(self, chunk_ord: object) -> bool:
        if not isinstance(chunk_ord, int) or not 0 <= chunk_ord < self._present.size:
            return False
        return bool(self._present[chunk_ord])

    def __getitem__(self, chunk_ord: int) -> T:
        if chunk_ord in self._cache:
            return self._cache[chunk_ord]
        if chunk_ord not in self:
            raise KeyError(chunk_ord)
        value = self._make(chunk_ord)
        if len(self._cache) < _MAX_CACHED_VALUES:
            self._cache[chunk_ord] = value
        return value

    def __iter__(self) -> Iterator[int]:
        return iter(self._present.nonzero()[0].tolist())

    def __len__(self) -> int:
        return self._size
