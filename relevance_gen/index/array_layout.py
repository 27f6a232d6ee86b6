"""The table of a segment's arrays, which storing, checking, merging and counting bytes follow.

An array has one element for each thing along its axis, a chunk or a term for instance; an array of bounds has one more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import frozen

Array: TypeAlias = npt.NDArray[Any]
_Rule: TypeAlias = Callable[[Array, int], bool]
"""Tells whether an array may be so; the number is the size of the axis that its elements point into."""


def _ascends(array: Array, _: int) -> bool:
    return bool((array[1:] > array[:-1]).all())


def _bounds(array: Array, size: int) -> bool:
    """Tell whether an array ascends from 0 to `size`."""
    return int(array[0]) == 0 and int(array[-1]) == size and _ascends(array, size)


def _ends(array: Array, size: int) -> bool:
    """Tell whether an array behind a 0 is one of bounds."""
    return _bounds(np.concatenate(([0], array)), size)


def _ends_of_some(array: Array, size: int) -> bool:
    """Tell the same where things may have nothing along the axis."""
    bounds = np.concatenate(([0], array))
    return int(bounds[-1]) == size and bool((bounds[1:] >= bounds[:-1]).all())


def _indices(array: Array, size: int) -> bool:
    return not array.size or int(array.max()) < size


@frozen
class Row:
    """What the table says of one array."""

    name: str  # its name in a saved file
    type: str  # its numpy type there
    axis: str  # what it has an element for
    path: str = ""  # where a segment has it, as ``postings.lexicon.ids``; "" for what a file has of chunks themselves
    rule: _Rule | None = None  # tells whether its elements may be so; None where any may
    into: str = ""  # the axis that its elements are offsets along, or numbers on; "" for none
    is_bounds: bool = False  # whether it has an element more than its axis
    is_stored: bool = True  # whether a file has it

    @property
    def owner(self) -> str:
        """The path of what has the array as an attribute; "" for the segment itself."""
        return self.path.rpartition(".")[0]

    @property
    def attribute(self) -> str:
        """The name of that attribute."""
        return self.path.rpartition(".")[2]


_TABLE: Final = (
    Row("text", "u1", "byte of text"),
    Row("text_end", "<i8", "chunk", rule=_ends, into="byte of text"),
    Row("metadata", "u1", "byte of metadata"),
    Row("metadata_end", "<i8", "chunk", rule=_ends_of_some, into="byte of metadata"),
    Row("titles", "u1", "byte of titles"),
    Row("title_end", "<i8", "chunk", rule=_ends_of_some, into="byte of titles"),
    Row("positions", "<i8", "chunk", "positions", _ascends),
    Row("ids", "<u8", "term", "postings.lexicon.ids", _ascends),
    Row("first", "<i8", "term", "postings.first", _bounds, "posting", is_bounds=True),
    Row("chunk", "<u4", "posting", "postings.chunk", _indices, "chunk"),
    Row("tf", "<u4", "posting", "postings.tf"),
    Row("spelling", "u1", "letter", "postings.lexicon.spelling"),
    Row(
        "spelling_first",
        "<i8",
        "term",
        "postings.lexicon.spelling_first",
        _bounds,
        "letter",
        is_bounds=True,
    ),
    Row("tokens", "<u4", "occurrence", "occurrences", _indices, "term"),
    Row("first_token", "<i8", "chunk", "first_occurrence", into="occurrence"),
    Row("n_tokens", "<i8", "chunk", "n_occurrences"),
    Row("norms", "<f8", "chunk", "norms"),
    Row("votes", "<i4", "chunk", "english_margin"),
    Row("hashes", "<u8", "chunk", "hashes"),
    Row("first_passage", "<i8", "chunk", "passages.first", _bounds, "passage", is_bounds=True),
    Row("passage_starts", "<i8", "passage", "passages.starts"),
    Row("passage_ends", "<i8", "passage", "passages.ends"),
    Row("vectors", "<f2", "component of a vector", "passages.vectors"),
    Row("title_hashes", "<u8", "chunk", "title_hashes"),
    Row("title_sizes", "<u4", "chunk", "title_sizes"),
    Row("live", "?", "chunk", "postings.live", is_stored=False),
)

STORED: Final = tuple(row for row in _TABLE if row.is_stored)
"""What a file has."""
TYPES: Final = {row.name: row.type for row in STORED}
"""The arrays of a file, in their order, and their types."""
OF_CHUNKS: Final = tuple(
    row.attribute for row in _TABLE if row.axis == "chunk" and row.path and not row.owner
)
"""The attributes of a segment that have one element for each chunk."""


def arrays_of(segment: object) -> Iterator[tuple[str, Array]]:
    """Yield the names of those arrays that a segment has, and the arrays; not the texts."""
    for row in _TABLE:
        owner = attrgetter(row.owner)(segment) if row.owner else segment
        array = getattr(owner, row.attribute, None) if row.path else None
        if array is not None:
            yield row.name, array


def attributes(arrays: Mapping[str, Array], owner: str) -> dict[str, Any]:
    """Return the arrays of a file that are attributes of one owner, by the attributes' names."""
    rows = [row for row in STORED if row.path and row.owner == owner]
    return {row.attribute: arrays[row.name] for row in rows}


def fit(arrays: Mapping[str, Array], *, has_passages: bool) -> bool:
    """Tell whether the arrays of a file have the sizes and the elements that the table says."""
    rows = [row for row in STORED if (has_passages or row.owner != "passages")]
    sizes = sizes_of(arrays)
    return all(arrays[row.name].size == sizes[row.axis] + row.is_bounds for row in rows) and all(
        row.rule is None or row.rule(arrays[row.name], sizes.get(row.into, 0)) for row in rows
    )


def sizes_of(arrays: Mapping[str, Array]) -> dict[str, int]:
    """Return the size of each axis of some arrays of a file."""
    return {
        row.axis: arrays[row.name].size
        for row in STORED
        if row.name in arrays and not row.is_bounds
    }
