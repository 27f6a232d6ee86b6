"""Lift the chunks that are like the best ones: chunks that tell of the same answer the same question.

With n candidates d, and the best five of them (and ties) j, of own scores r::

    l(d) = Σ_j v(j) r(j) sim(d, j)           v(j) = (r(j) / r(1)) ** 24, over the sum of these
    sim(d, j) = cosine of the vectors        u(b, d) = tf / (tf + 1.6) · (ln(1 + n / df) + ln(1 + S / max(df_S, 1)))

b are the first five letters of a word, so that its forms are one; English function words are left out. df counts the
candidates that have it, df_S the chunks of a sample: the S = 128 chunks of the collection with the smallest hashes of
their words, the same ones in whatever order the chunks stand. A candidate alone is like itself: l = r.

The score becomes::

    ((r + 1.2 l) / 2.2) ** 0.7

Sources: Diaz, "Regularizing Ad Hoc Retrieval Scores", CIKM 2005, on van Rijsbergen's cluster hypothesis; the formula is
ours, measured in docs/measurements.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from attrs import frozen

from relevance_gen.arrays import Floats, Offsets
from relevance_gen.index.formulas import saturate
from relevance_gen.retrieval.ranking.old_features import ChunkBatch
from relevance_gen.retrieval.ranking.sparse_vectors import (
    MAX_CHUNKS,
    Sample,
    SparseVector,
    rarities,
)
from relevance_gen.retrieval.ranking.stage import N_PROMISING, Stage, Table
from relevance_gen.retrieval.ranking.top_n import at_least_as_good

WEIGHT: Final = 1.2
ROOT: Final = 0.7
_N_BEST: Final = 5
_SHARPNESS: Final = 24


@frozen(eq=False)
class ScoreRegularization(Stage):
    """Lifts the chunks that are like the best ones."""

    parts = ("top_similarity",)
    is_behind_scale = True
    n_best = N_PROMISING
    most = MAX_CHUNKS

    def score(self, table: Table) -> None:
        """Blend the scores of chunks from their own and from those that they are like."""
        some = table.best(self.n_best, self.most)
        alike = np.zeros(table.scores.size)
        if some.size:
            alike[some] = likeness(
                table.tell(self.evidence, some), table.scores[some], table.sample()
            )
        table.columns["own"], table.columns["top_similarity"] = table.scores, alike
        table.scores = np.asarray(((table.scores + WEIGHT * alike) / (1.0 + WEIGHT)) ** ROOT)
        table.scores[table.is_verbatim] = 1.0
        table.scores *= table.plan.known_share

    def evidence(self, excerpt: ChunkBatch) -> SparseVector:
        """Return the beginnings of the words of some chunks."""
        return words(excerpt)

    def shares(self, row: Mapping[str, float], score: float) -> dict[str, float]:
        """Share the score out by what stands under the root."""
        return {
            "top_similarity": score
            * WEIGHT
            * row["top_similarity"]
            / (row["own"] + WEIGHT * row["top_similarity"])
        }


def words(excerpt: ChunkBatch) -> SparseVector:
    """Return the beginnings of the words of some chunks."""
    if excerpt.segment.occurrences is None and not excerpt.is_read:
        segment = excerpt.segment
        counts = segment.n_occurrences[excerpt.numbers]
        return SparseVector(segment.prefix_hashes(excerpt.numbers), counts)
    return SparseVector.of_words(excerpt.reading)


def likeness(bag: SparseVector, scores: Floats, sample: Sample) -> Floats:
    """Return what chunks are given for being like the best of them: at most the best score, shape (n,).

    The bag holds the beginnings of their words, and the scores are their own, in [0, 1].
    """
    if (
        scores.size < 2 or not (tally := bag.tally()).tf.size
    ):  # the words of one may be very many: they are not counted
        return scores.copy()
    idf = rarities(tally.n_chunks).take(tally.df)
    idf += sample.idf(tally)
    value = saturate(tally.tf)
    value *= idf.repeat(tally.df)
    norms = tally.norms(value)
    norms[norms == 0.0] = 1.0
    value /= norms.take(tally.chunk)
    best = at_least_as_good(scores, _N_BEST)
    best = best.take((-scores.take(best)).argsort(kind="stable"))
    weight = (scores[best] / scores[best[0]]) ** _SHARPNESS
    share = np.zeros(scores.size)
    share[best] = weight / weight.sum() * scores[best]
    # The sum of the vectors of the best, each times its weight, is added up by size: the same in any order of chunks.
    given = share.take(tally.chunk)
    of_best: Offsets = (given > 0.0).nonzero()[0]
    feature, added = tally.place.take(of_best), value.take(of_best) * given.take(of_best)
    order = added.argsort()
    profile = np.bincount(feature.take(order), added.take(order), tally.features.size)
    value *= profile.repeat(tally.df)
    return np.asarray(np.minimum(np.bincount(tally.chunk, value, tally.n_chunks), scores.max()))
