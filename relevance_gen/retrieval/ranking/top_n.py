"""Hold chunks with their scores, in one segment or of all; of equal scores the earlier chunk is the better."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
from attrs import field, frozen

from relevance_gen.arrays import Floats, Offsets

_MOST_IN_BLOCK: Final = 128
_LEAST_IN_BLOCK: Final = 4
_BLOCKS_PER_PLACE: Final = 4
_FEW_BLOCKS: Final = 16
"""Where fewer than one block in so many may hold a score that is wanted, the scores of the others are not looked at."""
_MANY: Final = 1 << 14
"""Fewer scores than this are quicker looked at all."""
_ROUNDING: Final = 1.0 - 1e-9
_NO_SCORES: Final[Floats] = np.zeros(0)


@frozen(eq=False)
class Ranking:
    """Some chunks and their scores."""

    positions: Offsets  # their positions in the collection, ascending unless something else is said, shape (n,)
    scores: Floats  # shape (n,)
    confidence: float = (
        0.0  # how likely it is that an answer is among the chunks that may be found, in [0, 1]
    )
    corrections: Mapping[str, str] = field(
        factory=dict
    )  # words of the question that were taken for others

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, in bytes."""
        return self.positions.nbytes + self.scores.nbytes

    def best(self, n: int) -> Ranking:
        """Return the `n` best, best first."""
        return self.take((-self.scores).argsort(kind="stable")[:n])

    def take(self, places: Offsets) -> Ranking:
        """Return the chunks at some places."""
        return Ranking(
            self.positions.take(places), self.scores.take(places), self.confidence, self.corrections
        )


def at_least_as_good(scores: Floats, n: int) -> Offsets:
    """Return the places, ascending, of all positive scores that reach the n-th best: n of them, or more with ties."""
    if scores.size <= n:
        few: Offsets = (scores > 0.0).nonzero()[0]
        return few
    maxima = _block_maxima(scores, n)
    positive = _reaching(scores, maxima, _nth_best(maxima, n) if maxima.size else 0.0)
    if positive.size <= n:
        return positive
    values = scores.take(positive)
    reaching: Offsets = positive[values >= _nth_best(values, n)]
    return reaching


def best_quotients(sums: Floats, denominators: Floats, least: float, n: int) -> Offsets:
    """Return what `at_least_as_good` returns of ``sums / denominators``, and divide only where it may matter.

    The sums are at least 0, the denominators above 0, and `least` is the least of these.
    """
    maxima = _block_maxima(sums, n) if sums.size >= _MANY else _NO_SCORES
    if not maxima.size:
        return at_least_as_good(sums / denominators, n)
    greatest = _reaching(sums, maxima, _nth_best(maxima, n))
    quotients = sums.take(greatest) / denominators.take(greatest)
    if greatest.size >= n:
        # At least n quotients reach this one. Whatever else does has a sum that is not much less than it times `least`.
        greatest = _reaching(sums, maxima, _nth_best(quotients, n) * least * _ROUNDING)
        quotients = sums.take(greatest) / denominators.take(greatest)
    return greatest.take(at_least_as_good(quotients, n))


def _nth_best(values: Floats, n: int) -> float:
    ordered = values.copy()
    ordered.partition(values.size - n)
    return float(ordered[values.size - n])


def _block_maxima(scores: Floats, n: int) -> Floats:
    """Return the greatest of each block of scores, so that few have to be looked at one by one.

    At least n scores reach the n-th best of these. A block is every so many-th score, so that numpy compares rows; the
    last few scores are in none. Where there are too few for blocks, there is none.
    """
    n_blocks = max(_BLOCKS_PER_PLACE * n, scores.size // _MOST_IN_BLOCK)
    n_rows = scores.size // n_blocks
    if n_rows < _LEAST_IN_BLOCK:
        return _NO_SCORES
    maxima: Floats = np.maximum.reduce(scores[: n_rows * n_blocks].reshape(n_rows, n_blocks))
    return maxima


def _reaching(scores: Floats, maxima: Floats, bound: float) -> Offsets:
    """Return the places, ascending, of the positive scores that reach a bound."""
    places: Offsets
    if scores.size >= _MANY and bound > 0.0:
        blocks = (maxima >= bound).nonzero()[0]
        if blocks.size < maxima.size // _FEW_BLOCKS:
            behind = scores.size // maxima.size * maxima.size
            rows = np.arange(0, behind, maxima.size)
            places = np.concatenate(
                (np.add.outer(rows, blocks).ravel(), np.arange(behind, scores.size))
            )
            return places[scores.take(places) >= bound]
    places = (scores >= bound if bound > 0.0 else scores > 0.0).nonzero()[0]
    return places
