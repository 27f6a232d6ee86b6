"""Search some segments as one: ask each, put together what they tell, and rank.

This is the whole way of a question: match in every segment, weigh, take the best cosines of all, look at proximity for
these, and bring the scores onto their scale. Nothing here depends on how the chunks are cut into segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from attrs import evolve

from relevance_gen.retrieval.confidence import confidence
from relevance_gen.retrieval.matching import MAX_CANDIDATES, Match
from relevance_gen.retrieval.memory import Memory
from relevance_gen.retrieval.plan import Plan, weigh
from relevance_gen.retrieval.postings import Flags
from relevance_gen.retrieval.query import REMEMBERED_CHARS, Query, QueryTerm, parse
from relevance_gen.retrieval.ranking import Ranking, at_least_as_good
from relevance_gen.retrieval.scoring import SegmentScorer, TermMatch, TermPostings
from relevance_gen.retrieval.segment import Floats, Segment, Statistics
from relevance_gen.retrieval.terms import Offsets
from relevance_gen.retrieval.weighting import Weighting

_N_PROMISING: Final = 50
"""Chunks whose proximity is looked at; 100 ranked no better in the collections measured."""
_RANKINGS_BYTES: Final = 1 << 20


class Collection:
    """Segments searched as one; it never changes. Safe to share between threads.

    Args:
        segments: the segments; no position is in two of them.
        weighting: how to score.
        before: what was searched before a change; what it remembers of segments that are still there is kept.
    """

    def __init__(self, segments: Sequence[Segment], weighting: Weighting, before: Collection | None = None) -> None:
        self.weighting = weighting
        self.statistics = sum(map(weighting.statistics, segments), Statistics())
        words = {} if before is None else before._words
        self._scorers: list[SegmentScorer] = [
            SegmentScorer(segment, weighting, self.statistics, words.get(id(segment))) for segment in segments
        ]
        self._rankings: Memory[Ranking] = Memory(_RANKINGS_BYTES, lambda ranking: ranking.nbytes + 4 * REMEMBERED_CHARS)

    @property
    def n_terms(self) -> int:
        """Number of different terms of all chunks."""
        return np.unique(np.concatenate([segment.postings.living_ids() for segment in self.segments])).size

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments."""
        return tuple(scorer.segment for scorer in self._scorers)

    @property
    def _words(self) -> dict[int, Memory[TermPostings]]:
        return {id(scorer.segment): scorer.words for scorer in self._scorers}

    @property
    def nbytes(self) -> int:
        """Memory of the segments and of all that is remembered, in bytes."""
        words = sum(scorer.segment.nbytes + scorer.words.nbytes for scorer in self._scorers)
        return words + self._rankings.nbytes

    def rank(self, text: str, top_n: int, allowed: Sequence[Flags] | None = None) -> Ranking:
        """Return the `top_n` best chunks, best first, with scores in (0, 1]; chunks of score 0 are left out.

        Args:
            text: the query.
            top_n: most chunks.
            allowed: for each segment, whether each of its chunks may be a result; None allows all.
        """
        if allowed is not None or len(text) > REMEMBERED_CHARS or top_n > _N_PROMISING:
            return self._rank(self.plan(text), top_n, allowed)
        ranking = self._rankings.get((text, top_n))
        if ranking is None:
            ranking = self._rank(self.plan(text), top_n, None)
            self._rankings.put((text, top_n), ranking)
        return ranking

    def plan(self, text: str) -> Plan:
        """Return the query, weighed against all chunks."""
        query = parse(text, self.weighting)
        found = [scorer.match(query.terms) for scorer in self._scorers]
        if crowded := self._crowded(query, found):
            terms = (evolve(term, inflected=term.inflected and term not in crowded) for term in query.terms)
            query = evolve(query, terms=tuple(terms))
            found = [scorer.match(query.terms) for scorer in self._scorers]
        each_term = list(zip(*found, strict=True)) if found else [() for _ in query.terms]
        matches = tuple(Match.union([part.match for part in parts]) for parts in each_term)
        df = tuple(sum(part.df for part in parts) for parts in each_term)
        return weigh(query, matches, df, self.statistics, self.weighting)

    def _crowded(self, query: Query, found: Sequence[tuple[TermMatch, ...]]) -> set[QueryTerm]:
        """Return the terms that would be compared with too many words, those of all segments together."""
        crowded = set()
        for number, term in enumerate(query.terms):
            if sum(part[number].match.n_compared for part in found) > MAX_CANDIDATES:
                compared = np.concatenate([scorer.compared(term) for scorer in self._scorers])
                if np.unique(compared).size > MAX_CANDIDATES:
                    crowded.add(term)
        return crowded

    def scorer_of(self, position: int) -> SegmentScorer | None:
        """Return the scorer of the segment that holds a position, if one does."""
        at = np.array([position])
        return next((scorer for scorer in self._scorers if scorer.segment.find(at)[0] >= 0), None)

    def is_promising(self, plan: Plan, position: int) -> bool:
        """Tell whether a chunk is among those whose proximity is looked at."""
        found = [scorer.candidates(plan, _N_PROMISING).ranking for scorer in self._scorers]
        ranking = Ranking.merge(found)
        return position in ranking.positions[at_least_as_good(ranking.scores, _N_PROMISING)]

    def _rank(self, plan: Plan, top_n: int, allowed: Sequence[Flags] | None) -> Ranking:
        n = max(top_n, _N_PROMISING)
        found = [
            scorer.candidates(plan, n, None if allowed is None else allowed[number])
            for number, scorer in enumerate(self._scorers)
        ]
        merged = Ranking.merge([part.ranking for part in found])
        positions, scores = merged.positions, merged.scores
        verbatim = np.zeros(positions.size, bool)
        for part in found:
            verbatim[np.searchsorted(positions, part.verbatim)] = True
        if len(found) > 1:
            kept = verbatim.copy()
            kept[at_least_as_good(scores, n)] = True
            positions, scores, verbatim = positions[kept], scores[kept], verbatim[kept]
        if plan.proximity:
            promising = at_least_as_good(scores, _N_PROMISING)
            scores[promising] += self._bonus(plan, positions[promising])
        scores = self.weighting.scale(scores / plan.reference)
        scores[verbatim] = 1.0
        scores *= plan.known_share
        best = Ranking(positions, scores).best(top_n)
        return evolve(best, confidence=confidence(float(best.scores[0]), plan)) if best.scores.size else best

    def _bonus(self, plan: Plan, positions: Offsets) -> Floats:
        """Return what proximity adds to the cosines of some chunks, shape (n,)."""
        bonus = np.zeros(positions.size)
        for scorer in self._scorers:
            numbers = scorer.segment.find(positions)
            here = np.flatnonzero(numbers >= 0)
            pairs, coverage = scorer.bonus(plan, numbers[here])
            bonus[here] = pairs + coverage
        return bonus
