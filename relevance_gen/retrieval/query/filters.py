"""Say which chunks a search may return: those at some positions, under a mask, or with some metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import partial
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.arrays import Flags
from relevance_gen.checks import as_list, is_integer, to_python_scalar
from relevance_gen.errors import InvalidRequestError, describe, did_you_mean, shorten
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.segment import Segment
from relevance_gen.retrieval.query.operators import QueryOperator, allowed
from relevance_gen.types import Metadata

Where: TypeAlias = "Mapping[str, Any] | Callable[[Metadata], bool] | Sequence[int] | Sequence[bool] | npt.NDArray[Any]"
"""Metadata to have, a callable of metadata, positions, or a mask with a place for every position.

A mapping is the server's ``where``: a chunk has it if for each key its metadata has the value, or one of a list, a set
or a range of values. Where the metadata's own value is a list, one of its items is enough."""

_ALLOWED = (
    "a mapping of metadata, a callable, a list of positions, or a mask of one boolean a position"
)

_MOST_LISTED = 20
"""Keys that an error lists."""
_MOST_COMPARED = 1000
"""Keys among which an error looks for the one that was meant."""


@frozen(eq=False)
class Filter:
    """Which chunks a search may return, as the caller said it, checked. It can be pickled if its callable can."""

    # a mask with a place for every position, or a callable of a chunk's metadata; None allows all
    rule: Flags | Callable[[Metadata], bool] | None
    signs: tuple[QueryOperator, ...] = ()  # what must stand in a chunk, and what must not

    @classmethod
    def read(
        cls, where: Where | None, n_positions: int, signs: tuple[QueryOperator, ...] = ()
    ) -> Self:
        """Check what the caller said, of an index in which `n_positions` were ever given.

        Raises:
            InvalidRequestError: it is none of the kinds that are allowed, or a position or the mask is out of range.
        """
        if isinstance(where, Mapping):
            return cls(
                partial(
                    _has, wanted={key: _Values.read(key, value) for key, value in where.items()}
                ),
                signs,
            )
        return cls(where if where is None or callable(where) else _mask(where, n_positions), signs)

    def allowed(self, segment: Segment, *, by_prefix: bool) -> Flags:
        """Tell which chunks of a segment a search may return, shape (N,); `by_prefix` as in `signs.allowed`."""
        return allowed(
            self.signs, segment, self.flags(segment.positions, segment.chunks), by_prefix=by_prefix
        )

    def flags(self, positions: npt.NDArray[np.int64], chunks: Chunks) -> Flags:
        """Tell which of some chunks, at some positions, the rule allows, shape (N,)."""
        if self.rule is None:
            return np.ones(positions.size, bool)
        if callable(self.rule):
            n, rule, metadata = len(chunks.texts), self.rule, chunks.metadata
            if not metadata:
                return np.full(n, bool(rule({})) if n else False)
            return np.fromiter(
                (bool(rule(metadata.get(number, {}))) for number in range(n)), bool, n
            )
        taken: Flags = self.rule[positions]
        return taken


def check_keys(keys: Iterable[str], known: Set[str] | None, field: str = "where") -> None:
    """Refuse metadata with a key that no chunk has, where it is known what keys they have.

    Such a filter finds nothing, whatever is asked, so it is enough to look where nothing was found.

    Raises:
        InvalidRequestError: there is such a key; the error calls it `field`, and names the nearest known, or all.
    """
    if known is None:
        return
    for key in keys:
        if key not in known:
            names = [shorten(name) for name in sorted(map(str, known))[:_MOST_COMPARED]]
            listed = (
                f"the keys are {', '.join(names[:_MOST_LISTED])}"
                if names
                else "no chunk has metadata"
            )
            raise InvalidRequestError(
                "must name keys that chunks have",
                field,
                describe(key),
                did_you_mean(str(key), names, listed),
            )


def mask_of(where: Mapping[str, Any], chunks: Chunks) -> Flags:
    """Tell which chunks have some metadata, shape (N,): a mask that can be used in place of `where`."""
    n = len(chunks.texts)
    return Filter.read(where, n).flags(np.arange(n), chunks)


def _has(metadata: Metadata, wanted: Mapping[str, _Values]) -> bool:
    """Tell whether metadata has one of the values wanted under each key."""
    return all(key in metadata and values.hold(metadata[key]) for key, values in wanted.items())


@frozen(eq=False)
class _Values:
    """The values of which a chunk must have one under a key: to look for one takes the time to read it.

    `keys` has the `key_of` of each that has one, and `others` those that have none.
    """

    values: Sequence[Any]
    keys: Set[str]
    others: Sequence[Any]

    @classmethod
    def read(cls, name: str, value: Any) -> Self:
        """Check what the caller said of the key `name`."""
        value = as_list(value)
        if callable(value):
            remedy = "a callable takes a chunk's whole metadata"
            raise InvalidRequestError.must_be(
                f"where.{shorten(name)}", "a value or a list of values", value, remedy=remedy
            )
        values = (
            list(map(to_python_scalar, value))
            if isinstance(value, list | tuple | Set | range)
            else [value]
        )
        keys = [key_of(one) for one in values]
        others = [one for one, key in zip(values, keys, strict=True) if key is None]
        return cls(values, frozenset(key for key in keys if key is not None), others)

    def hold(self, value: Any) -> bool:
        """Tell whether a value, or an item of a list, is one of them; of one type, so that true is not 1."""
        for one in value if isinstance(value, list | tuple) else (value,):
            key = key_of(one)
            if key in self.keys:
                return True
            rest = self.values if key is None else self.others
            if any(
                one == other and isinstance(one, bool) == isinstance(other, bool) for other in rest
            ):
                return True
        return False


def key_of(value: Any) -> str | None:
    """Return a text that values have in common just where they are equal, if they are of kinds that JSON has.

    Comparing a value with each of many takes their sizes multiplied; and a set of the values themselves does, too,
    where a stranger has chosen numbers of one hash. Nobody can choose texts of one hash.
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
        case int():  # inside of a list or an object, true is 1, as Python has it
            return hex(value)
        case float() if value == value:
            return hex(int(value)) if value.is_integer() else repr(value)
        case None:
            return "null"
        case list():
            return f"[{','.join(map(_nested_key, value))}]"
        case dict():
            return f"{{{','.join(sorted(f'{_nested_key(key)}={_nested_key(one)}' for key, one in value.items()))}}}"
    raise TypeError


def _mask(where: Any, n_positions: int) -> Flags:
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
    for place, value in enumerate(values):
        if not is_integer(value) or not 0 <= value < n_positions:
            raise InvalidRequestError.must_be(
                f"where[{place}]", f"an integer in [0, {n_positions})", value
            )
    mask = np.zeros(n_positions, bool)
    mask[np.array(values, np.int64)] = True
    return mask
