"""The GPUs that llama.cpp can use."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

from attrs import frozen

from relevance_gen.errors import InvalidRequestError
from relevance_gen.llama.runtime.library import lib

_GPU_TYPES = (1, 2)
"""ggml's device types for a GPU with its own memory and for an integrated GPU."""


@frozen
class Gpu:
    """A GPU: llama.cpp's name of it, such as ``CUDA0``, and its free memory in bytes."""

    name: str
    free_bytes: int


def gpus() -> Iterator[Gpu]:
    """Yield each GPU, in the order of the numbers that `main_gpu` and `devices` mean."""
    library = lib._lib
    for function in ("ggml_backend_dev_get", "ggml_backend_dev_name"):
        getattr(library, function).restype = ctypes.c_void_p
    library.ggml_backend_dev_count.restype = ctypes.c_size_t
    for index in range(library.ggml_backend_dev_count()):
        device = ctypes.c_void_p(library.ggml_backend_dev_get(ctypes.c_size_t(index)))
        if library.ggml_backend_dev_type(device) not in _GPU_TYPES:
            continue
        free = ctypes.c_size_t()
        total = ctypes.c_size_t()
        library.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        name = ctypes.string_at(library.ggml_backend_dev_name(device)).decode(errors="replace")
        yield Gpu(name, free.value)


def check_gpus(field: str, numbers: Sequence[int]) -> None:
    """Check that `numbers` are numbers of GPUs.

    Raises:
        InvalidRequestError: a number is not; the error names `field` and lists the GPUs.
    """
    names = [gpu.name for gpu in gpus()]
    listed = ", ".join(f"{index} is {name}" for index, name in enumerate(names)) or "there is none"
    for number in numbers:
        if number >= len(names):
            raise InvalidRequestError.must_be(
                field,
                f"the number of a GPU of this build of llama.cpp ({listed})",
                number,
                remedy="omit it, or keep the model on the CPU with n_gpu_layers=0",
            )
