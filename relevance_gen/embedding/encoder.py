"""An encoder: texts go in from any thread, vectors of what they mean come out."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias, get_args

import numpy as np

from relevance_gen.embedding.jobs import Embeddings, Job, Jobs, Vectors
from relevance_gen.embedding.shared import SharedModel, checked_texts
from relevance_gen.errors import EncoderError, InvalidRequestError
from relevance_gen.llama.options import ModelOptions
from relevance_gen.progress import Progress

if TYPE_CHECKING:
    from relevance_gen.llama.embedder import Embedder
    from relevance_gen.llama.weights import OnProgress

Kind: TypeAlias = Literal["query", "passage"]
"""What a text is for: many models want a word about that in front of it."""

_PASSAGE_TOKENS: Final = 256
"""Measured: 128 rank worse, and so does what a model's whole context holds, mostly 512; see docs/measurements.md."""


class Prefixes(NamedTuple):
    """What a model wants in front of a query and of a passage.

    It was trained with these words, and finds less without them.
    """

    query: str = ""
    passage: str = ""


_INSTRUCTION: Final = "Represent this sentence for searching relevant passages: "
_KNOWN: Final = (
    # The first name that is part of the file's counts. Sources: the models' cards on the Hugging Face hub.
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


class Encoder(SharedModel["Embedder"]):
    """A GGUF embedding model that turns texts into vectors, for many callers at once, in a thread of its own.

    Texts of the same meaning have vectors that point the same way: their dot product, which is the cosine, is near 1.
    A text's vector has the same bits whatever is encoded beside it and on any number of threads, with the same build of
    llama.cpp on the same kind of processor. Safe to share between threads: who wants little does not wait for who wants
    much. A copy is the same encoder; a pickle loads the model again where it is opened.

    Args:
        model: a GGUF file whose metadata names a pooling (BERT and its family, or any other embedding model); or with
            the extra ``hub`` a repository of the Hugging Face hub, ``"owner/name"`` or ``"owner/name:Q8_0"``.
        n_ctx: most tokens of a text that are read; of a longer one the beginning counts. By default 1,024, or what the
            model was trained on if that is less. Memory grows with its square.
        n_threads: CPU threads; by default the physical cores, or fewer while these are faster, and one for a model of
            less than 8 MiB.
        n_gpu_layers: layers on the GPU, -1 for all; by default all if there is one.
        query_prefix: what goes in front of a query, as ``"query: "``; by default what the model's name asks for, if it
            is known.
        passage_prefix: what goes in front of a passage, likewise.

    Raises:
        ModelLoadError: the model cannot be loaded, or it generates text and does not embed.
        InvalidRequestError: an option is not allowed.

    Attributes:
        n_dims: components of a vector.
        n_ctx, query_prefix, passage_prefix: as given, or as they are by default.
        passage_tokens: most tokens of a passage that a search compares: with its prefix and what begins and ends a text
            256, or `n_ctx` if that is less. A vector of more says less of each part.
        pooling: how the vectors of tokens become one: ``"mean"``, ``"cls"`` or ``"last"``.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        n_ctx: int | None = None,
        n_threads: int | None = None,
        n_gpu_layers: int | None = None,
        query_prefix: str | None = None,
        passage_prefix: str | None = None,
    ) -> None:
        options = ModelOptions(n_ctx=n_ctx, n_threads=n_threads, n_gpu_layers=n_gpu_layers)
        known = known_prefixes(
            "/".join(Path(model).parts[-2:]) if isinstance(model, str | os.PathLike) else ""
        )
        self.query_prefix = _prefix("query_prefix", query_prefix, known.query)
        self.passage_prefix = _prefix("passage_prefix", passage_prefix, known.passage)
        own = {"query_prefix": self.query_prefix, "passage_prefix": self.passage_prefix}
        super().__init__(model, options, _load, Jobs("encoder", EncoderError), **own)
        self.n_dims, self.n_ctx, self.pooling = (
            self._model.n_dims,
            self._model.n_ctx,
            self._model.pooling,
        )
        n_around = self._model.n_around + self.count_tokens(self.passage_prefix)
        self.passage_tokens = max(1, min(_PASSAGE_TOKENS, self.n_ctx) - n_around)

    # ── Encoding ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def encode(
        self,
        texts: Iterable[str],
        *,
        kind: Kind | None = None,
        progress: Progress | bool | None = None,
    ) -> Vectors:
        """Return the vectors of texts, each of length 1, as float32 of shape (n, n_dims), in their order.

        Args:
            texts: strings, in any iterable.
            kind: ``"query"`` or ``"passage"`` puts the prefix of that kind in front of each text; None puts nothing.
            progress: called with (texts done, all texts) in this thread; True shows a bar.

        Raises:
            InvalidRequestError: an argument is not allowed; the error names it.
            EncoderError: the model failed, or the encoder is closed.
        """
        return self._finish(self._job(texts, kind), progress).vectors

    def submit(self, texts: Iterable[str], *, kind: Kind | None = None) -> Future[Embeddings]:
        """Return at once a future of the vectors and of the tokens read; cancelling it drops the texts that are left.

        Raises:
            InvalidRequestError: an argument is not allowed; the error names it.
            EncoderError: the encoder is closed.
        """
        return self._put(self._job(texts, kind)).future

    def count_tokens(self, text: str) -> int:
        """Return how many tokens of the model's a text is, without a prefix and those that begin and end it.

        Raises:
            EncoderError: the encoder is closed.
        """
        self._jobs.check_here()  # in a forked process the lock of the vocabulary may be held for ever
        return self._model.count_tokens(text)

    def _job(self, texts: Iterable[str], kind: Kind | None) -> Job[Embeddings]:
        if kind not in (None, *get_args(Kind)):
            raise InvalidRequestError.must_be("kind", '"query", "passage" or None', kind)
        prefix = {None: "", "query": self.query_prefix, "passage": self.passage_prefix}[kind]
        texts = [prefix + text for text in checked_texts(texts)]
        vectors, n_tokens = (
            np.empty((len(texts), self.n_dims), np.float32),
            np.empty(len(texts), np.int64),
        )

        def reading(model: Embedder) -> Iterator[int]:
            for n, text in enumerate(texts):
                vectors[n], n_tokens[n] = model.embed(text)
                yield n + 1

        return Job(texts, Embeddings(vectors, n_tokens), reading)

    # ── The model ────────────────────────────────────────────────────────────────────────────────────────────────────

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of all that the vectors of passages depend on: the model's file, the prefix, and how much is read."""
        return self._fingerprint(self.n_ctx, self.passage_prefix, self.passage_tokens)

    def __repr__(self) -> str:
        return f"<Encoder {self.name}, {self.n_dims} dimensions{', closed' * self.closed}>"


def known_prefixes(name: str) -> Prefixes:
    """Return the prefixes of the model of a name; none for one that is not known.

    >>> known_prefixes("intfloat/e5-small-v2")
    Prefixes(query='query: ', passage='passage: ')
    >>> known_prefixes("all-MiniLM-L6-v2.f16.gguf")
    Prefixes(query='', passage='')
    """
    return next(
        (prefixes for pattern, prefixes in _KNOWN if re.search(pattern, name.lower())), Prefixes()
    )


def _load(path: Path, options: ModelOptions, on_progress: OnProgress) -> Embedder:
    from relevance_gen.llama.embedder import Embedder

    return Embedder(path, options, on_progress=on_progress)


def _prefix(name: str, wanted: str | None, known: str) -> str:
    if wanted is not None and not isinstance(wanted, str):
        raise InvalidRequestError.must_be(name, "a string or None", wanted)
    return known if wanted is None else wanted
