"""Score the chunks of one segment against a query, in four rounds.

1. `SegmentScorer.match`: which words of the segment does each word of the query stand for, and in how many chunks?
2. `SegmentScorer.candidates`: which chunks have the highest cosine, and which say exactly what the query says?
3. `SegmentScorer.look`: how close together do the best of all hold the query's words, and what else is in them?
4. `SegmentScorer.letters`: which letters in a row are in the best of these?

Between the rounds `relevance_gen.retrieval.question.collection` puts together what the segments tell. What goes in and
comes out is small and can be pickled, so a segment may be anywhere. The rounds stand in one long file because they
share what they find.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Concatenate, Final, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.lru import LruCache
from relevance_gen.retrieval.arrays import (
    ChunkNumbers,
    Flags,
    Floats,
    Halves,
    Ids,
    Offsets,
    different,
    ragged_ranges,
    sum_by,
)
from relevance_gen.retrieval.question.bags import MAX_CHUNKS, Bag
from relevance_gen.retrieval.question.filtering import Filter
from relevance_gen.retrieval.question.matching import Match, match_exactly, match_inflections
from relevance_gen.retrieval.question.plan import Plan
from relevance_gen.retrieval.question.query import QueryTerm
from relevance_gen.retrieval.question.ranking import Ranking, best_quotients
from relevance_gen.retrieval.question.weighting import COVERAGE_WEIGHT, HEAD_WEIGHT, PAIR_WEIGHT, RUN_WEIGHT, Weighting
from relevance_gen.retrieval.segment.passages import Nearest
from relevance_gen.retrieval.segment.segment import BETWEEN, Reading, Segment, Statistics
from relevance_gen.retrieval.text.portions import cut_by_size
from relevance_gen.types import Metadata

BONUSES: Final = ("pairs", "coverage", "head", "run")
"""What proximity adds, row by row."""
_BONUS_WEIGHTS: Final = np.array([[PAIR_WEIGHT], [COVERAGE_WEIGHT], [HEAD_WEIGHT], [RUN_WEIGHT]])
_BATCH_TOKENS: Final = 1 << 17
"""Chunks that have about so many tokens are read together: ties may make them many, and each may be long."""
_BATCH_PAIRS: Final = 1 << 18
"""Most counts of pairs of words, those of all pairs in all chunks, that are held at once."""
_POSTINGS_STEP: Final = 1 << 15
"""About so many postings are added up together, while they are in the core's cache."""
_LETTER_STEP: Final = 1 << 15
"""Words whose letters are looked up together: it bounds the memory for long chunks."""
_DENSE: Final = 8
"""Postings are added up in an array of all chunks where there are more of them than chunks divided by this."""
_LEAST_MEMORY_BYTES: Final = 2 << 20
_EXACT_BYTES: Final = 1 << 17
"""Room for all function words."""
_MEMORY_SHARE: Final = 4
"""The words last asked for may take the bytes of the segment's arrays divided by this."""

