"""Describe the arrays of a segment once, for saving, checking, merging and counting bytes.

An array has one element for each item along its axis, for example a chunk or a term; an array of
bounds has one more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from typing import Any, Final, TypeAlias

import numpy as np
from attrs import frozen

from relevance_gen.index.array_file import Array

_Rule: TypeAlias = Callable[[Array, int], bool]
"""Returns whether the elements of an array are valid, given the size of the axis that they refer
to."""


def _ascend(array: Array, _: int) -> bool:
    return bool((array[1:] > array[:-1]).all())


def _are_bounds(array: Array, size: int) -> bool:
    """Return whether an array ascends strictly from 0 to `size`."""
    has_ends = int(array[0]) == 0 and int(array[-1]) == size
    return has_ends and _ascend(array, size)


def _are_ends(array: Array, size: int) -> bool:
    """Return whether an array has the ends of items, none empty, that cover [0, `size`).

    This is true if the array begins above 0, always ascends, and its last value is `size`.
    """
    return _are_bounds(np.concatenate(([0], array)), size)


def _are_ends_of_any(array: Array, size: int) -> bool:
    """Return whether an array has the ends of items, which may be empty, that cover [0, `size`).

    This is true if the array never descends and its last value is `size`.
    """
    bounds = np.concatenate(([0], array))
    is_ordered = bounds[1:] >= bounds[:-1]
    return int(bounds[-1]) == size and bool(is_ordered.all())


def _are_indices(array: Array, size: int) -> bool:
    return not array.size or int(array.max()) < size


@frozen
class ArraySpec:
    """Description of one array.

    Attributes:
        name: the array's name in a saved file.
        type: its numpy type in a saved file.
        axis: the kind of item, such as ``chunk``, for each of which the array has one element.
        path: the array's attribute of a segment, as ``postings.lexicon.ids``; "" for the texts,
            metadata and titles of chunks.
        rule: checks the elements; None if every value is valid.
        refers_to: the axis into which the elements are offsets or ordinals; "" for none.
        is_bounds: whether the array has one element more than the axis has items.
    """

    name: str
    type: str
    axis: str
    path: str = ""
    rule: _Rule | None = None
    refers_to: str = ""
    is_bounds: bool = False

    @property
    def owner_path(self) -> str:
        """Path of the object that has the array; "" for the segment itself."""
        return self.path.rpartition(".")[0]

    @property
    def attribute(self) -> str:
        """Name of the array's attribute in the object at `owner_path`."""
        return self.path.rpartition(".")[2]


STORED: Final = (
    ArraySpec("text", "u1", "byte of text"),
    ArraySpec("text_end", "<i8", "chunk", rule=_are_ends, refers_to="byte of text"),
    ArraySpec("metadata", "u1", "byte of metadata"),
    ArraySpec("metadata_end", "<i8", "chunk", rule=_are_ends_of_any, refers_to="byte of metadata"),
    ArraySpec("titles", "u1", "byte of titles"),
    ArraySpec("title_end", "<i8", "chunk", rule=_are_ends_of_any, refers_to="byte of titles"),
    ArraySpec("positions", "<i8", "chunk", "positions", _ascend),
    ArraySpec("ids", "<u8", "term", "postings.lexicon.ids", _ascend),
    ArraySpec("first", "<i8", "term", "postings.first", _are_bounds, "posting", is_bounds=True),
    ArraySpec("chunk", "<u4", "posting", "postings.chunk", _are_indices, "chunk"),
    ArraySpec("tf", "<u4", "posting", "postings.tf"),
    ArraySpec("spelling", "u1", "letter", "postings.lexicon.spelling"),
    ArraySpec(
        "spelling_first",
        "<i8",
        "term",
        "postings.lexicon.spelling_first",
        _are_bounds,
        "letter",
        is_bounds=True,
    ),
    ArraySpec("tokens", "<u4", "occurrence", "occurrences", _are_indices, "term"),
    ArraySpec("first_token", "<i8", "chunk", "first_occurrence", refers_to="occurrence"),
    ArraySpec("n_tokens", "<i8", "chunk", "n_occurrences"),
    ArraySpec("norms", "<f8", "chunk", "norms"),
    ArraySpec("votes", "<i4", "chunk", "english_margin"),
    ArraySpec("hashes", "<u8", "chunk", "hashes"),
    ArraySpec(
        "first_passage",
        "<i8",
        "chunk",
        "passages.first",
        _are_bounds,
        "passage",
        is_bounds=True,
    ),
    ArraySpec("passage_starts", "<i8", "passage", "passages.starts"),
    ArraySpec("passage_ends", "<i8", "passage", "passages.ends"),
    ArraySpec("vectors", "<f2", "component of a vector", "passages.vectors"),
    ArraySpec("title_hashes", "<u8", "chunk", "title_hashes"),
    ArraySpec("title_sizes", "<u4", "chunk", "title_sizes"),
)
"""The specifications of the arrays that a saved file contains."""
TYPES: Final = {spec.name: spec.type for spec in STORED}
"""The arrays of a file, in their order, and their types."""
CHUNK_ATTRIBUTES: Final = tuple(
    spec.attribute for spec in STORED if spec.axis == "chunk" and spec.path and not spec.owner_path
)
"""The attributes of a segment that have one element for each chunk."""


def arrays_of(segment: object) -> Iterator[tuple[str, Array]]:
    """Yield for each stored array of a segment the name of the array in a file, and the array.

    The texts, metadata and titles of the chunks are not included. Arrays that the segment lacks,
    such as vectors, are skipped.
    """
    for spec in STORED:
        if not spec.path:
            continue
        owner = attrgetter(spec.owner_path)(segment) if spec.owner_path else segment
        array = getattr(owner, spec.attribute, None)
        if array is not None:
            yield spec.name, array


def attributes(
    arrays: Mapping[str, Array],
    owner_path: str,
) -> dict[str, Any]:
    """Return the arrays that belong to one object of a segment, by the names of its attributes.

    Args:
        arrays: all arrays of the file, by name.
        owner_path: path of the object, as in `ArraySpec.owner_path`.
    """
    return {
        spec.attribute: arrays[spec.name]
        for spec in STORED
        if spec.path and spec.owner_path == owner_path
    }


def are_valid(
    arrays: Mapping[str, Array],
    *,
    has_passages: bool,
) -> bool:
    """Return whether the arrays of a file have valid sizes and elements; see `ArraySpec`.

    Args:
        arrays: all arrays of the file, by name.
        has_passages: whether to check the arrays of passages, too.
    """
    sizes = sizes_of(arrays)
    specs = [spec for spec in STORED if has_passages or spec.owner_path != "passages"]
    for spec in specs:
        if arrays[spec.name].size != sizes[spec.axis] + spec.is_bounds:
            return False
    for spec in specs:
        size = sizes.get(spec.refers_to, 0)
        if spec.rule is not None and not spec.rule(arrays[spec.name], size):
            return False
    return True


def sizes_of(arrays: Mapping[str, Array]) -> dict[str, int]:
    """Return the number of items of each axis, by the name of the axis.

    The numbers are the sizes of the arrays in `arrays` that are not bounds; an axis without such an
    array is left out.
    """
    sizes = {}
    for spec in STORED:
        if spec.name in arrays and not spec.is_bounds:
            sizes[spec.axis] = arrays[spec.name].size
    return sizes
