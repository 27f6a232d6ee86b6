"""Search some segments as one: ask each, put together what they tell, and rank.

This is the whole way of a question: match in every segment, weigh, take the best cosines of all, look at proximity for
these, and bring the scores onto their scale. Nothing here depends on how the chunks are cut into segments.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
from attrs import evolve, frozen

from relevance_gen.retrieval.bags import MAX_CHUNKS, Bag
from relevance_gen.retrieval.confidence import confidence
from relevance_gen.retrieval.letters import N_CANDIDATES, letter_share, letters_of
from relevance_gen.retrieval.likeness import SAMPLE_SIZE, Sample, likeness
from relevance_gen.retrieval.matching import Match
from relevance_gen.retrieval.memory import Memory
from relevance_gen.retrieval.plan import Plan, weigh
from relevance_gen.retrieval.query import REMEMBERED_CHARS, Query, parse
from relevance_gen.retrieval.ranking import Ranking, at_least_as_good
from relevance_gen.retrieval.scoring import BONUSES, SegmentScorer, TermMatch, TermPostings
from relevance_gen.retrieval.segment import Floats, Segment, Statistics
from relevance_gen.retrieval.terms import Ids, Offsets
from relevance_gen.retrieval.vocabulary import Flags
from relevance_gen.retrieval.weighting import LETTER_WEIGHT, Weighting
from relevance_gen.types import Metadata

_N_PROMISING: Final = 50
"""Chunks whose proximity is looked at; 100 ranked no better in the collections measured."""
_RANKINGS_BYTES: Final = 1 << 20
_NOTHING: Final[Offsets] = np.zeros(0, np.int64)
_NO_METADATA: Final[Metadata] = {}


@frozen(eq=False)
class Assessment:
    """Some chunks with all parts of their scores, by position.

    Attributes:
        positions: their positions, ascending, shape (n,).
        cosines: shape (n,).
        bonuses: what proximity adds, a row for each of `BONUSES`, shape (4, n).
        letters: what their letters add, shape (n,).
        own: the sum as a multiple of the query's own, brought into [0, 1], shape (n,).
        likeness: what they are given for being like the best, shape (n,).
        scores: shape (n,).
    """

    positions: Offsets
    cosines: Floats
    bonuses: Floats
    letters: Floats
    own: Floats
    likeness: Floats
    scores: Floats

    def take(self, kept: Offsets) -> Assessment:
        """Return some of the chunks."""
        return Assessment(
            self.positions[kept],
            self.cosines[kept],
            self.bonuses[:, kept],
            self.letters[kept],
            self.own[kept],
            self.likeness[kept],
            self.scores[kept],
        )


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
        return {id(scorer.segment): scorer.words_found for scorer in self._scorers}

    @property
    def nbytes(self) -> int:
        """Memory of the segments and of all that is remembered, in bytes."""
        words = sum(scorer.segment.nbytes + scorer.remembered_bytes for scorer in self._scorers)
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
        matches = self._united(query, found)
        if any(match.is_crowded for match in matches):
            crowded = {term for term, match in zip(query.terms, matches, strict=True) if match.is_crowded}
            terms = (evolve(term, inflected=term.inflected and term not in crowded) for term in query.terms)
            query = evolve(query, terms=tuple(terms))
            found = [scorer.match(query.terms) for scorer in self._scorers]
            matches = self._united(query, found)
        if len(found) == 1:
            df = tuple([part.df for part in found[0]])
        else:
            df = tuple([sum([parts[number].df for parts in found]) for number in range(len(query.terms))])
        return weigh(query, matches, df, self.statistics, self.weighting)

    @staticmethod
    def _united(query: Query, found: Sequence[tuple[TermMatch, ...]]) -> tuple[Match, ...]:
        """Return what each term of a query stands for in all segments together."""
        if len(found) == 1:
            return tuple([part.match for part in found[0]])
        return tuple([Match.union([parts[number].match for parts in found]) for number in range(len(query.terms))])

    def spell(self, ids: Ids) -> tuple[str, ...]:
        """Return the spellings of some terms that any segment has."""
        spellings: dict[int, str] = {}
        for segment in self.segments:
            vocabulary = segment.postings.vocabulary
            numbers = vocabulary.find(ids)
            here = numbers >= 0
            spellings |= zip(ids[here].tolist(), vocabulary.spell(numbers[here]), strict=True)
        return tuple(spellings[one] for one in ids.tolist())

    def chunks_at(self, positions: Offsets) -> tuple[list[str], list[Metadata]]:
        """Return the texts and the metadata of the chunks at some positions, where there must be chunks."""
        texts, metadata = [""] * positions.size, [_NO_METADATA] * positions.size
        for segment in self.segments:
            chunks = segment.chunks
            for place, number in enumerate(segment.find(positions).tolist()):
                if number >= 0:
                    texts[place], metadata[place] = chunks.texts[number], chunks.metadata_of(number)
        return texts, metadata

    def scorer_of(self, position: int) -> SegmentScorer | None:
        """Return the scorer of the segment that holds a position, if one does."""
        at = np.array([position])
        return next((scorer for scorer in self._scorers if scorer.segment.find(at)[0] >= 0), None)

    def _rank(self, plan: Plan, top_n: int, allowed: Sequence[Flags] | None) -> Ranking:
        assessment = self.assess(plan, max(top_n, _N_PROMISING), allowed)
        sure = confidence(float(assessment.scores.max()), plan) if assessment.scores.size else 0.0
        return Ranking(assessment.positions, assessment.scores, sure).best(top_n)

    # ── The rounds ───────────────────────────────────────────────────────────────────────────────────────────────────

    def assess(self, plan: Plan, n: int, allowed: Sequence[Flags] | None = None) -> Assessment:
        """Return the chunks whose cosines reach the n-th best, and all parts of their scores.

        Args:
            plan: the query, weighed.
            n: how many, at least as many as proximity is looked at for; there are more with ties.
            allowed: for each segment, whether each of its chunks may be a result; None allows all.
        """
        cosines, verbatim = self._candidates(plan, n, None)
        if allowed is not None:
            # A chunk's score does not depend on which chunks are allowed, so the best of all are needed, too.
            cosines, verbatim, is_allowed = self._with_allowed(plan, n, allowed, cosines, verbatim)
        positions, scores = cosines.positions, cosines.scores
        bonuses = np.zeros((len(BONUSES), scores.size))
        letters, alike = np.zeros((2, scores.size))
        promising = looked_at = _NOTHING
        words: Bag | None = None
        if plan.proximity:
            promising = at_least_as_good(scores, _N_PROMISING)
            looked_at = promising
            if allowed is not None:
                few = np.flatnonzero(is_allowed)
                looked_at = np.union1d(promising, few[at_least_as_good(scores[few], _N_PROMISING)])
            if looked_at.size < positions.size:
                bonuses[:, looked_at], words = self._look(plan, positions[looked_at])
            else:
                bonuses, words = self._look(plan, positions)
            scores = scores + np.add.reduce(bonuses)
            if plan.reads_letters:
                some = _most_promising(promising, scores, N_CANDIDATES)
                bag = self._bag(SegmentScorer.letters, positions[some])
                letters[some] = LETTER_WEIGHT * plan.cosine * letter_share(letters_of(plan.query.text), bag)
                scores += letters
        own = self.weighting.scale(scores / plan.reference)
        own[verbatim] = 1.0
        if promising.size:
            some = _most_promising(promising, own, _N_PROMISING)
            if some.size:
                if words is None:
                    words = self._bag(SegmentScorer.words, positions[some])
                elif some.size < looked_at.size:
                    words = words.take(looked_at.searchsorted(some))
                alike[some] = likeness(words, own.take(some), self._sample)
        blended = self.weighting.blend(own, alike)
        blended[verbatim] = 1.0
        blended *= plan.known_share
        found = Assessment(positions, cosines.scores, bonuses, letters, own, alike, blended)
        return found if allowed is None else found.take(np.flatnonzero(is_allowed))

    def _candidates(self, plan: Plan, n: int, allowed: Sequence[Flags] | None) -> tuple[Ranking, Flags]:
        """Return the chunks of the highest cosines of all segments, and whether each says what the query says."""
        found = [
            scorer.candidates(plan, n, None if allowed is None else allowed[number])
            for number, scorer in enumerate(self._scorers)
        ]
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

    def _with_allowed(
        self, plan: Plan, n: int, allowed: Sequence[Flags], best: Ranking, verbatim: Flags
    ) -> tuple[Ranking, Flags, Flags]:
        """Add the best of the chunks that are allowed to the best of all, and tell which those are."""
        more, more_verbatim = self._candidates(plan, n, allowed)
        positions, first = np.unique(np.concatenate((best.positions, more.positions)), return_index=True)
        scores = np.concatenate((best.scores, more.scores))[first]
        return (
            Ranking(positions, scores),
            np.concatenate((verbatim, more_verbatim))[first],
            np.isin(positions, more.positions),
        )

    def _look(self, plan: Plan, positions: Offsets) -> tuple[Floats, Bag | None]:
        """Return what proximity adds to the cosines of some chunks, and if they are few, their words."""
        if len(self._scorers) == 1:
            look = self._scorers[0].look(plan, self._scorers[0].segment.find(positions))
            return look.bonuses, look.words
        bonuses = np.empty((len(BONUSES), positions.size))
        bags, places = [], []
        for scorer, (numbers, here) in zip(self._scorers, self._whereabouts(positions), strict=True):
            look = scorer.look(plan, numbers)
            bonuses[:, here] = look.bonuses
            places.append(here)
            if look.words is not None:
                bags.append(look.words)
        few = len(bags) == len(places) and positions.size <= MAX_CHUNKS
        return bonuses, Bag.merge(bags, places) if few else None

    def _whereabouts(self, positions: Offsets) -> Iterator[tuple[Offsets, Offsets]]:
        """Yield for each segment the numbers of the chunks that it holds, and their places among the positions."""
        for scorer in self._scorers:
            numbers = scorer.segment.find(positions)
            here: Offsets = (numbers >= 0).nonzero()[0]
            yield numbers.take(here), here

    def _bag(self, read: Callable[[SegmentScorer, Offsets], Bag], positions: Offsets) -> Bag:
        """Return what is in some chunks, those of all segments together."""
        found = list(self._whereabouts(positions))
        bags = [read(scorer, numbers) for scorer, (numbers, _) in zip(self._scorers, found, strict=True)]
        return Bag.merge(bags, [here for _, here in found])

    @functools.cached_property
    def _sample(self) -> Sample:
        """The chunks with the smallest hashes, of all segments together."""
        chosen = [scorer.segment.smallest_hashes(SAMPLE_SIZE) for scorer in self._scorers]
        hashes = [scorer.segment.hashes[numbers] for scorer, numbers in zip(self._scorers, chosen, strict=True)]
        owner = np.repeat(np.arange(len(chosen)), [numbers.size for numbers in chosen])
        smallest = np.argsort(np.concatenate(hashes), kind="stable")[:SAMPLE_SIZE]
        numbers, owner = np.concatenate(chosen)[smallest], owner[smallest]
        bags = [scorer.words(numbers[owner == place]) for place, scorer in enumerate(self._scorers)]
        places = [np.flatnonzero(owner == place) for place in range(len(self._scorers))]
        return Sample.of(Bag.merge(bags, places))


def _most_promising(promising: Offsets, scores: Floats, n: int) -> Offsets:
    """Return the best n of the promising chunks with their ties; where these are too many to compare, none of them."""
    best = promising.take(at_least_as_good(scores.take(promising), n))
    if best.size > MAX_CHUNKS:
        best = best[scores[best] > scores[best].min()]
    return best
