"""Score the chunks of one segment against a query, in three rounds.

1. `SegmentScorer.match`: which words of the segment does each word of the query stand for, and in how many chunks?
2. `SegmentScorer.candidates`: which chunks have the highest cosine, and which say exactly what the query says?
3. `SegmentScorer.bonus`: how close together do the best of all segments hold the query's words?

Between the rounds `relevance_gen.retrieval.collection` puts together what the segments tell. What goes in and comes out
is small and can be pickled, so a segment may be anywhere.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final

import numpy as np
from attrs import frozen

from relevance_gen.retrieval.matching import Match, candidates, match_exactly, match_inflections
from relevance_gen.retrieval.memory import Memory
from relevance_gen.retrieval.plan import Plan
from relevance_gen.retrieval.postings import Chunks as ChunkNumbers
from relevance_gen.retrieval.postings import Flags
from relevance_gen.retrieval.query import QueryTerm
from relevance_gen.retrieval.ranking import Ranking, at_least_as_good
from relevance_gen.retrieval.segment import Floats, Segment, Statistics
from relevance_gen.retrieval.terms import Ids, Offsets
from relevance_gen.retrieval.weighting import COVERAGE_WEIGHT, PAIR_WEIGHT, Weighting, sum_by

_BATCH: Final = 256
"""Chunks read together: ties may make them many."""
_LEAST_MEMORY_BYTES: Final = 2 << 20
_MEMORY_SHARE: Final = 4
"""The words last asked for may take the bytes of the segment's arrays divided by this."""


@frozen(eq=False)
class TermPostings:
    """What one term of the query stands for in a segment, and where.

    Attributes:
        match: the segment's terms that it stands for.
        chunk: numbers of the chunks that hold any of them, shape (df,).
        tf: how often each does, every match times its weight, shape (df,).
        weight: what that weighs in the chunk, before idf, shape (df,).
    """

    match: Match
    chunk: ChunkNumbers
    tf: Floats
    weight: Floats

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        match_bytes = self.match.ids.nbytes + self.match.weight.nbytes + 100 * len(self.match.spellings)
        return match_bytes + self.chunk.nbytes + self.tf.nbytes + self.weight.nbytes


@frozen(eq=False)
class TermMatch:
    """What one term of the query stands for, and the number of chunks that hold any of it."""

    match: Match
    df: int


@frozen(eq=False)
class Candidates:
    """The chunks of one segment that may be among the best.

    Attributes:
        ranking: their cosines.
        verbatim: positions of those that say exactly what the query says, shape (m,).
    """

    ranking: Ranking
    verbatim: Offsets


