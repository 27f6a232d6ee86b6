"""Rerank the best chunks with a cross-encoder, a model that reads the query and a chunk together.

The reranker returns the relevance r of a chunk, in (0, 1). It reads the best 20 chunks by their
scores s so far, from terms and, with an encoder, from dense similarity; of equal chunks the
earlier. The new score is::

    f = 1      if s = 1: the chunk has exactly the query's terms, and is not read
    f = r      if the chunk was read
    f = ρ s    otherwise: ρ is the lowest r of the chunks that were read

A reranker judges much better than terms do, but only the chunks that it reads. So r alone orders
these, and scores are comparable across queries as the reranker's are. The other chunks keep their
order, below all chunks that were read.

With `n_candidates` None every chunk is read, including chunks without a term of the query.

Source: Nogueira and Cho, "Passage Re-ranking with BERT", 2019. The rule for chunks that were not
read is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.arrays import Floats, Offsets
from relevance_gen.errors import RerankerError
from relevance_gen.retrieval.ranking.stage import (
    STORED_FIELDS,
    CandidateTable,
    FeatureSource,
    RerankStage,
)

_MIN_RELEVANCE: Final = float(np.finfo(np.float32).smallest_subnormal)
_MAX_RELEVANCE: Final = float(np.nextafter(1.0, 0.0))


class TextReranker(Protocol):
    """The part of `relevance_gen.Reranker` that search uses."""

    def score(
        self,
        query: str,
        texts: Sequence[str],
    ) -> npt.NDArray[np.float32] | None:
        """Return the relevance of each text to a query, in [0, 1], shape (n,).

        If the result is None, the search does not change any scores.
        """


@frozen(eq=False)
class CrossEncoderRerank(RerankStage):
    """A stage that replaces the scores of the best chunks by the scores of a reranker.

    These are the best `n_candidates` chunks, or all if that is None.
    """

    reranker: TextReranker
    n_candidates: int | None

    parts = ("reranker",)

    def candidate_rows(self, table: CandidateTable) -> Offsets:
        """Return the rows of the chunks to read, which pass the filter and have scores below 1.

        These are the best `n_candidates` of those with scores above 0; if scores are equal, earlier
        chunks are preferred. If `n_candidates` is None, these are all, also chunks that scored 0.
        """
        rows = table.allowed_rows
        rows = rows[table.scores.take(rows) < 1.0]
        if self.n_candidates is None:
            return rows
        rows = rows[table.scores.take(rows) > 0.0]
        best_first = (-table.scores.take(rows)).argsort(kind="stable")
        return np.sort(rows.take(best_first[: self.n_candidates]))

    def score(self, table: CandidateTable, segments: FeatureSource) -> None:
        """Set the scores of the candidates to the relevance that the reranker returns.

        Every other score that is less than 1 is multiplied by the lowest relevance of a candidate.
        Scores of 1 remain. If the reranker returns None, no score changes.
        """
        rows = self.candidate_rows(table)
        table.columns["relevance"] = np.full(table.scores.size, np.nan)
        relevance = self._relevance(table, rows, segments) if rows.size else None
        if relevance is None:
            return
        table.columns["relevance"][rows] = relevance
        scores = table.scores * relevance.min()
        scores[rows] = relevance
        table.scores = np.where(table.scores < 1.0, scores, 1.0)

    def explain(
        self, table: CandidateTable, row: int, before: float, after: float
    ) -> dict[str, Any]:
        """Return the change of a chunk's score, and the relevance that the reranker returned.

        The change, under ``reranker``, can be negative. ``relevance`` is None for a chunk that the
        reranker did not read.
        """
        relevance = float(table.columns["relevance"][row])
        was_reranked = not np.isnan(relevance)
        return {"reranker": after - before, "relevance": relevance if was_reranked else None}

    def _relevance(
        self, table: CandidateTable, rows: Offsets, segments: FeatureSource
    ) -> Floats | None:
        """Return the relevance of the chunks at the given rows, shape (n,).

        The result is None if the reranker returned None: scores then remain unchanged.

        Raises:
            RerankerError: the reranker returned an invalid value.
        """
        texts = []
        for chunk in table.extract(STORED_FIELDS, rows, segments).rows:
            texts.append(f"{chunk.title}\n{chunk.text}" if chunk.title else chunk.text)
        distinct = list(dict.fromkeys(texts))
        returned = self.reranker.score(table.query.terms.query.text, distinct)
        if returned is None:
            return None
        try:
            scores = np.asarray(returned)
        except (TypeError, ValueError):  # rows of different lengths, for example
            scores = np.empty(0, np.float32)
        is_valid = scores.shape == (len(distinct),) and scores.dtype.kind == "f"
        if not is_valid or not ((scores >= 0) & (scores <= 1)).all():
            n = len(distinct)
            raise RerankerError(f"the reranker must return {n} floats in [0, 1] for {n} texts")
        scores = scores.astype(np.float64).clip(_MIN_RELEVANCE, _MAX_RELEVANCE)
        score_of_text = dict(zip(distinct, scores.tolist(), strict=True))
        return np.array([score_of_text[text] for text in texts])
