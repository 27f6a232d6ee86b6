"""Arrays that grow at their end without being copied or held twice."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Number = TypeVar("Number", bound=np.number)


class GrowingArray(Generic[Number]):
    """Collects arrays into one.

    Large blocks of memory grow in place, as the operating system moves pages and not bytes; a list of arrays and
    `numpy.concatenate` would need the room twice.

    Args:
        dtype: the type of the elements.
    """

    def __init__(self, dtype: type[Number]) -> None:
        self._array: npt.NDArray[Number] = np.empty(0, dtype)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def extend(self, more: npt.NDArray[Number]) -> None:
        """Add elements at the end."""
        size = self._size + more.size
        if size > self._array.size:
            self._array.resize(size + size // 8, refcheck=False)
        self._array[self._size : size] = more
        self._size = size

    def finish(self) -> npt.NDArray[Number]:
        """Return the one array and forget it."""
        array, self._array = self._array, np.empty(0, self._array.dtype)
        array.resize(self._size, refcheck=False)
        self._size = 0
        return array
