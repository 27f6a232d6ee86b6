"""Readable signatures of attrs classes."""

from __future__ import annotations

import inspect
from typing import TypeVar

from attrs import NOTHING, Factory, fields

T = TypeVar("T")


def with_signature(cls: type[T]) -> type[T]:
    """Set the signature of an attrs class, with all field types and defaults; return the class.

    Without it, the signature that attrs creates omits the types of converted fields, and the values
    of factory defaults.
    """
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
