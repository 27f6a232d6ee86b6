"""Find out, in a process of its own, whether this build of llama.cpp survives its AMX kernels.

GCC 12 miscompiles the tile configuration of llama.cpp's AMX backend: decoding two or more tokens on quantized weights
then kills the process. Nothing in the build tells; only trying does. So on a CPU with AMX a subprocess decodes
a few tokens with a small model once, the answer is remembered, and where the subprocess died the weights are loaded
without the AMX layout (``use_extra_bufts=False``): slower, never fatal.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PROBE_MODEL = Path(__file__).parent / "probe.gguf"
"""A llama model of zeros, Q8_0, wide enough for AMX tiles; `tests/models/make.py` makes it."""

REMEDY = (
    "llama.cpp crashes in its AMX kernels as built here, so they are switched off. For two to four times the speed, "
    "rebuild it: CMAKE_ARGS='-DCMAKE_CXX_FLAGS=-fno-tree-dse\\ -fno-dse' "
    "pip install --force-reinstall --no-cache-dir --no-binary llama-cpp-python llama-cpp-python"
)
_TIMEOUT_S = 60
_log = logging.getLogger("relevance_gen.generation")


def extra_buffers_are_safe(
    system_info: str,
    build: str,
    *,
    command: Sequence[str] = (sys.executable, "-m", "relevance_gen.generation.probe"),
    cache_dir: Path | None = None,
) -> bool:
    """Tell whether the CPU's extra weight layouts may be used.

    Args:
        system_info: what `llama_print_system_info` says.
        build: names the library file; an answer is remembered for a build and a CPU.
        command: decodes with the layouts on; survives where they are safe.
        cache_dir: where the answer is remembered; the user's cache directory by default.
    """
    if "AMX_INT8 = 1" not in system_info:
        return True
    key = hashlib.sha256(f"{system_info}\n{build}".encode()).hexdigest()[:16]
    answer = (cache_dir or _user_cache_dir()) / f"amx-{key}"
    try:
        safe = answer.read_text() == "safe"
    except OSError:
        status = _status(command)
        safe = status == 0
        if status is not None and status <= 0:  # what failed for another reason than a crash may work the next time
            _remember(answer, "safe" if safe else "crashes")
    if not safe:
        _log.warning(REMEDY)
    return safe


def _status(command: Sequence[str]) -> int | None:
    """Return how `command` ended, negative by a signal; ``None`` where it could not start or did not end."""
    try:
        return subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False).returncode  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None


def _remember(path: Path, answer: str) -> None:
    """Write `answer` whole or not at all; a directory that cannot be written only means probing again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}")
        scratch.write_text(answer)
        scratch.replace(path)
    except OSError as error:
        _log.info("the answer of the AMX probe cannot be remembered: %s", error)


def _user_cache_dir() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "relevance_gen"


def main() -> None:
    """Decode a chunk and a batch with every weight layout on; the process ends with status 0 if it lives."""
    from relevance_gen.generation.llama import Model
    from relevance_gen.llama.options import ModelOptions

    options = ModelOptions(n_ctx=64, n_slots=2, n_gpu_layers=0, use_extra_bufts=True)
    with Model(PROBE_MODEL, options) as model:
        prompt = model.tokenize("probe" * 8, 0)
        for slot in range(2):
            model.prefill(slot, prompt, 0)
        model.decode([0, 1], [3, 4], [len(prompt)] * 2)


if __name__ == "__main__":
    main()
