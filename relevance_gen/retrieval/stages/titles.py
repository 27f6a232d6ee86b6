"""Prefer chunks whose title is about what the query asks.

With n chunks that have the title of d, for the 50 chunks of the highest cosines::

    said(q, d)  = Σ idf(t), t in the query and in the title / Σ idf(t), t in the query
    title(q, d) = 0.1 · √said · share of the title's different words, function words apart, that the query has / n

A word stands for all its matches; of a long query the 32 rarest words count. A title's words count as the chunk's, too,
in every other part of the score. n keeps a document's title, which all of its chunks have, from lifting them all.

Measured in docs/measurements.md; the formula is ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from attrs import frozen

from relevance_gen.arrays import ragged_ranges, unique
from relevance_gen.retrieval.query.term_matching import Match, numbers_of_matches
from relevance_gen.retrieval.ranking.old_features import ChunkBatch, NumericFeatures
from relevance_gen.retrieval.ranking.stage import (
    N_PROMISING,
    SelfMatch,
    Stage,
    Table,
    WeightedTerms,
)

WEIGHT: Final = 0.1


@frozen(eq=False)
class TitleMatch(Stage):
    """Adds what the titles of chunks have of the query: of each word that counts, told by its matches and its idf."""

    matches: Sequence[Match]
    idf: Sequence[float]

    parts = ("title",)
    n_best = N_PROMISING

    @classmethod
    def of(cls, terms: WeightedTerms) -> TitleMatch | None:
        """Look at titles where any chunk has one."""
        if not terms.statistics.n_chunks_with_title:
            return None
        words = terms.rarest
        return cls([terms.matches[word] for word in words], [terms.idf[word] for word in words])

    def of_query(self, total: float, own: SelfMatch) -> float:
        """Add all of the weight: the query has all of its own words."""
        return total + WEIGHT * (1.0 + own.unknown_idf / (math.fsum(self.idf) or 1.0))

    def score(self, table: Table) -> None:
        """Add what the titles have to the scores."""
        table.add(self.parts, table.picked, table.tell(self.evidence, table.picked).values)

    def evidence(self, excerpt: ChunkBatch) -> NumericFeatures:
        """Return what is added to the cosines of some chunks, shape (1, n)."""
        given = np.zeros((1, excerpt.numbers.size))
        n_words = excerpt.segment.title_sizes.take(excerpt.numbers).astype(np.int64)
        titled = n_words.nonzero()[0]
        if not titled.size or not self.matches:
            return NumericFeatures(given)
        reading, n_words = excerpt.reading, n_words.take(titled)
        word = reading.terms.take(ragged_ranges(reading.starts.take(titled), n_words))
        chunk = np.arange(titled.size).repeat(n_words)
        counts = reading.lexicon.prefix_ords.take(word) != 0  # function words do not
        said = unique(chunk[counts] * (reading.lexicon.size + 1) + word[counts])
        chunk, word = np.divmod(said, reading.lexicon.size + 1)
        asked = numbers_of_matches(self.matches, reading.lexicon).take(word).astype(np.int64)
        n_different, n_asked = (
            np.bincount(chunk, minlength=titled.size),
            np.bincount(chunk, asked > 0, titled.size),
        )
        heard, asked = np.divmod(unique(chunk * (len(self.idf) + 1) + asked), len(self.idf) + 1)
        share = np.bincount(heard, np.array([0.0, *self.idf]).take(asked), titled.size) / math.fsum(
            self.idf
        )
        title_df = excerpt.title_df.take(titled)
        given[0, titled] = (
            WEIGHT
            * np.sqrt(np.minimum(share, 1.0))
            * n_asked
            / np.maximum(n_different, 1)
            / title_df
        )
        return NumericFeatures(given)
