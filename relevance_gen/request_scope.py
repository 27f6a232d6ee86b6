"""Cancellation and memory budget of the current request.

The caller of a long computation opens a scope; the computation checks it between its steps, at any
depth of the call stack. A deadline can be checked in this way, and so can a future that may be
canceled:

>>> from concurrent.futures import Future
>>> future = Future()
>>> future.cancel()
True
>>> with cancel_scope(lambda: not future.cancelled()):
...     raise_if_cancelled()
Traceback (most recent call last):
relevance_gen.errors.RequestCancelledError: the result is no longer required
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TypeAlias, TypeVar

from relevance_gen.errors import RequestCancelledError

T = TypeVar("T")

IsRequired: TypeAlias = Callable[[], bool]
ReserveUnits: TypeAlias = Callable[[str, int], None]
"""Reserves the memory of a number of units."""


def _reserve_nothing(unit: str, count: int) -> None:
    """Accept any reservation: there is no budget."""


_IS_REQUIRED: ContextVar[IsRequired | None] = ContextVar("_IS_REQUIRED", default=None)
_RESERVE: ContextVar[ReserveUnits] = ContextVar("_RESERVE", default=_reserve_nothing)


@contextmanager
def _set(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def cancel_scope(is_required: IsRequired) -> AbstractContextManager[None]:
    """Cancel the work in this context, in this thread or task, when `is_required` returns false."""
    return _set(_IS_REQUIRED, is_required)


def budget_scope(reserve_units: ReserveUnits) -> AbstractContextManager[None]:
    """Call `reserve_units` with each `reserve` of this context; an exception that it raises ends the work."""
    return _set(_RESERVE, reserve_units)


def raise_if_cancelled() -> None:
    """Continue only if the caller still needs the result.

    Raises:
        RequestCancelledError: the cancel scope reports that the result is not required.
    """
    is_required = _IS_REQUIRED.get()
    if is_required is not None and not is_required():
        raise RequestCancelledError("the result is no longer required")


def reserve(unit: str, count: int) -> None:
    """Reserve the memory of `count` units, such as spans, before they are allocated."""
    _RESERVE.get()(unit, count)
