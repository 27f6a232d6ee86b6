"""Checks of values, as functions, attrs validators and attrs converters.

A refused value raises `InvalidRequestError`, which names the field, the allowed values and the
value. Float fields accept integers, because JSON has one number type; integer fields accept neither
booleans nor ``10.0``.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias, TypeGuard

from attrs import Attribute, frozen

from relevance_gen.errors import InvalidRequestError, describe

Validator: TypeAlias = Callable[[Any, "Attribute[Any]", Any], None]

MAX_TOKEN_IDS = 1 << 31
"""Exclusive upper bound of token ids: llama.cpp numbers tokens with signed 32-bit integers."""

_MAX_FLOAT = sys.float_info.max
_TOKEN_ID = re.compile(r"0|[1-9][0-9]{0,9}")


def to_python_scalar(value: Any) -> Any:
    """Convert a numpy scalar to a Python scalar; return any other value unchanged."""
    numpy = sys.modules.get("numpy")  # if numpy is not loaded, the value cannot be a numpy scalar
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def as_list(value: Any) -> Any:
    """Convert an array, or a column of a data frame, to a list.

    Return any other value unchanged.
    """
    return value.tolist() if hasattr(value, "tolist") else value


def is_integer(value: object) -> TypeGuard[int]:
    """Return whether `value` is an integer as in JSON: neither a boolean nor a float."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_blank(text: str) -> bool:
    """Return whether `text` is empty or only white space.

    >>> is_blank("   "), is_blank("...")
    (True, False)
    """
    return not text or text.isspace()


def check_integer(
    name: str,
    value: Any,
    low: int,
    high: int | None = None,
) -> int:
    """Return `value` if it is an integer in [low, high]; errors call it `name`."""
    value = to_python_scalar(value)
    integer(low, high).check(name, value)
    return int(value)


def check_flag(
    name: str,
    value: Any,
) -> None:
    """Raise `InvalidRequestError` for the argument `name` if `value` is not a boolean."""
    flag.check(name, to_python_scalar(value))


def check_path(
    name: str,
    value: Any,
    takes_addresses: str | None = None,
) -> str | os.PathLike[str]:
    """Return `value` if it can be the path of a file; otherwise raise an `InvalidRequestError`.

    An empty path is refused, because it would mean the working directory.

    Args:
        name: the name of the field in errors.
        value: the path.
        takes_addresses: the name of the function that accepts addresses such as ``s3://…``. If it
            is given, an address is refused, and the error names this function. None accepts any
            string that can be a path.
    """
    if not isinstance(value, str | os.PathLike) or not value:
        raise InvalidRequestError.must_be(name, "the path of a file", value)
    check_path_characters(name, str(value))
    if takes_addresses and "://" in str(value):
        remedy = f"{takes_addresses} takes addresses"
        raise InvalidRequestError.must_be(
            name, "a path of this machine, and no address", value, remedy=remedy
        )
    return value


def check_path_characters(
    name: str,
    path: str,
) -> None:
    """Raise `InvalidRequestError` for the field `name` if no file can have the path."""
    if "\0" in path:
        raise InvalidRequestError("cannot be a path: it has a null byte", name)
    try:
        os.fsencode(path)
    except UnicodeEncodeError:
        rule = "cannot be a path: it has a lone surrogate"
        raise InvalidRequestError(rule, name, describe(path)) from None


# ── attrs validators ─────────────────────────────────────────────────────────────────────────────


@frozen
class Rule:
    """A validator that refuses every value for which a predicate is false.

    Attributes:
        allowed: the allowed values, in words that follow "must be".
        is_allowed: the predicate.
    """

    allowed: str
    is_allowed: Callable[[Any], bool]

    def check(self, name: str, value: object) -> None:
        """Raise `InvalidRequestError` for the field `name` if `value` is not allowed."""
        if not self.is_allowed(value):
            raise InvalidRequestError.must_be(name, self.allowed, value)

    def __call__(self, _instance: object, attribute: Attribute[Any], value: object) -> None:
        """Check the value of an attrs field; raise `InvalidRequestError` if it is not allowed."""
        self.check(attribute.name, value)


def list_of(noun: str, min_items: int, max_items: int) -> Rule:
    """Return a validator of lists of `min_items` to `max_items` items.

    `noun` is the singular of the items' name in errors.
    """
    return Rule(
        f"a list of {min_items} to {max_items:,} {noun}s",
        lambda value: isinstance(value, list | tuple) and min_items <= len(value) <= max_items,
    )


def one_of(*names: str) -> Rule:
    """Return a validator of strings that accepts only the given names."""
    quoted = " or ".join(f'"{name}"' for name in names)
    return Rule(quoted, lambda value: isinstance(value, str) and value in names)


def short(max_chars: int) -> Rule:
    """Return a validator of strings of at most `max_chars` characters."""
    return Rule(
        f"a string of at most {max_chars:,} characters",
        lambda value: isinstance(value, str) and len(value) <= max_chars,
    )


