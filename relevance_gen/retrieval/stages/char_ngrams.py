"""Compare words by four letters in a row: what forms and compounds of one word share, in any language.

With n candidates, and g the 4-grams of the letters of words (of a shorter word, the word)::

    w(g, d) = tf / (tf + 1.6)            w(g, q) = (1 + ln qtf) · ln(1 + n / df)      df among the candidates
    s(q, d) = Σ_g w(g, q) w(g, d) / (0.4 m + 0.6 ‖w(·, d)‖₂)                          m = mean of ‖w(·, d)‖₂
    letters(q, d) = s(q, d) / s(q, q), at most 1

It is looked at where the chunks or the query are not in English: English inflects little, and stems know how. The best
25 chunks are given 0.6 of the query's own cosine times that share.

Source: McNamee and Mayfield, "Character N-Gram Tokenization for European Language Text Retrieval", 2004; as a
second look at the best few it costs little. The formula is that of the words' cosine.
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
from relevance_gen.retrieval.ranking.old_features import ChunkBatch
from relevance_gen.retrieval.ranking.sparse_vectors import MAX_CHUNKS, SparseVector
from relevance_gen.retrieval.ranking.stage import SelfMatch, Stage, Table, WeightedTerms
from relevance_gen.text.blocks import blocks
from relevance_gen.text.tokenization import tokenize

WEIGHT: Final = 0.6
_STEP: Final = 1 << 15
"""Words whose letters are read together: it bounds the memory for long queries and chunks."""


@frozen(eq=False)
class CharNgrams(Stage):
    """Adds what the letters of words share with the query's."""

    parts = ("char_ngrams",)
    n_best = 25
    most = MAX_CHUNKS

    @classmethod
    def of(cls, terms: WeightedTerms) -> CharNgrams | None:
        """Look at letters where chunks or query may not be in English."""
        return None if terms.statistics.is_english and terms.query.text.isascii() else cls()

    def of_query(self, total: float, own: SelfMatch) -> float:
        """Add all of the weight: the query has all of its own letters."""
        return total + WEIGHT * own.cosine

    def score(self, table: Table) -> None:
        """Add the share of the letters to the scores of the best few."""
        some = table.best(self.n_best, self.most)
        given = np.zeros(0)
        if some.size:
            asked = letters_of(table.plan.terms.query.text)
            given = (
                WEIGHT * table.plan.cosine * letter_share(asked, table.tell(self.evidence, some))
            )
        table.add(self.parts, some, given[None])

    def evidence(self, excerpt: ChunkBatch) -> SparseVector:
        """Return all four letters in a row in the words of some chunks."""
        reading = excerpt.reading
        found, n_found = [], np.zeros(excerpt.numbers.size, np.int64)
        for some in batch_slices(reading.terms.size, _STEP):
            words = reading.terms[some]
            spoken = (words < reading.lexicon.size).nonzero()[0]
            unique, place = np.unique(words.take(spoken), return_inverse=True)
            grams, n_grams = reading.lexicon.char_ngrams(unique.astype(np.int64))
            n_of_word = n_grams[place]
            found.append(grams[ragged_ranges(starts_of(n_grams)[place], n_of_word)])
            n_before = bounds_of(n_of_word)
            n_found += n_before.take(
                spoken.searchsorted(reading.starts + (reading.counts - some.start))
            )
        return SparseVector(np.concatenate(found), np.diff(n_found, prepend=0))


def letters_of(text: str) -> Hashes:
    """Return the 4-grams of all words of a text."""
    found = []
    for block in map(tokenize, blocks([text])):
        lexicon = lexicon_of(
            block.ids, np.frombuffer(block.folded, np.uint8), block.start, block.length
        )
        numbers = np.arange(lexicon.size)
        found += [
            lexicon.char_ngrams(numbers[some])[0] for some in batch_slices(lexicon.size, _STEP)
        ]
    return concat(found, np.uint32)


def letter_share(asked: Hashes, bag: SparseVector) -> Floats:
    """Return how much of a query's 4-grams some chunks have, in [0, 1], shape (n,)."""
    tally = bag.tally()
    value = saturate(tally.tf)
    norms = tally.norms(value)
    mean = math.fsum(norms.tolist()) / max(norms.size, 1)
    wanted, times = np.unique(asked, return_counts=True)
    at = find(tally.hashes, wanted)
    at, times = at[at >= 0], times[at >= 0]
    weight = (1.0 + np.log(times)) * np.log1p(tally.n_chunks / tally.df[at])
    own_norm = math.sqrt(math.fsum(np.square(saturate(times)).tolist()))
    own = math.fsum((saturate(times) * weight).tolist()) / float(
        pivot(np.array([own_norm]), mean)[0]
    )
    if not own:
        return np.zeros(tally.n_chunks)
    of_feature = np.zeros(tally.df.size)
    of_feature[at] = weight
    value *= of_feature.take(tally.place)
    return np.minimum(
        np.bincount(tally.chunk, value, tally.n_chunks) / (pivot(norms, mean) * own), 1.0
    )
