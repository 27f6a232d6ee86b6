"""A cache of folder indexes in the user's cache folder, bounded and readable by its owner only.

A cached index consists of two files: the index as `ChunkIndex.save` writes it, and the records of
its files. The records contain the size, times and inode of the index file. A modified index file is
therefore not used, and an unmodified one is opened without reading it completely. Files that are
damaged or foreign are ignored.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import frozen
from filelock import FileLock

from relevance_gen.checks import check_path
from relevance_gen.errors import InvalidRequestError
from relevance_gen.index import array_file, storage
from relevance_gen.retrieval.chunk_index import ChunkIndex
from relevance_gen.text.token_counting import Encoding

VARIABLE: Final = "RELEVANCE_GEN_CACHE"
"""The environment variable with the cache folder; ``off`` disables the cache."""
MAX_BYTES: Final = 4 << 30
"""Maximum bytes of all cached indexes; the least recently used are removed first."""

_OFF: Final = "off"
_INDEX_NAME: Final = re.compile(r"[0-9a-f]{32}\.index")
"""Matches names of cached indexes; a folder that the caller chooses may contain other files."""
_ARRAY_TYPES: Final = {"records": "u1", "locations": "<i4"}
_POLL_S: Final = 0.05
_ERRORS_OF_DAMAGE: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors that reading a cached file raises if the file is damaged, foreign or missing."""

Fingerprint: TypeAlias = tuple[int, int, int, int]
"""Size, modification time, change time and inode of a file; times in nanoseconds.

Programs can set the modification time, but not the change time.
"""

fingerprint: Final[Callable[[os.stat_result], Fingerprint]] = attrgetter(
    "st_size", "st_mtime_ns", "st_ctime_ns", "st_ino"
)
"""Return the fingerprint of a file's status; a fast function for ten thousands of files."""


