"""Keep the indexes of folders between runs, in the user's cache folder: few enough, for the owner alone.

An index is two files: what `ChunkIndex.save` writes, and a list of the files that it is of. The list says which state
of the other file belongs to it, by size, times and inode. So a file that anybody has touched is not used, and one that
nobody has touched need not be read whole to know that. Whatever is not as it was written is as if it were not there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.errors import InvalidRequestError
from relevance_gen.index import array_file
from relevance_gen.retrieval.chunk_index import ChunkIndex
from relevance_gen.text.token_counting import Encoding

VARIABLE: Final = "RELEVANCE_GEN_CACHE"
"""The environment variable that moves the cache folder, or with ``off`` does without."""
MAX_BYTES: Final = 4 << 30
"""Most bytes of all that is kept; what was not used for longest goes first."""
_OFF: Final = "off"
_OURS: Final = re.compile(r"\.?(?:[0-9a-f]{16}){1,2}\.(?:index|unfinished)")
"""Names of what is written here: a folder that the caller names may hold other files."""
_TYPES: Final = {"records": "u1", "cuts": "<i4"}
_FAILURES: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RecursionError,
    TypeError,
    ValueError,
)
"""What reading a file raises that is damaged, foreign or not there."""

Fingerprint: TypeAlias = tuple[int, int, int, int]
"""Size, times of the last change of content and of anything in nanoseconds, and inode of a file. The second time no
program can set, so that a file whose size and first time stayed as they were is known to have changed all the same."""


fingerprint: Final[Callable[[os.stat_result], Fingerprint]] = attrgetter(
    "st_size", "st_mtime_ns", "st_ctime_ns", "st_ino"
)
"""Return the fingerprint of what the system says of a file: for ten thousand of them it has to be quick."""


def default_folder(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return where indexes are kept: as the environment says, else in the user's cache folder; None for nowhere."""
    named = environment.get(VARIABLE)
    if named:
        return None if named == _OFF else Path(named)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "relevance_gen" / "folders"
    return (
        Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "relevance_gen"
        / "folders"
    )


@frozen
class CachedIndex:
    """What is kept of a folder: the chunks of its files, what is known of them as JSON, and where each chunk stands."""

    index: ChunkIndex
    records: Any
    cuts: npt.NDArray[np.int32]


@frozen
class Cache:
    """The place of one index in a cache folder. Safe for several processes: each file is whole, and the last one stays.

    The folder is made when it is needed; all that is kept there has at most `max_bytes`. The key is JSON of all that an
    index depends on but the files.
    """

    folder: Path
    key: Any
    max_bytes: int = MAX_BYTES

    @property
    def _paths(self) -> tuple[Path, Path]:
        name = hashlib.blake2b(json.dumps(self.key).encode("ascii"), digest_size=16).hexdigest()
        return self.folder / f"{name}.index", self.folder / f"{name}.files"

    def load(self, encoding: Encoding | None) -> CachedIndex | None:
        """Return what is kept; None where nothing is, or what is there is not as it was written."""
        index_path, list_path = self._paths
        try:
            if not all(_is_own(path) for path in (self.folder, index_path, list_path)):
                return None
            content = np.fromfile(list_path, np.uint8)
            array_file.check(content, list_path)
            stored = array_file.read(content, _TYPES)
            settings, arrays = stored.settings, stored.arrays
            state = fingerprint(index_path.stat())
            if settings["key"] != json.loads(json.dumps(self.key)) or settings["index"] != [*state]:
                return None
            index = ChunkIndex.load(index_path, encoding=encoding, check=False)
            if fingerprint(index_path.stat()) != state:  # another process has replaced it meanwhile
                return None
            os.utime(list_path)  # it was used
            return CachedIndex(index, json.loads(arrays["records"].tobytes()), arrays["cuts"])
        except _FAILURES:
            return None

    def save(self, kept: CachedIndex) -> None:
        """Keep an index in place of what was kept, if that is possible; others that do not fit beside it go."""
        index_path, list_path = self._paths
        with contextlib.suppress(OSError), alone(self.folder):
            kept.index.save(index_path, overwrite=True)
            index_path.chmod(0o600)
            settings = {"key": self.key, "index": [*fingerprint(index_path.stat())]}
            records = np.frombuffer(json.dumps(kept.records).encode("ascii"), np.uint8)
            unfinished = list_path.with_suffix(".unfinished")
            with open(
                os.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600), "w+b"
            ) as file:
                array_file.write(
                    file, _TYPES, settings, {"records": records, "cuts": kept.cuts}
                ).seal()
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(list_path)
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        """Remove what a process left behind that was killed while it wrote, and the indexes used longest ago."""
        ours = [path for path in self.folder.iterdir() if _OURS.fullmatch(path.name)]
        for left in ours:
            if left.suffix == ".unfinished":
                left.unlink()
        used = []
        for path in ours:
            if path.suffix == ".index":
                lists = path.with_suffix(".files")  # an index without one is of no use
                used.append((lists.stat().st_mtime_ns if lists.exists() else 0, path, lists))
        n_bytes = 0
        for _, path, lists in sorted(used, reverse=True):
            n_bytes += sum(each.stat().st_size for each in (path, lists) if each.exists())
            if n_bytes > self.max_bytes:
                path.unlink()
                lists.unlink(missing_ok=True)


@contextlib.contextmanager
def alone(folder: Path, name: str = "lock", wait_s: float = 0.0) -> Iterator[None]:
    """Hold a lock in a folder, which is made if need be, among all processes and threads.

    It raises an `OSError` where others may write to the folder, or this process may not, or the lock is held for longer
    than `wait_s`.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _is_own(folder):
        raise PermissionError(f"others may write to {folder}")
    end_s = time.monotonic() + wait_s
    with open(os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o600), "rb") as file:
        while not lock(file.fileno(), fcntl.LOCK_EX):
            if time.monotonic() > end_s:
                raise BlockingIOError(errno.EAGAIN, "another process is at work there")
            time.sleep(0.05)
        yield


def lock(descriptor: int, kind: int) -> bool:
    """Take a lock of a file, until it is closed; tell whether no other lock forbids it."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_own(path: Path) -> bool:
    """Tell whether a file or a folder is this user's, and nobody else may write to it."""
    status = path.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def cache_of(folder: object, key: Any) -> Cache | None:
    """Return where an index is kept: in a folder that a caller names, the usual one for None, or nowhere for False.

    The key is JSON of all that the index depends on but the files.
    """
    if folder is False:
        return None
    if not isinstance(folder, str | os.PathLike | None) or folder == "":
        raise InvalidRequestError.must_be(
            "cache", "a folder, None for the usual one or False for none", folder
        )
    where = default_folder() if folder is None else Path(folder)
    return None if where is None else Cache(where, key)