Rest = ParamSpec("Rest")
Answer = TypeVar("Answer")


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
        """LruCache, in bytes."""
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
        bonus: what proximity adds to their cosines, shape (n,).
        words: the beginnings of their words; None for very many chunks.
    """

    bonus: Floats
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
        self,
        segment: Segment,
        weighting: Weighting,
        statistics: Statistics,
        words: LruCache[TermPostings] | None = None,
    ) -> None:
        self.segment = segment
        self.words_found = words or LruCache(
            _LEAST_MEMORY_BYTES + segment.array_bytes // _MEMORY_SHARE, lambda postings: postings.nbytes
        )
        self._exact: LruCache[TermMatch] = LruCache(_EXACT_BYTES, lambda found: found.match.nbytes)
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
        """LruCache of what is remembered of words, in bytes."""
        return self.words_found.nbytes + self._exact.nbytes

    def at(
        self,
        positions: Offsets,
        method: Callable[Concatenate[SegmentScorer, Offsets, Rest], Answer],
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> tuple[Offsets, Answer]:
        """Return the places of this segment's chunks among some positions, and what a method tells of those chunks."""
        numbers = self.segment.find(positions)
        here: Offsets = (numbers >= 0).nonzero()[0]
        return here, method(self, numbers.take(here), *args, **kwargs)

    # ── The four rounds ──────────────────────────────────────────────────────────────────────────────────────────────

    def match(self, terms: tuple[QueryTerm, ...]) -> tuple[TermMatch, ...]:
        """Return what each term of a query stands for here."""
        uninflected = [term.term_id for term in terms if not term.inflected]
        exact = self._exact.get_all(uninflected)
        if len(exact) < len(uninflected):
            exact |= self._match_exactly([term_id for term_id in uninflected if term_id not in exact])
        found = self._find([term for term in terms if term.inflected])
        return tuple([next(found).matched if term.inflected else exact[term.term_id] for term in terms])

    def candidates(self, plan: Plan, n: int, chosen: Filter | None = None) -> Candidates:
        """Return the chunks whose cosines reach the n-th best of the segment, and those that say the same.

        Args:
            plan: the query, weighed.
            n: how many; there are more with ties.
            chosen: which chunks may be results; None allows all.
        """
        sums = self._sums(plan)
        if sums is None:
            return Candidates(Ranking(_NOTHING, np.zeros(0)), _NOTHING)
        if chosen is not None:
            sums[~chosen.flags(self.segment.positions, self.segment.chunks)] = 0.0
        numbers = best_quotients(sums, self.denominators, self._least_denominator, n)
        verbatim = self._says_the_same(plan, sums)
        if verbatim.size:
            numbers = different(np.concatenate((numbers, verbatim)))
        positions, cosines = self.segment.positions, sums.take(numbers) / self.denominators.take(numbers)
        return Candidates(Ranking(positions.take(numbers), cosines), positions.take(verbatim))

    def look(self, numbers: Offsets, plan: Plan) -> Look:
        """Read some chunks, and return what proximity adds to their cosines and, if they are few, their words."""
        bonus = np.empty(numbers.size)
        words = []
        for some, reading in self._readings(numbers, _BATCH_PAIRS // (plan.proximity.n_pairs + 1)):
            bonus[some] = np.add.reduce(self._bonuses(reading, numbers[some], plan))
            if numbers.size <= MAX_CHUNKS:
                words.append(Bag.of_words(reading))
        return Look(bonus, Bag.joined(words) if numbers.size <= MAX_CHUNKS else None)

    def words(self, numbers: Offsets) -> Bag:
        """Return the beginnings of the words of some chunks."""
        if self.segment.occurrences is None:
            return Bag(*self.segment.stumps_again(numbers))
        return Bag.of_words(self.segment.read(numbers))

    def letters(self, numbers: Offsets) -> Bag:
        """Return all four letters in a row in the words of some chunks."""
        reading = self.segment.read(numbers)
        found, n_found = [], np.zeros(numbers.size, np.int64)
        for low in range(0, reading.terms.size, _LETTER_STEP):
            words = reading.terms[low : low + _LETTER_STEP]
            spoken = (words < reading.lexicon.size).nonzero()[0]
            different, place = np.unique(words.take(spoken), return_inverse=True)
            grams, n_grams = reading.lexicon.grams(different.astype(np.int64))
            n_of_token = n_grams[place]
            at = ragged_ranges((np.cumsum(n_grams) - n_grams)[place], n_of_token)
            found.append(np.maximum(grams[at], np.uint32(1)))
            seen = np.concatenate(([0], np.cumsum(n_of_token)))
            n_found += seen.take(spoken.searchsorted(reading.starts + (reading.counts - low)))
        return Bag(np.concatenate(found), np.diff(n_found, prepend=0))

    # ── Whatever the question ────────────────────────────────────────────────────────────────────────────────────────

    def holds(self, positions: Offsets) -> Flags:
        """Tell of some positions whether the chunk there is in this segment."""
        return self.segment.find(positions) >= 0

    def contents(self, numbers: Offsets) -> list[tuple[str, Metadata]]:
        """Return text and metadata of some chunks."""
        chunks = self.segment.chunks
        return [(chunks.texts[number], chunks.metadata_of(number)) for number in numbers.tolist()]

    def positions(self, chosen: Filter | None) -> Offsets:
        """Return the positions of the chunks that are there and chosen, ascending."""
        segment = self.segment
        kept = segment.live if chosen is None else segment.live & chosen.flags(segment.positions, segment.chunks)
        return segment.positions[kept]

    def nearest(self, numbers: Offsets, question: Halves) -> Nearest | None:
        """Return the passages of some chunks that are nearest to a question; None where no vectors are kept."""
        passages = self.segment.passages
        return None if passages is None else passages.nearest(numbers, question)

    def smallest_hashes(self, n: int) -> tuple[Ids, Offsets]:
        """Return the `n` smallest hashes of chunks, and these chunks' positions, in any order."""
        numbers = self.segment.smallest_hashes(n)
        return self.segment.hashes[numbers], self.segment.positions[numbers]

    def spell(self, ids: Ids) -> dict[int, str]:
        """Return the spellings of those terms that the segment has, by their ids."""
        lexicon = self.segment.postings.lexicon
        numbers = lexicon.find(ids)
        here = numbers >= 0
        return dict(zip(ids[here].tolist(), lexicon.spell(numbers[here]), strict=True))

    # ── One chunk, explained ─────────────────────────────────────────────────────────────────────────────────────────

    def bonuses(self, numbers: Offsets, plan: Plan) -> Floats:
        """Return what proximity adds to the cosines of a few chunks, a row for each of `BONUSES`, shape (4, n)."""
        return self._bonuses(self.segment.read(numbers), numbers, plan)

    def shares(self, numbers: Offsets, plan: Plan) -> list[list[tuple[float, float]]]:
        """Return for each of some chunks and each term of the query its tf there, and what it adds to the cosine."""
        return [
            [self._share(term, gain, number) for term, gain in zip(plan.query.terms, plan.gains, strict=True)]
            for number in numbers.tolist()
        ]

    def _share(self, term: QueryTerm, gain: float, number: int) -> tuple[float, float]:
        found = next(self._find([term]))
        here = found.chunk == number
        return float(found.tf[here].sum()), gain * float(found.weight[here].sum()) / float(self.denominators[number])

    # ── Inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _sums(self, plan: Plan) -> Floats | None:
        """Return what each chunk's cosine with the query is before it is divided, shape (N,); None if all are 0."""
        sums: Floats | None = None
        parts: list[tuple[ChunkNumbers, Floats]] = []
        n_postings = 0
        counted = [
            (term, gain) for term, gain, n in zip(plan.query.terms, plan.gains, plan.df, strict=True) if gain and n
        ]
        for found, (_, gain) in zip(self._find([term for term, _ in counted]), counted, strict=True):
            if found.chunk.size:
                parts.append((found.chunk, gain * found.weight))
                n_postings += found.chunk.size
                if n_postings >= _POSTINGS_STEP:
                    sums = self._add(sums, parts)
                    parts, n_postings = [], 0
        return self._add(sums, parts) if parts else sums

    def _add(self, sums: Floats | None, parts: Sequence[tuple[ChunkNumbers, Floats]]) -> Floats:
        """Return the sum of each chunk with what the parts add, in their order."""
        chunk = np.concatenate([chunk for chunk, _ in parts], dtype=np.intp)
        value = np.concatenate([value for _, value in parts])
        if sums is None:
            return sum_by(chunk, value, self.segment.size)
        np.add.at(sums, chunk, value)  # one after the other, as if all had been added up at once
        return sums

    def _readings(self, numbers: Offsets, most_chunks: int = _BATCH_TOKENS) -> Iterator[tuple[slice, Reading]]:
        """Yield the words of some chunks, as many chunks at once as have few words, and where these chunks stand."""
        n_places = self.segment.n_occurrences.take(numbers) + BETWEEN
        for start, end in cut_by_size(n_places, _BATCH_TOKENS, max(most_chunks, 1)):
            some = slice(start, end)
            yield some, self.segment.read(numbers[some])

    def _bonuses(self, reading: Reading, numbers: Offsets, plan: Plan) -> Floats:
        near = plan.proximity.score(reading)
        bonuses = np.array((near.pairs, near.coverage, near.head, near.run**3))
        bonuses *= _BONUS_WEIGHTS
        bonuses[0] /= self.denominators.take(numbers) * plan.norm
        return bonuses

    def _says_the_same(self, plan: Plan, sums: Floats) -> Offsets:
        """Find the chunks that have exactly the query's terms, each as often."""
        segment, said = self.segment, plan.said
        if said.size not in segment.lengths:
            return _NOTHING
        same = np.flatnonzero(segment.n_occurrences == said.size)
        same = same[(sums[same] > 0.0) & np.isclose(segment.norms[same], plan.said_norm, rtol=1e-9, atol=0.0)]
        found = [_NOTHING]
        for some, reading in self._readings(same):
            ids = reading.lexicon.ids.take(reading.terms[reading.is_word]).reshape(-1, said.size)
            ids.sort()
            found.append(same[some][(ids == said).all(axis=1)])
        return np.concatenate(found)

    def _match_exactly(self, term_ids: list[int]) -> dict[int, TermMatch]:
        """Match words to themselves alone. They are mostly function words: in every chunk, and of no weight."""
        postings = self.segment.postings
        numbers = postings.lexicon.find(np.array(term_ids, np.uint64))
        here = numbers >= 0
        df = np.zeros(numbers.size, np.int64)
        df[here] = postings.df(numbers[here])
        matches = {}
        for term_id, n in zip(term_ids, df.tolist(), strict=True):
            matches[term_id] = TermMatch(Match.exact(term_id), n) if n else _NO_MATCH
            self._exact.put(term_id, matches[term_id])
        return matches

    def _find(self, terms: Sequence[QueryTerm]) -> Iterator[TermPostings]:
        """Find the chunks that hold each of some terms of the query, one after the other, or remember them."""
        keys = [(term.term_id, term.word, term.inflected, self._by_prefix) for term in terms]
        known = self.words_found.get_all(keys)
        for key, term in zip(keys, terms, strict=True):
            found = known.get(key)
            if found is None:
                found = self._find_now(term)
                self.words_found.put(key, found)
            yield found

    def _find_now(self, term: QueryTerm) -> TermPostings:
        postings = self.segment.postings
        if term.inflected:
            match = match_inflections(postings, term.term_id, term.word, by_prefix=self._by_prefix)
        else:
            match = match_exactly(postings, term.term_id)
        numbers = [] if match.is_crowded else postings.lexicon.ids.searchsorted(match.ids).tolist()
        tf: npt.NDArray[Any]
        chunk, tf, counts = postings.of_terms(numbers)
        if not match.counts_in_full and not match.is_crowded:
            tf = tf * match.weight.repeat(counts)
        if len(counts) > 1:
            chunk, tf = self._added(chunk, tf)
        return TermPostings(TermMatch(match, chunk.size), chunk, tf, self._weighting.saturate(tf))

    def _added(self, chunk: ChunkNumbers, tf: npt.NDArray[Any]) -> tuple[ChunkNumbers, npt.NDArray[Any]]:
        """Add up the postings of several terms, in the order of the terms."""
        if chunk.size > self.segment.size // _DENSE:
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
