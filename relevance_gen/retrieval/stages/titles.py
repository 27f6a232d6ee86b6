"""Prefer chunks whose title matches the query.

With n chunks that have the title of d, for the 50 chunks with the highest cosines::

    query_share(q, d) = Σ idf(t), t in the query and in the title / Σ idf(t), t in the query
    title_share(q, d) = share of the title's distinct words, without stop words, that the query has
    title(q, d)       = 0.1 · √query_share · title_share / n

A word of the query matches its inflections; of a long query the 32 rarest words are used. The words
of a title are also words of the chunk in every other part of the score. Dividing by n keeps the
title of a document, which all of its chunks have, from raising all of them.

Measured in docs/measurements.md; the formula is ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from attrs import frozen

from relevance_gen.arrays import ragged_ranges, unique
from relevance_gen.retrieval.query.term_matching import Match, match_indices
from relevance_gen.retrieval.ranking.stage import (
    N_STAGE_CANDIDATES,
    ChunkBatch,
    FeatureSpec,
    NumericFeatures,
    SelfMatch,
    Stage,
    WeightedTerms,
)

WEIGHT: Final = 0.1


@frozen(eq=False)
class TitleFeatures(FeatureSpec):
    """A feature spec: the part `title` of the scores of n chunks, shape (1, n)."""

    matches: Sequence[Match]  # the terms that each word of the query matches
    idf: Sequence[float]  # idf of each word

    def extract(self, batch: ChunkBatch) -> NumericFeatures:
        """Return the part `title` of each chunk's score; 0 for a chunk without a title."""
        values = np.zeros((1, batch.chunk_ords.size))
        sizes = batch.segment.title_sizes.take(batch.chunk_ords).astype(np.int64)
        rows = sizes.nonzero()[0]
        if not rows.size or not self.matches:
            return NumericFeatures(values)
        # The distinct words of each title without stop words, as pairs of title and term.
        tokens, sizes = batch.tokens, sizes.take(rows)
        n_terms, n_words = tokens.lexicon.size + 1, len(self.idf) + 1
        term_ord = tokens.terms.take(ragged_ranges(tokens.starts.take(rows), sizes))
        title = np.arange(rows.size).repeat(sizes)
        is_content = tokens.lexicon.prefix_ords.take(term_ord) != 0
        pairs = unique(title[is_content] * n_terms + term_ord[is_content])
        title, term_ord = np.divmod(pairs, n_terms)
        # The word of the query that each matches, counted from 1; 0 for none.
        word = match_indices(self.matches, tokens.lexicon).take(term_ord).astype(np.int64)
        n_distinct = np.bincount(title, minlength=rows.size)
        n_matched = np.bincount(title, word > 0, rows.size)
        # The idf of the distinct words of the query in each title.
        title, word = np.divmod(unique(title * n_words + word), n_words)
        idf = np.array([0.0, *self.idf]).take(word)
        query_share = np.bincount(title, idf, rows.size) / math.fsum(self.idf)
        part = WEIGHT * np.sqrt(np.minimum(query_share, 1.0)) * n_matched
        part /= np.maximum(n_distinct, 1)
        part /= batch.title_df.take(rows)
        values[0, rows] = part
        return NumericFeatures(values)


@frozen(eq=False)
class TitleMatch(Stage):
    """A stage that adds the part `title`, for chunks whose title matches the query."""

    features: TitleFeatures

    order = 2
    parts = ("title",)
    n_best = N_STAGE_CANDIDATES

    @classmethod
    def of(cls, terms: WeightedTerms) -> TitleMatch | None:
        """Return the stage for a query; None if no chunk has a title."""
        if not terms.statistics.n_chunks_with_title:
            return None
        matches = [terms.matches[i] for i in terms.rarest]
        idf = [terms.idf[i] for i in terms.rarest]
        return cls(TitleFeatures(matches, idf))

    def self_score(self, total: float, own: SelfMatch) -> float:
        """Return `total` plus the full weight: the query as a title contains all of its own words.

        The weight is increased in proportion to the idf of the words that occur in no chunk.
        """
        known_idf = math.fsum(self.features.idf) or 1.0
        return total + WEIGHT * (1.0 + own.unknown_idf / known_idf)
