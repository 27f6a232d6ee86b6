"""Types of numpy arrays for search, and operations that numpy lacks.

The operations are lookup, runs, ragged ranges, radix sort and growing arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.uint64]
"""Ids of terms, or other 64-bit hashes."""
TermOrds = npt.NDArray[np.uint32]
"""Ordinals of terms in a lexicon."""
Hashes = npt.NDArray[np.uint32]
"""Hashes of prefixes or of character n-grams."""
ChunkOrds = npt.NDArray[np.uint32]
"""Ordinals of chunks in a segment."""
Counts = npt.NDArray[np.uint32]
Offsets = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Halves = npt.NDArray[np.float16]
Flags = npt.NDArray[np.bool_]
Bytes = npt.NDArray[np.uint8]
UnsignedIntegers = npt.NDArray[np.unsignedinteger[Any]]
Number = TypeVar("Number", bound=np.number)


class GrowingArray(Generic[Number]):
    """A one-dimensional array to whose end arrays can be appended.

    If the capacity is exceeded, the array is copied into one of twice the required size. Capacity
    that has not been written takes no memory, because the operating system allocates pages on
    first use. A list of arrays that `numpy.concatenate` joins at the end would take twice the
    memory of the elements.

    Args:
        dtype: type of the elements.
        capacity: number of elements for which space is allocated at the beginning.
    """

    def __init__(
        self,
        dtype: type[Number],
        capacity: int,
    ) -> None:
        self._array: npt.NDArray[Number] = np.empty(capacity, dtype)
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def extend(self, values: npt.NDArray[Any]) -> None:
        """Append the elements of `values`; the dtype of this object must be able to hold them."""
        size = self._size + values.size
        if size > self._array.size:
            larger = np.empty(2 * size, self._array.dtype)
            larger[: self._size] = self._array[: self._size]
            self._array = larger
        self._array[self._size : size] = values
        self._size = size

    def finish(self) -> npt.NDArray[Number]:
        """Return all elements in an array without unused capacity, and empty this object."""
        array = self._array
        array.resize(self._size, refcheck=False)
        self._array = np.empty(0, array.dtype)
        self._size = 0
        return array


def batch_slices(
    size: int,
    batch_size: int,
) -> Iterator[slice]:
    """Return an iterator of slices that divide an array of `size` elements into batches.

    The last slice may extend past the end.

    >>> list(batch_slices(5, 3))
    [slice(0, 3, None), slice(3, 6, None)]
    """
    return (slice(low, low + batch_size) for low in range(0, size, batch_size))


def concat(
    arrays: Iterable[npt.NDArray[Number]],
    dtype: type[Number],
) -> npt.NDArray[Number]:
    """Return the concatenation of any number of arrays of type `dtype`; empty without arrays.

    If there is only one array, it is returned itself and not copied.
    """
    parts = list(arrays)
    if len(parts) == 1:
        return parts[0]
    return np.concatenate([np.zeros(0, dtype), *parts])


def starts_of(lengths: npt.NDArray[Any]) -> Offsets:
    """Return the start of each of n adjacent pieces with these lengths, shape (n,); the first is 0.

    >>> starts_of(np.array([2, 3, 1])).tolist()
    [0, 2, 5]
    """
    starts = lengths.cumsum(dtype=np.int64)
    starts -= lengths
    return starts


def bounds_of(lengths: npt.NDArray[Any]) -> Offsets:
    """Return the bounds of n adjacent pieces that have these lengths, shape (n + 1,).

    Element i is the start of piece i, beginning with 0, and the last element is the end of the last
    piece.
    """
    bounds = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return bounds


def ragged_ranges(start: Offsets, length: Offsets) -> Offsets:
    """Concatenate ``arange(start[i], start[i] + length[i])`` for all i.

    >>> ragged_ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    ends = np.cumsum(length)
    size = ends[-1] if ends.size else 0
    shift = start - ends + length
    return np.arange(size) + np.repeat(shift, length)


def find(
    ascending: npt.NDArray[Any],
    values: npt.NDArray[Any],
) -> Offsets:
    """Return, for each of `values`, the index of an equal element of `ascending`; -1 if absent.

    If several elements of `ascending` are equal, the index of the first is returned.

    >>> find(np.array([3, 5]), np.array([5, 4, 9])).tolist()
    [1, -1, -1]
    """
    if not ascending.size:
        return np.full(values.size, -1)
    indices: Offsets = ascending.searchsorted(values)
    is_absent = ascending.take(indices, mode="clip") != values
    indices[is_absent] = -1
    return indices