class SegmentScorer:
    """Scores one segment, query after query; safe to share between threads.

    Args:
        segment: the chunks.
        weighting: how to score.
        statistics: facts of all segments together.
        words: what is remembered of this segment from before; by default nothing yet.
    """

    def __init__(
        self,
        segment: Segment,
        weighting: Weighting,
        statistics: Statistics,
        words: Memory[TermPostings] | None = None,
    ) -> None:
        self.segment = segment
        self.words = words or Memory(
            _LEAST_MEMORY_BYTES + segment.array_bytes // _MEMORY_SHARE, lambda postings: postings.nbytes
        )
        self._weighting = weighting
        self._statistics = statistics

    @functools.cached_property
    def denominators(self) -> Floats:
        """What the sum of each chunk is divided by, shape (N,)."""
        return self._weighting.denominators(self.segment, self._statistics)

    # ── The three rounds ─────────────────────────────────────────────────────────────────────────────────────────────

    def match(self, terms: tuple[QueryTerm, ...]) -> tuple[TermMatch, ...]:
        """Return what each term of a query stands for here."""
        return tuple(map(self._match, terms))

    def compared(self, term: QueryTerm) -> Ids:
        """Return the ids of the words that a term was compared with, for those that were too many in one segment."""
        return candidates(self.segment.postings, term.term_id, term.word, by_prefix=not self._statistics.is_english)

    def candidates(self, plan: Plan, n: int, allowed: Flags | None = None) -> Candidates:
        """Return the chunks whose cosines reach the n-th best of the segment, and those that say the same.

        Args:
            plan: the query, weighed.
            n: how many; there are more with ties.
            allowed: whether each chunk may be a result, shape (N,); None allows all.
        """
        cosines = self._cosines(plan)
        if allowed is not None:
            cosines[~allowed] = 0.0
        numbers = at_least_as_good(cosines, n)
        verbatim = self._says_the_same(plan.said, cosines)
        if verbatim.size:
            numbers = np.union1d(numbers, verbatim)
        positions = self.segment.positions
        return Candidates(Ranking(positions[numbers], cosines[numbers]), positions[verbatim])

    def bonus(self, plan: Plan, numbers: Offsets) -> tuple[Floats, Floats]:
        """Return what pairs and coverage add to the cosines of some chunks, shape (n,) each."""
        pairs, coverage = [np.zeros(0)], [np.zeros(0)]
        for some in _batches(numbers):
            near = plan.proximity.score(*self.segment.tokens_of(some))
            pairs.append(PAIR_WEIGHT * near.pairs / (self.denominators[some] * plan.norm))
            coverage.append(COVERAGE_WEIGHT * near.coverage)
        return np.concatenate(pairs), np.concatenate(coverage)

    # ── One chunk, explained ─────────────────────────────────────────────────────────────────────────────────────────

    def shares(self, plan: Plan, number: int) -> list[tuple[float, float]]:
        """Return for each term of the query its tf in a chunk, and what it adds to the chunk's cosine."""
        shares = []
        for term, gain in zip(plan.query.terms, plan.gains, strict=True):
            found = self._find(term)
            here = found.chunk == number
            weight = float(found.weight[here].sum())
            shares.append((float(found.tf[here].sum()), gain * weight / float(self.denominators[number])))
        return shares

    # ── Inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _cosines(self, plan: Plan) -> Floats:
        """Return every chunk's cosine with the query, shape (N,)."""
        cosines = np.zeros(self.segment.size)
        for term, gain, match in zip(plan.query.terms, plan.gains, plan.matches, strict=True):
            if gain and match.ids.size:
                found = self._find(term)
                cosines[found.chunk] += gain * found.weight
        cosines /= self.denominators
        return cosines

    def _says_the_same(self, said: Ids, cosines: Floats) -> Offsets:
        """Find the chunks that have exactly these terms, each as often."""
        same_length = np.flatnonzero(self.segment.n_tokens == said.size)
        same_length = same_length[cosines[same_length] > 0.0]
        if not same_length.size:
            return same_length
        same = [
            (np.sort(self.segment.tokens_of(chunks)[0].reshape(chunks.size, -1)) == said).all(axis=1)
            for chunks in _batches(same_length)
        ]
        found: Offsets = same_length[np.concatenate(same)]
        return found

    def _match(self, term: QueryTerm) -> TermMatch:
        if term.inflected:
            found = self._find(term)
            return TermMatch(found.match, found.chunk.size)
        # Words that only match themselves are mostly function words: in every chunk, and of no weight.
        postings = self.segment.postings
        match = match_exactly(postings, term.term_id, term.word)
        return TermMatch(match, int(postings.df(postings.find(term.term_id)).sum()))

    def _find(self, term: QueryTerm) -> TermPostings:
        """Find the chunks that hold a term of the query, or remember them."""
        key = term.term_id, term.word, term.inflected, self._statistics.is_english
        found = self.words.get(key)
        if found is None:
            found = self._find_now(term)
            self.words.put(key, found)
        return found

    def _find_now(self, term: QueryTerm) -> TermPostings:
        postings = self.segment.postings
        if term.inflected:
            by_prefix = not self._statistics.is_english
            match = match_inflections(postings, term.term_id, term.word, by_prefix=by_prefix)
        else:
            match = match_exactly(postings, term.term_id, term.word)
        chunk, counted, counts = postings.of_terms(np.searchsorted(postings.ids, match.ids))
        tf = np.asarray(counted * np.repeat(match.weight, counts), np.float64)
        if counts.size > 1:
            chunk, place = np.unique(chunk, return_inverse=True)
            tf = sum_by(place, tf, chunk.size)
        return TermPostings(match, chunk, tf, self._weighting.saturate(tf))


def _batches(chunks: Offsets) -> Iterator[Offsets]:
    for start in range(0, chunks.size, _BATCH):
        yield chunks[start : start + _BATCH]
