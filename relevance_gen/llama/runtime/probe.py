"""Find out, in a process of its own, whether this build of llama.cpp survives its AMX kernels.

GCC 12 miscompiles the tile configuration of llama.cpp's AMX backend: decoding two or more tokens on quantized weights
then kills the process. Nothing in the build tells; only trying does. So on a CPU with AMX a subprocess runs
`relevance_gen.llama.trial` once, and its answer is remembered. Where it died, weights are loaded without the AMX
layout (``use_extra_bufts=False``), which is slower and never fatal.
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
    "llama.cpp crashes in its AMX kernels as built here, so they are switched off. For two to four times the speed, "
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
    """Tell whether the CPU's extra weight layouts may be used, told what `llama_print_system_info` says.

    The answer is remembered for a build, named by the library's file, and a CPU, by default in the user's cache
    directory. The command decodes with the layouts on, and ends with status 0 where they are safe.
    """
    if "AMX_INT8 = 1" not in system_info:
        return True
    key = hashlib.sha256(f"{system_info}\n{build}".encode()).hexdigest()[:16]
    cache_dir = (
        cache_dir
        or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "relevance_gen"
    )
    answer = cache_dir / f"amx-{key}"
    try:
        safe = answer.read_text() == "safe"
    except OSError:
        status = _status(command)
        safe = status == 0
        # A positive status is a failure of another kind than a crash: it may be gone the next time, so ask again then.
        if status is not None and status <= 0:
            _remember(answer, "safe" if safe else "crashes")
    if not safe:
        _log.warning(_REMEDY)
    return safe


def _status(command: Sequence[str]) -> int | None:
    """Return how `command` ended, negative by a signal; ``None`` where it could not start or did not end."""
    try:
        finished = subprocess.run(  # noqa: S603
            command, capture_output=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return finished.returncode


def _remember(path: Path, answer: str) -> None:
    """Write `answer` whole or not at all; a directory that cannot be written only means probing again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}")
        scratch.write_text(answer)
        scratch.replace(path)
    except OSError as error:
        _log.info("the answer of the AMX probe cannot be remembered: %s", error)
