"""What a value may be, said once: the checks and attrs validators that every floor uses.

Whatever is refused raises `InvalidRequestError`, which names the field, what is allowed and what came. Floats take
integers (JSON has one number type); integers take neither booleans nor ``10.0``.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias, TypeGuard

from attrs import Attribute

from relevance_gen.errors import InvalidRequestError, describe

Validator: TypeAlias = Callable[[Any, "Attribute[Any]", Any], None]

MAX_TOKEN_IDS = 1 << 31
"""llama.cpp numbers tokens with signed integers of 32 bits."""

_MAX_FLOAT = sys.float_info.max
_ID = re.compile(r"0|[1-9][0-9]{0,9}")


def plain(value: Any) -> Any:
    """Turn a scalar of numpy's into Python's own; leave anything else as it is."""
    numpy = sys.modules.get("numpy")  # where it is not loaded, nothing is numpy's
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def as_list(value: Any) -> Any:
    """Turn an array, or a column of a data frame, into a list; leave anything else as it is."""
    return value.tolist() if hasattr(value, "tolist") else value


def is_integer(value: object) -> TypeGuard[int]:
    """Tell whether `value` is an integer in JSON's sense: no boolean, no float."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_blank(text: str) -> bool:
    """Tell whether `text` is empty or only white space.

    >>> is_blank("   "), is_blank("...")
    (True, False)
    """
    return not text or text.isspace()


def check_integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """Return `value`, if it is an integer of at least `low` and, where given, at most `high`; errors call it `name`."""
    value = plain(value)
    if not (is_integer(value) and low <= value and (high is None or value <= high)):
        interval = f"of at least {low}" if high is None else f"in [{low}, {high}]"
        raise InvalidRequestError.must_be(name, f"an integer {interval}", value)
    return int(value)


def check_path(name: str, value: Any, takes_addresses: str | None = None) -> str | os.PathLike[str]:
    """Return `value`, if it may be the path of a file; an empty one would mean the working folder.

    Where something else `takes_addresses`, as ``s3://…``, the error of one says so.
    """
    if not isinstance(value, str | os.PathLike) or not value:
        raise InvalidRequestError.must_be(name, "the path of a file", value)
    if "\0" in str(value):
        raise InvalidRequestError("cannot be a path: it has a null byte", name)
    if takes_addresses and "://" in str(value):
        remedy = f"{takes_addresses} takes addresses"
        raise InvalidRequestError.must_be(
            name, "a path of this machine, and no address", value, remedy=remedy
        )
    return value


# ── attrs validators ─────────────────────────────────────────────────────────────────────────────────────────────────


def must_be(allowed: str, holds: Callable[[Any], bool]) -> Validator:
    """Make a validator that refuses every value that `holds` is not true of."""

    def check(_: Any, attribute: Attribute[Any], value: Any) -> None:
        if not holds(value):
            raise InvalidRequestError.must_be(attribute.name, allowed, value)

    return check


def one_of(*names: str) -> Validator:
    """Return a validator for one of some names."""
    return must_be(
        " or ".join(f'"{name}"' for name in names), lambda v: isinstance(v, str) and v in names
    )


def short(most: int) -> Validator:
    """Return a validator for strings of at most so many characters."""
    return must_be(
        f"a string of at most {most:,} characters", lambda v: isinstance(v, str) and len(v) <= most
    )


def integer(low: int, high: int | None = None) -> Validator:
    """Make a validator of integers in [low, high]."""

    def check(_: Any, attribute: Attribute[Any], value: Any) -> None:
        check_integer(attribute.name, value, low, high)

    return check


def number(low: float, high: float = math.inf) -> Validator:
    """Make a validator of finite numbers in [low, high]."""
    interval = f"of at least {low:g}" if high == math.inf else f"in [{low:g}, {high:g}]"
    return must_be(f"a finite number {interval}", lambda value: _is_number(value, low, high))


def _is_number(value: Any, low: float, high: float) -> bool:
    # Not math.isfinite: an integer beyond a float's range would raise OverflowError there.
    return (is_integer(value) or isinstance(value, float)) and bool(
        low <= value <= min(high, _MAX_FLOAT)
    )


def above(low: float) -> Validator:
    """Make a validator of finite numbers greater than `low`."""
    return must_be(
        f"a finite number above {low:g}", lambda v: _is_number(v, low, math.inf) and v > low
    )


def items(allowed: str, holds: Callable[[Any], bool]) -> Validator:
    """Make a validator of tuples whose every item `holds`; the error names the first item that does not."""

    def check(_: Any, attribute: Attribute[Any], value: Any) -> None:
        if not isinstance(value, tuple):
            raise InvalidRequestError.must_be(attribute.name, "a list", value)
        for position, item in enumerate(value):
            if not holds(item):
                raise InvalidRequestError.must_be(f"{attribute.name}[{position}]", allowed, item)

    return check


def token_numbers(low: float, high: float, n_most: int) -> Validator:
    """Make a validator of objects that give at most `n_most` token ids a number in [low, high]."""
    refuse = number(low, high)

    def check(instance: Any, attribute: Attribute[Any], value: Any) -> None:
        if not isinstance(value, dict) or len(value) > n_most:
            raise InvalidRequestError.must_be(
                attribute.name, f"an object of at most {n_most:,} token ids", value
            )
        for token, wanted in value.items():
            if not (is_integer(token) and 0 <= token < MAX_TOKEN_IDS):
                raise InvalidRequestError(
                    "must have token ids as its keys", attribute.name, describe(token)
                )
            if not _is_number(
                wanted, low, high
            ):  # checked first, as making the name takes longer than checking
                refuse(instance, attribute.evolve(name=f"{attribute.name}[{token}]"), wanted)

    return check


string = must_be("a string", lambda v: isinstance(v, str))
not_blank = must_be("a string that is not blank", lambda v: isinstance(v, str) and not is_blank(v))
optional_count = must_be(
    "an integer of at least 0 or None", lambda v: v is None or (is_integer(v) and v >= 0)
)
flag = must_be("true or false", lambda v: isinstance(v, bool))
an_object = must_be("an object", lambda v: isinstance(v, dict))
a_list = must_be("a list", lambda v: isinstance(v, list | tuple))


# ── attrs converters ─────────────────────────────────────────────────────────────────────────────────────────────────


def as_tuple(value: Any) -> Any:
    """Freeze a list; leave anything else, a string above all, for the validator to refuse."""
    return tuple(map(plain, value)) if isinstance(value, list | tuple) else value


def as_texts(value: Any) -> Any:
    """Take a single text for a list of one, and freeze a list."""
    return (value,) if isinstance(value, str) else as_tuple(value)


def as_schema(value: Any) -> Any:
    """Return the JSON schema that a text holds or a class of pydantic's has; leave all else as it is."""
    if callable(written := getattr(value, "model_json_schema", None)):
        return written()
    if isinstance(value, str):
        with suppress(
            ValueError, RecursionError
        ):  # what is no JSON is refused as what is no object
            return json.loads(value)
    return value


def as_token_numbers(value: Any) -> Any:
    """Copy an object whose keys are token ids, which JSON can only write as strings; leave what is none as it is."""
    if not isinstance(value, Mapping):
        return value
    return {
        int(k) if isinstance(k, str) and _ID.fullmatch(k) else plain(k): as_float(v)
        for k, v in value.items()
    }


def as_float(value: Any) -> Any:
    """Turn an integer that a float can hold into that float; leave anything else for the validator to refuse."""
    value = plain(value)
    return float(value) if is_integer(value) and abs(value) <= _MAX_FLOAT else value
