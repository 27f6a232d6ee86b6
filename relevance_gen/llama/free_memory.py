"""Where a context of a loaded model goes, and how much memory is free there."""

from __future__ import annotations

from attrs import frozen

from relevance_gen.llama.options import ModelOptions
from relevance_gen.llama.runtime.devices import gpus
from relevance_gen.llama.runtime.library import lib
from relevance_gen.llama.weights import Weights
from relevance_gen.machine import available_memory

_UNKNOWN_BYTES = 2 << 30
"""What a context takes without being asked for where nobody tells how much is free."""


@frozen
class FreeMemory:
    """Memory for a context, where that is, and how much of it is free; ``None`` where that is not known."""

    where: str
    free_bytes: int | None

    def __str__(self) -> str:
        free = "an unknown number" if self.free_bytes is None else f"{self.free_bytes >> 20:,}"
        return f"{self.where}, of which {free} are free"

    def share(self, share: float) -> int:
        """Return the bytes of a share of what is free."""
        return _UNKNOWN_BYTES if self.free_bytes is None else int(self.free_bytes * share)

    def holds(self, n_bytes: int) -> bool:
        """Tell whether `n_bytes` are free, as far as is known."""
        return self.free_bytes is None or n_bytes <= self.free_bytes


def free_memory_for(weights: Weights, options: ModelOptions) -> FreeMemory:
    """Return the memory that the context of a loaded model goes to: that of the GPUs, or the machine's.

    Where only some layers are on a GPU, each part of the context goes with its layers, and the tighter memory counts.
    """
    n_layers = max(1, lib.llama_model_n_layer(weights.handle))
    n_on_gpu = (
        n_layers if options.n_gpu_layers in (None, -1) else min(options.n_gpu_layers or 0, n_layers)
    )
    devices = list(gpus()) if weights.uses_gpu and n_on_gpu else []
    if options.main_gpu is not None:
        devices = devices[options.main_gpu : options.main_gpu + 1]
    if not devices:
        n_on_gpu = 0
    parts: list[FreeMemory] = []
    if devices:
        free_bytes = sum(gpu.free_bytes for gpu in devices) * n_layers // n_on_gpu
        parts.append(FreeMemory(" and ".join(gpu.name for gpu in devices), free_bytes))
    if n_on_gpu < n_layers:
        free = available_memory()
        if free is not None:
            # Weights mapped from their file count as free, but evicting them would mean to read them at every token.
            share = (n_layers - n_on_gpu) / n_layers
            free = int(max(0, free - weights.n_bytes * share) / share)
        parts.append(FreeMemory("the machine's memory", free))
    return min(parts, key=lambda part: float("inf") if part.free_bytes is None else part.free_bytes)
