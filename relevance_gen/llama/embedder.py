"""An embedding model, which computes the vector of one text at a time."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen

from relevance_gen.errors import EncoderError, ModelLoadError
from relevance_gen.llama.pooled_model import PooledModel, Vector
from relevance_gen.llama.runtime.library import lib

_POOLINGS = {
    lib.LLAMA_POOLING_TYPE_MEAN: "mean",
    lib.LLAMA_POOLING_TYPE_CLS: "cls",
    lib.LLAMA_POOLING_TYPE_LAST: "last",
}


@frozen
class Embedding:
    """The vector of a text.

    Attributes:
        vector: the vector, of length 1 and shape (n_dims,).
        n_tokens: number of tokens that the model read, including those added before and after the
            text.
    """

    vector: Vector
    n_tokens: int


class Embedder(PooledModel):
    """A loaded GGUF file of an embedding model, whose metadata names a pooling.

    Attributes:
        n_dims: number of components of each vector.
        n_special_tokens: number of tokens that are added before and after each text, in all.
        pooling: how the vectors of the tokens are combined: ``"mean"``, ``"cls"`` or ``"last"``.
    """

    error_class = EncoderError

    def __init__(self, *args: Any, **options: Any) -> None:
        self._vocabulary_lock = threading.Lock()
        super().__init__(*args, **options)

    def close(self) -> None:
        """Wait until no other thread is in `count_tokens`, and free the model.

        May be called more than once.
        """
        with self._vocabulary_lock:
            super().close()

    def _prepare(self, path: Path) -> None:
        self.n_dims = int(lib.llama_model_n_embd_out(self._weights.handle))
        self.tokenize = self._tokenizer.tokenize_beginning
        self.n_special_tokens = self._tokenizer.surrounding_tokens().n_tokens
        self.pooling = self._pooling(path)
        if not np.isfinite(self.embed("a").vector).all():
            raise EncoderError("its vectors are not finite: the file is damaged")

    def _pooling(self, path: Path) -> str:
        pooling_type = lib.llama_pooling_type(self._context)
        if pooling_type in _POOLINGS:
            return _POOLINGS[pooling_type]
        if pooling_type == lib.LLAMA_POOLING_TYPE_RANK:
            raise ModelLoadError(
                f"{path} holds a model that ranks texts and computes no vectors: pass it to Reranker"
            )
        if self._memory:
            raise ModelLoadError(f"{path} holds a model that generates text: pass it to Runner")
        raise ModelLoadError(
            f"{path} does not specify how the vectors of tokens are pooled; convert the model again"
        )

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text, without those added before and after it.

        Thread-safe.
        """
        with self._vocabulary_lock:  # the vocabulary must not be freed while llama.cpp tokenizes
            if self._weights.handle is None:
                raise EncoderError("the encoder is closed")
            return len(self._tokenizer.tokenize_plain(text))

    def embed(self, text: str) -> Embedding:
        """Return the vector of the beginning of a text, with the number of tokens that were read.

        At most `n_ctx` tokens are read, including those added before and after the text.

        Raises:
            EncoderError: llama.cpp failed.
        """
        tokens = self.tokenize(text)
        self._run(tokens)
        vector = self._pooled_output(self.n_dims)
        normalized = vector / (np.linalg.norm(vector) or 1.0)
        return Embedding(np.asarray(normalized, np.float32), len(tokens))