def integer(low: int, high: int | None = None) -> Rule:
    """Return a validator of integers in [low, high]; None: without an upper bound."""
    interval = f"of at least {low}" if high is None else f"in [{low}, {high}]"

    def is_allowed(value: Any) -> bool:
        value = to_python_scalar(value)
        return is_integer(value) and low <= value and (high is None or value <= high)

    return Rule(f"an integer {interval}", is_allowed)


def number(low: float, high: float = math.inf) -> Rule:
    """Return a validator of finite numbers in [low, high]."""
    interval = f"of at least {low:g}" if high == math.inf else f"in [{low:g}, {high:g}]"
    return Rule(f"a finite number {interval}", lambda value: _is_number(value, low, high))


def _is_number(value: Any, low: float, high: float) -> bool:
    # Not math.isfinite: it raises OverflowError for an integer beyond a float's range.
    if not is_integer(value) and not isinstance(value, float):
        return False
    return bool(low <= value <= min(high, _MAX_FLOAT))


def above(low: float) -> Rule:
    """Return a validator of finite numbers greater than `low`."""
    return Rule(
        f"a finite number above {low:g}",
        lambda value: _is_number(value, low, math.inf) and value > low,
    )


def items(
    allowed: str,
    is_allowed: Callable[[Any], bool],
    allowed_lists: str = "a list",
) -> Validator:
    """Return a validator of tuples of allowed items; the error names the first other item.

    Args:
        allowed: the allowed items, in words that follow "must be".
        is_allowed: whether an item is allowed.
        allowed_lists: the allowed values of the field, in words that follow "must be".
    """
    rule = Rule(allowed, is_allowed)

    def validate(_instance: object, attribute: Attribute[Any], value: Any) -> None:
        if not isinstance(value, tuple):
            raise InvalidRequestError.must_be(attribute.name, allowed_lists, value)
        for position, item in enumerate(value):
            if not is_allowed(item):
                rule.check(f"{attribute.name}[{position}]", item)

    return validate


def token_numbers(low: float, high: float, max_tokens: int) -> Validator:
    """Return a validator of dicts from at most `max_tokens` token ids to numbers in [low, high]."""
    rule = number(low, high)

    def validate(_instance: object, attribute: Attribute[Any], value: Any) -> None:
        if not isinstance(value, dict) or len(value) > max_tokens:
            allowed = f"an object of at most {max_tokens:,} token ids"
            raise InvalidRequestError.must_be(attribute.name, allowed, value)
        for token, addend in value.items():
            if not is_integer(token) or not 0 <= token < MAX_TOKEN_IDS:
                raise InvalidRequestError(
                    "must have token ids as its keys", attribute.name, describe(token)
                )
            if not rule.is_allowed(addend):
                rule.check(f"{attribute.name}[{token}]", addend)

    return validate


string = Rule("a string", lambda value: isinstance(value, str))
not_blank = Rule(
    "a string that is not blank", lambda value: isinstance(value, str) and not is_blank(value)
)
optional_count = Rule(
    "an integer of at least 0 or None", lambda value: value is None or integer(0).is_allowed(value)
)
flag = Rule("True or False", lambda value: isinstance(value, bool))
an_object = Rule("an object", lambda value: isinstance(value, dict))
a_list = Rule("a list", lambda value: isinstance(value, list | tuple))
mapping = Rule("an object", lambda value: isinstance(value, Mapping))
model_source = Rule(
    "the path of a GGUF file or the name of a repository",
    lambda value: isinstance(value, str | os.PathLike),
)
sequence = Rule(
    "a list", lambda value: isinstance(value, Sequence) and not isinstance(value, str | bytes)
)


# ── attrs converters ─────────────────────────────────────────────────────────────────────────────


def as_tuple(value: Any) -> Any:
    """Convert a list to a tuple; return any other value unchanged, for the validator to refuse."""
    return tuple(map(to_python_scalar, value)) if isinstance(value, list | tuple) else value


def as_texts(value: Any) -> Any:
    """Convert a string to a tuple with this string as its only item, and a list to a tuple.

    Return any other value unchanged.
    """
    return (value,) if isinstance(value, str) else as_tuple(value)


def as_schema(value: Any) -> Any:
    """Return the JSON schema that a string contains, or that a pydantic class generates.

    Return any other value unchanged.
    """
    if callable(schema_of := getattr(value, "model_json_schema", None)):
        return schema_of()
    if isinstance(value, str):
        with suppress(ValueError, RecursionError):  # the validator refuses a string
            return json.loads(value)
    return value


def as_token_numbers(value: Any) -> Any:
    """Convert a mapping from token ids to numbers: ids to integers, and numbers to floats.

    Token ids are strings in JSON. Return any other value unchanged.
    """
    if not isinstance(value, Mapping):
        return value
    numbers = {}
    for key, addend in value.items():
        is_written_id = isinstance(key, str) and _TOKEN_ID.fullmatch(key)
        numbers[int(key) if is_written_id else to_python_scalar(key)] = as_float(addend)
    return numbers


def as_float(value: Any) -> Any:
    """Convert an integer that fits a float to that float; return any other value unchanged."""
    value = to_python_scalar(value)
    return float(value) if is_integer(value) and abs(value) <= _MAX_FLOAT else value
