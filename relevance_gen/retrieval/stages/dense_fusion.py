"""Combine lexical scores with the dense similarity of an encoder.

With the lexical score w, and the cosine c of the query with the chunk's nearest passage::

    f = 1 − (1 − L)(1 − max(0, c)²)            L = w^(5/7)

This is the formula for two independent reasons to be relevant: a chunk is irrelevant only if it is
irrelevant both by its terms and by its meaning. f lies in [w, 1], and only a chunk whose lexical
score is 1 scores 1. f does not depend on the other results. The exponent 5/7 raises w so that good
lexical scores are as high as good cosines: the last step of
`relevance_gen.retrieval.stages.score_regularization` raises a mean to the power 0.7, so that L is
the square root of this mean. With w instead of L, the dense similarity outweighed the terms in one
collection of seven.

Only the scores of the best `n_candidates` chunks by lexical score, the candidates, are raised.
Other chunks keep their scores, which are in [0, 1], too. A chunk without a term of the query is not
a result, and a query costs one encoding and a few dozen scalar products for any number of chunks.

With `n_candidates` None, every chunk is compared, and a chunk without a term of the query scores
c². If the query has words other than stop words (such as "the"), but no chunk contains one of
these, lexical ranking uses the stop words; with `n_candidates` None, all lexical scores are then
set to 0, because the dense similarity is more reliable than stop words.

Source: the formula is ours, a probabilistic sum of two signals neither of which is a probability;
measured in docs/measurements.md.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from attrs import frozen

from relevance_gen.arrays import Floats, Halves, Offsets
from relevance_gen.index.passages import Passages, TextEncoder, query_vector
from relevance_gen.retrieval.ranking.stage import (
    STORED_FIELDS,
    CandidateTable,
    ChunkBatch,
    FeatureSource,
    FeatureSpec,
    NumericFeatures,
    RerankStage,
)
from relevance_gen.types import Passage

_LEXICAL_POWER: Final = 5 / 7
_BELOW_ONE: Final = float(np.nextafter(1.0, 0.0))


def fuse(lexical: Floats, cosines: Floats) -> Floats:
    """Return the combined scores of chunks, shape (n,).

    The lexical scores, in [0, 1], and the cosines have shape (n,), too.
    """
    scaled = lexical**_LEXICAL_POWER
    dense = np.clip(cosines, 0.0, 1.0) ** 2
    combined = np.minimum(scaled + (1.0 - scaled) * dense, _BELOW_ONE)
    return np.where(lexical < 1.0, combined, 1.0)


@frozen(eq=False)
class NearestPassages(FeatureSpec):
    """A feature spec: for each of n chunks its passage nearest to a query, shape (3, n).

    The three rows are the cosine of the passage with the query, and the index of its first
    character and the index after its last in the text of the chunk. All three are NaN for chunks
    without stored vectors.
    """

    query_vector: Halves  # shape (d,)

    def extract(self, batch: ChunkBatch) -> NumericFeatures:
        """Return the three rows of `NearestPassages` for the chunks of a batch, shape (3, n)."""
        passages = batch.segment.passages
        if passages is None:
            return NumericFeatures(np.full((3, batch.chunk_ords.size), np.nan))
        return NumericFeatures(passages.nearest(batch.chunk_ords, self.query_vector))


@frozen(eq=False)
class DenseFusion(RerankStage):
    """A stage that raises the scores of chunks that an encoder finds similar to the query."""

    encoder: TextEncoder
    n_candidates: int | None

    parts = ("semantic",)

    def score(self, table: CandidateTable, segments: FeatureSource) -> None:
        """Combine the lexical scores of the candidates with their dense similarity.

        If every chunk is compared, and no chunk contains a word of the query other than stop words,
        the lexical scores are first set to 0, so that only the dense similarity counts.
        """
        if self.n_candidates is None and table.query.terms.matches_no_content_word:
            table.scores = np.zeros(table.scores.size)
        before = table.columns["before_dense_fusion"] = table.scores
        rows = self.candidate_rows(table)
        nearest = self._nearest(table, rows, segments)
        table.scores = before.copy()
        table.scores[rows] = fuse(before[rows], nearest[0])
        table.nearest = rows, nearest

    def explain(
        self, table: CandidateTable, row: int, before: float, after: float
    ) -> dict[str, Any]:
        """Return the increase of a chunk's score, under the key ``semantic``.

        For a chunk that was compared with the query, ``passage`` is its nearest `Passage`;
        otherwise this key is missing.
        """
        del before
        parts: dict[str, Any] = {
            "semantic": after - float(table.columns["before_dense_fusion"][row])
        }
        if table.nearest is not None:
            rows, nearest = table.nearest
            for cosine, start, end in nearest[:, rows == row].T.tolist():
                parts["passage"] = Passage(int(start), int(end), cosine)
        return parts

    def _nearest(self, table: CandidateTable, rows: Offsets, segments: FeatureSource) -> Floats:
        """Return for each chunk at `rows` the passage nearest to the query, shape (3, n).

        The three rows of the result are the cosine, the start and the end of the passage, as in
        `NearestPassages`. Texts without stored vectors are encoded now.
        """
        if not rows.size:
            return np.zeros((3, 0))
        vector = query_vector(table.query.terms.query.text, self.encoder)
        nearest: Floats = table.extract(NearestPassages(vector), rows, segments).values
        unknown = np.flatnonzero(np.isnan(nearest[0]))
        if unknown.size:
            chunks = table.extract(STORED_FIELDS, rows[unknown], segments).rows
            titles = {i: chunk.title for i, chunk in enumerate(chunks)}
            passages = Passages.encode(
                [chunk.text for chunk in chunks], self.encoder, titles=titles
            )
            nearest[:, unknown] = passages.nearest(np.arange(unknown.size), vector)
        return nearest
