"""Locations of indexes: temporary folders, and names by which other processes find an index.

A temporary folder is for an index of a cluster on one machine. Each process that uses the folder
holds a shared lock on a file next to it. A folder without a lock is unused, for example because its
process was killed; it is deleted when the user's next temporary folder is created.
"""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, Final

import ray

from relevance_gen import locks
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
from relevance_gen.errors import ClusterError, UnknownIndexError

_PARENT: Final = "relevance_gen_cluster_{uid}"
_REGISTRY_NAME: Final = "names of indexes"


class TemporaryFolder:
    """A new folder for an index, which `remove` deletes, or else the end of this process.

    Before it is created, other such folders of this user that no process has locked are deleted.

    Raises:
        PermissionError: the parent folder belongs to another user, or other users have a permission
            for it.
    """

    def __init__(self) -> None:
        parent = Path(tempfile.gettempdir(), _PARENT.format(uid=os.getuid()))
        parent.mkdir(mode=0o700, exist_ok=True)
        status = parent.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise PermissionError(f"{parent} can be changed by other users")
        for path in parent.glob("*.lock"):
            with suppress(OSError), path.open("ab") as file:
                if locks.try_lock(file.fileno()):
                    shutil.rmtree(path.with_suffix(""), ignore_errors=True)
                    path.unlink()
        self.path = parent / secrets.token_hex(8)
        self._lock = _lock(self.path)
        self.path.mkdir()
        atexit.register(self.remove)

    def keep(self) -> None:
        """Do not delete the folder at the end of this process."""
        atexit.unregister(self.remove)

    def remove(self) -> None:
        """Delete the folder with its contents, and release its lock. Safe to call twice."""
        atexit.unregister(self.remove)
        shutil.rmtree(self.path, ignore_errors=True)
        _lock_path(self.path).unlink(missing_ok=True)
        self._lock.close()


def _lock(folder: Path) -> BinaryIO:
    """Open the lock file of a temporary folder with a shared lock, and return it.

    Until the returned file is closed, other processes do not delete the folder as unused. Several
    processes can hold the lock at the same time.
    """
    path = _lock_path(folder)
    while True:
        file = path.open("ab")
        locks.lock(file.fileno(), shared=True)
        # Another process may have deleted the file before it was locked.
        locked_inode = os.fstat(file.fileno()).st_ino
        if path.exists() and path.stat().st_ino == locked_inode:
            return file
        file.close()


def _lock_path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")


class NameRegistry(Actor):
    """The actor that stores the locations of named indexes.

    It locks the temporary folder of each registered index, so that no process deletes the folder.
    """

    def __init__(self) -> None:
        self._locations: dict[str, str] = {}
        self._locks: dict[str, BinaryIO] = {}

    def register(self, name: str, location: str, is_temporary: bool) -> bool:
        """Register a name, and lock the index's folder if it is temporary.

        Returns:
            True if the name now has this location; False if an index at another location has the
            name.
        """
        if is_temporary and name not in self._locations:
            self._locks[name] = _lock(Path(location))
        return self._locations.setdefault(name, location) == location

    def find(self, name: str) -> str | None:
        """Return the location of the index with a name; None if no index has the name."""
        return self._locations.get(name)

    def unregister(self, name: str, location: str) -> None:
        """Remove a name and release its temporary folder, if its index is at `location`."""
        if self._locations.get(name) == location:
            del self._locations[name]
            if name in self._locks:
                self._locks.pop(name).close()


def register(name: str, location: str, is_temporary: bool) -> None:
    """Register the name of an index in the cluster; start the registry if it is not running.

    Args:
        name: the name.
        location: the folder or the address of the index.
        is_temporary: whether it is a `TemporaryFolder`, which is deleted with the index.

    Raises:
        ClusterError: another index has the name, or the registry does not respond.
    """
    options = {"name": _REGISTRY_NAME, "namespace": NAMESPACE, "lifetime": "detached"}
    registry = start(NameRegistry, own_node(), get_if_exists=True, max_restarts=-1, **options)
    check(registry, START_TIMEOUT_S)
    if not get_from(registry, registry.register.remote(name, location, is_temporary)):
        message = f"another index of the cluster has the name {name!r}"
        raise ClusterError(f"{message}; close it, or choose another name")


def find(name: str) -> str:
    """Return the location of a named index.

    Raises:
        UnknownIndexError: no index of the cluster has the name.
        ClusterError: the registry does not respond.
    """
    registry = _registry()
    location: str | None = None
    if registry is not None:
        check(registry, SILENCE_TIMEOUT_S)
        location = get_from(registry, registry.find.remote(name))
    if location is None:
        raise UnknownIndexError(f"no index of the cluster has the name {name!r}")
    return location


def unregister(name: str, location: str) -> None:
    """Remove the name of the index at `location`; do nothing if another index has it."""
    registry = _registry()
    if registry is not None:
        get_from(registry, registry.unregister.remote(name, location))


def _registry() -> Any:
    try:
        return ray.get_actor(_REGISTRY_NAME, namespace=NAMESPACE)
    except ValueError:
        return None
