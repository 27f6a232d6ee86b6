"""What the processes of a server share: open files without a name, which nobody can remove and nobody has to."""

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
    """An open file that the processes started with `multiprocessing` inherit."""

    number: int

    def __reduce__(self) -> tuple[Any, ...]:
        return _inherited, (DupFd(self.number),)

    def __fspath__(self) -> str:
        """Return a path under which this process reaches the file, whether it has another or none."""
        return f"/proc/self/fd/{self.number}"


def _inherited(duplicate: Any) -> Descriptor:
    return Descriptor(duplicate.detach())


@contextmanager
def nameless_file(n_bytes: int) -> Iterator[Descriptor]:
    """Make a file of `n_bytes` zeros: in memory where the system can."""
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
    """Open a Unix socket that only processes of this server can reach; yield it listening, and the way to it.

    On Linux its name is removed before anybody uses it, and the way to it is an open file that stands for the socket.
    So no cleaner of temporary folders can cut it off, and nothing stays behind, however this process ends. (An abstract
    socket would be open to every user of the machine.) Elsewhere the name stays until the context ends.
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
