"""Files that the processes of a server share: open and without a name, so they need no cleanup."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from attrs import frozen

from relevance_gen.serve.http.connections.connection import BACKLOG


@frozen
class Descriptor:
    """An open file descriptor that can be pickled for a process that `multiprocessing` starts.

    The process gets a duplicate, which may have a different `number`.
    """

    number: int

    def __reduce__(self) -> tuple[Any, ...]:
        return _inherited, (DupFd(self.number),)

    def __fspath__(self) -> str:
        """Return a path to the open file for this process."""
        return f"/proc/self/fd/{self.number}"


def _inherited(duplicate: Any) -> Descriptor:
    return Descriptor(duplicate.detach())


@contextmanager
def nameless_file(n_bytes: int) -> Iterator[Descriptor]:
    """Create a file of `n_bytes` zeros, in memory if the system supports that.

    It is closed at the end of the context; processes that inherited it can still use it.
    """
    if hasattr(os, "memfd_create"):
        number = os.memfd_create("relevance_gen")
    else:
        with tempfile.TemporaryFile() as file:
            number = os.dup(file.fileno())
    try:
        os.truncate(number, n_bytes)
        yield Descriptor(number)
    finally:
        os.close(number)


@contextmanager
def private_socket() -> Iterator[tuple[socket.socket, os.PathLike[str]]]:
    """Open a Unix socket that only processes of this server can reach.

    On Linux, the file of the socket is removed before the socket is used, and the yielded path is
    that of an open file descriptor for it. Therefore no cleanup of temporary folders can remove the
    socket, and no file remains, however this process ends. An abstract socket would be accessible
    to every user of the machine. On other systems, the file exists until the context ends.

    Yields:
        The listening socket, and the path to connect to.
    """
    with tempfile.TemporaryDirectory(prefix="relevance_gen-", ignore_cleanup_errors=True) as folder:
        path = Path(folder) / "model.sock"
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen(BACKLOG)
        if sys.platform != "linux":
            yield listener, path
            return
        number = os.open(path, os.O_PATH)
    try:
        yield listener, Descriptor(number)
    finally:
        os.close(number)
