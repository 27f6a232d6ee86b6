"""Functions that return fields of attrs classes for requests.

Each field has a default, and a validator that raises an `InvalidRequestError`.
"""

from __future__ import annotations

import math
from typing import Any

from attrs import field, validators

from relevance_gen import checks


def integer(low: int, high: int | None = None, *, default: int) -> Any:
    """Return a field for an integer in [low, high]; `high` None means no upper limit."""
    validator = checks.integer(low, high)
    return field(default=default, converter=checks.to_python_scalar, validator=validator)


def number(low: float, high: float = math.inf, *, default: float) -> Any:
    """Return a field for a finite number in [low, high], which becomes a float."""
    validator = checks.number(low, high)
    return field(default=default, converter=checks.as_float, validator=validator)


def flag(*, default: bool = False) -> Any:
    """Return a field for True or False."""
    return field(default=default, validator=checks.flag)


def optional(validator: checks.Validator) -> Any:
    """Return a field for None, which is its default, or a value that `validator` accepts."""
    optional_validator = validators.optional(validator)
    return field(default=None, converter=checks.to_python_scalar, validator=optional_validator)
