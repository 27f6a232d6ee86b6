"""Keep the process alive when llama.cpp would end it.

After a failed assertion, or an error of a GPU, llama.cpp calls a callback and then `abort()`. A
callback that never returns keeps the process alive. The thread is lost, with all its memory, and a
handler reports it to waiting callers. Some backends, such as Vulkan, throw C++ exceptions instead,
which nothing catches; the handler of `std::terminate` treats them in the same way.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

_handlers: dict[int, Callable[[str], None]] = {}
"""The handler of each guarded thread, by thread id."""
_SET_TERMINATE = "_ZSt13set_terminatePFvvE"
"""The name of ``std::set_terminate`` in libstdc++ and libc++."""
_CPP_LIBRARIES = {"linux": "libstdc++.so.6", "darwin": "libc++.1.dylib"}
_UNCAUGHT = b"a C++ exception was not caught, for example because a GPU was lost"
_lost_backends: list[str] = []
"""Why threads of a backend ended; computations on GPUs may hang afterwards."""
_former_terminate: list[Any] = []
"""The former handler of ``std::terminate``, called if the thread is not guarded."""


@contextlib.contextmanager
def guard(handler: Callable[[str], None]) -> Iterator[None]:
    """Inside this context, call `handler` with the reason if llama.cpp aborts in this thread.

    `handler` is also called if llama.cpp aborts in a thread that is not guarded, such as a thread
    that llama.cpp created: it may compute for any guarded thread, so the handlers of all guarded
    threads are called. A handler is called in the thread that aborts, which then blocks forever.
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


def install_terminate() -> None:
    """Replace the handler of ``std::terminate``, which llama.cpp sets when it is loaded.

    Does nothing if the C++ library is not found, as on Windows.
    """
    try:
        library = ctypes.CDLL(_CPP_LIBRARIES[sys.platform])
        set_terminate = library[_SET_TERMINATE]
    except (KeyError, OSError, AttributeError):
        return
    set_terminate.argtypes = [type(_terminate_callback)]
    set_terminate.restype = ctypes.c_void_p
    former = set_terminate(_terminate_callback)
    if former:
        _former_terminate.append(ctypes.CFUNCTYPE(None)(former))


def lost_backend() -> str | None:
    """Return why a backend of llama.cpp stopped working in this process; None if none did."""
    return _lost_backends[0] if _lost_backends else None


def _on_terminate() -> None:
    # In threads of other libraries, only the previous terminate handler runs.
    if threading.get_ident() in _handlers:
        _lost_backends.append(_UNCAUGHT.decode())
        _on_abort(_UNCAUGHT)
    for former in _former_terminate:
        former()


def _on_abort(message: bytes) -> None:
    if not _handlers:
        return  # no thread is guarded, so the process ends
    # A thread of llama.cpp itself computes for any of the guarded threads, so all their handlers
    # are called.
    reason = message.decode(errors="replace")
    handler_of_thread = _handlers.get(threading.get_ident())
    if handler_of_thread is not None:
        handler_of_thread(reason)
    else:
        _lost_backends.append(reason)
        for handler in list(_handlers.values()):
            handler(reason)
    threading.Event().wait()


_callback = ctypes.CFUNCTYPE(None, ctypes.c_char_p)(_on_abort)
_terminate_callback = ctypes.CFUNCTYPE(None)(_on_terminate)
