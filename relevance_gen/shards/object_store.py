"""Read and write the files of one folder, on this machine or in an `fsspec` object store.

A call to a remote store has a time limit. A call that fails, or that does not end within its time
limit, raises an `OSError`. Calls to the local file system have no limit of their own.
"""

from __future__ import annotations

import errno
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Final, TypeVar
from weakref import WeakValueDictionary

from attrs import frozen

from relevance_gen import locks
from relevance_gen.errors import InvalidRequestError, TimedOutError

T = TypeVar("T")

_CALL_TIMEOUT_S: Final = 30.0
"""Seconds after which one call fails, if it transfers little data."""
_MIN_BYTES_PER_S: Final = 1 << 20
"""The time limit of a call is extended by the bytes that it transfers, divided by this rate."""
_MAX_WAITING_THREADS: Final = 16
"""Threads that may wait for one folder at a time, if the package for its store lacks time
limits."""
MAX_SMALL_BYTES: Final = 16 << 20
"""Maximum size of a file that `ObjectStore.replace` writes and `ObjectStore.read_state` reads."""
_LOCK_FILE: Final = ".lock"

_call_slots: Final = WeakValueDictionary[str, threading.Semaphore]()
"""Limits the waiting threads of each folder, by its address."""


@frozen
class FileState:
    """The content of a small file when it was read.

    `content` is None if the file does not exist. `tag` is the identifier (ETag) that the store gave
    this content; None if the store lacks ETags.
    """

    content: bytes | None
    tag: str | None


class ObjectStore:
    """A folder of files, at a path or at an address that `fsspec` supports.

    Raises:
        InvalidRequestError: `fsspec` cannot open the address.
    """

    def __init__(self, address: str) -> None:
        self._slots = _call_slots.setdefault(address, threading.Semaphore(_MAX_WAITING_THREADS))
        opened = _call_with_timeout(self._slots, _CALL_TIMEOUT_S, partial(file_system, address))
        self._file_system, self._root = opened
        protocol = self._file_system.protocol
        self._protocols = (protocol,) if isinstance(protocol, str) else protocol
        self._is_local = "file" in self._protocols

    def make_folder(self) -> None:
        """Create the folder if it does not exist.

        Object stores lack folders, and a bucket must exist already.
        """
        if not self._file_system.async_impl:
            self._call("makedirs", self._root, exist_ok=True)

    def list_names(self) -> list[str]:
        """Return the current names of all files in the folder; empty without a folder."""
        self._file_system.invalidate_cache()
        try:
            paths = self._call("ls", self._root, detail=False)
        except FileNotFoundError:  # object stores lack empty folders
            return []
        return [path.rsplit("/", 1)[-1] for path in paths]

    def exists(self, name: str) -> bool:
        """Return whether the file with this name exists now."""
        self._file_system.invalidate_cache()
        return bool(self._call("exists", self._path(name)))

    def remove(self, names: Iterable[str]) -> None:
        """Remove files. Files that do not exist are skipped."""
        for name in names:
            with suppress(FileNotFoundError):
                self._call("rm_file", self._path(name))

    def read(self, name: str, start: int = 0, stop: int = MAX_SMALL_BYTES) -> bytes:
        """Return the bytes of a file in ``[start, stop)``, fewer if the file is shorter."""
        return bytes(self._call("cat_file", self._path(name), start=start, end=stop))

    def read_all(self, name: str) -> bytes:
        """Return the content of a file of any size."""
        n_bytes = int(self._call("size", self._path(name)))
        return bytes(self._call("cat_file", self._path(name), n_bytes=n_bytes))

    def write(self, name: str, content: bytes, **conditions: str) -> None:
        """Write a new file; in a local folder, it is on disk when this returns.

        Args:
            name: name of the file.
            content: its content.
            **conditions: conditions of the request to a store, such as ``IfMatch`` of S3.
        """
        path = self._path(name)
        if not self._is_local:
            self._call("pipe_file", path, content, n_bytes=len(content), **conditions)
            return
        with Path(path).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def upload(self, path: Path, name: str) -> None:
        """Copy a local file to a new file."""
        n_bytes = path.stat().st_size
        self._call("put_file", str(path), self._path(name), n_bytes=n_bytes)

    def read_state(self, name: str) -> FileState:
        """Return the current state of a small file, which `replace` compares."""
        self._file_system.invalidate_cache()
        try:
            # The tag is read first: with a tag older than the content, `replace` fails instead of
            # overwriting.
            information = self._call("info", self._path(name))
            return FileState(self.read(name), information.get("ETag"))
        except FileNotFoundError:
            return FileState(None, None)

    def replace(self, name: str, content: bytes, before: FileState) -> bool:
        """Replace a small file atomically if its state is still `before`.

        Return whether it was replaced. S3 compares and writes in one request. In a local folder
        writers hold a lock. In other stores, a writer that writes between the comparison and the
        write, a few milliseconds, is not detected.

        Raises:
            OSError: the store does not answer; the file may have been written.
        """
        with ExitStack() as stack:
            if self._is_local:
                lock_file = stack.enter_context(Path(self._path(_LOCK_FILE)).open("ab"))
                with suppress(OSError):  # some shared file systems lack locks
                    locks.lock(lock_file.fileno())
            if "s3" in self._protocols:
                return self._replace_if_match(name, content, before)
            if self.read_state(name) != before:
                return False
            if self._file_system.async_impl:  # object stores show a file when it is complete
                self.write(name, content)
                return True
            unfinished = f"{name}.{secrets.token_hex(8)}.unfinished"
            self.write(unfinished, content)
            try:
                self._call("mv", self._path(unfinished), self._path(name))
            except FileNotFoundError:  # another writer has removed the unfinished file
                return False
        return True

    def _replace_if_match(self, name: str, content: bytes, before: FileState) -> bool:
        conditions = {"IfMatch": before.tag} if before.tag else {"IfNoneMatch": "*"}
        try:
            self.write(name, content, **conditions)
        except OSError as error:
            now = self.read_state(name)
            if now != before:
                return now.content == content  # it was written, and only the response was lost
            if error.errno != errno.ENOSYS:
                raise
            self.write(name, content)  # a store without conditional writes
        return True

    def _path(self, name: str) -> str:
        return f"{self._root.rstrip('/')}/{name}"

    def _call(
        self,
        method: str,
        *args: Any,
        n_bytes: int = 0,
        **kwargs: Any,
    ) -> Any:
        timeout_s = _CALL_TIMEOUT_S + n_bytes / _MIN_BYTES_PER_S
        call = partial(getattr(self._file_system, method), *args, **kwargs)
        if self._file_system.async_impl:
            return _call_with_timeout(None, timeout_s, partial(call, timeout=timeout_s))
        return _call_with_timeout(None if self._is_local else self._slots, timeout_s, call)


