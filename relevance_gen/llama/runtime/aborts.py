"""Keep the process alive where llama.cpp would end it.

A failed assertion inside llama.cpp, or an error of a GPU, calls `abort()`. Before that it calls back, and a callback
that never returns keeps the process: the thread is lost, with all it holds, and everybody who waited for it is told.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

_handlers: dict[int, Callable[[str], None]] = {}
"""What to tell of an abort, for each guarded thread."""


@contextlib.contextmanager
def guard(handler: Callable[[str], None]) -> Iterator[None]:
    """Call `handler` with the reason if llama.cpp gives up in this thread, or in one of its own.

    `handler` is called in the thread that gave up, which never comes back.
    """
    _handlers[threading.get_ident()] = handler
    try:
        yield
    finally:
        del _handlers[threading.get_ident()]


def install(library: Any) -> None:
    """Make the abort of `library`, a loaded ctypes library, call back here; one too old to do so is left alone."""
    set_callback = getattr(library, "ggml_set_abort_callback", None)
    if set_callback is not None:
        set_callback.argtypes = [type(_callback)]
        set_callback.restype = ctypes.c_void_p
        set_callback(_callback)


def _on_abort(message: bytes) -> None:
    if not _handlers:
        return  # nobody would notice: the process may as well end
    # A thread of llama.cpp's own computes for any of the guarded threads, so all of them are told.
    own = _handlers.get(threading.get_ident())
    for handler in [own] if own else list(_handlers.values()):
        handler(message.decode(errors="replace"))
    threading.Event().wait()


_callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(_on_abort)
