"""Score the chunks of one segment against a query, in four rounds.

1. `SegmentScorer.match`: which words of the segment does each word of the query stand for, and in how many chunks?
2. `SegmentScorer.candidates`: which chunks have the highest cosine, and which say exactly what the query says?
3. `SegmentScorer.look`: how close together do the best of all hold the query's words, and what else is in them?
4. `SegmentScorer.letters`: which letters in a row are in the best of these?

Between the rounds `relevance_gen.retrieval.collection` puts together what the segments tell. What goes in and comes out
is small and can be pickled, so a segment may be anywhere. The rounds stand in one long file because they share what
they find.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.retrieval.bags import EMPTY, MAX_CHUNKS, Bag
from relevance_gen.retrieval.matching import Match, match_exactly, match_inflections
from relevance_gen.retrieval.memory import Memory
from relevance_gen.retrieval.plan import Plan
from relevance_gen.retrieval.postings import Chunks as ChunkNumbers
from relevance_gen.retrieval.query import QueryTerm
from relevance_gen.retrieval.ranking import Ranking, best_quotients
from relevance_gen.retrieval.segment import Floats, Segment, Statistics
from relevance_gen.retrieval.terms import Offsets, ragged_ranges
from relevance_gen.retrieval.vocabulary import Flags
from relevance_gen.retrieval.weighting import COVERAGE_WEIGHT, HEAD_WEIGHT, PAIR_WEIGHT, RUN_WEIGHT, Weighting, sum_by

BONUSES: Final = ("pairs", "coverage", "head", "run")
"""What proximity adds, row by row."""
_BONUS_WEIGHTS: Final = np.array([[PAIR_WEIGHT], [COVERAGE_WEIGHT], [HEAD_WEIGHT], [RUN_WEIGHT]])
_BATCH: Final = MAX_CHUNKS
"""Chunks read together: ties may make them many."""
_LETTER_STEP: Final = 1 << 15
"""Words whose letters are looked up together: it bounds the memory for long chunks."""
_DENSE: Final = 8
_FEW: Final = 1 << 11
"""Postings are added up in an array of all chunks where there are more of them than this, and than chunks divided by
that."""
_LEAST_MEMORY_BYTES: Final = 2 << 20
_EXACT_BYTES: Final = 1 << 17
"""Room for all function words."""
_MEMORY_SHARE: Final = 4
"""The words last asked for may take the bytes of the segment's arrays divided by this."""


@frozen(eq=False)
class TermMatch:
    """What one term of the query stands for, and the number of chunks that hold any of it."""

    match: Match
    df: int


@frozen(eq=False)
class TermPostings:
    """What one term of the query stands for in a segment, and where.

    Attributes:
        matched: the segment's terms that it stands for, and df.
        chunk: numbers of the chunks that hold any of them, ascending, shape (df,).
        tf: how often each does, every match times its weight, shape (df,).
        weight: what that weighs in the chunk, before idf, shape (df,).
    """

    matched: TermMatch
    chunk: ChunkNumbers
    tf: npt.NDArray[Any]
    weight: Floats

    @property
    def nbytes(self) -> int:
        """Memory, in bytes."""
        return self.matched.match.nbytes + self.chunk.nbytes + self.tf.nbytes + self.weight.nbytes


@frozen(eq=False)
class Candidates:
    """The chunks of one segment that may be among the best.

    Attributes:
        ranking: their cosines.
        verbatim: positions of those that say exactly what the query says, shape (m,).
    """

    ranking: Ranking
    verbatim: Offsets


@frozen(eq=False)
class Look:
    """What a look at some chunks tells.

    Attributes:
        bonuses: what proximity adds to their cosines, a row for each of `BONUSES`, shape (4, n).
        words: the beginnings of their words; None for very many chunks.
    """

    bonuses: Floats
    words: Bag | None


