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
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

from attrs import frozen

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
    opened_s: float  # seconds since 1970


@frozen
class ShardCache:
    """A folder of cached files, created when it is needed.

    Safe for several processes and threads.

    Attributes:
        folder: the path of the folder.
        max_bytes: maximum size of all files in the folder together.
    """

    folder: Path
    max_bytes: int  # of all files in the folder

    def fetch(
        self, address: str, files: Sequence[StoredFile], locks: ExitStack
    ) -> Mapping[str, Path]:
        """Fetch files that are missing or damaged in the cache; return the paths of all by name.

        Args:
            address: the address of the index.
            files: the files.
            locks: receives the locks of the files, which keep the files in the cache until `locks`
                is closed.

        Raises:
            IndexUnavailableError: the files in use would exceed `max_bytes`.
            IndexFormatError: the size or the hash of a fetched file differs from its record.
            OSError: the store does not answer, or this folder cannot be written.
        """
        paths = {file.name: self._path(address, file) for file in files}
        sizes = {paths[file.name]: file.n_bytes for file in files}
        with folder_lock(self.folder, wait_s=_LOCK_TIMEOUT_S):
            self._make_space(sizes)
            for path, n_bytes in sizes.items():
                locks.callback(os.close, _create_locked(path, n_bytes))
        store = ObjectStore(address)
        address_lock = f"{self._version_path(address).stem}.lock"
        with (
            folder_lock(self.folder, address_lock, _LOCK_TIMEOUT_S),
            ThreadPoolExecutor(_MAX_PARALLEL_FETCHES) as pool,
        ):
            fetch = partial(_fetch, store)
            list(pool.map(fetch, [paths[file.name] for file in files], files))
        return paths

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
        unused = _unused(sizes.keys() - needed.keys())
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


def _unused(paths: Collection[Path]) -> list[Path]:
    """Return the files that no process has locked, least recently used first."""
    unused = [path for path in paths if not _is_locked(path)]
    return sorted(unused, key=lambda path: path.stat().st_atime_ns)


def _create_locked(path: Path, n_bytes: int) -> int:
    """Create a file of `n_bytes`, unless a file of this size exists, and lock it.

    An existing file of another size is changed to this size. A file that was created or changed is
    marked as incomplete by its modification time.

    Returns:
        A descriptor that holds a shared lock on the file until it is closed.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try_lock(descriptor, shared=True)
    if os.fstat(descriptor).st_size != n_bytes:
        os.ftruncate(descriptor, n_bytes)
        os.utime(path, ns=(0, _INCOMPLETE_NS))
    return descriptor


def _fetch(store: ObjectStore, path: Path, file: StoredFile) -> None:
    """Fetch a file of a store into the cache, unless the cached file is complete and unchanged."""
    modified_ns = path.stat().st_mtime_ns
    is_verified = modified_ns == _VERIFIED_NS
    if modified_ns not in (_INCOMPLETE_NS, _VERIFIED_NS):
        with path.open("rb") as cached:
            is_verified = hashlib.file_digest(cached, "sha256").hexdigest() == file.sha256
    if not is_verified:
        _download(store, path, file)
    os.utime(path, ns=(time.time_ns(), _VERIFIED_NS))


def _download(store: ObjectStore, path: Path, file: StoredFile) -> None:
    sha256 = hashlib.sha256()
    with path.open("r+b") as cached:
        for start in range(0, file.n_bytes, _BLOCK_BYTES):
            stop = min(start + _BLOCK_BYTES, file.n_bytes)
            block = store.read(file.name, start, stop)[: stop - start]
            sha256.update(block)
            cached.write(block)
        cached.flush()
        # Without this, a crash of the machine may leave the time of a complete file without its
        # content.
        os.fsync(cached.fileno())
    if sha256.hexdigest() != file.sha256:
        raise IndexFormatError(f"{file.name} is damaged: its checksum does not match")


def _is_locked(path: Path) -> bool:
    with path.open("rb") as file:
        return not try_lock(file.fileno())
