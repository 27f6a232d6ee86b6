"""The GPUs that llama.cpp sees."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence

from attrs import frozen

from relevance_gen.errors import InvalidRequestError
from relevance_gen.llama.runtime.library import lib

_GPU_TYPES = (1, 2)
"""ggml's numbers for a GPU of its own memory and one that shares the machine's."""


@frozen
class Gpu:
    """A GPU: llama.cpp's name of it, such as ``CUDA0``, and how much of its memory is free."""

    name: str
    free_bytes: int


def gpus() -> Iterator[Gpu]:
    """Yield each GPU; its place is the number that `main_gpu` and `devices` mean."""
    library = lib._lib
    for name in ("ggml_backend_dev_get", "ggml_backend_dev_name"):
        getattr(library, name).restype = ctypes.c_void_p
    library.ggml_backend_dev_count.restype = ctypes.c_size_t
    for number in range(library.ggml_backend_dev_count()):
        device = ctypes.c_void_p(library.ggml_backend_dev_get(ctypes.c_size_t(number)))
        if library.ggml_backend_dev_type(device) not in _GPU_TYPES:
            continue
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        library.ggml_backend_dev_memory(device, ctypes.byref(free), ctypes.byref(total))
        name = ctypes.string_at(library.ggml_backend_dev_name(device)).decode(errors="replace")
        yield Gpu(name, free.value)


def check_gpus(name: str, numbers: Sequence[int]) -> None:
    """Refuse what is not the number of a GPU; the error calls what names it `name`, and says which there are."""
    names = [gpu.name for gpu in gpus()]
    for number in numbers:
        if number >= len(names):
            there_are = (
                ", ".join(f"{place} is {each}" for place, each in enumerate(names))
                or "there is none"
            )
            raise InvalidRequestError.must_be(
                name,
                f"of GPUs that llama.cpp, as built here, sees ({there_are})",
                number,
                remedy="leave it out, or keep the model on the CPU with n_gpu_layers=0",
            )
