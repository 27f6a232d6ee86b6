"""Ask the scorers of some segments, and put together what they tell.

What is put together can be put together once more with what other segments tell: `TermMatch.union` and `TopCandidates.merge`
take it in any order and any number. So segments may be asked where they are, and few messages bring what many tell.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from attrs import frozen

from relevance_gen.arrays import Offsets, concat
from relevance_gen.request_scope import raise_if_cancelled
from relevance_gen.retrieval.query.filters import Filter
from relevance_gen.retrieval.query.parsing import QueryTerm
from relevance_gen.retrieval.query.term_matching import TermMatch
from relevance_gen.retrieval.ranking.old_features import E, FeatureExtractor, merged
from relevance_gen.retrieval.ranking.stage import WeightedQuery
from relevance_gen.retrieval.scorer import Candidates, SegmentScorer

Rest = ParamSpec("Rest")
Answer = TypeVar("Answer")


@frozen(eq=False)
class TopCandidates:
    """The chunks of some segments that may be among the best of all, and what was told at once of the best of them."""

    candidates: Candidates  # the chunks
    positions: Offsets  # positions of those that something was told of, ascending, shape (n,)
    told: Sequence[
        Any
    ]  # the evidence of these for each inquiry; None where it could not be told. Empty if n is 0

    @classmethod
    def merge(cls, parts: Sequence[TopCandidates], n: int | None) -> TopCandidates:
        """Return those of several parts together; `n` is as for `Candidates.merge`."""
        telling = [part for part in parts if part.positions.size]
        positions = np.sort(concat((part.positions for part in telling), np.int64))
        places = [positions.searchsorted(part.positions) for part in telling]
        told = [
            merged(of_each, places)
            for of_each in zip(*(part.told for part in telling), strict=True)
        ]
        return cls(Candidates.merge([part.candidates for part in parts], n), positions, told)


class Scorers:
    """The scorers of some segments, asked as one.

    All that is asked of them goes through `ask`: where segments are elsewhere, that is overridden, and `tell_each`,
    which may ask fewer of them. No position is in the segments of two.
    """

    def __init__(self, scorers: Sequence[SegmentScorer]) -> None:
        self._scorers = scorers

    def ask(
        self,
        method: Callable[Concatenate[SegmentScorer, Rest], Answer],
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> list[Answer]:
        """Return what each segment's scorer answers."""
        raise_if_cancelled()
        return [method(scorer, *args, **kwargs) for scorer in self._scorers]

    def look_up(self, terms: Sequence[QueryTerm]) -> tuple[TermMatch, ...]:
        """Return what each of some terms stands for in any segment, and in how many chunks: the first round."""
        return united(self.ask(SegmentScorer.match, tuple(terms)), len(terms))

    def leaders(
        self,
        plan: WeightedQuery,
        n: int,
        chosen: Filter | None,
        *,
        everyone: bool,
        n_told: int = 0,
        inquiries: Sequence[FeatureExtractor[Any]] = (),
    ) -> TopCandidates:
        """Return the chunks whose cosines reach the n-th best, and those that say the same: the second round.

        Of the best `n_told`, and of as many of the best that are chosen, what `inquiries` ask is told at once; all else
        is as for `SegmentScorer.candidates`.
        """
        parts = self.ask(SegmentScorer.candidates, plan, n, chosen, everyone=everyone)
        found = Candidates.merge(parts, None if everyone else n)
        leading = found.leading(n_told)[: 2 * n_told] if n_told else found.positions[:0]
        positions = found.positions[leading]
        if not positions.size:
            return TopCandidates(found, positions, [])
        return TopCandidates(found, positions, self.tell_all(inquiries, positions))

    def tell_each(
        self, positions: Offsets, inquiries: Sequence[FeatureExtractor[Any]]
    ) -> list[tuple[Offsets, list[Any]]]:
        """Return for each segment the places of its chunks among some positions, and what is asked of these."""
        return self.ask(SegmentScorer.tell, positions, inquiries)

    def tell_all(self, inquiries: Sequence[FeatureExtractor[Any]], positions: Offsets) -> list[Any]:
        """Return all that is asked of the chunks at some positions, of which there must be some: the third round.

        Raises:
            LookupError: no segment has a chunk at one of the positions.
        """
        told = [(here, parts) for here, parts in self.tell_each(positions, inquiries) if here.size]
        places = [here for here, _ in told]
        if sum(map(len, places)) < positions.size:
            raise LookupError("a chunk that is asked about is in no segment")
        return [merged(parts, places) for parts in zip(*(parts for _, parts in told), strict=True)]

    def tell(self, inquiry: FeatureExtractor[E], positions: Offsets) -> E:
        """Return what is asked of the chunks at some positions, and raise, as `tell_all` does."""
        evidence: E = self.tell_all([inquiry], positions)[0]
        return evidence


def united(found: Sequence[Sequence[TermMatch]], n: int) -> tuple[TermMatch, ...]:
    """Return what each of `n` terms stands for in all of some parts together."""
    return tuple([TermMatch.union([of_part[number] for of_part in found]) for number in range(n)])
