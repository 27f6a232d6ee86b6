"""Temporary folders for indexes of a cluster on one machine.

Folders of killed processes are deleted when the user's next temporary folder is created. Each
process that uses a folder holds a shared lock on a file next to it. A folder without a lock is
unused.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

from relevance_gen import locks

_PARENT: Final = "relevance_gen_cluster_{uid}"


class TemporaryFolder:
    """A new folder for an index, which `remove` deletes.

    Before it is created, other such folders of this user that no process has locked are deleted;
    see `hold`.

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
        _remove_unused(parent)
        self.path = parent / secrets.token_hex(8)
        self._lock = hold(self.path)
        self.path.mkdir()

    def __str__(self) -> str:
        return str(self.path)

    def remove(self) -> None:
        """Delete the folder with its contents, and release its lock. Safe to call twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        _lock_path(self.path).unlink(missing_ok=True)
        self._lock.close()


def hold(folder: Path) -> BinaryIO:
    """Open the lock file of a folder with a shared lock, and return it.

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


def _remove_unused(parent: Path) -> None:
    for lock in parent.glob("*.lock"):
        with suppress(OSError), lock.open("ab") as file:
            if locks.try_lock(file.fileno()):
                shutil.rmtree(lock.with_suffix(""), ignore_errors=True)
                lock.unlink()


def _lock_path(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.lock")
