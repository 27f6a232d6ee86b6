"""A model that turns one text at a time into a vector."""

from __future__ import annotations

import os
import threading
from typing import Any

import numpy as np

from relevance_gen.errors import EncoderError, ModelLoadError
from relevance_gen.llama.pooled_model import PooledModel, Vector
from relevance_gen.llama.runtime.library import lib

_POOLINGS = {
    lib.LLAMA_POOLING_TYPE_MEAN: "mean",
    lib.LLAMA_POOLING_TYPE_CLS: "cls",
    lib.LLAMA_POOLING_TYPE_LAST: "last",
}


class Embedder(PooledModel):
    """A GGUF file of an embedding model, loaded; its metadata names a pooling.

    Vectors have `n_dims` components, and `n_around` tokens begin and end every text. The `pooling`, how the vectors of
    the tokens become one, is ``"mean"``, ``"cls"`` or ``"last"``.
    """

    failure = EncoderError

    def __init__(self, *args: Any, **options: Any) -> None:
        self._counting = threading.Lock()
        super().__init__(*args, **options)

    def close(self) -> None:
        """Free the model, when no thread counts tokens by its vocabulary; safe to call twice."""
        with self._counting:
            super().close()

    def _prepare(self, path: str | os.PathLike[str]) -> None:
        self.n_dims = int(lib.llama_model_n_embd_out(self._weights.handle))
        self.tokenize = self._tokenizer.tokenize_beginning
        self.n_around = sum(map(len, self._tokenizer.around()))
        self.pooling = self._pooling(path)
        if not np.isfinite(self.embed("a")[0]).all():
            raise EncoderError("its vectors are not finite, for the file is damaged")

    def _pooling(self, path: str | os.PathLike[str]) -> str:
        kind = lib.llama_pooling_type(self._context)
        if kind in _POOLINGS:
            return _POOLINGS[kind]
        if kind == lib.LLAMA_POOLING_TYPE_RANK:
            raise ModelLoadError(
                f"{path} holds a model that ranks texts, and gives no vectors: give it to Reranker"
            )
        if self._memory:
            raise ModelLoadError(f"{path} holds a model that generates text: give it to Runner")
        raise ModelLoadError(
            f"{path} does not say how its model pools the vectors of tokens; convert it again"
        )

    def count_tokens(self, text: str) -> int:
        """Return how many tokens a text is, without those that begin and end it. Any thread may ask this."""
        with (
            self._counting
        ):  # llama.cpp tokenizes in any number of threads, while the vocabulary is there
            if self._weights.handle is None:
                raise EncoderError("the encoder is closed")
            return len(self._tokenizer.tokenize_plain(text))

    def embed(self, text: str) -> tuple[Vector, int]:
        """Return the vector of a text, of length 1, shape (n_dims,), and how many of its tokens were read.

        Of a text that has more than `n_ctx` tokens the beginning counts. It raises an `EncoderError` where llama.cpp
        fails.
        """
        tokens = self.tokenize(text)
        self._read(tokens)
        vector = self._pooled(self.n_dims)
        return np.asarray(vector / (np.linalg.norm(vector) or 1.0), np.float32), len(tokens)
