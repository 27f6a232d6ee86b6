"""Test in a separate process whether the AMX kernels of this build of llama.cpp crash.

GCC 12 miscompiles the tile configuration of llama.cpp's AMX backend: decoding two or more tokens on
quantized weights then kills the process. The build does not report this; only a trial does. On a
CPU with AMX, a subprocess runs `relevance_gen.llama.trial` once, and the result is cached. If it
crashed, weights are loaded without the AMX layout (``use_extra_bufts=False``), which is slower but
safe.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_REMEDY = (
    "this build of llama.cpp crashes in its AMX kernels, so they are disabled. For two to four times the speed, "
    "rebuild it: CMAKE_ARGS='-DCMAKE_CXX_FLAGS=-fno-tree-dse\\ -fno-dse' "
    "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python llama-cpp-python"
)
_TIMEOUT_S = 60
_log = logging.getLogger(__name__)


def extra_buffers_are_safe(
    system_info: str,
    build: str,
    *,
    command: Sequence[str] = (sys.executable, "-m", "relevance_gen.llama.trial"),
    cache_dir: Path | None = None,
) -> bool:
    """Return whether the CPU's extra weight layouts are safe.

    The result is True on a CPU without AMX. Otherwise it is the cached result, or `command` is run:
    the result is True if the command exits with status 0. The result is cached, by build and CPU,
    if the status is 0 or the command was ended by a signal. Any other failure can be temporary.

    Args:
        system_info: the text of `llama_print_system_info`.
        build: an identifier of the build.
        command: decodes with the layouts enabled, and exits with status 0 if they are safe.
        cache_dir: by default ``relevance_gen`` in the user's cache directory.
    """
    if "AMX_INT8 = 1" not in system_info:
        return True
    key = hashlib.sha256(f"{system_info}\n{build}".encode()).hexdigest()[:16]
    if cache_dir is None:
        user_cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        cache_dir = user_cache / "relevance_gen"
    answer_file = cache_dir / f"amx-{key}"
    try:
        safe = answer_file.read_text() == "safe"
    except OSError:
        status = _status(command)
        safe = status == 0
        # A positive status is another failure than a crash; it may be temporary, so it is not
        # cached.
        if status is not None and status <= 0:
            _store(answer_file, "safe" if safe else "crashes")
    if not safe:
        _log.warning(_REMEDY)
    return safe


def _status(command: Sequence[str]) -> int | None:
    """Return the exit status of `command`, negative for a signal.

    It is None if the command could not start or timed out.
    """
    try:
        finished = subprocess.run(  # noqa: S603
            command, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return finished.returncode


def _store(path: Path, answer: str) -> None:
    """Write the result of a trial to the file `path` atomically.

    `answer` is "safe" or "crashes". If the directory is not writable, the next process repeats the
    trial.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        temporary.write_text(answer)
        temporary.replace(path)
    except OSError as error:
        _log.info("cannot cache the result of the AMX trial: %s", error)
