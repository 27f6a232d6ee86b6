"""The loaded llama.cpp library, `lib`.

Importing this module loads the library, and forwards llama.cpp's log and aborts to Python.
"""

from __future__ import annotations

import ctypes
import logging
import re
from collections import deque
from importlib import metadata
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from relevance_gen.errors import ModelLoadError, to_install
from relevance_gen.llama.runtime import aborts
from relevance_gen.llama.runtime.openmp import limit_spin_wait
from relevance_gen.llama.runtime.prebuilt import load_backends, load_bindings

try:
    with limit_spin_wait():
        lib = load_bindings()
except ModuleNotFoundError as missing:
    raise ModelLoadError(
        f"generation needs a package that is not installed ({missing.name}): "
        f"{to_install('generate')} compiles llama.cpp, which requires a C++ compiler; "
        "search works without it"
    ) from None

__all__ = ["build", "clear_errors", "last_errors", "lib", "pointer", "system_info"]

_log = logging.getLogger("relevance_gen.llama")
_LEVELS = {
    1: logging.DEBUG,
    2: logging.DEBUG,
    3: logging.INFO,
    4: logging.INFO,
}
"""Python's level for llama.cpp's debug, info, warning and error: lower, because fatal errors become
exceptions."""
_ERROR = 4
_last_errors: deque[str] = deque(maxlen=3)
_level = logging.DEBUG
"""The level of the last line."""


def _write(level: int, text: bytes, _: Any) -> None:
    """Write a line of llama.cpp's own log to the logger ``relevance_gen.llama``.

    Args:
        level: llama.cpp's level, from 1 (debug) to 4 (error); 5 continues the previous line.
        text: the line.
    """
    global _level
    _level = _LEVELS.get(level, _level)  # level 5 continues the previous line
    message = text.decode(errors="replace").rstrip()
    if level == _ERROR:
        _last_errors.append(message)
    if message.strip("."):
        _log.log(_level, "%s", message)


_callback = lib.llama_log_callback(_write)
lib.llama_log_set(_callback, ctypes.c_void_p(0))
load_backends(lib)
lib.llama_backend_init()
aborts.install(lib._lib)
aborts.install_terminate()


_OLDEST_TESTED = "0.3.36"


def warn_of_older(version: str) -> None:
    """Log a warning if a version of llama-cpp-python is older than the oldest tested one."""
    numbers = [int(part) for part in re.findall(r"\d+", version)[:3]]
    if numbers < [int(part) for part in _OLDEST_TESTED.split(".")]:
        _log.warning(
            "llama-cpp-python %s is older than %s: concurrent requests can change each other's "
            "texts; pip install --upgrade llama-cpp-python",
            version,
            _OLDEST_TESTED,
        )


warn_of_older(metadata.version("llama-cpp-python"))


def last_errors() -> str:
    """Return the last errors that llama.cpp logged since `clear_errors`, at most three.

    They are joined by semicolons. Without errors, the text states that no reason was logged.
    """
    return "; ".join(_last_errors) or "llama.cpp logged no reason"


def clear_errors() -> None:
    """Discard the errors so far, so that `last_errors` returns only the errors of the next call."""
    _last_errors.clear()


def build() -> str:
    """Return an identifier of the loaded build of llama.cpp.

    It consists of the path and the modification time of the library.
    """
    library = Path(lib._lib._name)
    return f"{library} {library.stat().st_mtime_ns}"


def system_info() -> str:
    """Return llama.cpp's description of this processor and of its build."""
    return str(lib.llama_print_system_info().decode())


def pointer(array: NDArray[Any], kind: Any) -> Any:
    """Return a C pointer to an array's first element; the array must outlive it.

    `kind` is the ctypes type of the elements.
    """
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))
