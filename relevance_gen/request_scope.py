"""What work in hand asks of whoever waits for it: whether it is still wanted, and whether there is room for what comes.

Whoever begins work says so for all that runs in a context, and the work looks at it between its parts, however deep
they are. A deadline is a rule of what is wanted, and so is a future that somebody may cancel:

>>> from concurrent.futures import Future
>>> waiting = Future()
>>> waiting.cancel()
True
>>> with while_wanted(lambda: not waiting.cancelled()):
...     check_wanted()
Traceback (most recent call last):
relevance_gen.errors.RequestCancelledError: nobody waits for this any more
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TypeVar

from relevance_gen.errors import RequestCancelledError

T = TypeVar("T")

_IS_WANTED: ContextVar[Callable[[], bool]] = ContextVar("_IS_WANTED", default=lambda: True)
_EXPECT: ContextVar[Callable[[str, int], None]] = ContextVar("_EXPECT", default=lambda *_: None)


@contextmanager
def _set(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def cancel_scope(is_wanted: Callable[[], bool]) -> AbstractContextManager[None]:
    """Have what runs in the context, in this thread or task, given up when `is_wanted` says no."""
    return _set(_IS_WANTED, is_wanted)


def budget_scope(expect: Callable[[str, int], None]) -> AbstractContextManager[None]:
    """Have `expect` called before so many of a unit are made in the context; what it raises ends the work."""
    return _set(_EXPECT, expect)


def raise_if_cancelled() -> None:
    """Go on only if this is still wanted.

    Raises:
        RequestCancelledError: it is not.
    """
    if not _IS_WANTED.get()():
        raise RequestCancelledError("nobody waits for this any more")


def reserve(unit: str, number: int) -> None:
    """Say that so many of a unit are about to be made."""
    _EXPECT.get()(unit, number)
