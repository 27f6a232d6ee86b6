"""Load a prebuilt llama.cpp library in place of the one that llama-cpp-python compiles.

``RELEVANCE_GEN_LLAMA_LIB`` is the path of the library, such as ``libllama.so.0`` in a package. Only
the bindings of llama-cpp-python are used with it. A library of another version would read the
wrong bytes of a structure, so functions, structure sizes and default values are compared before
the library is used.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import platform
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from relevance_gen.errors import ModelLoadError
from relevance_gen.llama.runtime.openmp import limit_spin_wait

ENVIRONMENT: Final = "RELEVANCE_GEN_LLAMA_LIB"
_MAX_STRUCTURE_BYTES: Final = 4096
_ALIGNMENT: Final = 8
"""Bytes; the last bytes of a structure can be padding that no function writes."""
_DEFAULTS: Final = {
    "llama_context_default_params": {
        "n_batch": 2048,
        "n_seq_max": 1,
        "type_k": 1,
        "embeddings": False,
        "offload_kqv": True,
        "op_offload": True,
        "kv_unified": False,
        "n_samplers": 0,
    },
    "llama_model_default_params": {
        "split_mode": 1,
        "main_gpu": 0,
        "vocab_only": False,
        "check_tensors": False,
        "use_extra_bufts": True,
    },
}
"""Default values in all versions of llama.cpp that fit; they show that fields are where the
bindings read them."""


def load_bindings() -> Any:
    """Return the module of bindings, with the prebuilt library if the environment names one.

    Raises:
        ModelLoadError: the library cannot be used; the error has the reason.
        ModuleNotFoundError: the bindings are not installed.
    """
    path = os.environ.get(ENVIRONMENT)
    if not path:
        import llama_cpp.llama_cpp as bindings

        return bindings
    if "llama_cpp.llama_cpp" in sys.modules:
        raise _does_not_fit(path, "llama_cpp was imported before, with its own library")
    try:
        bindings = _import_bindings(ctypes.CDLL(path))
        _extend_context_params(bindings)
        _check_structures(bindings)
    except (AttributeError, OSError, ValueError) as error:
        sys.modules.pop("llama_cpp.llama_cpp", None)
        raise _does_not_fit(path, str(error)) from None
    return bindings


def load_backends(bindings: Any) -> None:
    """Load the backends in the folder of the library, or else in the neighboring folder ``bin``.

    Nothing is loaded if the library already has backends.

    Raises:
        ModelLoadError: there is no backend.
    """
    library, path = bindings._lib, Path(bindings._lib._name)
    library.ggml_backend_dev_count.restype = ctypes.c_size_t
    for folder in (path.parent, path.parent.parent / "bin"):
        if library.ggml_backend_dev_count():
            return
        with limit_spin_wait():
            library.ggml_backend_load_all_from_path(os.fsencode(folder))
    if not library.ggml_backend_dev_count():
        raise _does_not_fit(str(path), "no backend, such as libggml-cpu, is next to it")


def _does_not_fit(path: str, reason: str) -> ModelLoadError:
    return ModelLoadError(
        f"{ENVIRONMENT} must be a llama.cpp library that fits the installed llama-cpp-python, "
        f"got {path}: {reason}"
    )


def _import_bindings(library: ctypes.CDLL) -> Any:
    """Import only the module of bindings, with `library` as its library.

    The package itself would load the library that it was installed with.

    Raises:
        AttributeError: the library lacks a function.
    """
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None:
        raise ModuleNotFoundError("No module named 'llama_cpp'", name="llama_cpp")
    package = ModuleType("llama_cpp")
    package.__path__ = list(spec.submodule_search_locations or ())
    sys.modules["llama_cpp"] = package
    try:
        import llama_cpp._ctypes_extensions as loader

        loader.load_shared_library = lambda *_: library
        import llama_cpp.llama_cpp as bindings

        return bindings
    finally:  # a later import runs the package itself
        del sys.modules["llama_cpp"]
        sys.modules.pop("llama_cpp._ctypes_extensions", None)


def _extend_context_params(bindings: Any) -> None:
    """Add a reserved field to the context parameters if the library has a newer structure.

    llama.cpp of October 2026 has 8 bytes before ``abort_callback`` that the bindings of
    llama-cpp-python 0.3.36 lack.
    """
    known = bindings.llama_context_params
    n_bytes = _written_bytes(bindings, "llama_context_default_params")
    if n_bytes is None or n_bytes - ctypes.sizeof(known) != _ALIGNMENT:
        return
    fields = list(known._fields_)
    index = [name for name, _ in fields].index("abort_callback")
    fields.insert(index, ("reserved", ctypes.c_uint64))
    extended = type("llama_context_params", (ctypes.Structure,), {"_fields_": fields})
    bindings.llama_context_params = extended
    bindings.llama_context_default_params.restype = extended
    model, _ = bindings.llama_init_from_model.argtypes
    bindings.llama_init_from_model.argtypes = [model, extended]


def _check_structures(bindings: Any) -> None:
    """Compare the sizes and default values of structures in the bindings with those of the library.

    Raises:
        ValueError: a size or a value differs.
    """
    for function, defaults in _DEFAULTS.items():
        structure = getattr(bindings, function).restype
        size = ctypes.sizeof(structure)
        n_bytes = _written_bytes(bindings, function)
        if n_bytes is not None and not size - _ALIGNMENT < n_bytes <= size:
            raise ValueError(f"{function} writes {n_bytes} bytes, the bindings expect {size}")
        # The result has space for a larger structure, whose size is not known on all processors.
        fields = [("params", structure), ("space", ctypes.c_byte * _MAX_STRUCTURE_BYTES)]
        padded = type("padded", (ctypes.Structure,), {"_fields_": fields})
        params = ctypes.CFUNCTYPE(padded)((function, bindings._lib))().params
        for name, expected in defaults.items():
            value = getattr(params, name)
            if value != expected:
                raise ValueError(f"{function}().{name} is {value}, expected {expected}")


def _written_bytes(bindings: Any, function: str) -> int | None:
    """Return the end of the bytes that a function of the library writes to its result.

    This is the offset of the last byte that the function writes, plus 1; bytes before it that the
    function does not write are included. The function must return a structure and have no
    arguments. The result is None unless the processor is x86-64, where the address of the structure
    is passed as the first argument.

    Args:
        bindings: the module of bindings.
        function: the name of the function.
    """
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return None
    fill_result = ctypes.CFUNCTYPE(None, ctypes.c_void_p)((function, bindings._lib))
    n_bytes = 0
    for filling in (b"\x55", b"\xaa"):
        result = ctypes.create_string_buffer(filling * _MAX_STRUCTURE_BYTES, _MAX_STRUCTURE_BYTES)
        fill_result(ctypes.addressof(result))
        n_bytes = max(n_bytes, len(result.raw.rstrip(filling)))
    return n_bytes
