"""Compare words by character 4-grams, which inflections and compounds share in any language.

With n candidates, and the 4-grams g of words (of a shorter word, the word itself)::

    w(g, d) = tf / (tf + 1.6)
    w(g, q) = (1 + ln qtf) · ln(1 + n / df)                      df among the candidates
    s(q, d) = Σ_g w(g, q) w(g, d) / (0.4 m + 0.6 ‖w(·, d)‖₂)     m = mean of ‖w(·, d)‖₂
    char_ngrams(q, d) = s(q, d) / s(q, q), at most 1

The stage runs if the chunks or the query may not be in English: English has few inflections, and
the stemmer handles them. It adds 0.6 of the query's own cosine times that similarity to the scores
of the best 25 chunks.

Source: McNamee and Mayfield, "Character N-Gram Tokenization for European Language Text Retrieval",
2004; applied to the best candidates only, it costs little. The formula is that of the cosine of
terms.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from attrs import frozen

from relevance_gen.arrays import (
    Floats,
    Hashes,
    batch_slices,
    bounds_of,
    concat,
    find,
    ragged_ranges,
    starts_of,
)
from relevance_gen.index.formulas import pivot, saturate
from relevance_gen.index.lexicon import lexicon_of
from relevance_gen.retrieval.ranking.sparse_vectors import MAX_CHUNKS, SparseVector
from relevance_gen.retrieval.ranking.stage import (
    CandidateTable,
    ChunkBatch,
    FeatureSource,
    FeatureSpec,
    SelfMatch,
    Stage,
    WeightedTerms,
)
from relevance_gen.text.blocks import blocks
from relevance_gen.text.tokenization import tokenize

WEIGHT: Final = 0.6
_BATCH_TOKENS: Final = 1 << 15
"""Tokens whose 4-grams are computed together; bounds the memory for long queries and chunks."""


@frozen
class CharNgramFeatures(FeatureSpec):
    """A feature spec: the character 4-grams of the words of chunks, as `SparseVector`."""

    max_chunks = MAX_CHUNKS

    def extract(self, batch: ChunkBatch) -> SparseVector:
        """Return the 4-grams of each chunk."""
        tokens = batch.tokens
        hashes, n_hashes = [], np.zeros(batch.chunk_ords.size, np.int64)
        for part in batch_slices(tokens.terms.size, _BATCH_TOKENS):
            term_ords = tokens.terms[part]
            is_token = (term_ords < tokens.lexicon.size).nonzero()[0]  # other elements are gaps
            distinct, index = np.unique(term_ords.take(is_token), return_inverse=True)
            ngrams, n_ngrams = tokens.lexicon.char_ngrams(distinct.astype(np.int64))
            n_of_token = n_ngrams[index]
            hashes.append(ngrams[ragged_ranges(starts_of(n_ngrams)[index], n_of_token)])
            # Number of 4-grams up to the end of each chunk, as far as it lies in this part.
            n_before = bounds_of(n_of_token)
            chunk_ends = tokens.starts + (tokens.counts - part.start)
            n_hashes += n_before.take(is_token.searchsorted(chunk_ends))
        return SparseVector(np.concatenate(hashes), np.diff(n_hashes, prepend=0))


@frozen(eq=False)
class CharNgrams(Stage):
    """A stage that adds the similarity of the character 4-grams of chunk and query."""

    order = 3
    parts = ("char_ngrams",)
    n_best = 25
    features = CharNgramFeatures()

    @classmethod
    def of(cls, terms: WeightedTerms) -> CharNgrams | None:
        """Return the stage; None if the chunks are in English and the query is ASCII."""
        return None if terms.statistics.is_english and terms.query.text.isascii() else cls()

    def self_score(self, total: float, own: SelfMatch) -> float:
        """Return `total` plus the full weight: the query has all of its own 4-grams."""
        return total + WEIGHT * own.cosine

    def score(self, table: CandidateTable, segments: FeatureSource) -> None:
        """Add the similarity of 4-grams to the scores of the best chunks."""
        rows = table.best_of(table.top_rows, self.n_best, MAX_CHUNKS)
        values = np.zeros(0)
        if rows.size:
            ngrams = table.extract(self.features, rows, segments)
            similarity = ngram_similarity(ngrams_of(table.query.terms.query.text), ngrams)
            values = WEIGHT * table.query.cosine * similarity
        table.add(self.parts, rows, values[None])


def ngrams_of(text: str) -> Hashes:
    """Return hashes of the character 4-grams of all words of a text."""
    hashes = []
    for block in map(tokenize, blocks([text])):
        letters = np.frombuffer(block.folded, np.uint8)
        lexicon = lexicon_of(block.ids, letters, block.start, block.length)
        term_ords = np.arange(lexicon.size)
        for part in batch_slices(lexicon.size, _BATCH_TOKENS):
            hashes.append(lexicon.char_ngrams(term_ords[part])[0])
    return concat(hashes, np.uint32)


def ngram_similarity(query_ngrams: Hashes, chunk_ngrams: SparseVector) -> Floats:
    """Return the similarity of the 4-grams of a query and of n chunks, in [0, 1], shape (n,)."""
    tally = chunk_ngrams.tally()
    chunk_weight = saturate(tally.tf)
    norms = tally.norms(chunk_weight)
    mean_norm = math.fsum(norms.tolist()) / max(norms.size, 1)
    # The query's distinct 4-grams that any chunk has.
    distinct, qtf = np.unique(query_ngrams, return_counts=True)
    dimension = find(tally.hashes, distinct)
    is_known = dimension >= 0
    dimension = dimension[is_known]
    qtf = qtf[is_known]
    idf = np.log1p(tally.n_chunks / tally.df[dimension])
    query_weight = (1.0 + np.log(qtf)) * idf
    # Score of the query matched against itself.
    own_weight = saturate(qtf)
    own_norm = math.sqrt(math.fsum(np.square(own_weight).tolist()))
    own_denominator = float(pivot(np.array([own_norm]), mean_norm)[0])
    own_product = math.fsum((own_weight * query_weight).tolist())
    own_score = own_product / own_denominator
    if not own_score:
        return np.zeros(tally.n_chunks)
    # Scalar product of each chunk with the query, shape (n,).
    weight_of_dimension = np.zeros(tally.df.size)
    weight_of_dimension[dimension] = query_weight
    chunk_weight *= weight_of_dimension.take(tally.dimension)
    product = np.bincount(tally.chunk, chunk_weight, tally.n_chunks)
    return np.minimum(product / (pivot(norms, mean_norm) * own_score), 1.0)
