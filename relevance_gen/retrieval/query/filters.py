"""Filters: conditions on metadata, positions and operators that a result must meet."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any, Final, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.arrays import Flags
from relevance_gen.checks import as_list, is_integer, to_python_scalar
from relevance_gen.errors import InvalidRequestError, describe, did_you_mean, shorten
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.segment import Segment
from relevance_gen.retrieval.query.operators import QueryOperator, satisfying
from relevance_gen.types import Metadata

Where: TypeAlias = "Mapping[str, Any] | Callable[[Metadata], bool] | Sequence[int] | Sequence[bool] | npt.NDArray[Any]"
"""A mapping of metadata, a callable of metadata, positions, or a mask with a boolean for each
position.

A mapping is the server's ``where``: for each of its keys the chunk's metadata must have the value,
or any value of a list, a set or a range. ``{"gte": 2020, "lt": 2024}`` allows all numbers
within these bounds. If the chunk's value is a list, a single matching item is sufficient."""

_ALLOWED: Final = (
    "a mapping of metadata, a callable, a list of positions, or a mask of one boolean a position"
)
_COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
}
"""The bounds of a range: greater than, at least, less than, at most."""
_OTHER_COMPARISONS: Final = frozenset("eq ne ge le > >= < <=".split())
"""Names of comparisons in other libraries. A mapping with such a key, or with a key that begins
with ``$``, is read as a range, so that an error lists the names of bounds."""
_MAX_LISTED_KEYS: Final = 20
"""Maximum number of keys that an error lists."""
_MAX_COMPARED_KEYS: Final = 1000
"""Maximum number of keys that an error compares with an unknown key."""


@frozen(eq=False)
class Filter:
    """A validated filter of chunks. It can be pickled if its callable can."""

    # a mask with a boolean for each position, or a callable of a chunk's metadata; None passes all
    # chunks
    rule: Flags | Callable[[Metadata], bool] | None
    operators: tuple[QueryOperator, ...] = ()

    @classmethod
    def read(
        cls, where: Where | None, n_positions: int, operators: tuple[QueryOperator, ...] = ()
    ) -> Self:
        """Return the validated filter for an index in which `n_positions` were assigned.

        Raises:
            InvalidRequestError: `where` has an invalid type, a mapping has an invalid value or
                bound, a position is not in [0, `n_positions`), or a mask does not have
                `n_positions` booleans.
        """
        if isinstance(where, Mapping):
            allowed = {key: _AllowedValues.read(key, value) for key, value in where.items()}
            return cls(partial(_has_values, allowed=allowed), operators)
        if where is None or callable(where):
            return cls(where, operators)
        return cls(_mask(where, n_positions), operators)

    def allowed(self, segment: Segment, *, by_prefix: bool) -> Flags:
        """Return which of the N chunks of a segment pass the rule and the operators, shape (N,).

        `by_prefix`: whether words of operators in Latin letters also match terms with a common
        prefix, as in `find_inflections`.
        """
        flags = self.flags(segment.positions, segment.chunks)
        if not self.operators:
            return flags
        return satisfying(self.operators, segment, flags, by_prefix=by_prefix)

    def flags(self, positions: npt.NDArray[np.int64], chunks: Chunks) -> Flags:
        """Return which of N chunks pass, regardless of operators, shape (N,).

        Args:
            positions: position of each of the chunks in the index, shape (N,).
            chunks: these N chunks, in the same order.
        """
        if self.rule is None:
            return np.ones(positions.size, bool)
        if callable(self.rule):
            flags = np.zeros(positions.size, bool)
            for chunk_ord in range(positions.size):
                flags[chunk_ord] = bool(self.rule(chunks.metadata_of(chunk_ord)))
            return flags
        mask: Flags = self.rule
        return mask[positions]


