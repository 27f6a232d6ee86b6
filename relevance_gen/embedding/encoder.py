"""An encoder: texts go in from any thread, vectors of what they mean come out."""

from __future__ import annotations

import functools
import hashlib
import os
import weakref
from collections.abc import Iterable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias, get_args

import numpy as np

from relevance_gen.checks import as_list
from relevance_gen.embedding.jobs import Embeddings, Job, Jobs, Vectors
from relevance_gen.embedding.prefixes import known_prefixes
from relevance_gen.embedding.thread import EmbeddingModel, EncoderThread
from relevance_gen.errors import EncoderError, InvalidRequestError, ModelLoadError
from relevance_gen.llama import model_file
from relevance_gen.llama.model_thread import GRACE_S
from relevance_gen.llama.options import ModelOptions
from relevance_gen.progress import Progress, reporting

Kind: TypeAlias = Literal["query", "passage"]
"""What a text is for: many models want a word about that in front of it."""

_LOOK_S = 0.05
"""How often a caller who wants to see the progress is told of it."""


class Encoder:
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
        n_threads: CPU threads; by default the physical cores, and one for a model of less than 8 MiB.
        n_gpu_layers: layers on the GPU, -1 for all; by default all if there is one.
        query_prefix: what goes in front of a query, as ``"query: "``; by default what the model's name asks for, if it
            is known.
        passage_prefix: what goes in front of a passage, likewise.

    Raises:
        ModelLoadError: the model cannot be loaded, or it generates text and does not embed.
        InvalidRequestError: an option is not allowed.

    Attributes:
        n_dims: components of a vector.
        n_ctx: most tokens of a text that are read.
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
        if not isinstance(model, str | os.PathLike):
            raise InvalidRequestError.must_be("model", "the path of a GGUF file or the name of a repository", model)
        known = known_prefixes("/".join(Path(model).parts[-2:]))
        self._prefixes = {
            "query": _prefix("query_prefix", query_prefix, known.query),
            "passage": _prefix("passage_prefix", passage_prefix, known.passage),
        }
        options = ModelOptions(n_ctx=n_ctx, n_threads=n_threads, n_gpu_layers=n_gpu_layers)
        self._made_of = (str(model), options, self._prefixes["query"], self._prefixes["passage"])
        self._path = model_file.resolve(model)
        self._jobs = Jobs()
        self._thread = EncoderThread(self._jobs, functools.partial(_load, self._path, options))
        # An encoder that nobody holds any more ends its thread.
        weakref.finalize(self, self._thread.stop).atexit = False
        try:
            self._thread.start()
            self._thread.wait_loaded()
            loaded = self._loaded()
        except BaseException:  # an interrupt too: nobody would have the encoder to close it
            self.close()
            raise
        self.n_dims, self.n_ctx, self.pooling = loaded.n_dims, loaded.n_ctx, loaded.pooling

    def _loaded(self) -> EmbeddingModel:
        """Return the model, of which this thread may read what describes it, or raise why there is none."""
        if self._thread.model is None:
            raise self._thread.error or ModelLoadError("the encoder was closed before its model was loaded")
        return self._thread.model

    # ── Encoding ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def encode(
        self, texts: Iterable[str], *, kind: Kind | None = None, progress: Progress | bool | None = None
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
        with reporting(progress, "texts") as report:
            job = self._put(texts, kind)
            try:
                while report is not None and not job.future.done():
                    report(job.n_done, len(job.texts))
                    wait([job.future], _LOOK_S)
                vectors = job.future.result().vectors
                if report is not None:
                    report(len(job.texts), len(job.texts))
                return vectors
            finally:
                job.future.cancel()  # of an interrupt: nobody wants the rest

    def submit(self, texts: Iterable[str], *, kind: Kind | None = None) -> Future[Embeddings]:
        """Return at once a future of the vectors and of the tokens read; cancelling it drops the texts that are left.

        Raises:
            InvalidRequestError: an argument is not allowed; the error names it.
            EncoderError: the encoder is closed.
        """
        return self._put(texts, kind).future

    def _put(self, texts: Iterable[str], kind: Kind | None) -> Job:
        if kind not in (None, *get_args(Kind)):
            raise InvalidRequestError.must_be("kind", '"query", "passage" or None', kind)
        if self._jobs.forked:
            raise EncoderError(
                "this encoder belongs to the process that this one was forked from, and its thread did not come along; "
                "start processes with the 'spawn' method, or make the encoder after the fork"
            )
        prefix = "" if kind is None else self._prefixes[kind]
        job = Job([prefix + text for text in _checked(texts)])
        if job.texts:
            self._jobs.put(job)
        else:
            job.settle(Embeddings(np.zeros((0, self.n_dims), np.float32), np.zeros(0, np.int64)))
        return job

    # ── The model ────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def query_prefix(self) -> str:
        """What goes in front of a query."""
        return self._prefixes["query"]

    @property
    def passage_prefix(self) -> str:
        """What goes in front of a passage."""
        return self._prefixes["passage"]

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of all that a passage's vector depends on: the model's file, the prefix, and how much is read."""
        with self._path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        digest.update(f"\n{self.n_ctx}\n{self.passage_prefix}".encode(errors="replace"))
        return digest.hexdigest()

    # ── Its life ─────────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def closed(self) -> bool:
        """Whether it takes no more texts."""
        return self._jobs.closed is not None

    def close(self) -> None:
        """Give up what waits, and free the model; safe to call twice."""
        if not self._jobs.forked:
            self._thread.stop()
            self._thread.join(GRACE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Encoder {self._path.name}, {self.n_dims} dimensions{', closed' * self.closed}>"

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: Any) -> Self:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return _opened, self._made_of


def _opened(model: str, options: ModelOptions, query_prefix: str, passage_prefix: str) -> Encoder:
    return Encoder(
        model,
        n_ctx=options.n_ctx,
        n_threads=options.n_threads,
        n_gpu_layers=options.n_gpu_layers,
        query_prefix=query_prefix,
        passage_prefix=passage_prefix,
    )


def _load(path: Path, options: ModelOptions, on_progress: Any) -> Any:
    from relevance_gen.llama.embedder import Embedder

    return Embedder(path, options, on_progress=on_progress)


def _prefix(name: str, wanted: str | None, known: str) -> str:
    if wanted is not None and not isinstance(wanted, str):
        raise InvalidRequestError.must_be(name, "a string or None", wanted)
    return known if wanted is None else wanted


def _checked(texts: Iterable[str]) -> list[str]:
    texts = as_list(texts)
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise InvalidRequestError.must_be("texts", "a list of strings", texts, remedy="put a single text in a list")
    texts = list(texts)
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidRequestError.must_be(f"texts[{place}]", "a string", text)
    return texts
