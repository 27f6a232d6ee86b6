"""The types of search's arrays, and what numpy lacks: finding, runs, ragged ranges, radix sort, growing arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint64]
"""Ids of terms."""
TermOrds = npt.NDArray[np.uint32]
"""Numbers of terms in a lexicon."""
Hashes = npt.NDArray[np.uint32]
"""Hashes of what words have in common: their beginnings, or letters in a row."""
ChunkOrds = npt.NDArray[np.uint32]
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

    There is room for so many elements at first, and when they are used up for twice as many. Room that is not yet
    written to takes no memory: the operating system gives pages on first use. A list of arrays and `numpy.concatenate`
    would take the memory twice.
    """

    def __init__(self, dtype: type[Number], room: int) -> None:
        self._array: npt.NDArray[Number] = np.empty(room, dtype)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def extend(self, more: npt.NDArray[Any]) -> None:
        """Add elements at the end, which must fit the type."""
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


def batch_slices(size: int, step: int) -> Iterator[slice]:
    """Cut an array of some size into slices of `step` elements; the last may reach beyond the end.

    >>> list(steps(5, 3))
    [slice(0, 3, None), slice(3, 6, None)]
    """
    return (slice(low, low + step) for low in range(0, size, step))


def concat(arrays: Iterable[npt.NDArray[Number]], dtype: type[Number]) -> npt.NDArray[Number]:
    """Concatenate arrays of one type, or none; a single one is returned as it is."""
    parts = list(arrays)
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype), *parts])


def starts_of(lengths: npt.NDArray[Any]) -> Offsets:
    """Return where each of some pieces begins if they lie one behind the other.

    >>> starts_of(np.array([2, 3, 1])).tolist()
    [0, 2, 5]
    """
    starts = np.cumsum(lengths, dtype=np.int64)
    starts -= lengths
    return starts


def bounds_of(lengths: npt.NDArray[Any]) -> Offsets:
    """Return the same and behind it where the last piece ends: one element more than there are pieces."""
    bounds = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


def ragged_ranges(start: Offsets, length: Offsets) -> Offsets:
    """Concatenate ``arange(start[i], start[i] + length[i])`` for all i.

    >>> ragged_ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(length)
    return np.arange(ends[-1] if ends.size else 0) + np.repeat(start - ends + length, length)


def find(ascending: npt.NDArray[Any], values: npt.NDArray[Any]) -> Offsets:
    """Return the index of each value in an ascending array; -1 where it is not.

    >>> find(np.array([3, 5]), np.array([5, 4, 9])).tolist()
    [1, -1, -1]
    """
    if not ascending.size:
        return np.full(values.size, -1)
    found: Offsets = ascending.searchsorted(values)
    found[ascending.take(found, mode="clip") != values] = -1
    return found


def find_all(ascending: npt.NDArray[Any], values: npt.NDArray[Any]) -> tuple[Offsets, Offsets]:
    """Return the indices of every value in an array that ascends with repetitions, and how often each is there.

    >>> [found.tolist() for found in find_all(np.array([3, 5, 5]), np.array([5, 4, 3]))]
    [[1, 2, 0], [2, 0, 1]]
    """
    low = ascending.searchsorted(values, "left")
    n = ascending.searchsorted(values, "right") - low
    return ragged_ranges(low, n), n


def run_starts(values: npt.NDArray[Any]) -> Flags:
    """Tell which elements are not equal to the one before them; the first is not."""
    new = np.ones(values.size, bool)
    np.not_equal(values[1:], values[:-1], out=new[1:])
    return new


def runs(values: npt.NDArray[Any]) -> tuple[Offsets, Offsets]:
    """Return where each run of equal values begins, and how long it is."""
    edges = np.ones(values.size + 1, bool)
    np.not_equal(values[1:], values[:-1], out=edges[1:-1])
    first: Offsets = edges.nonzero()[0]
    return first[:-1], first[1:] - first[:-1]


def unique(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Return the different values, ascending, as `numpy.unique` does, which first loads numpy.ma: 30 ms."""
    ordered = np.sort(values)
    return ordered[run_starts(ordered)]


def inverse(order: npt.NDArray[Any]) -> Offsets:
    """Return the permutation that undoes another: the new index of what stood at each old one."""
    back = np.empty(order.size, np.int64)
    back[order] = np.arange(order.size)
    return back


def order_by_digits(
    values: npt.NDArray[np.unsignedinteger[Any]], n_digits: int, shift: int = 0
) -> Counts:
    """Return the stable order by some 16-bit digits from bit `shift` on: by radix, as quick on every machine."""
    order = np.argsort(_digit(values, shift), kind="stable").astype(np.uint32)
    for digit in range(1, n_digits):
        order = order.take(
            np.argsort(_digit(values, 16 * digit + shift).take(order), kind="stable")
        )
    return order


def _digit(values: npt.NDArray[np.unsignedinteger[Any]], shift: int) -> npt.NDArray[np.uint16]:
    return (values >> values.dtype.type(shift)).astype(np.uint16)


def order_by_id(ids: Ids) -> Counts:
    """Sort ids stably, as above: by as many of their leading digits as tell them apart, mostly two of four."""
    for n_digits in (2, 3):
        order = order_by_digits(ids, n_digits, 64 - 16 * n_digits)
        ordered = ids.take(order)
        if (ordered[1:] >= ordered[:-1]).all():
            return order
    return order_by_digits(ids, 4)


def sum_by(group: npt.NDArray[Any], weight: npt.NDArray[Any], n: int) -> Floats:
    """Return the sum of the weights of each of n groups, shape (n,), added in the order they stand in."""
    return np.asarray(np.bincount(group, weight, n), np.float64)