def check_keys(
    keys: Iterable[str],
    known: Set[str] | None,
    field: str = "where",
) -> None:
    """Raise an error if no chunk has a metadata key of a filter.

    A filter with such a key never has results, so a caller needs to call this function only if
    there are no results.

    Args:
        keys: the metadata keys of the filter.
        known: the metadata keys that chunks have; if None, nothing is checked.
        field: the field that the error names.

    Raises:
        InvalidRequestError: a key is not in `known`; the error contains the field, and the nearest
            known key or all known keys.
    """
    if known is None:
        return
    for key in keys:
        if key not in known:
            names = [shorten(name) for name in sorted(map(str, known))[:_MAX_COMPARED_KEYS]]
            listed = "no chunk has metadata"
            if names:
                listed = f"the keys are {', '.join(names[:_MAX_LISTED_KEYS])}"
            remedy = did_you_mean(str(key), names, listed)
            raise InvalidRequestError(
                "must name keys that chunks have", field, describe(key), remedy
            )


def mask_of(where: Mapping[str, Any], chunks: Chunks) -> Flags:
    """Return which chunks pass a filter of metadata, shape (N,): a mask to use as `where`."""
    n = len(chunks.texts)
    return Filter.read(where, n).flags(np.arange(n), chunks)


def _has_values(metadata: Metadata, allowed: Mapping[str, _AllowedValues]) -> bool:
    """Return whether `metadata` has, under each key of `allowed`, a value that it allows."""
    for key, values in allowed.items():
        if key not in metadata or not values.has(metadata[key]):
            return False
    return True


@frozen(eq=False)
class _AllowedValues:
    """The values, and the ranges of values, that a filter allows under one metadata key.

    `has` looks up a value of a JSON type in a hash set, in constant time. Ranges, and values of
    other types, are compared one by one.
    """

    values: Sequence[Any]
    keys: Set[str]  # comparison keys of the values that have one
    keyless: Sequence[Any]  # values without a comparison key
    bounds: Sequence[_Bounds]

    @classmethod
    def read(cls, name: str, value: Any) -> Self:
        """Validate a filter's value, or list of values, under the key `name`, and return them."""
        value = as_list(value)
        if callable(value):
            remedy = "a callable takes a chunk's whole metadata"
            raise InvalidRequestError.must_be(
                f"where.{shorten(name)}", "a value or a list of values", value, remedy=remedy
            )
        values = [value]
        if isinstance(value, list | tuple | Set | range):
            values = list(map(to_python_scalar, value))
        keys, keyless, bounds = set(), [], []
        for allowed in values:
            if isinstance(allowed, Mapping) and any(map(_is_comparison, allowed)):
                bounds.append(_Bounds.read(f"where.{shorten(name)}", allowed))
                continue
            key = comparison_key(allowed)
            if key is None:
                keyless.append(allowed)
            else:
                keys.add(key)
        return cls(values, frozenset(keys), keyless, bounds)

    def has(self, value: Any) -> bool:
        """Return whether a metadata value is allowed; of a list or tuple, whether any item is.

        The values true and 1 differ.
        """
        for item in value if isinstance(value, list | tuple) else (value,):
            key = comparison_key(item)
            if key in self.keys:
                return True
            for allowed in self.values if key is None else self.keyless:
                if item == allowed and isinstance(item, bool) == isinstance(allowed, bool):
                    return True
            for bounds in self.bounds:
                if bounds.contain(item):
                    return True
        return False


@frozen
class _Bounds:
    """Bounds of numbers, or of strings, which are compared by code points, as ISO dates are."""

    limits: Mapping[str, Any]
    compared_type: type | None  # as `_compared_type` returns it for each of the limits

    @classmethod
    def read(cls, name: str, value: Mapping[Any, Any]) -> Self:
        """Return the validated bounds in the field `name`.

        Raises:
            InvalidRequestError: the name of a bound is unknown, a bound is neither a number nor a
                string, or the bounds are of both types.
        """
        limits = {}
        for comparison, given_limit in value.items():
            if comparison not in _COMPARISONS:
                remedy = f"the bounds of a range are {', '.join(_COMPARISONS)}"
                raise InvalidRequestError(
                    "is not a bound", f"{name}.{shorten(comparison)}", None, remedy
                )
            limit = to_python_scalar(given_limit)
            if _compared_type(limit) is None or limit != limit:
                field = f"{name}.{comparison}"
                raise InvalidRequestError.must_be(field, "a number or a string", limit)
            limits[comparison] = limit
        types = set(map(_compared_type, limits.values()))
        if len(types) > 1:
            raise InvalidRequestError.must_be(name, "bounds of one type", dict(value))
        return cls(limits, types.pop())

    def contain(self, value: Any) -> bool:
        """Return whether a value has the bounds' type and lies within them."""
        value = to_python_scalar(value)
        if _compared_type(value) is not self.compared_type:
            return False
        for comparison, limit in self.limits.items():
            if not _COMPARISONS[comparison](value, limit):
                return False
        return True