def _call_with_timeout(
    slots: threading.Semaphore | None, timeout_s: float, call: Callable[[], Any]
) -> Any:
    """Return the result of a call to a store.

    With `slots`, a thread makes the call and holds a slot until the call ends, which may be after
    the time limit. Without `slots`, the time is not limited; `call` must have its own limit.

    Raises:
        OSError: the call failed, or did not end in time.
        InvalidRequestError: `fsspec` does not support the store.
    """
    deadline_s = time.monotonic() + timeout_s
    try:
        if slots is None:
            return call()
        if not slots.acquire(timeout=timeout_s):
            raise TimeoutError
        try:
            result = in_thread(call, "call-store")  # the process may end meanwhile
        except BaseException:
            slots.release()
            raise
        result.add_done_callback(lambda _: slots.release())
        return result.result(max(0.0, deadline_s - time.monotonic()))
    except TimeoutError:
        raise TimedOutError(f"the store did not answer within {timeout_s:.0f} s") from None
    except (OSError, InvalidRequestError):
        raise
    except Exception as error:  # the packages for stores raise errors of any type
        raise OSError(errno.EIO, f"the store does not answer ({type(error).__name__})") from error


def file_system(address: str) -> tuple[Any, str]:
    """Return the `fsspec` file system of an address, and the path within it.

    Raises:
        InvalidRequestError: `fsspec` cannot open the address, or a package for it is missing.
    """
    if address.endswith("://"):
        raise InvalidRequestError(
            "must be an address that fsspec can open, with a path after ://", address
        )
    try:
        import fsspec

        opened: tuple[Any, str] = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        rule = f"must be an address that fsspec can open: {error}"
        raise InvalidRequestError(rule, address) from None
    return opened


def as_address(location: object) -> str:
    """Return a path as an absolute path, and an address unchanged, for any process of this machine.

    An address that begins with ``file://`` is treated as a path.

    Raises:
        InvalidRequestError: it is neither a path nor an address.
    """
    if not isinstance(location, str | PathLike) or not os.fspath(location):
        allowed = "the path of a folder, or an address such as s3://bucket/index"
        raise InvalidRequestError.must_be("location", allowed, location)
    address = str(os.fspath(location)).removeprefix("file://")
    return address if "://" in address else str(Path(address).absolute())


def in_thread(work: Callable[[], T], name: str) -> Future[T]:
    """Start a function in a daemon thread of this name; return the future of its result."""
    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return result
