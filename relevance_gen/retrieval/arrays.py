"""The types of numpy arrays that search works with, and what numpy lacks: ragged ranges, runs, growing arrays."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint64]
"""Ids of terms."""
TermNumbers = npt.NDArray[np.uint32]
"""Numbers of terms in a lexicon."""
Hashes = npt.NDArray[np.uint32]
"""Hashes of what words have in common: their beginnings, or letters in a row."""
ChunkNumbers = npt.NDArray[np.uint32]
"""Numbers of chunks in a segment."""
Counts = npt.NDArray[np.uint32]
Offsets = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Halves = npt.NDArray[np.float16]
Flags = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
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


def ragged_ranges(start: Offsets, length: Offsets) -> Offsets:
    """Concatenate ``arange(start[i], start[i] + length[i])`` for all i.

    >>> ragged_ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(length)
    return np.arange(ends[-1] if ends.size else 0) + np.repeat(start - ends + length, length)


def different(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Return the different values, ascending, as `numpy.unique` does, which first loads numpy.ma: 30 ms."""
    ordered = np.sort(values)
    new = np.ones(ordered.size, bool)
    np.not_equal(ordered[1:], ordered[:-1], out=new[1:])
    return ordered[new]


def runs(values: npt.NDArray[Any]) -> tuple[Offsets, Offsets]:
    """Return where each run of equal values begins, and how long it is."""
    edges = np.empty(values.size + 1, bool)
    edges[0] = edges[-1] = True
    np.not_equal(values[1:], values[:-1], out=edges[1:-1])
    first: Offsets = edges.nonzero()[0]
    return first[:-1], first[1:] - first[:-1]


def sum_by(place: npt.NDArray[Any], weight: npt.NDArray[Any], n: int) -> Floats:
    """Return the sums of the weights that share a place, shape (n,), added in the order they stand in."""
    return np.asarray(np.bincount(place, weight, n), np.float64)
