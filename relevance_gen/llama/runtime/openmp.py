"""Limit how long llama.cpp's threads spin while they wait for each other.

By default a waiting thread of GNU's OpenMP library, libgomp, spins for milliseconds before it
sleeps. If every core has other work, spinning threads keep the thread that they wait for off its
core at every operation of a model, and a step takes a hundred times longer. Spinning for
microseconds costs nothing on an idle machine.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

SPINS = "10000"
"""Iterations of the waiting loop before a thread sleeps: some tens of microseconds."""
_log = logging.getLogger(__name__)


@contextmanager
def limit_spin_wait() -> Iterator[None]:
    """Set a short spin time for a libgomp loaded inside this context, unless the user set it.

    libgomp reads its settings when it is loaded, so the environment is restored afterwards.
    """
    if {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        yield
        return
    if _is_loaded():
        _log.debug(
            "another library has already loaded libgomp, so llama.cpp's threads spin for its default time: "
            "set GOMP_SPINCOUNT=%s in the environment if other work slows generation down",
            SPINS,
        )
    os.environ["GOMP_SPINCOUNT"] = SPINS
    try:
        yield
    finally:
        os.environ.pop("GOMP_SPINCOUNT", None)


def _is_loaded() -> bool:
    """Return whether this process has loaded the system's libgomp.

    Copies inside wheels have other names.
    """
    if not hasattr(os, "RTLD_NOLOAD"):
        return False  # libgomp does not exist on Windows
    try:
        ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return True
