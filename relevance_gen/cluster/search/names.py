"""Names by which other processes of a cluster find an index.

An actor stores the location of each named index.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO, Final

import ray
from attrs import frozen

from relevance_gen.cluster.actors import (
    SILENCE_TIMEOUT_S,
    START_TIMEOUT_S,
    Actor,
    check,
    get_from,
    own_node,
    start,
)
from relevance_gen.cluster.connection import NAMESPACE
from relevance_gen.cluster.search.temporary import hold
from relevance_gen.errors import ClusterError, UnknownIndexError

_ACTOR_NAME: Final = "names of indexes"


@frozen
class NamedLocation:
    """The location of a named index.

    Attributes:
        location: the folder or the address of the index.
        is_temporary: whether it is a `TemporaryFolder`, which is deleted with the index.
    """

    location: str
    is_temporary: bool


class NameRegistry(Actor):
    """The actor that stores the locations of named indexes.

    It holds a lock on the temporary folder of each registered index, so that no process deletes
    the folder; see `temporary.hold`.
    """

    def __init__(self) -> None:
        self._locations: dict[str, NamedLocation] = {}
        self._locks: dict[str, BinaryIO] = {}

    def register(self, name: str, named: NamedLocation) -> bool:
        """Register a name, and lock the index's folder if it is temporary.

        Returns:
            True if the name now has this location; False if an index at another location has the
            name.
        """
        if name in self._locations:
            return self._locations[name] == named
        if named.is_temporary:
            self._locks[name] = hold(Path(named.location))
        self._locations[name] = named
        return True

    def find(self, name: str) -> NamedLocation | None:
        """Return the location of the index with a name; None if no index has the name."""
        return self._locations.get(name)

    def unregister(self, name: str, location: str) -> None:
        """Remove a name and release its temporary folder, if its index is at `location`."""
        named = self._locations.get(name)
        if named is not None and named.location == location:
            del self._locations[name]
            lock = self._locks.pop(name, None)
            if lock is not None:
                lock.close()


def register(name: str, named: NamedLocation) -> None:
    """Register the name of an index in the cluster; start the registry if it is not running.

    Raises:
        ClusterError: another index has the name, or the registry does not respond.
    """
    options = {"name": _ACTOR_NAME, "namespace": NAMESPACE, "lifetime": "detached"}
    registry = start(NameRegistry, own_node(), get_if_exists=True, max_restarts=-1, **options)
    check(registry, START_TIMEOUT_S)
    if not get_from(registry, registry.register.remote(name, named)):
        message = f"another index of the cluster has the name {name!r}"
        raise ClusterError(f"{message}; close it, or choose another name")


def find(name: str) -> NamedLocation:
    """Return the location of a named index.

    Raises:
        UnknownIndexError: no index of the cluster has the name.
        ClusterError: the registry does not respond.
    """
    registry = _registry()
    named = None
    if registry is not None:
        check(registry, SILENCE_TIMEOUT_S)
        named = get_from(registry, registry.find.remote(name))
    if named is None:
        raise UnknownIndexError(f"no index of the cluster has the name {name!r}")
    location: NamedLocation = named
    return location


def unregister(name: str, location: str) -> None:
    """Remove the name of the index at `location`; do nothing if another index has it."""
    registry = _registry()
    if registry is not None:
        get_from(registry, registry.unregister.remote(name, location))


def _registry() -> Any:
    try:
        return ray.get_actor(_ACTOR_NAME, namespace=NAMESPACE)
    except ValueError:
        return None
