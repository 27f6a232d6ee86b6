"""Search some segments as one: ask each, put together what they tell, and rank.

This is the whole way of a question: match in every segment, weigh, take the best cosines of all, look at proximity for
these, and bring the scores onto their scale. Nothing here depends on how the chunks are cut into segments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Concatenate, Final

import numpy as np
from attrs import evolve, frozen

from relevance_gen.lru import LruCache
from relevance_gen.retrieval.arrays import Flags, Floats, Ids, Offsets
from relevance_gen.retrieval.question.bags import MAX_CHUNKS, Bag
from relevance_gen.retrieval.question.confidence import confidence
from relevance_gen.retrieval.question.filtering import Filter
from relevance_gen.retrieval.question.letters import N_CANDIDATES, letter_share, letters_of
from relevance_gen.retrieval.question.likeness import SAMPLE_SIZE, Sample, likeness
from relevance_gen.retrieval.question.matching import Match
from relevance_gen.retrieval.question.plan import Plan, weigh
from relevance_gen.retrieval.question.query import REMEMBERED_CHARS, Query, parse
from relevance_gen.retrieval.question.ranking import Ranking, at_least_as_good
from relevance_gen.retrieval.question.scoring import Answer, Rest, SegmentScorer, TermMatch, TermPostings
from relevance_gen.retrieval.question.weighting import LETTER_WEIGHT, Weighting
from relevance_gen.retrieval.segment.segment import Segment, Statistics
from relevance_gen.types import Metadata

_N_PROMISING: Final = 50
"""Chunks whose proximity is looked at; 100 ranked no better in the collections measured."""
_RANKINGS_BYTES: Final = 1 << 20
_NOTHING: Final[Offsets] = np.zeros(0, np.int64)


@frozen(eq=False)
class Assessment:
    """Some chunks with all parts of their scores, by position.

    Attributes:
        positions: their positions, ascending, shape (n,).
        cosines: shape (n,).
        bonus: what proximity adds, shape (n,).
        letters: what their letters add, shape (n,).
        own: the sum as a multiple of the query's own, brought into [0, 1], shape (n,).
        likeness: what they are given for being like the best, shape (n,).
        scores: shape (n,).
    """

    positions: Offsets
    cosines: Floats
    bonus: Floats
    letters: Floats
    own: Floats
    likeness: Floats
    scores: Floats

    def take(self, kept: Offsets) -> Assessment:
        """Return some of the chunks."""
        return Assessment(
            self.positions[kept],
            self.cosines[kept],
            self.bonus[kept],
            self.letters[kept],
            self.own[kept],
            self.likeness[kept],
            self.scores[kept],
        )


class Collection:
    """Segments searched as one; it never changes. Safe to share between threads.

    All that a question needs of the segments goes through `ask` and `read`: a collection whose segments are elsewhere
    overrides these two.

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
        self._rankings: LruCache[Ranking] = LruCache(
            _RANKINGS_BYTES, lambda ranking: ranking.nbytes + 4 * REMEMBERED_CHARS
        )

    @property
    def n_terms(self) -> int:
        """Number of different terms of all chunks."""
        return np.unique(np.concatenate([segment.postings.living_ids() for segment in self.segments])).size

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments."""
        return tuple(scorer.segment for scorer in self._scorers)

    @property
    def _words(self) -> dict[int, LruCache[TermPostings]]:
        return {id(scorer.segment): scorer.words_found for scorer in self._scorers}

    @property
    def nbytes(self) -> int:
        """LruCache of the segments and of all that is remembered, in bytes."""
        words = sum(scorer.segment.nbytes + scorer.remembered_bytes for scorer in self._scorers)
        return words + self._rankings.nbytes

    # ── Asking the segments ──────────────────────────────────────────────────────────────────────────────────────────

    def ask(
        self, method: Callable[Concatenate[SegmentScorer, Rest], Answer], *args: Rest.args, **kwargs: Rest.kwargs
    ) -> list[Answer]:
        """Return what each segment's scorer answers."""
        return [method(scorer, *args, **kwargs) for scorer in self._scorers]

    def read(
        self,
        positions: Offsets,
        method: Callable[Concatenate[SegmentScorer, Offsets, Rest], Answer],
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> list[tuple[Offsets, Answer]]:
        """Return for each segment the places of its chunks among some positions, and what its scorer tells of these."""
        return [scorer.at(positions, method, *args, **kwargs) for scorer in self._scorers]

    def contents(self, positions: Offsets) -> list[tuple[str, Metadata]]:
        """Return text and metadata of the chunks at some positions."""
        found: dict[int, tuple[str, Metadata]] = {}
        for here, some in self.read(positions, SegmentScorer.contents):
            found |= zip(here.tolist(), some, strict=True)
        return [found[place] for place in range(positions.size)]

    # ── A question ───────────────────────────────────────────────────────────────────────────────────────────────────

    def rank(self, text: str, top_n: int, chosen: Filter | None = None) -> Ranking:
        """Return the `top_n` best chunks, best first, with scores in (0, 1]; chunks of score 0 are left out.

        Args:
            text: the query.
            top_n: most chunks.
            chosen: which chunks may be results; None allows all.
        """
        if chosen is not None or len(text) > REMEMBERED_CHARS or top_n > _N_PROMISING:
            return self._rank(self.plan(text), top_n, chosen)
        ranking = self._rankings.get((text, top_n))
        if ranking is None:
            ranking = self._rank(self.plan(text), top_n, None)
            self._rankings.put((text, top_n), ranking)
        return ranking

    def plan(self, text: str) -> Plan:
        """Return the query, weighed against all chunks."""
        query = parse(text, self.weighting)
        found = self.ask(SegmentScorer.match, query.terms)
        matches = self._united(query, found)
        if any(match.is_crowded for match in matches):
            crowded = {term for term, match in zip(query.terms, matches, strict=True) if match.is_crowded}
            terms = (evolve(term, inflected=term.inflected and term not in crowded) for term in query.terms)
            query = evolve(query, terms=tuple(terms))
            found = self.ask(SegmentScorer.match, query.terms)
            matches = self._united(query, found)
        df = tuple([sum([parts[number].df for parts in found]) for number in range(len(query.terms))])
        return weigh(query, matches, df, self.statistics, self.weighting)

    @staticmethod
    def _united(query: Query, found: Sequence[tuple[TermMatch, ...]]) -> tuple[Match, ...]:
        """Return what each term of a query stands for in all segments together."""
        return tuple([Match.union([parts[number].match for parts in found]) for number in range(len(query.terms))])

    def spell(self, ids: Ids) -> tuple[str, ...]:
        """Return the spellings of some terms that any segment has."""
        spellings: dict[int, str] = {}
        for some in self.ask(SegmentScorer.spell, ids):
            spellings |= some
        return tuple(spellings[one] for one in ids.tolist())

    def holds(self, positions: Offsets) -> Flags:
        """Tell of some positions whether a chunk is at each."""
        held: Flags = np.logical_or.reduce(self.ask(SegmentScorer.holds, positions))
        return held

    def _rank(self, plan: Plan, top_n: int, chosen: Filter | None) -> Ranking:
        assessment = self.assess(plan, max(top_n, _N_PROMISING), chosen)
        sure = confidence(float(assessment.scores.max()), plan) if assessment.scores.size else 0.0
        return Ranking(assessment.positions, assessment.scores, sure).best(top_n)

    # ── The rounds ───────────────────────────────────────────────────────────────────────────────────────────────────

    def assess(self, plan: Plan, n: int, chosen: Filter | None = None) -> Assessment:
        """Return the chunks whose cosines reach the n-th best, and all parts of their scores.

        Args:
            plan: the query, weighed.
            n: how many, at least as many as proximity is looked at for; there are more with ties.
            chosen: which chunks may be results; None allows all.
        """
        cosines, verbatim = self._candidates(plan, n, None)
        if chosen is not None:
            # A chunk's score does not depend on which chunks are chosen, so the best of all are needed, too.
            cosines, verbatim, is_chosen = self._with_chosen(plan, n, chosen, cosines, verbatim)
        positions, scores = cosines.positions, cosines.scores.copy()
        bonus, letters, alike = (np.zeros(scores.size) for _ in range(3))
        promising = looked_at = _NOTHING
        words: Bag | None = None
        if plan.proximity:
            promising = at_least_as_good(scores, _N_PROMISING)
            looked_at = promising
            if chosen is not None:
                few = np.flatnonzero(is_chosen)
                looked_at = np.union1d(promising, few[at_least_as_good(scores[few], _N_PROMISING)])
            bonus[looked_at], words = self._look(plan, positions[looked_at])
            scores += bonus
            if plan.reads_letters:
                some = _most_promising(promising, scores, N_CANDIDATES)
                bag = self._bag(SegmentScorer.letters, positions[some])
                letters[some] = LETTER_WEIGHT * plan.cosine * letter_share(letters_of(plan.query.text), bag)
                scores += letters
        scores /= plan.reference
        own = self.weighting.scale(scores)
        own[verbatim] = 1.0
        if promising.size:
            some = _most_promising(promising, own, _N_PROMISING)
            if some.size:
                if words is None:
                    words = self._bag(SegmentScorer.words, positions[some])
                elif some.size < looked_at.size:
                    words = words.take(looked_at.searchsorted(some))
                alike[some] = likeness(words, own[some], self._sample)
        blended = self.weighting.blend(own, alike)
        blended[verbatim] = 1.0
        blended *= plan.known_share
        found = Assessment(positions, cosines.scores, bonus, letters, own, alike, blended)
        return found if chosen is None else found.take(np.flatnonzero(is_chosen))

    def _candidates(self, plan: Plan, n: int, chosen: Filter | None) -> tuple[Ranking, Flags]:
        """Return the chunks of the highest cosines of all segments, and whether each says what the query says."""
        found = self.ask(SegmentScorer.candidates, plan, n, chosen)
        merged = Ranking.merge([part.ranking for part in found])
        verbatim = np.zeros(merged.positions.size, bool)
        for part in found:
            if part.verbatim.size:
                verbatim[np.searchsorted(merged.positions, part.verbatim)] = True
        if len(found) > 1:
            kept = verbatim.copy()
            kept[at_least_as_good(merged.scores, n)] = True
            merged, verbatim = Ranking(merged.positions[kept], merged.scores[kept]), verbatim[kept]
        return merged, verbatim

    def _with_chosen(
        self, plan: Plan, n: int, chosen: Filter, best: Ranking, verbatim: Flags
    ) -> tuple[Ranking, Flags, Flags]:
        """Add the best of the chunks that are chosen to the best of all, and tell which those are."""
        more, more_verbatim = self._candidates(plan, n, chosen)
        positions, first = np.unique(np.concatenate((best.positions, more.positions)), return_index=True)
        scores = np.concatenate((best.scores, more.scores))[first]
        return (
            Ranking(positions, scores),
            np.concatenate((verbatim, more_verbatim))[first],
            np.isin(positions, more.positions),
        )

    def _look(self, plan: Plan, positions: Offsets) -> tuple[Floats, Bag | None]:
        """Return what proximity adds to the cosines of some chunks, and if they are few, their words."""
        bonus = np.empty(positions.size)
        bags, places = [], []
        for here, look in self.read(positions, SegmentScorer.look, plan):
            bonus[here] = look.bonus
            places.append(here)
            if look.words is not None:
                bags.append(look.words)
        few = len(bags) == len(places) and positions.size <= MAX_CHUNKS
        return bonus, Bag.merge(bags, places) if few else None

    def _bag(self, method: Callable[[SegmentScorer, Offsets], Bag], positions: Offsets) -> Bag:
        """Return what is in some chunks, those of all segments together."""
        found = self.read(positions, method)
        return Bag.merge([bag for _, bag in found], [here for here, _ in found])

    @functools.cached_property
    def _sample(self) -> Sample:
        """The chunks with the smallest hashes, of all segments together."""
        hashes, positions = zip(*self.ask(SegmentScorer.smallest_hashes, SAMPLE_SIZE), strict=True)
        smallest = np.argsort(np.concatenate(hashes), kind="stable")[:SAMPLE_SIZE]
        return Sample.of(self._bag(SegmentScorer.words, np.concatenate(positions)[smallest]))


def _most_promising(promising: Offsets, scores: Floats, n: int) -> Offsets:
    """Return the best n of the promising chunks with their ties; where these are too many to compare, none of them."""
    best = promising.take(at_least_as_good(scores.take(promising), n))
    if best.size > MAX_CHUNKS:
        best = best[scores[best] > scores[best].min()]
    return best