def find_all(
    ascending: npt.NDArray[Any],
    values: npt.NDArray[Any],
) -> tuple[Offsets, Offsets]:
    """Return, for each of `values`, the indices of all equal elements of `ascending`.

    Returns:
        The indices for the first value, then for the second value and so on, in one array; and the
        number of indices for each value.

    >>> indices, counts = find_all(np.array([3, 5, 5]), np.array([5, 4, 3]))
    >>> indices.tolist(), counts.tolist()
    ([1, 2, 0], [2, 0, 1])
    """
    low = ascending.searchsorted(values, "left")
    counts = ascending.searchsorted(values, "right") - low
    return ragged_ranges(low, counts), counts


def run_starts(values: npt.NDArray[Any]) -> Flags:
    """Return whether each element differs from the element before it; True for the first."""
    is_start = np.ones(values.size, bool)
    np.not_equal(values[1:], values[:-1], out=is_start[1:])
    return is_start


def runs(values: npt.NDArray[Any]) -> tuple[Offsets, Offsets]:
    """Return the indices at which runs of equal adjacent values start, and the runs' lengths.

    Each run is as long as possible; an element that equals none of its neighbors is a run.
    """
    is_edge = np.ones(values.size + 1, bool)
    inner = is_edge[1:-1]
    np.not_equal(values[1:], values[:-1], out=inner)
    edges: Offsets = is_edge.nonzero()[0]
    return edges[:-1], edges[1:] - edges[:-1]


def unique(values: npt.NDArray[Number]) -> npt.NDArray[Number]:
    """Return the distinct values, ascending.

    `numpy.unique` is not used because its first call imports numpy.ma, which takes 30 ms.
    """
    ordered = np.sort(values)
    return ordered[run_starts(ordered)]


def inverse(order: npt.NDArray[Any]) -> Offsets:
    """Return the inverse of a permutation.

    If ``order[new]`` is ``old``, element ``old`` of the result is ``new``.

    Args:
        order: a permutation of the integers from 0 to n - 1, shape (n,).
    """
    new_index = np.empty(order.size, np.int64)
    new_index[order] = np.arange(order.size)
    return new_index


def order_by_digits(
    values: UnsignedIntegers,
    n_digits: int,
    shift: int = 0,
) -> Counts:
    """Return the indices that sort values by adjacent 16-bit digits of the values.

    The sort is stable: values with equal digits keep their order. It is a radix sort, which is
    equally fast on every machine.

    Args:
        values: unsigned integers; the array has fewer than 2³² elements.
        n_digits: number of 16-bit digits to sort by, at least 1.
        shift: index of the lowest bit of the lowest of these digits; bit 0 is the least
            significant bit of a value.
    """
    first_digit = _digit(values, shift)
    order = np.argsort(first_digit, kind="stable").astype(np.uint32)
    for digit_index in range(1, n_digits):
        digit = _digit(values, 16 * digit_index + shift).take(order)
        order = order.take(np.argsort(digit, kind="stable"))
    return order


def _digit(
    values: UnsignedIntegers,
    shift: int,
) -> npt.NDArray[np.uint16]:
    shift_of_type = values.dtype.type(shift)
    return (values >> shift_of_type).astype(np.uint16)


def order_by_id(ids: Ids) -> Counts:
    """Return the indices that sort 64-bit ids; equal ids keep their order.

    An id has four 16-bit digits. The ids are sorted by their two highest digits. If this does not
    sort them completely, they are sorted by three digits, and if necessary by all four.
    """
    for n_digits in (2, 3):
        order = order_by_digits(ids, n_digits, 64 - 16 * n_digits)
        ordered = ids.take(order)
        if (ordered[1:] >= ordered[:-1]).all():
            return order
    return order_by_digits(ids, 4)


def sum_by(
    group: npt.NDArray[Any],
    weights: npt.NDArray[Any],
    n_groups: int,
) -> Floats:
    """Return the sum of the weights of each group, shape (n_groups,); 0 for an empty group.

    Weights are added in their order, so that equal input gives bit-identical sums.

    Args:
        group: index of the group of each weight, shape (n,).
        weights: the weights, shape (n,).
        n_groups: number of groups.
    """
    return np.asarray(np.bincount(group, weights, n_groups), np.float64)
