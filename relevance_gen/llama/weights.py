"""The weights of a loaded GGUF file, and the context that computes with them."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeAlias

from relevance_gen.errors import ModelLoadError
from relevance_gen.llama.model_files.resolve import check_is_gguf
from relevance_gen.llama.options import ModelOptions
from relevance_gen.llama.runtime.devices import device_array, select_gpus
from relevance_gen.llama.runtime.library import (
    build,
    clear_errors,
    last_errors,
    lib,
    system_info,
)
from relevance_gen.llama.runtime.probe import extra_buffers_are_safe
from relevance_gen.machine import usable_cores

OnProgress: TypeAlias = Callable[[float], bool]
"""Called with the loaded fraction in [0, 1]; returns whether to continue."""

_MAX_VALUE_BYTES = 256
_FLOAT16_BYTES = 2
_MIN_MULTITHREADED_BYTES = 8 << 20
"""Size of weights below which one thread is used, which takes less than a millisecond for a token.
Several threads would save half of that on an idle machine, and take twenty milliseconds or more on
a busy machine, waiting for each other."""


class Weights:
    """The weights and the vocabulary of a GGUF file, on the CPU or on GPUs.

    Args:
        path: a GGUF file.
        options: the GPU, the number of layers on it, and the layout of weights on the CPU.
        on_progress: see `OnProgress`.

    Raises:
        ModelLoadError: the file is missing, not in GGUF format, damaged or unsupported, or the
            memory is too small.
        InvalidRequestError: the GPU does not exist.

    Attributes:
        handle: llama.cpp's ``llama_model``; ``None`` once closed.
        vocabulary: llama.cpp's ``llama_vocab``, of `n_vocab` tokens.
        is_extractive: whether the file declares that the model can only copy text from its prompt.
        n_bytes: size of the tensors.
        token_bytes: size of the keys and values of one token of one sequence, as float16.
        gpus: the GPUs that hold layers; none if the model is on the CPU only.
        default_n_threads: threads if no number is requested.
    """

    def __init__(
        self, path: Path, options: ModelOptions, on_progress: OnProgress | None = None
    ) -> None:
        check_is_gguf(path)
        self.gpus = select_gpus(options.n_gpu_layers, options.main_gpu)
        clear_errors()
        params = lib.llama_model_default_params()
        params.n_gpu_layers = 0
        if self.uses_gpu:
            params.n_gpu_layers = -1 if options.n_gpu_layers is None else options.n_gpu_layers
        self._devices = device_array(self.gpus)  # llama.cpp refers to it while the model exists
        params.devices = ctypes.cast(self._devices, ctypes.c_void_p)
        params.use_extra_bufts = options.use_extra_bufts
        if options.use_extra_bufts is None:
            params.use_extra_bufts = extra_buffers_are_safe(system_info(), build())

        def report(fraction: float, _: object) -> bool:
            return on_progress is None or on_progress(fraction)

        callback = lib.llama_progress_callback(report)  # this reference must outlive the call
        params.progress_callback = callback
        self.handle: int | None = lib.llama_model_load_from_file(os.fsencode(path), params)
        if not self.handle:
            raise ModelLoadError(f"{path} cannot be loaded: {last_errors()}")
        self.vocabulary = lib.llama_model_get_vocab(self.handle)
        self.is_extractive = metadata(self.handle, "relevance_gen.extractive") == "true"
        self.n_bytes = lib.llama_model_size(self.handle)
        self.token_bytes = _token_bytes(self.handle)
        self.n_vocab = lib.llama_vocab_n_tokens(self.vocabulary)
        self.default_n_threads = 1 if self.n_bytes < _MIN_MULTITHREADED_BYTES else usable_cores()

    @property
    def uses_gpu(self) -> bool:
        """Whether layers may be on a GPU."""
        return bool(self.gpus)

    def close(self) -> None:
        """Free the weights; may be called more than once."""
        if self.handle:
            lib.llama_model_free(self.handle)
            self.handle = None


def metadata(model: int | None, key: str) -> str:
    """Return the value of a metadata key, at most 255 bytes; empty if the file does not have it."""
    text = ctypes.create_string_buffer(_MAX_VALUE_BYTES)
    lib.llama_model_meta_val_str(model, key.encode(), text, len(text))
    return text.value.decode(errors="replace")


class _GGUFParameters(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


def has_tensor(path: Path, name: str) -> bool:
    """Return whether a GGUF file has a tensor named `name`."""
    library: Any = lib._lib
    library.gguf_init_from_file.restype = ctypes.c_void_p
    file = ctypes.c_void_p(
        library.gguf_init_from_file(os.fsencode(path), _GGUFParameters(True, None))
    )
    try:
        return bool(file) and library.gguf_find_tensor(file, name.encode()) >= 0
    finally:
        library.gguf_free(file)


def _token_bytes(model: int) -> int:
    n_heads = max(1, lib.llama_model_n_head(model))
    default_width = lib.llama_model_n_embd(model) // n_heads
    architecture = metadata(model, "general.architecture")
    key_width = metadata(model, f"{architecture}.attention.key_length") or default_width
    value_width = metadata(model, f"{architecture}.attention.value_length") or default_width
    head_bytes = _FLOAT16_BYTES * (int(key_width) + int(value_width))
    return int(head_bytes * lib.llama_model_n_head_kv(model) * lib.llama_model_n_layer(model))


class OpenContext:
    """A model's weights with the context that computes with them; both are freed together."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._context: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the context and the weights; may be called more than once."""
        if self._context:
            lib.llama_free(self._context)
            self._context = None
        self._weights.close()