def default_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the folder for cached indexes; None if the cache is disabled.

    If the environment variable whose name is `VARIABLE` is set, the result is the folder that it
    contains, or None if its value is ``off``. Otherwise it is a folder in the user's cache folder.

    Args:
        environment: the environment variables.
    """
    configured = environment.get(VARIABLE)
    if configured:
        return None if configured == _OFF else Path(configured)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "relevance_gen" / "folders"
    user_cache = environment.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user_cache) / "relevance_gen" / "folders"


@frozen
class CachedIndex:
    """An index of a folder with the data that is stored next to it.

    Attributes:
        index: the index.
        records: the records of the folder's files as JSON, a result of `files.to_json`.
        locations: the locations of the index's chunks, a result of `files.concat_locations`.
    """

    index: ChunkIndex
    records: Any
    locations: npt.NDArray[np.int32]


@frozen
class Cache:
    """Loads and saves one index in a cache folder.

    The default cache folder is created by the first save, and any other by `cache_for`. Several
    processes can use it at once: files are replaced atomically, and the last saved index remains.

    Attributes:
        folder: the cache folder.
        key: JSON of everything that the index depends on, except the indexed files.
        max_bytes: maximum bytes of all indexes in the cache folder together.
    """

    folder: Path
    key: Any
    max_bytes: int = MAX_BYTES

    @property
    def _index_path(self) -> Path:
        digest = hashlib.blake2b(json.dumps(self.key).encode("ascii"), digest_size=16)
        return self.folder / f"{digest.hexdigest()}.index"

    def load(self, encoding: Encoding | None) -> CachedIndex | None:
        """Return the cached index; None if there is none, or it is damaged or modified.

        An index in a folder or a file that other users can write to is not loaded either.
        `encoding` is passed to `ChunkIndex.load`.
        """
        index_path = self._index_path
        records_path = index_path.with_suffix(".files")
        try:
            if not all(map(_is_private, (self.folder, index_path, records_path))):
                return None
            content = np.fromfile(records_path, np.uint8)
            array_file.check(content, records_path)
            stored = array_file.read(content, _ARRAY_TYPES)
            settings, arrays = stored.settings, stored.arrays
            index_state = fingerprint(index_path.stat())
            has_key = settings["key"] == json.loads(json.dumps(self.key))
            if not has_key or settings["index"] != [*index_state]:
                return None
            index = ChunkIndex.load(index_path, encoding=encoding, check=False)
            if fingerprint(index_path.stat()) != index_state:  # replaced by another process
                return None
            os.utime(records_path)  # for the removal of the least recently used
            records = json.loads(arrays["records"].tobytes())
            return CachedIndex(index, records, arrays["locations"])
        except _ERRORS_OF_DAMAGE:
            return None

    def save(self, cached: CachedIndex) -> None:
        """Replace the cached index, and remove least recently used indexes beyond `max_bytes`.

        Nothing is saved if another process or thread holds the lock of the cache folder, see
        `folder_lock`. Errors of the system are ignored.
        """
        index_path = self._index_path
        records_path = index_path.with_suffix(".files")
        with contextlib.suppress(OSError), folder_lock(self.folder):
            cached.index.save(index_path, overwrite=True)
            index_path.chmod(0o600)
            settings = {"key": self.key, "index": [*fingerprint(index_path.stat())]}
            records = np.frombuffer(json.dumps(cached.records).encode("ascii"), np.uint8)
            arrays: dict[str, npt.NDArray[Any]] = {
                "records": records,
                "locations": cached.locations,
            }
            with storage.replacing(records_path) as file:
                Path(file.name).chmod(0o600)
                array_file.write(file, _ARRAY_TYPES, settings, arrays).seal()
            self._evict()

    def _evict(self) -> None:
        """Remove least recently used indexes beyond `max_bytes`.

        The caller must hold the lock of the folder.
        """
        entries = []
        for path in list(self.folder.iterdir()):
            if _INDEX_NAME.fullmatch(path.name):
                records_path = path.with_suffix(".files")
                used_ns = records_path.stat().st_mtime_ns if records_path.exists() else 0
                entries.append((used_ns, path, records_path))
        n_bytes = 0
        for _, path, records_path in sorted(entries, reverse=True):
            for file in (path, records_path):
                n_bytes += file.stat().st_size if file.exists() else 0
            if n_bytes > self.max_bytes:
                path.unlink()
                records_path.unlink(missing_ok=True)


@contextlib.contextmanager
def folder_lock(folder: Path, name: str = "lock", wait_s: float = 0.0) -> Iterator[None]:
    """Hold an exclusive lock of a folder in the context; create the folder if necessary.

    Args:
        folder: the folder.
        name: the name of the lock file.
        wait_s: seconds to wait for other processes and threads.

    Raises:
        OSError: other users may write to the folder, this process may not, or the lock is not free
            after `wait_s`.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_private(folder):
        raise PermissionError(f"{folder} must not be writable by other users")
    with FileLock(folder / name, timeout=wait_s, mode=0o600, poll_interval=_POLL_S):
        yield


def _is_private(path: Path) -> bool:
    """Return whether a file or folder belongs to this user, and no other user may write to it.

    On Windows, the cache folder of a user is private by default, and modes mean nothing.
    """
    if not hasattr(os, "geteuid"):
        return True
    status = path.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def cache_for(folder: object, key: Any) -> Cache | None:
    """Return the `Cache` of an index, given the cache folder; None if there is no cache.

    Args:
        folder: the cache folder; None for the folder that `default_folder` returns, which can be
            None, too; False for no cache.
        key: JSON of everything that the index depends on, except the indexed files.

    Raises:
        InvalidRequestError: `folder` is not a path, None or False, or it is not a folder that
            this process can create and write to.
    """
    if folder is False:
        return None
    if not isinstance(folder, str | os.PathLike | None) or folder == "":
        allowed = "a folder, None for the default folder, or False to disable the cache"
        raise InvalidRequestError.must_be("cache", allowed, folder)
    if folder is None:
        cache_folder = default_folder()
        return None if cache_folder is None else Cache(cache_folder, key)
    named_folder = Path(check_path("cache", folder))
    if not _is_writable(named_folder):
        remedy = "name another folder, or pass cache=False for no cache"
        allowed = "a folder that this process can write to"
        raise InvalidRequestError.must_be("cache", allowed, str(folder), remedy=remedy)
    return Cache(named_folder, key)


def _is_writable(folder: Path) -> bool:
    """Create a folder, unless it exists; return whether this process can write to it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)
