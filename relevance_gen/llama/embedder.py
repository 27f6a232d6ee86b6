"""A model that reads: its weights, and a context that turns one text at a time into a vector."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from relevance_gen.errors import EncoderError, ModelLoadError
from relevance_gen.llama.batch import Batch
from relevance_gen.llama.library import lib, reasons
from relevance_gen.llama.options import ModelOptions
from relevance_gen.llama.tokenizer import Tokenizer
from relevance_gen.llama.weights import OnProgress, OpenContext, Weights

Vector: TypeAlias = NDArray[np.float32]

_DEFAULT_N_CTX = 1024
"""Memory grows with the square of this: every token of a text looks at every other."""
_POOLINGS = {
    lib.LLAMA_POOLING_TYPE_MEAN: "mean",
    lib.LLAMA_POOLING_TYPE_CLS: "cls",
    lib.LLAMA_POOLING_TYPE_LAST: "last",
}


class Embedder(OpenContext):
    """A GGUF file of an embedding model, loaded. It belongs to the thread that made it.

    Texts are computed one at a time: a batch of several is slower on a CPU, where every token of a batch is compared
    with every other, and a vector would depend on its neighbours in the last bits.

    Args:
        path: a GGUF file whose metadata names a pooling.
        options: ``n_ctx``, ``n_threads``, ``n_gpu_layers``, ``main_gpu`` and ``use_extra_bufts`` count.
        on_progress: called with the loaded share in [0, 1]; returns whether to go on.

    Raises:
        ModelLoadError: the file is missing, no GGUF, damaged, unsupported, or of a model that does not embed.

    Attributes:
        n_ctx: most tokens of a text that are read, those that begin and end it included.
        n_dims: components of a vector.
        pooling: how the vectors of the tokens become one: ``"mean"``, ``"cls"`` or ``"last"``.
    """

    def __init__(
        self, path: str | os.PathLike[str], options: ModelOptions, *, on_progress: OnProgress | None = None
    ) -> None:
        weights = Weights(Path(path), options, on_progress)
        super().__init__(weights)
        try:
            self.n_ctx = min(options.n_ctx or _DEFAULT_N_CTX, lib.llama_model_n_ctx_train(weights.handle))
            self.n_dims = int(lib.llama_model_n_embd_out(weights.handle))
            self.tokenize = Tokenizer(weights.vocabulary, self.n_ctx).tokenize_beginning
            self._open_context(options)
            self.pooling = self._pooling(path)
            self._warm_up(path)
        except BaseException:
            self.close()
            raise

    def _open_context(self, options: ModelOptions) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = self.n_ctx  # llama.cpp aborts where a text is in two batches
        params.n_seq_max = 1
        params.n_threads = params.n_threads_batch = options.n_threads or self._weights.default_n_threads
        params.embeddings = True
        # Nearly twice as fast on a CPU, where a model has it, and with the same bits on any number of threads.
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_AUTO
        self._context = lib.llama_init_from_model(self._weights.handle, params)
        if not self._context:
            raise ModelLoadError(f"a context of {self.n_ctx} tokens cannot be made: {reasons()}")
        self._memory = lib.llama_get_memory(self._context)  # none in a BERT
        self._batch = Batch(self.n_ctx)

    def _pooling(self, path: str | os.PathLike[str]) -> str:
        kind = lib.llama_pooling_type(self._context)
        if kind in _POOLINGS:
            return _POOLINGS[kind]
        if kind == lib.LLAMA_POOLING_TYPE_RANK:
            raise ModelLoadError(f"{path} holds a model that ranks pairs of texts, and gives no vectors of texts")
        if self._memory:
            raise ModelLoadError(f"{path} holds a model that generates text: give it to Runner")
        raise ModelLoadError(f"{path} does not say how its model pools the vectors of tokens; convert it again")

    def _warm_up(self, path: str | os.PathLike[str]) -> None:
        """Embed once: what cannot embed fails here, and the first text is no slower than the next."""
        try:
            vector, _ = self.embed("a")
        except EncoderError as error:
            raise ModelLoadError(f"{path} cannot be used: {error}") from None
        if not np.isfinite(vector).all():
            raise ModelLoadError(f"{path} is damaged: its vectors are not finite")

    def embed(self, text: str) -> tuple[Vector, int]:
        """Return the vector of a text, of length 1, shape (n_dims,), and how many of its tokens were read.

        Args:
            text: any string; of one that has more than `n_ctx` tokens the beginning counts.

        Raises:
            EncoderError: llama.cpp failed.
        """
        tokens = self.tokenize(text)
        self._batch.fill(tokens, range(len(tokens)), 0)
        self._batch.want()
        if self._memory:
            lib.llama_memory_clear(self._memory, True)
        compute = lib.llama_decode if self._memory else lib.llama_encode
        status = compute(self._context, self._batch.struct)
        if status:
            raise EncoderError(f"llama.cpp could not encode a text, status {status}: {reasons()}")
        first = lib.llama_get_embeddings_seq(self._context, 0)
        if not first:
            raise EncoderError("the model gives no vector of a text")
        floats = (ctypes.c_float * self.n_dims).from_address(ctypes.addressof(first.contents))
        vector = np.array(floats, np.float32)
        return np.asarray(vector / (np.linalg.norm(vector) or 1.0), np.float32), len(tokens)
