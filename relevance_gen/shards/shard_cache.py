"""Cache the shards of remote indexes in a folder of this machine.

All processes of the machine map one copy into memory. A cached file belongs to one file of one
address, with its size and hash: another index cannot change a file that is in use. A file has its
full size before its content is fetched. A process holds a shared lock on each file that it uses.
The least recently used of all other files are removed when space is needed.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
from attrs import frozen

from relevance_gen.arrays import Bytes
from relevance_gen.errors import IndexFormatError, IndexUnavailableError
from relevance_gen.folders.cache import folder_lock
from relevance_gen.locks import try_lock
from relevance_gen.shards.object_store import ObjectStore
from relevance_gen.shards.versions import (
    IndexVersion,
    StoredFile,
    parse_version,
    serialize_version,
)

_BLOCK_BYTES: Final = 8 << 20
"""Number of bytes that one request to the store fetches."""
_MAX_PARALLEL_FETCHES: Final = 8
_LOCK_TIMEOUT_S: Final = 600.0
"""Maximum seconds to wait until another process has fetched the same files."""
_INCOMPLETE_NS: Final = 10**9
"""Modification time of a file whose content is not fetched yet."""
_VERIFIED_NS: Final = 0
"""Modification time of a file whose hash was compared. A later change of the file sets another
time."""


@frozen
class CachedVersion:
    """The last version of an index that was opened on this machine.

    Attributes:
        version: the version.
        opened_s: when it was opened, in seconds since 1970.
    """

    version: IndexVersion
    opened_s: float


@frozen
class ShardCache:
    """A folder of cached files, created when it is needed.

    Safe for several processes and threads.

    Attributes:
        folder: the path of the folder.
        max_bytes: maximum size of all files in the folder together.
    """

    folder: Path
    max_bytes: int

    def fetch(self, address: str, files: Sequence[StoredFile]) -> list[Bytes]:
        """Fetch files that are missing or damaged in the cache; return the contents of all files.

        The content is memory-mapped. A file remains in the cache as long as its content is used.

        Args:
            address: the address of the index.
            files: the files.

        Raises:
            IndexUnavailableError: the files in use would exceed `max_bytes`.
            IndexFormatError: the size or the hash of a fetched file differs from its record.
            OSError: the store does not answer, or this folder cannot be written.
        """
        needed = {self._path(address, file): file.n_bytes for file in files}
        with folder_lock(self.folder, wait_s=_LOCK_TIMEOUT_S):
            self._make_space(needed)
            contents = [_map_locked(path, n_bytes) for path, n_bytes in needed.items()]
        fetch = partial(_fetch, ObjectStore(address))
        address_lock = f"{self._version_path(address).stem}.lock"
        with (
            folder_lock(self.folder, address_lock, _LOCK_TIMEOUT_S),
            ThreadPoolExecutor(_MAX_PARALLEL_FETCHES) as pool,
        ):
            list(pool.map(fetch, needed, files))
        return contents

    def remember(self, address: str, version: IndexVersion) -> None:
        """Store the version of the index at `address` that was opened, for `last_version`."""
        content = f"{version.name}\n".encode() + serialize_version(version)
        self._version_path(address).write_bytes(content)

    def last_version(self, address: str) -> CachedVersion | None:
        """Return the version of the index at `address` that was opened last on this machine.

        None if no version was opened, or if one of its shards is not in the cache any more.
        """
        path = self._version_path(address)
        with suppress(FileNotFoundError):
            name, _, content = path.read_bytes().partition(b"\n")
            version = parse_version(content, name.decode(), address)
            shard_paths = [self._path(address, shard.file) for shard in version.shards]
            if all(shard_path.stat().st_mtime_ns == _VERIFIED_NS for shard_path in shard_paths):
                return CachedVersion(version, path.stat().st_mtime)
        return None

    def _path(self, address: str, file: StoredFile) -> Path:
        identity = f"{file.n_bytes} {file.sha256} {file.name} {address}"
        return self.folder / f"{hashlib.sha256(identity.encode()).hexdigest()}.shard"

    def _version_path(self, address: str) -> Path:
        return self.folder / f"{hashlib.sha256(address.encode()).hexdigest()}.version"

    def _make_space(self, needed: Mapping[Path, int]) -> None:
        """Remove unused files, least recently used first, until the needed files fit in the cache.

        The caller must hold the lock of the folder.

        Args:
            needed: size of each needed file by path; some can be in the cache already.

        Raises:
            IndexUnavailableError: the files in use and the needed files exceed `max_bytes`.
        """
        sizes = {path: path.stat().st_size for path in self.folder.glob("*.shard")}
        sizes.update(needed)
        unused = [path for path in sizes.keys() - needed.keys() if not _is_locked(path)]
        unused.sort(key=lambda path: path.stat().st_atime_ns)
        n_bytes = sum(sizes.values())
        n_used_bytes = n_bytes - sum(sizes[path] for path in unused)
        if n_used_bytes > self.max_bytes:
            rule = f"there is room for {self.max_bytes:,} bytes of shards"
            needs = f"with this index {n_used_bytes:,} are in use"
            raise IndexUnavailableError(f"{rule}, and {needs}; raise --shard-cache-bytes")
        for path in unused:
            if n_bytes > self.max_bytes:
                path.unlink()
                n_bytes -= sizes[path]


def _map_locked(path: Path, n_bytes: int) -> Bytes:
    """Return the memory-mapped content of a file, which is created unless it exists, and lock it.

    An existing file of another size is changed to this size. A file that was created or changed is
    marked as incomplete by its modification time. The memory map keeps a copy of the file's
    descriptor, and thereby the shared lock on the file, until the content is not used any more.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "r+b") as file:
        try_lock(descriptor, shared=True)
        if os.fstat(descriptor).st_size != n_bytes:
            os.ftruncate(descriptor, n_bytes)
            os.utime(path, ns=(0, _INCOMPLETE_NS))
        return np.memmap(file, np.uint8, "r")


def _fetch(store: ObjectStore, path: Path, file: StoredFile) -> None:
    """Fetch a file of a store into the cache, unless the cached file is complete and unchanged."""
    modified_ns = path.stat().st_mtime_ns
    is_complete = modified_ns == _VERIFIED_NS
    if not is_complete and modified_ns != _INCOMPLETE_NS:
        is_complete = _is_intact(path, file)
    if not is_complete:
        _download(store, path, file)
        if not _is_intact(path, file):
            raise IndexFormatError(f"{file.name} is damaged: its checksum does not match")
    os.utime(path, ns=(time.time_ns(), _VERIFIED_NS))


def _is_intact(path: Path, file: StoredFile) -> bool:
    with path.open("rb") as cached:
        return hashlib.file_digest(cached, "sha256").hexdigest() == file.sha256


def _download(store: ObjectStore, path: Path, file: StoredFile) -> None:
    with path.open("r+b") as cached:
        for start in range(0, file.n_bytes, _BLOCK_BYTES):
            stop = min(start + _BLOCK_BYTES, file.n_bytes)
            cached.write(store.read(file.name, start, stop)[: stop - start])
        cached.flush()
        # Without this, a crash of the machine may leave the time of a complete file without its
        # content.
        os.fsync(cached.fileno())


def _is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        return not try_lock(file.fileno())
