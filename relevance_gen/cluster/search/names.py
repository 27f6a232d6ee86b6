"""Names by which other processes of a cluster find an index.

An actor stores the place of each named index.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO, Final

import ray
from attrs import frozen

from relevance_gen.cluster.actors import SILENT_S, START_S, Actor, check, get_from, own_node, start
from relevance_gen.cluster.connection import NAMESPACE
from relevance_gen.cluster.search.temporary import hold
from relevance_gen.errors import ClusterError, UnknownIndexError

_ACTOR_NAME: Final = "names of indexes"


@frozen
class NamedPlace:
    """The place of a named index.

    Attributes:
        place: the folder or the address of the index.
        is_temporary: whether it is a `TemporaryFolder`, which is deleted with the index.
    """

    place: str
    is_temporary: bool


class NameRegistry(Actor):
    """The actor that stores the places of named indexes.

    It holds the temporary folders of registered indexes, so that no process deletes them.
    """

    def __init__(self) -> None:
        self._places: dict[str, NamedPlace] = {}
        self._locks: dict[str, BinaryIO] = {}

    def register(self, name: str, named: NamedPlace) -> bool:
        """Register a name, and hold the index's folder if it is temporary.

        Returns False if an index at another place has the name.
        """
        if name in self._places:
            return self._places[name] == named
        if named.is_temporary:
            self._locks[name] = hold(Path(named.place))
        self._places[name] = named
        return True

    def find(self, name: str) -> NamedPlace | None:
        """Return the place of the index with a name; None if no index has the name."""
        return self._places.get(name)

    def unregister(self, name: str, place: str) -> None:
        """Remove a name and release its temporary folder, if its index is at `place`."""
        named = self._places.get(name)
        if named is not None and named.place == place:
            del self._places[name]
            lock = self._locks.pop(name, None)
            if lock is not None:
                lock.close()


def register(name: str, named: NamedPlace) -> None:
    """Register the name of an index in the cluster; start the registry if it is not running.

    Raises:
        ClusterError: another index has the name, or the registry does not respond.
    """
    options = {"name": _ACTOR_NAME, "namespace": NAMESPACE, "lifetime": "detached"}
    registry = start(NameRegistry, own_node(), get_if_exists=True, max_restarts=-1, **options)
    check(registry, START_S)
    if not get_from(registry, registry.register.remote(name, named)):
        message = f"another index of the cluster has the name {name!r}"
        raise ClusterError(f"{message}; close it, or choose another name")


def find(name: str) -> NamedPlace:
    """Return the place of a named index.

    Raises:
        UnknownIndexError: no index of the cluster has the name.
        ClusterError: the registry does not respond.
    """
    registry = _registry()
    named = None
    if registry is not None:
        check(registry, SILENT_S)
        named = get_from(registry, registry.find.remote(name))
    if named is None:
        raise UnknownIndexError(f"no index of the cluster has the name {name!r}")
    found: NamedPlace = named
    return found


def unregister(name: str, place: str) -> None:
    """Remove the name of the index at `place`; do nothing if no index or another index has it."""
    registry = _registry()
    if registry is not None:
        get_from(registry, registry.unregister.remote(name, place))


def _registry() -> Any:
    try:
        return ray.get_actor(_ACTOR_NAME, namespace=NAMESPACE)
    except ValueError:
        return None
