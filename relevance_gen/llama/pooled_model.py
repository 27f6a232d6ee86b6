"""A model that reads a text at once: its weights, and a context of one sequence."""

from __future__ import annotations

import ctypes
import os
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from relevance_gen.errors import ModelLoadError, RelevanceGenError
from relevance_gen.llama.batch import Batch, OutputMask
from relevance_gen.llama.language_model import Tokens
from relevance_gen.llama.options import ModelOptions
from relevance_gen.llama.runtime.execution_tuner import ExecutionTuner
from relevance_gen.llama.runtime.library import lib, reasons
from relevance_gen.llama.tokenizer import Tokenizer
from relevance_gen.llama.weights import OnProgress, OpenContext, Weights

Vector: TypeAlias = NDArray[np.float32]

_DEFAULT_N_CTX = 1024
"""Memory grows with the square of this: every token of a text looks at every other."""


class PooledModel(OpenContext, ABC):
    """A GGUF file, loaded, whose model reads one text at a time. It belongs to the thread that made it.

    A batch of several texts is slower on a CPU, where every token of a batch is compared with every other, and what
    comes out would depend on its neighbours in the last bits.

    Args:
        path, on_progress: as for `Weights`, as is what it raises, also of a model for something else.
        options: ``n_ctx``, ``n_threads``, ``n_gpu_layers``, ``main_gpu`` and ``use_extra_bufts`` count.
        pooling_type: how the vectors of tokens become one, in llama.cpp's numbers; by default what the file says.

    Attributes:
        failure: the error of a text that llama.cpp could not read.
        n_ctx: most tokens that are read at once, those that begin and end a text included.
    """

    failure: ClassVar[type[RelevanceGenError]]

    def __init__(
        self,
        path: str | os.PathLike[str],
        options: ModelOptions,
        *,
        on_progress: OnProgress | None = None,
        pooling_type: int = lib.LLAMA_POOLING_TYPE_UNSPECIFIED,
    ) -> None:
        weights = Weights(Path(path), options, on_progress)
        super().__init__(weights)
        try:
            self.n_ctx = min(
                options.n_ctx or _DEFAULT_N_CTX, lib.llama_model_n_ctx_train(weights.handle)
            )
            self._tokenizer = Tokenizer(weights.vocabulary, self.n_ctx)
            self._open_context(options, pooling_type)
            self._prepare(path)
        except BaseException as error:
            self.close()
            if isinstance(error, self.failure):
                raise ModelLoadError(f"{path} cannot be used: {error}") from None
            raise

    @abstractmethod
    def _prepare(self, path: str | os.PathLike[str]) -> None:
        """Refuse a model that is for something else, learn how this one is used, and read a text.

        What cannot read fails here, and the first text is no slower than the next.
        """

    def _open_context(self, options: ModelOptions, pooling_type: int) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = (
            self.n_ctx
        )  # llama.cpp aborts where a text is in two batches
        params.n_seq_max = 1
        n_threads = options.n_threads or self._weights.default_n_threads
        self._pace = ExecutionTuner(
            n_threads, n_threads if options.n_threads or self._weights.uses_gpu else 1
        )
        params.pooling_type = pooling_type
        params.embeddings = pooling_type != lib.LLAMA_POOLING_TYPE_NONE
        # Nearly twice as fast on a CPU, where a model has it, and with the same bits on any number of threads.
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_AUTO
        self._context = lib.llama_init_from_model(self._weights.handle, params)
        if not self._context:
            raise ModelLoadError(f"a context of {self.n_ctx} tokens cannot be made: {reasons()}")
        self._memory = lib.llama_get_memory(self._context)  # none in a BERT
        self._batch = Batch(self.n_ctx)

    def _read(self, tokens: Tokens, wanted: OutputMask = True) -> None:
        """Compute what the model makes of a text of at most `n_ctx` tokens."""
        self._batch.fill(tokens, range(len(tokens)), 0)
        self._batch.want(wanted)
        if self._memory:
            lib.llama_memory_clear(self._memory, True)
        compute = lib.llama_decode if self._memory else lib.llama_encode
        n_tokens = len(tokens)
        way = self._pace.way(n_tokens)
        lib.llama_set_n_threads(self._context, way.n_threads, way.n_threads)
        started_s = time.perf_counter()
        status = compute(self._context, self._batch.struct)
        if status:
            raise self.failure(f"llama.cpp could not read a text, status {status}: {reasons()}")
        # The pace compares texts of up to twice a length, so the time is told as of the longest of them.
        self._pace.note(
            n_tokens,
            way,
            (time.perf_counter() - started_s) * (1 << n_tokens.bit_length()) / n_tokens,
        )

    def _pooled(self, n: int) -> Vector:
        """Return the `n` numbers that the text which was read became."""
        return self._floats(lib.llama_get_embeddings_seq(self._context, 0), n)

    def _floats(self, first: ctypes._Pointer[ctypes.c_float], n: int) -> Vector:
        if not first:
            raise self.failure("the model gives nothing for a text")
        return np.array(
            (ctypes.c_float * n).from_address(ctypes.addressof(first.contents)), np.float32
        )
