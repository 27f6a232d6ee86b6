"""A reranker: a query and texts go in from any thread, and how well each text answers the query comes out."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from relevance_gen.embedding.jobs import Job, Jobs
from relevance_gen.embedding.shared import SharedModel, checked_texts
from relevance_gen.errors import InvalidRequestError, RerankerError
from relevance_gen.llama.options import ModelOptions
from relevance_gen.progress import Progress

if TYPE_CHECKING:
    from relevance_gen.llama.cross_encoder import CrossEncoder
    from relevance_gen.llama.weights import OnProgress


class Scores(NamedTuple):
    """How well texts answer a query, float32 of shape (n,), and how many tokens were read for each, shape (n,)."""

    scores: NDArray[np.float32]
    n_tokens: NDArray[np.int64]


class Reranker(SharedModel["CrossEncoder"]):
    """A GGUF reranker that reads a query and a text together, for many callers at once, in a thread of its own.

    A score has the same bits whatever is read beside it and on any number of threads, with the same build of llama.cpp
    on the same kind of processor. A file that would score otherwise than its model was trained to is refused. Safe to
    share between threads: who wants little does not wait for who wants much. A copy is the same reranker; a pickle
    loads the model again where it is opened.

    Args:
        model: a GGUF file of a cross-encoder, of Qwen3-Reranker, or of any model that generates, as a judge; or with
            the extra ``hub`` a repository of the Hugging Face hub, ``"owner/name"`` or ``"owner/name:Q8_0"``.
        n_ctx: most tokens of query and text together; a longer text is read in passages and scores as its best one, and
            of a query that takes more than half the beginning counts. By default 1,024, or what the model was trained
            on if that is less. Memory grows with its square.
        n_threads, n_gpu_layers: as for `Encoder`.
        template: the prompt of a judge, with ``{query}`` and ``{document}``, which ends where the model has to say yes
            or no; by default what the file says, or what Qwen3-Reranker wants.
        answers: a judge's words for yes and no, each one token of its vocabulary.

    Raises:
        ModelLoadError: the model cannot be loaded, does not rank, or would score wrong.
        InvalidRequestError: an option is not allowed.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        n_ctx: int | None = None,
        n_threads: int | None = None,
        n_gpu_layers: int | None = None,
        template: str | None = None,
        answers: Sequence[str] = ("yes", "no"),
    ) -> None:
        options = ModelOptions(n_ctx=n_ctx, n_threads=n_threads, n_gpu_layers=n_gpu_layers)
        if not (
            template is None
            or (isinstance(template, str) and "{query}" in template and "{document}" in template)
        ):
            raise InvalidRequestError.must_be(
                "template", "a string with {query} and {document}, or None", template
            )
        if not isinstance(answers, list | tuple) or [type(word) for word in answers] != [str, str]:
            raise InvalidRequestError.must_be("answers", "the words for yes and no", answers)
        self._judging: dict[str, Any] = {"template": template, "answers": tuple(answers)}
        load = functools.partial(_load, **self._judging)
        super().__init__(model, options, load, Jobs("reranker", RerankerError), **self._judging)
        self.n_ctx = self._model.n_ctx

    def score(
        self,
        query: str,
        texts: Iterable[str],
        *,
        raw: bool = False,
        progress: Progress | bool | None = None,
    ) -> NDArray[np.float32]:
        """Return how well each text answers a query, as float32 of shape (n,), in their order.

        Args:
            query: any string.
            texts: strings, in any iterable.
            raw: the model's logits instead of their sigmoids, which lie in [0, 1].
            progress: called with (texts done, all texts) in this thread; True shows a bar.

        Raises:
            InvalidRequestError: an argument is not allowed; the error names it.
            RerankerError: the model failed, or the reranker is closed.
        """
        return self._finish(_job(query, texts, raw), progress).scores

    def submit(self, query: str, texts: Iterable[str], *, raw: bool = False) -> Future[Scores]:
        """Return at once a future of the scores and of the tokens read; cancelling it drops the texts that are left.

        Raises:
            InvalidRequestError: an argument is not allowed; the error names it.
            RerankerError: the reranker is closed.
        """
        return self._put(_job(query, texts, raw)).future

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of all that a score depends on: the model's file, how much is read, and how a judge is asked."""
        return self._fingerprint(self.n_ctx, self._judging)

    def __repr__(self) -> str:
        return f"<Reranker {self.name}{', closed' * self.closed}>"


def _job(query: str, texts: Iterable[str], raw: bool) -> Job[Scores]:
    if not isinstance(query, str):
        raise InvalidRequestError.must_be("query", "a string", query)
    texts = checked_texts(texts)
    scores, n_tokens = np.full(len(texts), -np.inf, np.float32), np.zeros(len(texts), np.int64)

    def reading(model: CrossEncoder) -> Iterator[int]:
        for n, text in enumerate(texts):
            for tokens in model.pairs(query, text):
                scores[n] = max(scores[n], model.logit(tokens))
                n_tokens[n] += len(tokens)
                yield n
        if not raw:
            np.exp(-np.logaddexp(0.0, -scores), out=scores)  # the sigmoid, which cannot overflow
        yield len(texts)

    return Job(texts, Scores(scores, n_tokens), reading)


def _load(
    path: Path, options: ModelOptions, on_progress: OnProgress, **judging: Any
) -> CrossEncoder:
    from relevance_gen.llama.cross_encoder import CrossEncoder

    return CrossEncoder(path, options, on_progress=on_progress, **judging)
