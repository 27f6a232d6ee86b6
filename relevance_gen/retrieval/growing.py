"""Arrays that grow at their end without being held twice."""

from __future__ import annotations

from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

Number = TypeVar("Number", bound=np.number)


class GrowingArray(Generic[Number]):
    """Collects arrays into one.

    Room that is asked for and not yet written to takes no memory: the operating system gives pages on first use. A
    list of arrays and `numpy.concatenate` would take the memory twice.

    Args:
        dtype: the type of the elements.
        room: number of elements to ask for at first; when they are used up, twice as many.
    """

    def __init__(self, dtype: type[Number], room: int) -> None:
        self._array: npt.NDArray[Number] = np.empty(room, dtype)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def extend(self, more: npt.NDArray[Number]) -> None:
        """Add elements at the end."""
        size = self._size + more.size
        if size > self._array.size:
            larger = np.empty(2 * size, self._array.dtype)
            larger[: self._size] = self._array[: self._size]
            self._array = larger
        self._array[self._size : size] = more
        self._size = size

    def finish(self) -> npt.NDArray[Number]:
        """Return the one array, without the spare room, and forget it."""
        array, self._array = self._array, np.empty(0, self._array.dtype)
        array.resize(self._size, refcheck=False)
        self._size = 0
        return array
