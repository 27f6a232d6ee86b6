"""Readable signatures of attrs classes."""

from __future__ import annotations

import inspect
from typing import TypeVar

from attrs import NOTHING, Factory, fields

T = TypeVar("T")


def with_signature(cls: type[T]) -> type[T]:
    """Add to a signature what attrs omits: types of converted fields, and factory defaults."""
    parameters = []
    for attribute in fields(cls):  # type: ignore[arg-type]
        default = attribute.default
        if isinstance(default, Factory):  # type: ignore[arg-type]
            default = default.factory()
        if default is NOTHING:
            default = inspect.Parameter.empty
        parameter = inspect.Parameter(
            attribute.name,
            inspect.Parameter.POSITIONAL_OR_KEYWORD,
            default=default,
            annotation=attribute.type,
        )
        parameters.append(parameter)
    cls.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return cls
