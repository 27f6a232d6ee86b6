"""The loaded library, and the only module that imports it: its log goes to Python's, its aborts to `aborts`."""

from __future__ import annotations

import ctypes
import logging
from collections import deque
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from relevance_gen.errors import ModelLoadError
from relevance_gen.llama.runtime import aborts
from relevance_gen.llama.runtime.openmp import limit_spin_wait

try:
    with limit_spin_wait():
        import llama_cpp.llama_cpp as lib
except ModuleNotFoundError as missing:
    raise ModelLoadError(
        f"generation needs a package that is not installed ({missing.name}): "
        "pip install 'llama-cpp-python>=0.3.36,<0.4' compiles llama.cpp, for which it wants a C++ compiler; "
        "search works without it"
    ) from None

__all__ = ["build", "clear_errors", "lib", "pointer", "reasons", "system_info"]

_log = logging.getLogger("relevance_gen.llama")
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.INFO, 4: logging.INFO}
"""llama.cpp's debug, info, warning and error, quieter than it calls them: what is fatal arrives as an exception."""
_ERROR = 4
_last_errors: deque[str] = deque(maxlen=3)


_level = logging.DEBUG


def _write(level: int, text: bytes, _: Any) -> None:
    """Send llama.cpp's own log to the logger ``relevance_gen.llama``."""
    global _level
    _level = _LEVELS.get(level, _level)  # 5 goes on with the line before
    message = text.decode(errors="replace").rstrip()
    if level == _ERROR:
        _last_errors.append(message)
    if message.strip("."):
        _log.log(_level, "%s", message)


_callback = lib.llama_log_callback(_write)
lib.llama_log_set(_callback, ctypes.c_void_p(0))
lib.llama_backend_init()
aborts.install(lib._lib)


def reasons() -> str:
    """Return the last errors that llama.cpp logged."""
    return "; ".join(_last_errors) or "llama.cpp gives no reason"


def clear_errors() -> None:
    """Forget the errors so far, so that `reasons` tells of the next attempt alone."""
    _last_errors.clear()


def build() -> str:
    """Name the build of llama.cpp that is loaded."""
    library = Path(lib._lib._name)
    return f"{library} {library.stat().st_mtime_ns}"


def system_info() -> str:
    """Return what llama.cpp says of this processor and of how it was built."""
    return str(lib.llama_print_system_info().decode())


def pointer(array: NDArray[Any], kind: Any) -> Any:
    """Return a C pointer to an array's first element; the array must outlive it."""
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))