def _is_comparison(key: object) -> bool:
    """Return whether a key of a mapping is the name of a comparison, here or in other libraries."""
    is_known = key in _COMPARISONS or key in _OTHER_COMPARISONS
    return is_known or (isinstance(key, str) and key.startswith("$"))


def _compared_type(value: object) -> type | None:
    """Return the type by which a range compares a value: string, number or, for others, None."""
    if isinstance(value, str):
        return str
    if is_integer(value) or isinstance(value, float):
        return float
    return None


def comparison_key(value: Any) -> str | None:
    """Return a string that is the same for equal values of JSON types; None for other values.

    The values true and 1 have different keys, but inside of a list or an object they are equal, and
    1 and 1.0 are always equal. NaN has the key None.

    A filter stores these strings in a hash set. A set of the values themselves would be slow if an
    attacker chose numbers with equal hashes; hashes of strings are randomized.

    Raises:
        InvalidRequestError: the value nests too deeply.
    """
    if isinstance(value, bool):
        return str(value)
    try:
        return _nested_key(value)
    except TypeError:
        return None
    except RecursionError:
        raise InvalidRequestError("nests too deeply to be compared", "metadata") from None


def _nested_key(value: Any) -> str:
    match value:
        case str():
            return f"{len(value)}:" + value
        case int():  # inside of a list or an object, true equals 1, as in Python
            return hex(value)
        case float() if value == value:
            return hex(int(value)) if value.is_integer() else repr(value)
        case None:
            return "null"
        case list():
            return f"[{','.join(map(_nested_key, value))}]"
        case dict():
            items = [f"{_nested_key(key)}={_nested_key(item)}" for key, item in value.items()]
            return f"{{{','.join(sorted(items))}}}"
    raise TypeError


def _mask(where: Any, n_positions: int) -> Flags:
    """Return a mask with `n_positions` booleans, from a mask or a list of positions."""
    if isinstance(where, np.ndarray) and where.dtype == bool and where.shape == (n_positions,):
        return where
    where = as_list(where)
    if isinstance(where, str | bytes) or not isinstance(where, Sequence):
        raise InvalidRequestError.must_be("where", _ALLOWED, where)
    values = list(map(to_python_scalar, where))
    if values and all(isinstance(value, bool) for value in values):
        if len(values) != n_positions:
            rule = f"must be a mask of {n_positions} booleans, one for each position"
            raise InvalidRequestError(rule, "where", str(len(values)))
        return np.array(values, bool)
    for i, value in enumerate(values):
        if not is_integer(value) or not 0 <= value < n_positions:
            _refuse_non_booleans(values)
            raise InvalidRequestError.must_be(
                f"where[{i}]", f"an integer in [0, {n_positions})", value
            )
    mask = np.zeros(n_positions, bool)
    mask[np.array(values, np.int64)] = True
    return mask


def _refuse_non_booleans(values: Sequence[Any]) -> None:
    """Raise an error for the first value of a mask that is not a boolean.

    Values are a mask, and not positions, if they include a boolean and no integer.
    """
    has_booleans = any(isinstance(value, bool) for value in values)
    if not has_booleans or any(map(is_integer, values)):
        return
    for i, value in enumerate(values):
        if not isinstance(value, bool):
            remedy = "a mask has only booleans"
            raise InvalidRequestError.must_be(f"where[{i}]", "True or False", value, remedy=remedy)
