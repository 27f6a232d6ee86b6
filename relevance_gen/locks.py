"""Locks that a process holds on an open file until it closes the file or ends.

Systems without `fcntl`, such as Windows, do not delete a file that is open, so a file in use needs
no lock there: `try_lock` always succeeds. Locks between writers are those of `filelock`.
"""

from __future__ import annotations

try:
    import fcntl
except ModuleNotFoundError:  # on Windows
    HAS_FILE_LOCKS = False
else:
    HAS_FILE_LOCKS = True


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Try to lock an open file; return False if a lock of another open file prevents that.

    Args:
        descriptor: the descriptor of the file, which holds the lock until it is closed.
        shared: whether other descriptors may hold shared locks at the same time.

    Raises:
        OSError: the file system has no locks.
    """
    if not HAS_FILE_LOCKS:
        return True
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock(descriptor: int, *, shared: bool = False) -> None:
    """Lock an open file as `try_lock` does, after waiting for other locks.

    Raises:
        OSError: the file system has no locks.
    """
    if HAS_FILE_LOCKS:
        fcntl.flock(descriptor, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
