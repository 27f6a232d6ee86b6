"""The GPUs that llama.cpp can use, and the choice among them.

llama.cpp numbers its devices differently: it leaves out integrated GPUs if there is a discrete one.
Therefore the chosen devices are passed to it (``llama_model_params.devices``) instead of numbers.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, ClassVar

from attrs import frozen

from relevance_gen.errors import InvalidRequestError, ModelLoadError
from relevance_gen.llama.runtime.aborts import lost_backend
from relevance_gen.llama.runtime.library import lib

_DISCRETE = 1
_INTEGRATED = 2
"""ggml's device types for a GPU with its own memory and for an integrated GPU."""


@frozen
class Gpu:
    """A GPU.

    Attributes:
        name: llama.cpp's name of it, such as ``CUDA0``.
        free_bytes: its free memory.
        handle: ggml's ``ggml_backend_dev_t``.
        is_integrated: whether it shares the memory of the machine.
        device_id: its PCI id; "" if unknown. Two backends can offer the same GPU.
    """

    name: str
    free_bytes: int
    handle: int
    is_integrated: bool = False
    device_id: str = ""


class _DeviceProperties(ctypes.Structure):
    """ggml's ``ggml_backend_dev_props``, with room for capabilities that later versions add."""

    _fields_: ClassVar = [
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("capabilities", ctypes.c_char * 256),
    ]


def gpus() -> list[Gpu]:
    """Return the GPUs in the order of the numbers that `main_gpu` and `devices` mean.

    Discrete GPUs come before integrated ones. A GPU that several backends offer is listed once.

    Raises:
        ModelLoadError: a GPU was lost in this process.
    """
    handles = _handles_of_gpus()
    if handles:
        _check_backends()
    gpus_by_id: dict[str, Gpu] = {}
    for gpu in sorted(map(_properties_of, handles), key=lambda gpu: gpu.is_integrated):
        gpus_by_id.setdefault(gpu.device_id or gpu.name, gpu)
    return list(gpus_by_id.values())


def _handles_of_gpus() -> list[int]:
    """Return the ``ggml_backend_dev_t`` of the GPUs that the backends offer, in the order of ggml.

    The function does not access the GPUs, so it can be called after a GPU was lost.
    """
    library: Any = lib._lib
    library.ggml_backend_dev_get.restype = ctypes.c_void_p
    library.ggml_backend_dev_count.restype = ctypes.c_size_t
    handles = []
    for index in range(library.ggml_backend_dev_count()):
        handle = library.ggml_backend_dev_get(ctypes.c_size_t(index))
        device_type = library.ggml_backend_dev_type(ctypes.c_void_p(handle))
        if device_type in (_DISCRETE, _INTEGRATED):
            handles.append(handle)
    return handles


def _properties_of(handle: int) -> Gpu:
    """Return a GPU with the properties that its backend reports."""
    library: Any = lib._lib
    device = ctypes.c_void_p(handle)
    properties = _DeviceProperties()
    library.ggml_backend_dev_get_props(device, ctypes.byref(properties))
    return Gpu(
        name=properties.name.decode(errors="replace"),
        free_bytes=properties.memory_free,
        handle=handle,
        is_integrated=library.ggml_backend_dev_type(device) == _INTEGRATED,
        device_id=(properties.device_id or b"").decode(errors="replace"),
    )


def _check_backends() -> None:
    """Raise a `ModelLoadError` if a GPU was lost in this process: calls of llama.cpp can hang."""
    reason = lost_backend()
    if reason is not None:
        raise ModelLoadError(
            f"llama.cpp has lost a GPU in this process ({reason}); restart the process, "
            "or keep the model on the CPU with n_gpu_layers=0"
        )


def select_gpus(n_gpu_layers: int | None, main_gpu: int | None) -> list[Gpu]:
    """Return the GPUs for a model: by default the discrete ones, or else the integrated ones.

    Args:
        n_gpu_layers: as in `ModelOptions`; without layers on a GPU, no GPU is selected.
        main_gpu: the number of the only GPU to select; None for the default.

    Raises:
        InvalidRequestError: `main_gpu` is not the number of a GPU.
        ModelLoadError: a GPU was lost in this process.
    """
    if n_gpu_layers == 0:
        return []
    if main_gpu is not None:
        check_gpus("main_gpu", [main_gpu])
        return [gpus()[main_gpu]]
    available_gpus = gpus()
    return [gpu for gpu in available_gpus if not gpu.is_integrated] or available_gpus


def device_array(selected: Sequence[Gpu]) -> ctypes.Array[ctypes.c_void_p]:
    """Return the handles of GPUs as the array that llama.cpp expects, which ends with NULL.

    With an empty array llama.cpp opens no device and computes everything on the CPU.
    """
    handles = [gpu.handle for gpu in selected]
    return (ctypes.c_void_p * (len(handles) + 1))(*handles, None)


def check_gpus(field: str, numbers: Sequence[int]) -> None:
    """Check that `numbers` are numbers of GPUs.

    Raises:
        InvalidRequestError: a number is not; the error names `field` and lists the GPUs.
    """
    names = [gpu.name for gpu in gpus()]
    gpu_list = (
        ", ".join(f"{index} is {name}" for index, name in enumerate(names)) or "there is none"
    )
    for number in numbers:
        if number >= len(names):
            raise InvalidRequestError.must_be(
                field,
                f"the number of a GPU of this build of llama.cpp ({gpu_list})",
                number,
                remedy="omit it, or keep the model on the CPU with n_gpu_layers=0",
            )
