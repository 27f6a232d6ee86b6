"""Keep shards of saved indexes in a folder of this machine: one copy for all its processes, mapped into memory.

A file is of one shard of one address, as a manifest tells its size and hash: what another manifest tells of it, or
another store has, cannot change a file that is in use. It has its full size before its bytes are fetched. A process
holds a lock of each file that it uses. Of the others, those that were used last stay, as many as there is room for.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import resource
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

from attrs import asdict, frozen

from relevance_gen import wire
from relevance_gen.errors import IndexFormatError, IndexUnavailableError, pluralize
from relevance_gen.folders.cache import alone, lock
from relevance_gen.index import storage
from relevance_gen.retrieval.chunk_index import ChunkIndex
from relevance_gen.shards.folder import Manifest, SavedShard, open_index, parse_manifest
from relevance_gen.shards.object_store import Store
from relevance_gen.text.token_counting import Encoding

_BLOCK_BYTES: Final = 8 << 20
"""What one request fetches."""
_FETCHES: Final = 8
"""Shards that are fetched at once."""
_FILES_EACH: Final = 2
"""Files that this process opens for each shard: one holds the lock, and one the map."""
_SPARE_FILES: Final = 256
"""How many it shall be able to open beside them, for connections and what else it does."""
_WAIT_S: Final = 600.0
"""How long to wait for another process, which fetches the same index."""
_EMPTY_NS: Final = 10**9
"""The time of change of a file of which nothing was fetched yet."""
_WHOLE_NS: Final = 0
"""The one of a file whose hash was compared. Whoever changes the file later gives it another."""


@frozen
class ShardCache:
    """A folder of shards, made when it is needed. Safe for several processes and threads."""

    folder: Path
    max_bytes: int  # of all shards there

    def open(
        self, address: str, manifest: Manifest, encoding: Encoding | None = None
    ) -> ChunkIndex:
        """Return an index saved at an address; shards that are not here, or not as written, are fetched first.

        The encoding is as for `relevance_gen.ChunkIndex.load`.

        Raises:
            IndexUnavailableError: there is not enough room, or this process may not open so many files.
            IndexFormatError: a shard is not as it was written.
            OSError: the store does not answer, or this folder cannot be written.
        """
        check_files(manifest)
        store, copy = Store(address), self._copy(address)
        shards = [
            (self.folder / _file_of(address, name, one), name, one)
            for name, one in manifest.shards.items()
        ]
        with ExitStack() as held:
            with alone(self.folder, wait_s=_WAIT_S):
                self._make_room({path: shard.n_bytes for path, _, shard in shards})
                for path, _, shard in shards:
                    held.callback(os.close, _take(path, shard.n_bytes))
            with (
                alone(self.folder, f"{copy.stem}.lock", _WAIT_S),
                ThreadPoolExecutor(_FETCHES) as pool,
            ):
                list(pool.map(partial(_fetch, store), *zip(*shards, strict=True)))
                parts = [storage.read(path, check=False) for path, *_ in shards]
                index = open_index(address, manifest, parts, encoding)
                copy.write_bytes(wire.serialize(asdict(manifest)))
            weakref.finalize(index, held.pop_all().close)
        return index

    def open_last(
        self, address: str, encoding: Encoding | None = None
    ) -> tuple[Manifest, ChunkIndex, float] | None:
        """Open the state of an index that was opened last on this machine, and tell when that was, in seconds.

        None says that not all of it is here. What is raised, and the encoding, are as for `open`.
        """
        copy = self._copy(address)
        with suppress(FileNotFoundError):
            manifest, opened_s = parse_manifest(copy.read_bytes(), address), copy.stat().st_mtime
            paths = [
                self.folder / _file_of(address, name, one) for name, one in manifest.shards.items()
            ]
            if all(path.stat().st_mtime_ns == _WHOLE_NS for path in paths):
                index = self.open(address, manifest, encoding)
                os.utime(copy, (opened_s, opened_s))
                return manifest, index, opened_s
        return None

    def _copy(self, address: str) -> Path:
        return self.folder / f"{hashlib.sha256(address.encode()).hexdigest()}.json"

    def _make_room(self, wanted: dict[Path, int]) -> None:
        """Remove files that are not wanted and that nobody uses, those used longest ago first, until all will fit."""
        sizes = {path: path.stat().st_size for path in self.folder.glob("*.shard")} | wanted
        unused = [path for path in sizes if path not in wanted and not _is_used(path)]
        n_bytes = sum(sizes.values())
        n_used = n_bytes - sum(sizes[path] for path in unused)
        if n_used > self.max_bytes:
            rule = f"there is room for {self.max_bytes:,} bytes of shards, and with this index {n_used:,} are in use"
            raise IndexUnavailableError(f"{rule}; --shard-cache-bytes gives more")
        for path in sorted(unused, key=lambda path: path.stat().st_atime_ns):
            if n_bytes > self.max_bytes:
                path.unlink()
                n_bytes -= sizes[path]


def _file_of(address: str, name: str, shard: SavedShard) -> str:
    told = f"{shard.n_bytes} {shard.sha256} {name} {address}"
    return f"{hashlib.sha256(told.encode()).hexdigest()}.shard"


def check_files(manifest: Manifest) -> None:
    """Make sure that this process may open the shards of an index, and other files beside them."""
    n_shards, (soft, _) = len(manifest.shards), resource.getrlimit(resource.RLIMIT_NOFILE)
    n_free = (
        math.inf
        if soft == resource.RLIM_INFINITY
        else soft - sum(1 for _ in Path("/dev/fd").iterdir())
    )
    if _FILES_EACH * n_shards + _SPARE_FILES > n_free:
        taken = f"its {pluralize(n_shards, 'shard')} take {_FILES_EACH} open files each"
        remedy = "`ulimit -n` gives more, and an index of fewer shards needs less"
        raise IndexUnavailableError(f"{taken}, and this process may open {n_free:,} more; {remedy}")


def _take(path: Path, n_bytes: int) -> int:
    """Make a file of a size, if it is not there, and return a descriptor that holds a lock of it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    lock(descriptor, fcntl.LOCK_SH)
    if os.fstat(descriptor).st_size != n_bytes:
        os.ftruncate(descriptor, n_bytes)
        os.utime(path, ns=(0, _EMPTY_NS))
    return descriptor


def _fetch(store: Store, path: Path, name: str, shard: SavedShard) -> None:
    """Fetch a shard, if it is not whole, in blocks, none of which takes long."""
    changed_ns = path.stat().st_mtime_ns
    if changed_ns not in {_EMPTY_NS, _WHOLE_NS}:
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() == shard.sha256:
                changed_ns = _WHOLE_NS
    if changed_ns != _WHOLE_NS:
        sha256 = hashlib.sha256()
        with path.open("r+b") as file:
            for start in range(0, shard.n_bytes, _BLOCK_BYTES):
                stop = min(start + _BLOCK_BYTES, shard.n_bytes)
                block = store.read(name, start, stop)[: stop - start]
                sha256.update(block)
                file.write(block)
            file.flush()
            os.fsync(
                file.fileno()
            )  # else a crash of the machine may leave a whole file's time without its bytes
        if sha256.hexdigest() != shard.sha256:
            raise IndexFormatError(f"{name} is not as it was written")
    os.utime(path, ns=(time.time_ns(), _WHOLE_NS))


def _is_used(path: Path) -> bool:
    with path.open("rb") as file:
        return not lock(file.fileno(), fcntl.LOCK_EX)
