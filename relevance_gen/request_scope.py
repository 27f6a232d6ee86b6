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
"""A function to call with the name of a unit and a number of units, before memory is allocated."""


def _reserve_nothing(unit: str, count: int) -> None:
    """Accept any reservation: used outside of a `budget_scope`."""


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
    """Cancel the work in this context, in this thread or task, when `is_required` returns false.

    Cancellation is cooperative: the work ends at its next call of `raise_if_cancelled`.
    """
    return _set(_IS_REQUIRED, is_required)


def budget_scope(reserve_units: ReserveUnits) -> AbstractContextManager[None]:
    """Call `reserve_units` for each call of `reserve` in this context, in this thread or task.

    It gets the arguments of `reserve`. An exception that it raises is raised by `reserve`, and so
    ends the work. A scope inside another scope replaces it.
    """
    return _set(_RESERVE, reserve_units)


def raise_if_cancelled() -> None:
    """Raise an exception if the result of the current work is not required any more.

    Without a cancel scope, the result is always required.

    Raises:
        RequestCancelledError: the function of the innermost cancel scope returned false.
    """
    is_required = _IS_REQUIRED.get()
    if is_required is not None and not is_required():
        raise RequestCancelledError("the result is no longer required")


def reserve(unit: str, count: int) -> None:
    """Reserve memory for `count` units, such as spans, in the current `budget_scope`.

    The caller must do so before it allocates the memory. Does nothing without a budget scope.
    """
    _RESERVE.get()(unit, count)
