"""A reranker, which scores how well texts answer a query."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from relevance_gen.checks import check_flag
from relevance_gen.embedding.shared import Job, Jobs, SharedModel, checked_texts
from relevance_gen.errors import InvalidRequestError, RerankerError
from relevance_gen.llama.options import ModelOptions
from relevance_gen.progress import Progress

if TYPE_CHECKING:
    from relevance_gen.llama.cross_encoder import CrossEncoder
    from relevance_gen.llama.weights import OnProgress


class Scores(NamedTuple):
    """The result of scoring n texts for a query.

    Attributes:
        scores: the score of each text, float32 of shape (n,).
        n_tokens: the number of tokens that the model has read for each text, shape (n,).
    """

    scores: NDArray[np.float32]
    n_tokens: NDArray[np.int64]


class Reranker(SharedModel["CrossEncoder"]):
    """A GGUF reranker that scores query and text together, in a thread shared by many callers.

    A score is bit-identical regardless of the other texts and the number of threads, for the same
    build of llama.cpp on the same kind of processor. A file with which llama.cpp would compute
    wrong scores is rejected. Thread-safe. Jobs are interleaved text by text, so a small job does
    not wait until a large job is finished. A copy is the same reranker; unpickling loads the model
    again.

    Args:
        model: a GGUF file of a cross-encoder, of Qwen3-Reranker, or of any generative model; or
            with the extra ``hub`` a repository on the Hugging Face hub, ``"owner/name"`` or
            ``"owner/name:Q8_0"``.
        n_ctx: maximum tokens of query and text together. A longer text is split into passages, and
            its score is that of its best passage; a query is truncated to half of `n_ctx`. By
            default 1,024, or the model's training length if that is less. Memory grows with its
            square.
        n_threads, n_gpu_layers, main_gpu: see `Encoder`.
        template: the prompt of a generative reranker, with ``{query}`` and ``{document}``, which
            ends where the model must answer yes or no; by default that of the file, or that of
            Qwen3-Reranker for this model.
        answers: the words for yes and no of a generative reranker, each one token of its
            vocabulary.

    Raises:
        ModelLoadError: the model cannot be loaded, does not rank, or would compute wrong scores.
        InvalidRequestError: an option is not allowed.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        n_ctx: int | None = None,
        n_threads: int | None = None,
        n_gpu_layers: int | None = None,
        main_gpu: int | None = None,
        template: str | None = None,
        answers: Sequence[str] = ("yes", "no"),
    ) -> None:
        options = {
            "n_ctx": n_ctx,
            "n_threads": n_threads,
            "n_gpu_layers": n_gpu_layers,
            "main_gpu": main_gpu,
        }
        has_fields = (
            isinstance(template, str) and "{query}" in template and "{document}" in template
        )
        if template is not None and not has_fields:
            raise InvalidRequestError.must_be(
                "template", "a string with {query} and {document}, or None", template
            )
        is_list = isinstance(answers, list | tuple)
        if not is_list or [type(word) for word in answers] != [str, str]:
            raise InvalidRequestError.must_be("answers", "the words for yes and no", answers)
        self._prompt: dict[str, Any] = {"template": template, "answers": tuple(answers)}
        load = functools.partial(_load, **self._prompt)
        jobs = Jobs("reranker", RerankerError)
        super().__init__(model, options, load, jobs, **self._prompt)
        self.n_ctx = self._model.n_ctx

    def score(
        self,
        query: str,
        texts: Iterable[str],
        *,
        raw: bool = False,
        progress: Progress | bool | None = None,
    ) -> NDArray[np.float32]:
        """Return how well each text answers a query: float32 of shape (n,), in the order of texts.

        Args:
            query: any string.
            texts: strings, in any iterable.
            raw: return the model's logits instead of their sigmoids, which are in [0, 1].
            progress: called in the calling thread with the number of finished texts and the number
                of all texts; True shows a bar.

        Raises:
            InvalidRequestError: an argument is invalid; the error names it.
            RerankerError: the model failed, or the reranker is closed.
        """
        return self._finish(_job(query, texts, raw), progress).scores

    def submit(
        self,
        query: str,
        texts: Iterable[str],
        *,
        raw: bool = False,
    ) -> Future[Scores]:
        """Queue texts to score, and return at once a future of the scores and token counts.

        Cancelling the future drops the texts that are not scored yet.

        Args:
            query: as for `score`.
            texts: as for `score`.
            raw: as for `score`.

        Raises:
            InvalidRequestError: an argument is invalid; the error names it.
            RerankerError: the reranker is closed.
        """
        return self._put(_job(query, texts, raw)).future

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of the model's file, `n_ctx`, `template` and `answers`, on which scores depend."""
        return self._fingerprint(self.n_ctx, self._prompt)

    def __repr__(self) -> str:
        return f"<Reranker {self.name}{', closed' * self.closed}>"


def _job(query: str, texts: Iterable[str], raw: bool) -> Job[Scores]:
    if not isinstance(query, str):
        raise InvalidRequestError.must_be("query", "a string", query)
    check_flag("raw", raw)
    texts = checked_texts(texts)
    scores = np.full(len(texts), -np.inf, np.float32)
    n_tokens = np.zeros(len(texts), np.int64)

    def process(model: CrossEncoder) -> Iterator[int]:
        for index, text in enumerate(texts):
            for tokens in model.pairs(query, text):
                scores[index] = max(scores[index], model.logit(tokens))
                n_tokens[index] += len(tokens)
                yield index
        if not raw:
            np.exp(-np.logaddexp(0.0, -scores), out=scores)  # the sigmoid, without overflow
        yield len(texts)

    return Job(texts, Scores(scores, n_tokens), process)


def _load(
    path: Path, options: ModelOptions, on_progress: OnProgress, **prompt: Any
) -> CrossEncoder:
    from relevance_gen.llama.cross_encoder import CrossEncoder

    return CrossEncoder(path, options, on_progress=on_progress, **prompt)
