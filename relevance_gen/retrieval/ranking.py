"""Hold chunks with their scores, in one segment or of all; of equal scores the earlier chunk is the better."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from attrs import frozen

from relevance_gen.retrieval.segment import Floats
from relevance_gen.retrieval.terms import Offsets

_MOST_IN_BLOCK: Final = 128
_LEAST_IN_BLOCK: Final = 4
_BLOCKS_PER_PLACE: Final = 4
_MANY: Final = 1 << 14
"""Fewer quotients than this are quicker computed all."""
_ROUNDING: Final = 1.0 - 1e-9
_NO_POSITIONS: Final[Offsets] = np.zeros(0, np.int64)
_NO_SCORES: Final[Floats] = np.zeros(0)


@frozen(eq=False)
class Ranking:
    """Some chunks and their scores.

    Attributes:
        positions: their positions in the collection, ascending unless something else is said, shape (n,).
        scores: shape (n,).
        confidence: how likely it is that an answer is among the chunks that may be found, in [0, 1].
    """

    positions: Offsets
    scores: Floats
    confidence: float = 0.0

    @classmethod
    def merge(cls, rankings: Sequence[Ranking]) -> Ranking:
        """Return the chunks of several segments together, by position."""
        if len(rankings) == 1:
            return rankings[0]
        positions = np.concatenate([_NO_POSITIONS, *(ranking.positions for ranking in rankings)])
        order = np.argsort(positions)
        return cls(positions[order], np.concatenate([_NO_SCORES, *(ranking.scores for ranking in rankings)])[order])

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, in bytes."""
        return self.positions.nbytes + self.scores.nbytes

    def best(self, n: int) -> Ranking:
        """Return the `n` best, best first."""
        return self._take((-self.scores).argsort(kind="stable")[:n])

    def close_to_best(self, min_share: float) -> Ranking:
        """Return the chunks with at least this share of the best score; the best must be the first."""
        return self._take(np.flatnonzero(self.scores >= min_share * self.scores[:1].sum()))

    def by_position(self) -> Ranking:
        """Return the same chunks in the order of their positions."""
        return self._take(self.positions.argsort())

    def _take(self, places: Offsets) -> Ranking:
        return Ranking(self.positions.take(places), self.scores.take(places), self.confidence)


def at_least_as_good(scores: Floats, n: int) -> Offsets:
    """Return the places, ascending, of all positive scores that reach the n-th best: n of them, or more with ties."""
    if scores.size <= n:
        few: Offsets = (scores > 0.0).nonzero()[0]
        return few
    width = min(_MOST_IN_BLOCK, scores.size // (_BLOCKS_PER_PLACE * n))
    if width >= _LEAST_IN_BLOCK:
        # At least n scores reach the n-th best of the maxima of blocks, so few have to be looked at one by one.
        n_blocks = scores.size // width
        maxima = np.maximum.reduce(scores[: n_blocks * width].reshape(width, n_blocks))
        maxima.partition(n_blocks - n)
        bound = maxima[n_blocks - n]
        positive: Offsets = (scores >= bound if bound > 0.0 else scores > 0.0).nonzero()[0]
    else:
        positive = (scores > 0.0).nonzero()[0]
    if positive.size <= n:
        return positive
    values = scores.take(positive)
    ordered = values.copy()
    ordered.partition(positive.size - n)
    reaching: Offsets = positive[values >= ordered[positive.size - n]]
    return reaching


def best_quotients(sums: Floats, denominators: Floats, least: float, n: int) -> Offsets:
    """Return what `at_least_as_good` returns of ``sums / denominators``, and divide only where it may matter.

    Args:
        sums: at least 0, shape (N,).
        denominators: above 0, shape (N,).
        least: the least of them.
        n: how many.
    """
    if sums.size < _MANY:
        return at_least_as_good(sums / denominators, n)
    greatest = at_least_as_good(sums, n)
    quotients = sums.take(greatest) / denominators.take(greatest)
    if greatest.size >= n:
        quotients.partition(greatest.size - n)
        # At least n quotients reach this one. Whatever else does has a sum that is not much less than it times `least`.
        bound = float(quotients[greatest.size - n]) * least * _ROUNDING
        greatest = (sums >= bound).nonzero()[0]
        quotients = sums.take(greatest) / denominators.take(greatest)
    return greatest.take(at_least_as_good(quotients, n))