class SegmentScorer:
    """Scores one segment, query after query; safe to share between threads.

    Args:
        segment: the chunks.
        weighting: how to score.
        statistics: facts of all segments together.
        words: what is remembered of this segment from before; by default nothing yet.
    """

    def __init__(
        self, segment: Segment, weighting: Weighting, statistics: Statistics, words: Memory[TermPostings] | None = None
    ) -> None:
        self.segment = segment
        self.words_found = words or Memory(
            _LEAST_MEMORY_BYTES + segment.array_bytes // _MEMORY_SHARE, lambda postings: postings.nbytes
        )
        self._exact: Memory[TermMatch] = Memory(_EXACT_BYTES, lambda found: found.match.nbytes)
        self._weighting = weighting
        self._statistics = statistics
        self._by_prefix = not statistics.is_english

    @functools.cached_property
    def denominators(self) -> Floats:
        """What the sum of each chunk is divided by, shape (N,)."""
        return self._weighting.denominators(self.segment, self._statistics)

    @functools.cached_property
    def _least_denominator(self) -> float:
        return float(self.denominators.min())

    @property
    def remembered_bytes(self) -> int:
        """Memory of what is remembered of words, in bytes."""
        return self.words_found.nbytes + self._exact.nbytes

    # ── The four rounds ──────────────────────────────────────────────────────────────────────────────────────────────

    def match(self, terms: tuple[QueryTerm, ...]) -> tuple[TermMatch, ...]:
        """Return what each term of a query stands for here."""
        uninflected = [term.term_id for term in terms if not term.inflected]
        known = zip(uninflected, self._exact.get_all(uninflected), strict=True)
        exact = {term_id: found for term_id, found in known if found is not None}
        if len(exact) < len(uninflected):
            exact |= self._match_exactly([term_id for term_id in uninflected if term_id not in exact])
        inflected = iter(self._find([term for term in terms if term.inflected]))
        return tuple([next(inflected).matched if term.inflected else exact[term.term_id] for term in terms])

    def candidates(self, plan: Plan, n: int, allowed: Flags | None = None) -> Candidates:
        """Return the chunks whose cosines reach the n-th best of the segment, and those that say the same.

        Args:
            plan: the query, weighed.
            n: how many; there are more with ties.
            allowed: whether each chunk may be a result, shape (N,); None allows all.
        """
        sums = self._sums(plan)
        if sums is None:
            return Candidates(Ranking(_NOTHING, np.zeros(0)), _NOTHING)
        if allowed is not None:
            sums[~allowed] = 0.0
        numbers = best_quotients(sums, self.denominators, self._least_denominator, n)
        verbatim = self._says_the_same(plan, sums)
        if verbatim.size:
            numbers = np.union1d(numbers, verbatim)
        positions, cosines = self.segment.positions, sums.take(numbers) / self.denominators.take(numbers)
        return Candidates(Ranking(positions.take(numbers), cosines), positions.take(verbatim))

    def look(self, plan: Plan, numbers: Offsets) -> Look:
        """Read some chunks, and return what proximity adds to their cosines and, if they are few, their words."""
        if not numbers.size:
            return Look(np.zeros((len(BONUSES), 0)), EMPTY)
        looks = [self._look_at(plan, some) for some in _batches(numbers)]
        return looks[0] if len(looks) == 1 else Look(np.concatenate([look.bonuses for look in looks], axis=1), None)

    def _look_at(self, plan: Plan, numbers: Offsets) -> Look:
        reading = self.segment.read(numbers)
        near = plan.proximity.score(reading)
        bonuses = np.array((near.pairs, near.coverage, near.head, near.run**3))
        bonuses *= _BONUS_WEIGHTS
        bonuses[0] /= self.denominators.take(numbers) * plan.norm
        return Look(bonuses, Bag.of_words(reading))

    def words(self, numbers: Offsets) -> Bag:
        """Return the beginnings of the words of some chunks."""
        return (
            Bag(*self.segment.stumps_again(numbers))
            if self.segment.tokens is None
            else Bag.of_words(self.segment.read(numbers))
        )

    def letters(self, numbers: Offsets) -> Bag:
        """Return all four letters in a row in the words of some chunks."""
        reading = self.segment.read(numbers)
        found, n_found = [], np.zeros(numbers.size, np.int64)
        for low in range(0, reading.words.size, _LETTER_STEP):
            words = reading.words[low : low + _LETTER_STEP]
            spoken = (words < reading.vocabulary.size).nonzero()[0]
            different, place = np.unique(words.take(spoken), return_inverse=True)
            grams, n_grams = reading.vocabulary.grams(different.astype(np.int64))
            n_of_token = n_grams[place]
            at = ragged_ranges((np.cumsum(n_grams) - n_grams)[place], n_of_token)
            found.append(np.maximum(grams[at], np.uint32(1)))
            seen = np.concatenate(([0], np.cumsum(n_of_token)))
            n_found += seen.take(spoken.searchsorted(reading.starts + (reading.counts - low)))
        return Bag(np.concatenate(found), np.diff(n_found, prepend=0))

    # ── One chunk, explained ─────────────────────────────────────────────────────────────────────────────────────────

    def shares(self, plan: Plan, number: int) -> list[tuple[float, float]]:
        """Return for each term of the query its tf in a chunk, and what it adds to the chunk's cosine."""
        shares = []
        terms = plan.query.terms
        for found, gain in zip(self._find(terms), plan.gains, strict=True):
            here = found.chunk == number
            weight = float(found.weight[here].sum())
            shares.append((float(found.tf[here].sum()), gain * weight / float(self.denominators[number])))
        return shares

    # ── Inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _sums(self, plan: Plan) -> Floats | None:
        """Return what each chunk's cosine with the query is before it is divided, shape (N,); None if all are 0."""
        asked = [
            (term, gain)
            for term, gain, match in zip(plan.query.terms, plan.gains, plan.matches, strict=True)
            if gain and match.ids.size
        ]
        postings = self._find([term for term, _ in asked])
        parts = [
            (found.chunk, gain * found.weight)
            for found, (_, gain) in zip(postings, asked, strict=True)
            if found.chunk.size
        ]
        if not parts:
            return None
        chunk = np.concatenate([chunk for chunk, _ in parts], dtype=np.intp)
        return sum_by(chunk, np.concatenate([value for _, value in parts]), self.segment.size)

    def _says_the_same(self, plan: Plan, sums: Floats) -> Offsets:
        """Find the chunks that have exactly the query's terms, each as often."""
        segment, said = self.segment, plan.said
        if len(said) not in segment.lengths:
            return _NOTHING
        same = np.flatnonzero(segment.n_tokens == len(said))
        same = same[(sums[same] > 0.0) & np.isclose(segment.norms[same], plan.said_norm, rtol=1e-9, atol=0.0)]
        found = [_NOTHING]
        for some in _batches(same):
            reading = segment.read(some)
            ids = reading.vocabulary.ids.take(reading.words[reading.is_word]).reshape(some.size, -1)
            found.append(some[(np.sort(ids) == said).all(axis=1)])
        return np.concatenate(found)

    def _match_exactly(self, term_ids: list[int]) -> dict[int, TermMatch]:
        """Match words to themselves alone. They are mostly function words: in every chunk, and of no weight."""
        postings = self.segment.postings
        numbers = postings.vocabulary.find(np.array(term_ids, np.uint64))
        here = numbers >= 0
        df = np.zeros(numbers.size, np.int64)
        df[here] = postings.df(numbers[here])
        matches = {}
        for term_id, n in zip(term_ids, df.tolist(), strict=True):
            matches[term_id] = TermMatch(Match.exact(term_id), n) if n else _NO_MATCH
            self._exact.put(term_id, matches[term_id])
        return matches

    def _find(self, terms: Sequence[QueryTerm]) -> list[TermPostings]:
        """Find the chunks that hold each of some terms of the query, or remember them."""
        keys = [(term.term_id, term.word, term.inflected, self._by_prefix) for term in terms]
        found = []
        for key, term, postings in zip(keys, terms, self.words_found.get_all(keys), strict=True):
            if postings is None:
                postings = self._find_now(term)
                self.words_found.put(key, postings)
            found.append(postings)
        return found

    def _find_now(self, term: QueryTerm) -> TermPostings:
        postings = self.segment.postings
        if term.inflected:
            match = match_inflections(postings, term.term_id, term.word, by_prefix=self._by_prefix)
        else:
            match = match_exactly(postings, term.term_id)
        numbers = [] if match.is_crowded else postings.vocabulary.ids.searchsorted(match.ids).tolist()
        tf: npt.NDArray[Any]
        chunk, tf, counts = postings.of_terms(numbers)
        if not match.counts_in_full and not match.is_crowded:
            tf = tf * match.weight.repeat(counts)
        if len(counts) > 1:
            chunk, tf = self._added(chunk, tf)
        return TermPostings(TermMatch(match, chunk.size), chunk, tf, self._weighting.saturate(tf))

    def _added(self, chunk: ChunkNumbers, tf: npt.NDArray[Any]) -> tuple[ChunkNumbers, npt.NDArray[Any]]:
        """Add up the postings of several terms, in the order of the terms."""
        if chunk.size > max(self.segment.size // _DENSE, _FEW):
            dense = np.bincount(chunk, tf, self.segment.size)
            some = (dense > 0.0).nonzero()[0]
            return some.astype(np.uint32), dense.take(some)
        order = chunk.argsort(kind="stable")
        chunk, tf = chunk.take(order), tf.take(order)
        new = np.ones(chunk.size, bool)
        np.not_equal(chunk[1:], chunk[:-1], out=new[1:])
        first = new.nonzero()[0]
        if tf.dtype.kind == "f":  # one by one, as above
            return chunk.take(first), np.bincount(new.cumsum() - 1, tf)
        return chunk.take(first), np.add.reduceat(tf, first) if first.size else tf


_NOTHING: Final[Offsets] = np.zeros(0, np.int64)
_NO_MATCH: Final = TermMatch(Match.union([]), 0)


def _batches(chunks: Offsets) -> Iterator[Offsets]:
    for start in range(0, chunks.size, _BATCH):
        yield chunks[start : start + _BATCH]
