"""The free memory for the context of a loaded model: of the GPUs, or of the machine."""

from __future__ import annotations

import math

from attrs import frozen

from relevance_gen.llama.options import ModelOptions
from relevance_gen.llama.runtime.devices import gpus
from relevance_gen.llama.runtime.library import lib
from relevance_gen.llama.weights import Weights
from relevance_gen.machine import available_memory

_UNKNOWN_BYTES = 2 << 30
"""Memory for a context of default size if the free memory is unknown."""


@frozen
class FreeMemory:
    """The free space of one memory: that of some GPUs, or the main memory of the machine.

    Attributes:
        name: the names of the GPUs, or ``"the machine's memory"``.
        free_bytes: the free bytes; None if the number is unknown.
    """

    name: str
    free_bytes: int | None

    def __str__(self) -> str:
        free = "an unknown number" if self.free_bytes is None else f"{self.free_bytes >> 20:,}"
        return f"{self.name}, of which {free} are free"

    def fraction(self, fraction: float) -> int:
        """Return `fraction`, in [0, 1], of the free bytes.

        If the free bytes are unknown, the result is 2 GiB for any fraction.
        """
        return _UNKNOWN_BYTES if self.free_bytes is None else int(self.free_bytes * fraction)

    def holds(self, n_bytes: int) -> bool:
        """Return whether `n_bytes` are free, or the free bytes are unknown."""
        return self.free_bytes is None or n_bytes <= self.free_bytes


def free_memory_for(weights: Weights, options: ModelOptions) -> FreeMemory:
    """Return the free memory for the context of a loaded model.

    If only some of the layers are on GPUs, the context is split: the part of each layer is in the
    memory that holds the layer. Then the free bytes of the GPUs, and those of the machine, are each
    divided by the fraction of the layers that this memory holds. The quotient is the size of the
    largest whole context whose part fits into this memory. The memory with the smaller quotient is
    returned, and `FreeMemory.free_bytes` is the quotient.

    The free bytes of the machine are reduced by the size of the weights that it holds, because
    memory-mapped weights count as free.
    """
    n_layers = max(1, lib.llama_model_n_layer(weights.handle))
    n_gpu_layers = n_layers
    if options.n_gpu_layers not in (None, -1):
        n_gpu_layers = min(options.n_gpu_layers or 0, n_layers)
    names = {gpu.name for gpu in weights.gpus} if n_gpu_layers else set()
    # The weights are loaded, so less is free than when the GPUs were selected.
    devices = [gpu for gpu in gpus() if gpu.name in names] if names else []
    memories: list[FreeMemory] = []
    if devices:
        free_bytes = sum(gpu.free_bytes for gpu in devices) * n_layers // n_gpu_layers
        memories.append(FreeMemory(" and ".join(gpu.name for gpu in devices), free_bytes))
    else:
        n_gpu_layers = 0
    if n_gpu_layers < n_layers:
        free = available_memory()
        if free is not None:
            # Memory-mapped weights count as free, but if they are evicted, each token reads them
            # from disk.
            cpu_fraction = (n_layers - n_gpu_layers) / n_layers
            free = int(max(0, free - weights.n_bytes * cpu_fraction) / cpu_fraction)
        memories.append(FreeMemory("the machine's memory", free))
    return min(
        memories,
        key=lambda memory: math.inf if memory.free_bytes is None else memory.free_bytes,
    )
