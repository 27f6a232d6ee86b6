"""Names by which other processes of a cluster find an index. An actor stores the place of each named index."""

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
    """The place of a named index."""

    place: str
    is_temporary: bool


class NameRegistry(Actor):
    """Stores the places of named indexes. It keeps temporary folders from being deleted until they are unregistered."""

    def __init__(self) -> None:
        self._places: dict[str, NamedPlace] = {}
        self._locks: dict[str, BinaryIO] = {}

    def register(self, name: str, named: NamedPlace) -> bool:
        """Register a name; return False if another index has it."""
        if name in self._places:
            return self._places[name] == named
        if named.is_temporary:
            self._locks[name] = hold(Path(named.place))
        self._places[name] = named
        return True

    def find(self, name: str) -> NamedPlace | None:
        """Return the place of the index with a name."""
        return self._places.get(name)

    def unregister(self, name: str, place: str) -> None:
        """Remove a name, if it is the name of the index at a place."""
        named = self._places.get(name)
        if named is not None and named.place == place:
            del self._places[name]
            lock = self._locks.pop(name, None)
            if lock is not None:
                lock.close()


def register(name: str, named: NamedPlace) -> None:
    """Register an index; raise a `ClusterError` if another index has the name."""
    options = {"name": _ACTOR_NAME, "namespace": NAMESPACE, "lifetime": "detached"}
    registry = start(NameRegistry, own_node(), get_if_exists=True, max_restarts=-1, **options)
    check(registry, START_S)
    if not get_from(registry, registry.register.remote(name, named)):
        message = f"another index of the cluster has the name {name!r}"
        raise ClusterError(f"{message}; close it, or choose another name")


def find(name: str) -> NamedPlace:
    """Return the place of a named index, or raise an `UnknownIndexError`."""
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
    """Remove the name of the index at a place."""
    registry = _registry()
    if registry is not None:
        get_from(registry, registry.unregister.remote(name, place))


def _registry() -> Any:
    try:
        return ray.get_actor(_ACTOR_NAME, namespace=NAMESPACE)
    except ValueError:
        return None
