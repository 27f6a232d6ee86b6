"""Keep objects usable in processes that are forked while other threads use the objects.

A fork copies a lock that another thread holds, but not the thread, so that nothing would ever
release the lock in the new process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, Self, TypeVar, overload
from weakref import WeakSet

Value = TypeVar("Value")


class Renewable(Protocol):
    """An object with locks or threads that a forked process must create again."""

    def renew_after_fork(self) -> None:
        """Create the locks again; called in a forked process, which has a single thread."""


_renewables: Final[WeakSet[Renewable]] = WeakSet()


def register(renewable: Renewable) -> None:
    """Register an object whose `renew_after_fork` is called in each process forked from now on.

    Only a weak reference to the object is stored.
    """
    _renewables.add(renewable)


def call_in_child(function: Callable[[], object]) -> None:
    """Register a function to be called in each process that is forked from now on."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def _renew_all() -> None:
    for renewable in list(_renewables):
        renewable.renew_after_fork()


call_in_child(_renew_all)


class LazyAttribute(Generic[Value]):
    """An attribute that a method computes on first use, as with `functools.cached_property`.

    In Python 3.11, `functools.cached_property` holds one lock for all objects of a class while it
    computes. Threads that need the attribute of different objects would wait for each other, and a
    process that is forked meanwhile could never compute the attribute. This class has no lock:
    threads that need the attribute of one object at the same time can compute it twice.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type[Any], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> Self: ...
    @overload
    def __get__(self, instance: object, owner: type[Any]) -> Value: ...
    def __get__(self, instance: object | None, owner: type[Any]) -> Self | Value:
        if instance is None:
            return self
        value = self._compute(instance)
        vars(instance)[self._name] = value
        return value
