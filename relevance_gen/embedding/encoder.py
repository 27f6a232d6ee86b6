"""An encoder, which computes vectors that represent the meaning of texts."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from relevance_gen.embedding.shared import (
    Job,
    Jobs,
    SharedModel,
    checked_texts,
)
from relevance_gen.errors import EncoderError, InvalidRequestError
from relevance_gen.llama.options import ModelOptions
from relevance_gen.progress import Progress
from relevance_gen.text.chunking import spans_of_tokens

if TYPE_CHECKING:
    from relevance_gen.llama.embedder import Embedder
    from relevance_gen.llama.weights import OnProgress

Vectors: TypeAlias = NDArray[np.float32]
Kind: TypeAlias = Literal["query", "passage"]
"""The role of a text; many models expect a prefix that names it."""

_PASSAGE_TOKENS: Final = 256
"""Tokens of a passage. Measured: 128 rank worse, and so does a model's full context, usually 512;
see docs/measurements.md."""


class Prefixes(NamedTuple):
    """The prefixes of queries and passages with which a model was trained.

    Without them it ranks worse.
    """

    query: str = ""
    passage: str = ""


_INSTRUCTION: Final = "Represent this sentence for searching relevant passages: "
_KNOWN_PREFIXES: Final = (
    # The first pattern that matches the file's name is used. Sources: the model cards on the
    # Hugging Face hub.
    (r"e5-mistral|e5.*instruct|qwen3-embedding", Prefixes("Instruct: Given a question, retrieve passages that answer "
                                                          "it\nQuery: ")),
    (r"(^|[^a-z0-9])e5-", Prefixes("query: ", "passage: ")),
    (r"bge-m3", Prefixes()),
    (r"bge-.*-en|bge-(small|base|large)", Prefixes(_INSTRUCTION)),
    (r"arctic-embed.*v2|arctic-embed-[ml]-v2", Prefixes("query: ")),
    (r"arctic-embed|mxbai-embed", Prefixes(_INSTRUCTION)),
    (r"nomic-embed", Prefixes("search_query: ", "search_document: ")),
    (r"embeddinggemma", Prefixes("task: search result | query: ", "title: none | text: ")),
)  # fmt: skip


class Embeddings(NamedTuple):
    """The vectors of n texts, and the number of tokens of each.

    Attributes:
        vectors: float32 of shape (n, n_dims).
        n_tokens: number of tokens of each text that the model has read, shape (n,).
    """

    vectors: Vectors
    n_tokens: NDArray[np.int64]


class Encoder(SharedModel["Embedder"]):
    """A GGUF embedding model that computes vectors of texts, in a thread shared by many callers.

    Texts with similar meaning have vectors with a dot product, which is the cosine, near 1. A
    vector is bit-identical regardless of the other texts and the number of threads, for the same
    build of llama.cpp on the same kind of processor. Thread-safe. Jobs are interleaved text by
    text, so a small job does not wait until a large job is finished. A copy is the same encoder;
    unpickling loads the model again.

    Args:
        model: a GGUF file whose metadata names a pooling (BERT and its family, or any other
            embedding model); or with the extra ``hub`` a repository on the Hugging Face hub,
            ``"owner/name"`` or ``"owner/name:Q8_0"``.
        n_ctx: maximum tokens of a text; a longer text is truncated. By default 1,024, or the
            model's training length if that is less. Memory grows with its square.
        n_threads: CPU threads; by default the number of physical cores, reduced automatically when
            fewer threads are faster; one for a model smaller than 8 MiB.
        n_gpu_layers: layers on the GPU, -1 for all; by default all if there is a GPU.
        main_gpu: number of the only GPU to use, from 0; by default all discrete GPUs are used.
        query_prefix: the prefix of queries, such as ``"query: "``; by default that of the model, if
            its name is known.
        passage_prefix: the prefix of passages; the same default.

    Raises:
        ModelLoadError: the model cannot be loaded, or is not an embedding model.
        InvalidRequestError: an option is invalid.

    Attributes:
        n_dims: components of each vector.
        n_ctx, query_prefix, passage_prefix: the arguments, or their defaults.
        passage_tokens: maximum tokens of a passage in a search, without the prefix and the tokens
            around the passage. Together with these it has at most 256 tokens, or `n_ctx` if that is
            less. The vector of a longer passage represents each part of it less well.
        pooling: how the vectors of tokens are combined: ``"mean"``, ``"cls"`` or ``"last"``.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        n_ctx: int | None = None,
        n_threads: int | None = None,
        n_gpu_layers: int | None = None,
        main_gpu: int | None = None,
        query_prefix: str | None = None,
        passage_prefix: str | None = None,
    ) -> None:
        options = {
            "n_ctx": n_ctx,
            "n_threads": n_threads,
            "n_gpu_layers": n_gpu_layers,
            "main_gpu": main_gpu,
        }
        default_prefixes = Prefixes()
        if isinstance(model, str | os.PathLike):
            default_prefixes = known_prefixes("/".join(Path(model).parts[-2:]))
        self.query_prefix = _prefix("query_prefix", query_prefix, default_prefixes.query)
        self.passage_prefix = _prefix("passage_prefix", passage_prefix, default_prefixes.passage)
        super().__init__(
            model,
            options,
            _load,
            Jobs("encoder", EncoderError),
            query_prefix=self.query_prefix,
            passage_prefix=self.passage_prefix,
        )
        self.n_dims = self._model.n_dims
        self.n_ctx = self._model.n_ctx
        self.pooling = self._model.pooling
        n_added_tokens = self._model.n_special_tokens + self.count_tokens(self.passage_prefix)
        self.passage_tokens = max(1, min(_PASSAGE_TOKENS, self.n_ctx) - n_added_tokens)

    # ── Encoding ──────────────────────────────────────────────────────────────────────────────────

    def encode(
        self,
        texts: Iterable[str],
        *,
        kind: Kind | None = None,
        progress: Progress | bool | None = None,
    ) -> Vectors:
        """Return the vectors of texts in their order, float32 of shape (n, n_dims), of length 1.

        Args:
            texts: strings, in any iterable.
            kind: ``"query"`` or ``"passage"`` adds the prefix of that kind to each text; None adds
                none.
            progress: called in the calling thread with the number of finished texts and the number
                of all texts; True shows a bar.

        Raises:
            InvalidRequestError: an argument is invalid; the error names it.
            EncoderError: the model failed, or the encoder is closed.
        """
        return self._finish(self._job(texts, kind), progress).vectors

    def submit(
        self,
        texts: Iterable[str],
        *,
        kind: Kind | None = None,
    ) -> Future[Embeddings]:
        """Queue texts, and return at once a future of their vectors and token counts.

        Cancelling the future drops the texts that are not encoded yet.

        Args:
            texts: as for `encode`.
            kind: as for `encode`.

        Raises:
            InvalidRequestError: an argument is invalid; the error names it.
            EncoderError: the encoder is closed.
        """
        return self._put(self._job(texts, kind)).future

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text, without prefix, CLS and similar special tokens.

        Raises:
            EncoderError: the encoder is closed.
        """
        # In a forked process, the vocabulary's lock may be held forever.
        self._jobs.check_not_forked()
        return self._model.count_tokens(text)

    def passages_of(self, text: str, *, kind: Kind | None = None) -> list[str]:
        """Return the passages of a text that does not fit into the context, or the text itself.

        A passage, the prefix of `kind` and the tokens around them have together at most 256 tokens,
        or `n_ctx` if that is less. The returned passages do not contain the prefix.

        Args:
            text: the text, without a prefix.
            kind: the kind of the text, which determines the prefix; None for no prefix.

        Raises:
            InvalidRequestError: `kind` is invalid.
            EncoderError: the encoder is closed.
        """
        n_added_tokens = self._model.n_special_tokens + self.count_tokens(self._prefix_of(kind))
        if self.count_tokens(text) + n_added_tokens < self.n_ctx:
            return [text]
        n_tokens = max(1, min(_PASSAGE_TOKENS, self.n_ctx) - n_added_tokens)
        spans = spans_of_tokens(text, n_tokens, self.count_tokens)
        return [text[start:end] for start, end in spans] or [text]

    def _prefix_of(self, kind: Kind | None) -> str:
        match kind:
            case None:
                return ""
            case "query":
                return self.query_prefix
            case "passage":
                return self.passage_prefix
        raise InvalidRequestError.must_be("kind", '"query", "passage" or None', kind)

    def _job(self, texts: Iterable[str], kind: Kind | None) -> Job[Embeddings]:
        prefix = self._prefix_of(kind)
        texts = [prefix + text for text in checked_texts(texts)]
        vectors = np.empty((len(texts), self.n_dims), np.float32)
        n_tokens = np.empty(len(texts), np.int64)

        def process(model: Embedder) -> Iterator[int]:
            for index, text in enumerate(texts):
                embedding = model.embed(text)
                vectors[index] = embedding.vector
                n_tokens[index] = embedding.n_tokens
                yield index + 1

        return Job(texts, Embeddings(vectors, n_tokens), process)

    # ── The model ─────────────────────────────────────────────────────────────────────────────────

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of everything that passage vectors depend on.

        It covers the model's file, `n_ctx`, `passage_prefix` and `passage_tokens`.
        """
        return self._fingerprint(self.n_ctx, self.passage_prefix, self.passage_tokens)

    def __repr__(self) -> str:
        return f"<Encoder {self.name}, {self.n_dims} dimensions{', closed' * self.closed}>"


def known_prefixes(name: str) -> Prefixes:
    """Return the prefixes of a model by its name; empty prefixes for an unknown model.

    >>> known_prefixes("intfloat/e5-small-v2")
    Prefixes(query='query: ', passage='passage: ')
    >>> known_prefixes("all-MiniLM-L6-v2.f16.gguf")
    Prefixes(query='', passage='')
    """
    return next(
        (prefixes for pattern, prefixes in _KNOWN_PREFIXES if re.search(pattern, name.lower())),
        Prefixes(),
    )


def _load(path: Path, options: ModelOptions, on_progress: OnProgress) -> Embedder:
    from relevance_gen.llama.embedder import Embedder

    return Embedder(path, options, on_progress=on_progress)


def _prefix(field: str, prefix: str | None, default: str) -> str:
    if prefix is not None and not isinstance(prefix, str):
        raise InvalidRequestError.must_be(field, "a string or None", prefix)
    return default if prefix is None else prefix
