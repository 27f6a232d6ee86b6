"""Prefer chunks with the query's words close together, in the query's order, or at the beginning.

Four parts of a chunk's score, for the 50 chunks with the highest cosines::

    bigrams(q, d)  = Σ_b (1 + ln qtf(b)) idf(b) tf(b, d) / (tf(b, d) + 1.6)
    coverage(q, d) = max over windows of 24 tokens
                     of Σ idf(t), t in the window / Σ idf(t), t in the query
    lead(q, d)     = the same for the chunk's first 16 tokens
    phrase(q, d)   = max over runs
                     of Σ max(idf(t), 0.3), t in the run / the same sum over the query, at most 1

b are the bigrams of the query, pairs of adjacent words; idf(b) is the mean of the idf of the two
words. The idf is that of `relevance_gen.retrieval.weighting`, which is reduced or 0 for stop words.
A run is a sequence of two or more tokens of a chunk in which every two adjacent tokens are a bigram
of the query. A word of the query matches several terms, such as its inflections; each token of a
chunk counts as the word of the query that it matches best. Numbers that are neither years nor match
a word of the query are left out before windows and leads are measured, so that the labels of a
table's rows are close together. Of a long query, the 32 rarest words
with an idf above 0 are used, and up to 32 words with an idf of 0.
The sum that is added to a chunk's cosine is::

    0.2 bigrams / (length normalization of the chunk · norm of the query)
    + 0.2 coverage + 0.05 lead + 0.2 phrase³

Sources: Tao and Zhai, "An Exploration of Proximity Measures in Information Retrieval", SIGIR 2007,
for windows; Metzler and Croft, "A Markov Random Field Model for Term Dependencies", SIGIR 2005, for
ordered pairs; the formulas are ours, measured in docs/measurements.md.
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.arrays import Floats, Offsets, batch_slices, concat
from relevance_gen.index.formulas import SATURATION, saturate
from relevance_gen.index.segment import POSITION_GAP, TokenSequences
from relevance_gen.retrieval.query.term_matching import Match, match_indices
from relevance_gen.retrieval.ranking.stage import (
    MAX_STAGE_WORDS,
    N_STAGE_CANDIDATES,
    ChunkBatch,
    FeatureSpec,
    NumericFeatures,
    SelfMatch,
    Stage,
    WeightedTerms,
)

WINDOW: Final = 24
"""Tokens in a window: about a sentence."""
LEAD: Final = 16
"""Tokens at the beginning of a chunk that count as its lead."""
_MIN_IDF_IN_RUN: Final = 0.3
"""Weight of a stop word in a run."""
_BATCH_TOKENS: Final = 1 << 16
"""Tokens processed together; bounds the memory for a long chunk."""
_MAX_COUNTS: Final = 1 << 18
"""Maximum number of counts, of all bigrams in all chunks, that are held at once."""
_MAX_LISTED_TOKENS: Final = 64
"""Maximum tokens of a query that Python loops process; numpy, which processes longer queries, is
slower for short queries."""

COVERAGE: Final = "coverage"
BIGRAM_WEIGHT: Final = 0.2
COVERAGE_WEIGHT: Final = 0.2
LEAD_WEIGHT: Final = 0.05
PHRASE_WEIGHT: Final = 0.2
_WEIGHTS: Final = np.array([BIGRAM_WEIGHT, COVERAGE_WEIGHT, LEAD_WEIGHT, PHRASE_WEIGHT])

_POWERS_OF_TWO: Final = np.left_shift(1, np.arange(MAX_STAGE_WORDS, dtype=np.uint32))
_ZERO: Final[Floats] = np.zeros(1)

_Words = npt.NDArray[np.uint8]
"""For each token the word of the query that it matches, counted from 1; 0 for none."""
_Masks = npt.NDArray[Any]
"""Sets of words of the query, as bit masks with a bit for each word."""


class Measures(NamedTuple):
    """The four measures of n chunks, shape (n,) each, before they are weighted; see the module."""

    bigrams: Floats
    coverage: Floats
    lead: Floats
    phrase: Floats


@frozen(eq=False)
class _Bigrams:
    """Occurrences in chunks of bigrams of the query, in reading order."""

    token: Offsets  # index of the first token of each, shape (B,)
    index: npt.NDArray[np.uint16]  # which bigram of the query it is, counted from 1, shape (B,)


class ProximityFeatures(FeatureSpec):
    """A feature spec: the four parts of n chunks' scores from proximity, shape (4, n).

    Args:
        matches: for each word of the query the terms that it matches; at most 64 words.
        idf: idf of each of these words; words with an idf of 0 are the last, and are used for
            bigrams and runs only.
        order: the words of the query in reading order, as indices of `matches`; -1 for a word that
            is not in `matches`.
        norm: the query's Euclidean length.
    """

    def __init__(
        self,
        matches: Sequence[Match],
        idf: Sequence[float],
        order: Sequence[int],
        norm: float,
    ) -> None:
        self._arguments = matches, idf, order, norm
        self._matches = matches
        self._norm = norm
        self.total_idf = math.fsum(idf) or 1.0
        run_weights, weighted = [], []
        for word_idf in idf:
            run_weights.append(max(word_idf, _MIN_IDF_IN_RUN))
            if word_idf:
                weighted.append(word_idf)
        self._run_total = math.fsum(run_weights[word] for word in order if word >= 0) or 1.0
        self._bits = _bits(len(matches) + 1, len(weighted))
        self._idf_sums = _idf_sums(weighted)
        # Words and bigrams of the query are numbered from 1; 0 is any other word, and no bigram.
        # `_bigram_index` has the number of the bigram (left, right) at ``left * size + right``.
        self._size = len(matches) + 1
        self._bigram_index = np.zeros(self._size * self._size, np.uint16)
        self._bigram_weights: list[float] = []
        # Weights in a run of the left and of the right word of each bigram, from bigram 0 on.
        left_weights, right_weights = [0.0], [0.0]
        summands = []
        # The bigrams of a very long query are counted by compiled code, without a list of its
        # words.
        for (left, right), qtf in Counter(itertools.pairwise(order)).items():
            if left >= 0 and right >= 0:
                sum_of_idf = idf[left] + idf[right]
                weight = (1.0 + math.log(qtf)) * sum_of_idf / 2.0
                self._bigram_weights.append(weight)
                summands.append(weight * (qtf / (qtf + SATURATION)))
                number = len(self._bigram_weights)
                self._bigram_index[(left + 1) * self._size + right + 1] = number
                left_weights.append(run_weights[left])
                right_weights.append(run_weights[right])
        self.n_bigrams = len(summands)
        self.own_bigrams = math.fsum(summands)
        self._left_weights = np.array(left_weights)
        self._right_weights = np.array(right_weights)

    def __reduce__(self) -> tuple[object, ...]:
        return ProximityFeatures, self._arguments

    def extract(self, batch: ChunkBatch) -> NumericFeatures:
        """Return the four weighted summands of each chunk's cosine, shape (4, n)."""
        values = np.array(self.measure(batch.tokens))
        values[3] **= 3
        values *= _WEIGHTS[:, np.newaxis]
        values[0] /= batch.denominators * self._norm
        return NumericFeatures(values)

    def measure(self, tokens: TokenSequences) -> Measures:
        """Return the four measures of the proximity of the query's words in each chunk."""
        starts = tokens.starts
        n_tokens = tokens.terms.size
        word_of_term = match_indices(self._matches, tokens.lexicon)
        is_number_of_term = tokens.lexicon.is_number
        words = np.empty(n_tokens, np.uint8)
        is_number = np.empty(n_tokens, bool)
        for batch in batch_slices(n_tokens, _BATCH_TOKENS):
            words[batch] = word_of_term.take(tokens.terms[batch])
            is_number[batch] = is_number_of_term.take(tokens.terms[batch])
        bigrams = self._find_bigrams(words)
        chunk = starts.searchsorted(bigrams.token, "right")
        chunk -= 1
        bigram_sums = self._sum_bigrams(bigrams, chunk, starts.size)
        phrase = self._best_runs(bigrams, chunk, starts.size)
        # Windows and leads leave out the numbers that no word of the query matches.
        is_number &= words == 0
        left_out: Offsets = is_number.nonzero()[0]
        if left_out.size:
            words = words.compress(~is_number)
            starts = starts - left_out.searchsorted(starts)
        coverage = np.zeros(starts.size)
        leads = np.zeros(starts.size, self._bits.dtype)
        for begin in range(0, words.size - WINDOW + 1, _BATCH_TOKENS):
            # Tokens after a batch belong to windows that begin in it, and are processed again in
            # the next batch.
            batch_words = words[begin : begin + _BATCH_TOKENS + WINDOW - 1]
            self._update_coverage(batch_words, starts - begin, coverage, leads)
        coverage /= self.total_idf
        lead = self._idf_of(leads)
        lead /= self.total_idf
        return Measures(bigram_sums, np.minimum(coverage, 1.0), np.minimum(lead, 1.0), phrase)

    def _find_bigrams(self, words: _Words) -> _Bigrams:
        """Return the bigrams of the query in chunks.

        `words`: for each token of the chunks the word of the query that it matches.
        """
        tokens, indices = [], []
        for begin in range(0, words.size, _BATCH_TOKENS):
            batch = words[begin : begin + _BATCH_TOKENS + 1]  # with the token after the batch
            is_pair = np.logical_and(batch[:-1], batch[1:])
            left: Offsets = is_pair.nonzero()[0]
            # Index into the table of bigrams.
            pair = batch.take(left) * np.uint16(self._size)
            pair += batch.take(left + 1)
            index = self._bigram_index.take(pair)
            is_bigram: Offsets = index.nonzero()[0]
            tokens.append(left.take(is_bigram) + begin)
            indices.append(index.take(is_bigram))
        return _Bigrams(concat(tokens, np.int64), concat(indices, np.uint16))

    def _sum_bigrams(self, bigrams: _Bigrams, chunk: Offsets, n: int) -> Floats:
        """Return the measure `bigrams` of each of n chunks, shape (n,).

        `chunk`: index of the chunk of each of the B bigrams, ascending, shape (B,).
        """
        sums = np.zeros(n)
        if not chunk.size:
            return sums
        # Counts of each bigram in each chunk, shape (n_rows, n_kinds), in batches of chunks that
        # fit in memory.
        n_kinds = self.n_bigrams
        n_rows = max(1, _MAX_COUNTS // (n_kinds + 1))
        for low in range(0, n, n_rows):
            size = min(n_rows, n - low)
            begin, end = chunk.searchsorted((low, low + size)).tolist()
            cell = (chunk[begin:end] - low) * n_kinds + bigrams.index[begin:end]
            counts = np.bincount(cell, minlength=size * n_kinds + 1)
            values = saturate(counts[1:].reshape(size, n_kinds))
            values *= self._bigram_weights
            sums[low : low + size] = np.add.reduce(values, axis=1)
        return sums

    def _best_runs(self, bigrams: _Bigrams, chunk: Offsets, n: int) -> Floats:
        """Return the measure `phrase` of each of n chunks, shape (n,).

        `chunk`: index of the chunk of each of the B bigrams, ascending, shape (B,).
        """
        phrase = np.zeros(n)
        if not chunk.size:
            return phrase
        # Bigrams whose first tokens are adjacent form a run: the first word of the run, and the
        # last word of each.
        token, index = bigrams.token, bigrams.index
        is_gap = token[1:] - token[:-1] != 1
        run_start = np.concatenate(([0], is_gap.nonzero()[0] + 1))
        run_weight = np.add.reduceat(self._right_weights.take(index), run_start)
        run_weight += self._left_weights.take(index.take(run_start))
        np.maximum.at(phrase, chunk.take(run_start), run_weight)
        phrase /= self._run_total
        return np.minimum(phrase, 1.0)

    def _idf_of(self, masks: _Masks) -> Floats:
        """Return for each bit mask the sum of the idf of its words: bit i stands for ``idf[i]``."""
        if masks.itemsize == 1:
            return self._idf_sums[0].take(masks)
        little_endian = masks.astype(f"<u{masks.itemsize}", copy=False)
        mask_bytes = little_endian.view(np.uint8).reshape(-1, masks.itemsize)
        total = self._idf_sums[0].take(mask_bytes[:, 0])
        for column, sums in enumerate(self._idf_sums[1:], 1):
            total += sums.take(mask_bytes[:, column])
        return total

    def _update_coverage(
        self, words: _Words, starts: Offsets, coverage: Floats, leads: _Masks
    ) -> None:
        """Update the best window and the lead of each chunk by a batch of tokens.

        Args:
            words: for each token of the batch the word of the query that it matches.
            starts: first token of each chunk, counted from the first token of the batch.
            coverage: sum of the idf of the words in each chunk's best window; updated.
            leads: the words in each chunk's lead; updated.
        """
        # Union of the words in 2, 4 and 8 tokens from each token on, then in 16 (a lead) and 24 (a
        # window).
        union = self._bits.take(words)
        for n_tokens in (1, 2, 4):
            union = union[:-n_tokens] | union[n_tokens:]
        in_lead = union[: -LEAD // 2] | union[LEAD // 2 :]
        window_idf = self._idf_of(in_lead[: LEAD - WINDOW] | union[LEAD:])
        # Leads of the chunks that start in this batch.
        bounds = (0, min(_BATCH_TOKENS, window_idf.size))
        low, high = starts.searchsorted(bounds).tolist()
        leads[low:high] = in_lead.take(starts[low:high])
        # The best window of each chunk. A window that begins in the gap before a chunk has only
        # words of the chunk's first window.
        begins = starts - POSITION_GAP
        first, last = begins.searchsorted((0, window_idf.size)).tolist()
        rows = slice(max(first - 1, 0), last)
        if last:
            best = np.maximum.reduceat(window_idf, np.maximum(begins[rows], 0))
            np.maximum(coverage[rows], best, out=coverage[rows])


class Proximity(Stage):
    """A stage that adds four parts for the proximity of the query's words in a chunk."""

    order = 1
    parts = ("bigrams", COVERAGE, "lead", "phrase")
    n_best = N_STAGE_CANDIDATES
    features: ProximityFeatures

    def __init__(self, features: ProximityFeatures) -> None:
        self.features = features

    @classmethod
    def of(cls, terms: WeightedTerms) -> Proximity:
        """Return the stage for a query.

        The stage uses the rarest words with weight, and up to `MAX_STAGE_WORDS` words without
        weight.
        """
        unweighted = []
        for i, n_chunks in enumerate(terms.df):
            if n_chunks and not terms.idf[i]:
                unweighted.append(i)
        words = (*terms.rarest, *unweighted[:MAX_STAGE_WORDS])
        matches = [terms.matches[i] for i in words]
        idf = [terms.idf[i] for i in words]
        order = _word_order(terms.query.term_of_token, words, terms.df)
        return cls(ProximityFeatures(matches, idf, order, terms.norm))

    def self_score(self, total: float, own: SelfMatch) -> float:
        """Return `total` plus the four parts for the query as a chunk.

        Coverage, lead and phrase have their full weight. Coverage and lead are increased in
        proportion to the idf of the words that occur in no chunk. The phrase is added only if the
        query has a bigram.
        """
        features = self.features
        total += BIGRAM_WEIGHT * features.own_bigrams / own.denominator
        unknown = own.unknown_idf / features.total_idf
        total += (COVERAGE_WEIGHT + LEAD_WEIGHT) * (1.0 + unknown)
        return total + PHRASE_WEIGHT if features.n_bigrams else total


def _word_order(
    order: npt.NDArray[np.int16], words: Sequence[int], df: Sequence[int]
) -> Sequence[int]:
    """Return the query's known words in reading order, as indices of `words`.

    A word that is not among these is -1.

    Args:
        order: the query's words in reading order, as indices of its terms; -1 for a word without a
            term.
        words: indices of the terms to use.
        df: number of chunks that have each term; words that occur in no chunk are left out.
    """
    if order.size <= _MAX_LISTED_TOKENS:
        index_of = dict(zip(words, range(len(words)), strict=True))
        known = []
        for word in order.tolist():
            if word >= 0 and df[word]:
                known.append(index_of.get(word, -1))
        return known
    # The words of a very long query are held as bytes: no list of them is created.
    index = np.full(len(df), -1, np.int8)
    index[list(words)] = range(len(words))
    is_known = np.array([*df, 0], bool).take(order)
    return array("b", index.take(order[is_known]).tobytes())


def _bits(size: int, n_weighted: int) -> _Masks:
    """Return a table from word numbers to bits, shape (size,).

    Each of the words 1 to `n_weighted` has its own bit; the bit of all other words is 0.
    """
    bits = np.zeros(size, np.min_scalar_type((1 << n_weighted) - 1))
    bits[1 : n_weighted + 1] = _POWERS_OF_TWO[:n_weighted]
    return bits


def _idf_sums(idf: Sequence[float]) -> list[Floats]:
    """Return tables that give the idf sum of a set of query words, which a bit mask represents.

    Bit i of the mask stands for the word with ``idf[i]``. There is a table for each byte of the
    mask, from its 256 values to the sum of the idf of its words, added in their order. The table of
    the last byte can be shorter.
    """
    tables = []
    for start in range(0, max(len(idf), 1), 8):
        sums = _ZERO
        for word_idf in idf[start : start + 8]:
            sums = np.concatenate((sums, sums + word_idf))
        tables.append(sums)
    return tables
