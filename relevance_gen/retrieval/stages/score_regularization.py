"""Raise the scores of chunks that are similar to the best chunks.

Similar chunks tend to answer the same query.

The candidates are the 50 best chunks (and ties). With n candidates d, the best five of them (and
ties) j, and their scores r before this stage::

    top_similarity(d) = Σ_j v(j) r(j) sim(d, j)
    v(j) = (r(j) / r(1)) ** 24, divided by the sum of these
    sim(d, j) = cosine of the vectors u
    u(p, d) = tf / (tf + 1.6) · (ln(1 + n / df) + ln(1 + S / max(df_S, 1)))

p are the prefixes of words, their first five letters, so that a word's forms have the same prefix;
English stop words are left out. df is the number of candidates with the prefix, df_S the number of
chunks in a sample that have it. The sample is the S = 128 chunks of the collection (or all, if
there are fewer) with the smallest hashes of their words, the same chunks in any order of the
collection. A single candidate is similar only to itself: top_similarity = r. For all other chunks
top_similarity is 0.

The score becomes::

    ((r + 1.2 top_similarity) / 2.2) ** 0.7

A chunk with exactly the terms of the query keeps the score 1. Then all scores are multiplied by the
factor for words of the query that occur in no chunk; see `Weighting.weight_query`.

Sources: Diaz, "Regularizing Ad Hoc Retrieval Scores", CIKM 2005, on van Rijsbergen's cluster
hypothesis; the formula is ours, measured in docs/measurements.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from attrs import frozen

from relevance_gen.arrays import Floats
from relevance_gen.index.formulas import saturate
from relevance_gen.retrieval.ranking.sparse_vectors import (
    MAX_CHUNKS,
    Sample,
    SparseVector,
    sample_idf,
)
from relevance_gen.retrieval.ranking.stage import (
    N_STAGE_CANDIDATES,
    CandidateTable,
    FeatureSource,
    Stage,
    TermPrefixes,
)
from relevance_gen.retrieval.ranking.top_n import at_least_as_good

WEIGHT: Final = 1.2
ROOT: Final = 0.7
_N_BEST: Final = 5
_SHARPNESS: Final = 24


@frozen(eq=False)
class ScoreRegularization(Stage):
    """A stage that raises the scores of chunks that are similar to the best chunks."""

    order = 4
    parts = ("top_similarity",)
    is_after_normalization = True
    n_best = N_STAGE_CANDIDATES
    features = TermPrefixes()

    def score(self, table: CandidateTable, segments: FeatureSource) -> None:
        """Combine each score with the similarity of the chunk to the best chunks.

        A chunk with exactly the terms of the query scores 1. All scores are then multiplied by
        `WeightedQuery.known_share`.
        """
        scores = table.scores
        similarity = np.zeros(scores.size)
        rows = table.best_of(table.top_rows, self.n_best, MAX_CHUNKS)
        if rows.size:
            prefixes = table.extract(self.features, rows, segments)
            similarity[rows] = top_similarity(prefixes, scores[rows], segments.sample)
        table.columns["unregularized"] = scores
        table.columns["top_similarity"] = similarity
        mean = (scores + WEIGHT * similarity) / (1.0 + WEIGHT)
        table.scores = np.asarray(mean**ROOT)
        table.scores[table.is_verbatim] = 1.0
        table.scores *= table.query.known_share

    def contributions(
        self,
        row: Mapping[str, float],
        score: float,
    ) -> dict[str, float]:
        """Return the part of `score` due to similarity, under the key ``top_similarity``.

        It is `score` times the share of ``1.2 top_similarity`` in the sum that is raised to the
        power 0.7.
        """
        similarity = row["top_similarity"]
        total = row["unregularized"] + WEIGHT * similarity
        return {"top_similarity": score * WEIGHT * similarity / total}


def top_similarity(prefixes: SparseVector, scores: Floats, sample: Sample) -> Floats:
    """Return the similarity of each chunk to the best chunks, at most the best score, shape (n,).

    Args:
        prefixes: the prefixes of the words of n chunks.
        scores: their scores before this stage, in [0, 1], shape (n,).
        sample: the number of chunks of the sample that have each prefix.
    """
    if scores.size < 2:
        return scores.copy()  # nothing is counted: a single chunk can be very long
    tally = prefixes.tally()
    if not tally.tf.size:
        return scores.copy()
    # Weights of the prefixes in each chunk, normalized to vectors of length 1, shape (P,).
    idf = sample_idf(tally.n_chunks).take(tally.df)
    idf += sample.idf(tally)
    weight = saturate(tally.tf)
    weight *= idf.repeat(tally.df)
    norms = tally.norms(weight)
    norms[norms == 0.0] = 1.0
    weight /= norms.take(tally.chunk)
    # The part v(j) r(j) of each chunk, 0 for all except the best, shape (n,).
    best = at_least_as_good(scores, _N_BEST)
    best = best.take((-scores.take(best)).argsort(kind="stable"))
    sharpness = (scores[best] / scores[best[0]]) ** _SHARPNESS
    chunk_part = np.zeros(scores.size)
    chunk_part[best] = sharpness / sharpness.sum() * scores[best]
    # Sum of the vectors of the best chunks. Summands are added by size, so that the order of chunks
    # does not matter.
    of_best = (chunk_part > 0.0).take(tally.chunk).nonzero()[0]
    dimension = tally.dimension.take(of_best)
    summand = weight.take(of_best) * chunk_part.take(tally.chunk.take(of_best))
    by_size = summand.argsort()
    dimension = dimension.take(by_size)
    summand = summand.take(by_size)
    profile = np.bincount(dimension, summand, tally.df.size)
    # Scalar product of each chunk with that sum, shape (n,).
    weight *= profile.repeat(tally.df)
    similarity = np.bincount(tally.chunk, weight, tally.n_chunks)
    return np.asarray(np.minimum(similarity, scores.max()))
