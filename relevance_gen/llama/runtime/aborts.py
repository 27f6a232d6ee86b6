"""Keep the process alive when llama.cpp would end it.

After a failed assertion, or an error of a GPU, llama.cpp calls a callback and then `abort()`. A
callback that never returns keeps the process alive. The thread is lost, with all its memory, and a
handler reports it to waiting callers.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from typing import Any

_handlers: dict[int, Callable[[str], None]] = {}
"""The handler of each guarded thread, by thread id."""


@contextlib.contextmanager
def guard(handler: Callable[[str], None]) -> Iterator[None]:
    """Call `handler` with the reason if llama.cpp aborts in this thread or one of its threads.

    `handler` is called in the thread that aborts, which never continues.
    """
    _handlers[threading.get_ident()] = handler
    try:
        yield
    finally:
        del _handlers[threading.get_ident()]


def install(library: Any) -> None:
    """Set the abort callback of `library`, a loaded ctypes library; older versions have none."""
    set_callback = getattr(library, "ggml_set_abort_callback", None)
    if set_callback is not None:
        set_callback.argtypes = [type(_callback)]
        set_callback.restype = ctypes.c_void_p
        set_callback(_callback)


def _on_abort(message: bytes) -> None:
    if not _handlers:
        return  # no thread is guarded, so the process ends
    # A thread of llama.cpp itself computes for any of the guarded threads, so all their handlers
    # are called.
    handler_of_thread = _handlers.get(threading.get_ident())
    handlers = [handler_of_thread] if handler_of_thread else list(_handlers.values())
    for handler in handlers:
        handler(message.decode(errors="replace"))
    threading.Event().wait()


_callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(_on_abort)
