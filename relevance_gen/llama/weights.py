"""A GGUF file, loaded: what everything that computes with a model begins with."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeAlias

from relevance_gen.errors import ModelLoadError
from relevance_gen.llama.model_files.resolve import check_is_gguf
from relevance_gen.llama.options import ModelOptions
from relevance_gen.llama.runtime.devices import check_gpus
from relevance_gen.llama.runtime.library import build, clear_errors, lib, reasons, system_info
from relevance_gen.llama.runtime.probe import extra_buffers_are_safe
from relevance_gen.machine import usable_cores

OnProgress: TypeAlias = Callable[[float], bool]
"""Called with the loaded share in [0, 1]; returns whether to go on."""

_LONGEST_VALUE = 256
_HALF_BYTES = 2
_ONE_THREAD_BYTES = 8 << 20
"""Weights of less are computed by one thread, a token in less than a millisecond: several would save half of that while
the machine is quiet, and take twenty milliseconds and more where it is busy, waiting for each other."""


class Weights:
    """The weights and the vocabulary of a GGUF file, on the CPU or on GPUs.

    Args:
        path: a GGUF file.
        options: which GPU, how many layers there, and how a CPU lays weights out.
        on_progress: see `OnProgress`.

    Raises:
        ModelLoadError: the file is missing, no GGUF, damaged or unsupported, or memory does not suffice.
        InvalidRequestError: there is no such GPU.

    Attributes:
        handle: llama.cpp's ``llama_model``; ``None`` once closed.
        vocabulary: llama.cpp's ``llama_vocab``, of `n_vocab` tokens.
        copies_only: whether the file says that the model can only copy from what it is shown.
        n_bytes: what the tensors take.
        token_bytes: what a context takes for one token of one sequence, its keys and values as float16.
        uses_gpu: whether layers may be on a GPU.
        default_n_threads: threads to compute with where nobody has asked for a number.
    """

    def __init__(
        self, path: Path, options: ModelOptions, on_progress: OnProgress | None = None
    ) -> None:
        check_is_gguf(path)
        if options.main_gpu is not None and options.n_gpu_layers != 0:
            check_gpus("main_gpu", [options.main_gpu])
        clear_errors()
        self.uses_gpu = bool(lib.llama_supports_gpu_offload()) and options.n_gpu_layers != 0
        params = lib.llama_model_default_params()
        params.n_gpu_layers = (
            (-1 if options.n_gpu_layers is None else options.n_gpu_layers) if self.uses_gpu else 0
        )
        if options.main_gpu is not None and self.uses_gpu:
            params.main_gpu, params.split_mode = options.main_gpu, lib.LLAMA_SPLIT_MODE_NONE
        use = options.use_extra_bufts
        params.use_extra_bufts = (
            extra_buffers_are_safe(system_info(), build()) if use is None else use
        )
        callback = lib.llama_progress_callback(
            lambda share, _: on_progress is None or on_progress(share)
        )
        params.progress_callback = callback
        self.handle: int | None = lib.llama_model_load_from_file(os.fsencode(path), params)
        if not self.handle:
            raise ModelLoadError(f"{path} cannot be loaded: {reasons()}")
        self.vocabulary = lib.llama_model_get_vocab(self.handle)
        self.copies_only = metadata(self.handle, "relevance_gen.copies_only") == "true"
        self.n_bytes = lib.llama_model_size(self.handle)
        self.token_bytes = _token_bytes(self.handle)
        self.n_vocab = lib.llama_vocab_n_tokens(self.vocabulary)
        self.default_n_threads = 1 if self.n_bytes < _ONE_THREAD_BYTES else usable_cores()

    def close(self) -> None:
        """Free the weights; safe to call twice."""
        if self.handle:
            lib.llama_model_free(self.handle)
            self.handle = None


def metadata(model: int | None, key: str) -> str:
    """Return what a model's file says under `key`, 255 bytes of it at most; empty where it says nothing."""
    text = ctypes.create_string_buffer(_LONGEST_VALUE)
    lib.llama_model_meta_val_str(model, key.encode(), text, len(text))
    return text.value.decode(errors="replace")


class _GGUFParameters(ctypes.Structure):
    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


def has_tensor(path: str | os.PathLike[str], name: str) -> bool:
    """Tell whether a GGUF file has a tensor of some name."""
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
    usual = lib.llama_model_n_embd(model) // n_heads
    architecture = metadata(model, "general.architecture")
    widths = [
        int(metadata(model, f"{architecture}.attention.{of}_length") or usual)
        for of in ("key", "value")
    ]
    return int(
        _HALF_BYTES
        * sum(widths)
        * lib.llama_model_n_head_kv(model)
        * lib.llama_model_n_layer(model)
    )


class OpenContext:
    """A model's weights with the context that computes with them, if it could be opened; both are freed together."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._context: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the context and the weights; safe to call twice."""
        if self._context:
            lib.llama_free(self._context)
            self._context = None
        self._weights.close()
