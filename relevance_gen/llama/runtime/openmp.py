"""How llama.cpp's threads wait for each other: by spinning, and for how long.

By default a thread of GNU's OpenMP library, libgomp, that waits for another spins for milliseconds before it sleeps.
Where every core has other work to do, those that spin keep the one they wait for off its core, at every operation of a
model, so that a step takes a hundred times as long. Spinning for microseconds costs nothing on a quiet machine.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

SPINS = "10000"
"""Rounds of the waiting loop before a thread sleeps: some tens of microseconds."""
_log = logging.getLogger(__name__)


@contextmanager
def limit_spin_wait() -> Iterator[None]:
    """Let libgomp, if it is loaded inside this context, spin briefly, unless the user has chosen how it waits.

    It reads its settings when it is loaded, so the environment is the same again afterwards.
    """
    if {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        yield
        return
    if _is_loaded():
        _log.debug(
            "another library has loaded libgomp before, so llama.cpp's threads spin as long as that one's: "
            "set GOMP_SPINCOUNT=%s in the environment if other work slows it down",
            SPINS,
        )
    os.environ["GOMP_SPINCOUNT"] = SPINS
    try:
        yield
    finally:
        os.environ.pop("GOMP_SPINCOUNT", None)


def _is_loaded() -> bool:
    """Tell whether this process has the system's library; a copy that a wheel brings has another name."""
    if not hasattr(os, "RTLD_NOLOAD"):
        return False  # Windows, where there is none
    try:
        ctypes.CDLL("libgomp.so.1", mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return True
