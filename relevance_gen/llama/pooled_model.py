"""A model that reads one text at a time: its weights, and a context of one sequence."""

from __future__ import annotations

import ctypes
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
from relevance_gen.llama.runtime.library import last_errors, lib
from relevance_gen.llama.tokenizer import Tokenizer
from relevance_gen.llama.weights import OnProgress, OpenContext, Weights

Vector: TypeAlias = NDArray[np.float32]

_DEFAULT_N_CTX = 1024
"""The memory grows with the square of this, because each token attends to every other token."""


class PooledModel(OpenContext, ABC):
    """A loaded model that processes one text at a time; used by the thread that created it.

    A batch of several texts would be slower on a CPU, because the attention compares each token of
    a batch with all other tokens, and the last bits of the result would depend on the other texts.

    Args:
        path, on_progress: as for `Weights`.
        options: ``n_ctx``, ``n_threads``, ``n_gpu_layers``, ``main_gpu`` and ``use_extra_bufts``
            are used.
        pooling_type: one of llama.cpp's ``LLAMA_POOLING_TYPE`` constants; by default the pooling
            that the file specifies.

    Raises:
        ModelLoadError: as for `Weights`, or the file holds a model that the subclass cannot use.
        InvalidRequestError: as for `Weights`.

    Attributes:
        error_class: the class of the error that is raised if llama.cpp fails to process a text.
        n_ctx: maximum tokens of a text, including those added before and after the text.
    """

    error_class: ClassVar[type[RelevanceGenError]]

    def __init__(
        self,
        path: Path,
        options: ModelOptions,
        *,
        on_progress: OnProgress | None = None,
        pooling_type: int = lib.LLAMA_POOLING_TYPE_UNSPECIFIED,
    ) -> None:
        weights = Weights(path, options, on_progress)
        super().__init__(weights)
        try:
            n_ctx_train = lib.llama_model_n_ctx_train(weights.handle)
            self.n_ctx = min(options.n_ctx or _DEFAULT_N_CTX, n_ctx_train)
            self._tokenizer = Tokenizer(weights.vocabulary, self.n_ctx)
            self._open_context(options, pooling_type)
            self._prepare(path)
        except BaseException as error:
            self.close()
            if isinstance(error, self.error_class):
                raise ModelLoadError(f"{path} cannot be used: {error}") from None
            raise

    @abstractmethod
    def _prepare(self, path: Path) -> None:
        """Check the kind of the model, set the attributes, and run the model on a short text.

        A model that cannot run fails here, and a caller's first text is not slower than later ones.
        """

    def _open_context(self, options: ModelOptions, pooling_type: int) -> None:
        params = lib.llama_context_default_params()
        # llama.cpp aborts if a text is in two batches.
        params.n_ctx = self.n_ctx
        params.n_batch = self.n_ctx
        params.n_ubatch = self.n_ctx
        params.n_seq_max = 1
        n_threads = options.n_threads or self._weights.default_n_threads
        has_free_threads = not options.n_threads and not self._weights.uses_gpu
        self._tuner = ExecutionTuner(n_threads, 1 if has_free_threads else n_threads)
        params.pooling_type = pooling_type
        params.embeddings = pooling_type != lib.LLAMA_POOLING_TYPE_NONE
        # Flash attention is nearly twice as fast on a CPU, if the model supports it, with the same
        # bits on any number of threads.
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_AUTO
        self._context = lib.llama_init_from_model(self._weights.handle, params)
        if not self._context:
            raise ModelLoadError(
                f"a context of {self.n_ctx} tokens cannot be allocated: {last_errors()}"
            )
        self._memory = lib.llama_get_memory(self._context)  # None for BERT
        self._batch = Batch(self.n_ctx)

    def _run(self, tokens: Tokens, has_output: OutputMask = True) -> None:
        """Run the model on a text of at most `n_ctx` tokens.

        Args:
            tokens: the tokens of the text.
            has_output: whether the output of each token is computed, for all tokens or for each
                one.

        Raises:
            RelevanceGenError: llama.cpp failed; the class of the error is `error_class`.
        """
        n_tokens = len(tokens)
        self._batch.fill(tokens, range(n_tokens), 0)
        self._batch.set_outputs(has_output)
        if self._memory:
            lib.llama_memory_clear(self._memory, True)
        compute = lib.llama_decode if self._memory else lib.llama_encode
        strategy = self._tuner.strategy(n_tokens)
        lib.llama_set_n_threads(self._context, strategy.n_threads, strategy.n_threads)
        started_s = time.perf_counter()
        status = compute(self._context, self._batch.struct)
        if status:
            raise self.error_class(
                f"llama.cpp could not read a text, status {status}: {last_errors()}"
            )
        # The tuner compares texts whose lengths have the same power of two, so the time is scaled
        # to that power.
        scale = (1 << n_tokens.bit_length()) / n_tokens
        self._tuner.record(n_tokens, strategy, (time.perf_counter() - started_s) * scale)

    def _pooled_output(self, n: int) -> Vector:
        """Return a copy of the pooled output of the last `_run`.

        It has `n` numbers: the components of a vector, or the scores of a ranking head.
        """
        return self._copy_floats(lib.llama_get_embeddings_seq(self._context, 0), n)

    def _copy_floats(self, first: ctypes._Pointer[ctypes.c_float], n: int) -> Vector:
        if not first:
            raise self.error_class("the model returned no output for a text")
        floats = (ctypes.c_float * n).from_address(ctypes.addressof(first.contents))
        return np.array(floats, np.float32)
