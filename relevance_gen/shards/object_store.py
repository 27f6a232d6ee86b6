"""A folder of files wherever `fsspec` finds it, such as in object storage.

Every call to a store over the network ends within a limit, whatever the store does, and fails with an OSError. How long
a call to a file system of this machine takes, that system says.
"""

from __future__ import annotations

import errno
import fcntl
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias
from weakref import WeakValueDictionary

from relevance_gen.errors import InvalidRequestError, TimedOutError
from relevance_gen.shards.background import in_thread

_LIMIT_S: Final = 30.0
"""How long one call may take,"""
_BYTES_PER_S: Final = 1 << 20
"""and how much longer for what it writes, or for a file of any size."""
_AT_ONCE: Final = 16
"""Threads that may be waiting for one folder, where the package for its store has no limits of its own."""
MAX_SMALL_BYTES: Final = 16 << 20
"""Most bytes of a file that `Store.replace` writes, and `Store.look` reads."""
_LOCK: Final = ".lock"

Version: TypeAlias = tuple[bytes | None, str | None]
"""What a file holds, None where it is not there; and what the store calls this state of it, if it does."""

_places: Final = WeakValueDictionary[str, threading.Semaphore]()
"""What the threads that wait for a folder share, by its address."""


class Store:
    """A folder of files, at a path or at an address that `fsspec` knows and has the package for."""

    def __init__(self, folder: str) -> None:
        self._places = _places.setdefault(folder, threading.Semaphore(_AT_ONCE))
        self._files, self._root = _answered(self._places, _LIMIT_S, partial(file_system, folder))
        protocol = self._files.protocol
        self._protocols = (protocol,) if isinstance(protocol, str) else protocol

    def make(self) -> None:
        """Make the folder, if it is not there; object stores have none, and a bucket is its owner's to make."""
        if not self._files.async_impl:
            self._call("makedirs", self._root, exist_ok=True)

    def names(self) -> list[str]:
        """Return the names of its files, as they are now."""
        self._files.invalidate_cache()
        with suppress(FileNotFoundError):  # object stores have no empty folders
            return [path.rsplit("/", 1)[-1] for path in self._call("ls", self._root, detail=False)]
        return []

    def has(self, name: str) -> bool:
        """Tell whether there is a file."""
        return bool(self._call("exists", self._path(name)))

    def remove(self, names: Iterable[str]) -> None:
        """Remove files; those that are gone already do not matter."""
        for name in names:
            with suppress(FileNotFoundError):
                self._call("rm_file", self._path(name))

    def read(self, name: str, start: int = 0, stop: int = MAX_SMALL_BYTES) -> bytes:
        """Return some bytes of a file, or fewer where it ends before `stop`."""
        return bytes(self._call("cat_file", self._path(name), start=start, end=stop))

    def read_all(self, name: str) -> bytes:
        """Return a file of any size."""
        n_bytes = int(self._call("size", self._path(name)))
        return bytes(self._call("cat_file", self._path(name), n_bytes=n_bytes))

    def write(self, name: str, content: bytes, **conditions: str) -> None:
        """Write a file where none is; a reader may see a part of it."""
        self._call("pipe_file", self._path(name), content, n_bytes=len(content), **conditions)

    def look(self, name: str) -> Version:
        """Return a small file's state, for `replace`."""
        self._files.invalidate_cache()
        content = tag = None
        with suppress(FileNotFoundError):
            tag = self._call("info", self._path(name)).get(
                "ETag"
            )  # first: with a tag that is old nothing is replaced
            content = self.read(name)
        return content, tag

    def replace(self, name: str, content: bytes, before: Version) -> bool:
        """Put a file in the place of a small one, whole and at once; tell whether that was still as it was.

        S3 compares and writes in one step, and in a folder of this machine writers take turns. In other stores one that
        comes between the comparison and the writing, some milliseconds, is not noticed.

        Raises:
            OSError: the store does not answer; the file may have been written.
        """
        with ExitStack() as turn:
            if "file" in self._protocols:
                with suppress(OSError):  # not every file system that machines share has locks
                    fcntl.flock(
                        turn.enter_context(Path(self._path(_LOCK)).open("ab")), fcntl.LOCK_EX
                    )
            if self.look(name) != before:
                return False
            if "s3" in self._protocols:
                return self._replace_if(name, content, before)
            if self._files.async_impl:  # object stores show what is written when it is whole
                self.write(name, content)
            else:
                unfinished = f"{name}.{secrets.token_hex(8)}.unfinished"
                self.write(unfinished, content)
                try:
                    self._call("mv", self._path(unfinished), self._path(name))
                except FileNotFoundError:  # who was first has removed it
                    return False
        return True

    def _replace_if(self, name: str, content: bytes, before: Version) -> bool:
        _, tag = before
        try:
            self.write(name, content, **({"IfMatch": tag} if tag else {"IfNoneMatch": "*"}))
        except OSError as error:
            now = self.look(name)
            if (
                now == before and error.errno == errno.ENOSYS
            ):  # a store like S3 that knows no conditions
                self.write(name, content)
            elif now == before:
                raise
            else:
                return now[0] == content  # it was written, and only the answer was lost
        return True

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _call(self, verb: str, *args: Any, n_bytes: int = 0, **kwargs: Any) -> Any:
        limit_s = _LIMIT_S + n_bytes / _BYTES_PER_S
        places = None if self._files.async_impl or "file" in self._protocols else self._places
        if self._files.async_impl:
            kwargs["timeout"] = limit_s
        return _answered(places, limit_s, partial(getattr(self._files, verb), *args, **kwargs))


def _answered(places: threading.Semaphore | None, limit_s: float, call: Callable[[], Any]) -> Any:
    """Return what a call to a store returns; if it may hang, a thread makes it and has one of `places` until it ends.

    It raises an OSError, or an `InvalidRequestError` where `fsspec` knows no such store.
    """
    end_s = time.monotonic() + limit_s

    def make() -> Any:
        try:
            return call()
        finally:
            places.release()  # type: ignore[union-attr]

    try:
        if places is None:
            return call()
        if not places.acquire(timeout=limit_s):
            raise TimeoutError
        try:
            answer = in_thread(make, "ask-store")  # the process may end while it hangs
        except BaseException:
            places.release()
            raise
        return answer.result(max(0.0, end_s - time.monotonic()))
    except TimeoutError:
        raise TimedOutError(f"the store did not answer within {limit_s:.0f} s") from None
    except (OSError, InvalidRequestError):
        raise
    except Exception as error:  # the packages for stores raise what they like
        raise OSError(errno.EIO, f"the store does not answer ({type(error).__name__})") from error


def file_system(address: str) -> tuple[Any, str]:
    """Return the file system of an address, as `fsspec` has it, and the path there."""
    if address.endswith("://"):
        raise InvalidRequestError(
            "must be an address that fsspec can open: it names no place", address
        )
    try:
        import fsspec

        files, path = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise InvalidRequestError(
            f"must be an address that fsspec can open: {error}", address
        ) from None
    return files, path
