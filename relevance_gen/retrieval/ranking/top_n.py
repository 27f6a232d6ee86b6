"""Select the n best scores, with ties."""

from __future__ import annotations

from typing import Final

import numpy as np

from relevance_gen.arrays import Flags, Floats, Offsets, unique

_MAX_BLOCK_SIZE: Final = 128
_MIN_BLOCK_SIZE: Final = 4
_BLOCKS_PER_RESULT: Final = 4
_BLOCK_DIVISOR: Final = 16
"""If the blocks that can contain any of the n best scores are fewer than all blocks divided by this
number, only their scores are compared."""
_MIN_BLOCKED_SCORES: Final = 1 << 14
"""Minimum number of scores that are divided into blocks; with fewer, comparing all is faster."""
_ROUNDING: Final = 1.0 - 1e-9
_NO_SCORES: Final[Floats] = np.zeros(0)


def at_least_as_good(scores: Floats, n: int) -> Offsets:
    """Return the rows of all positive scores that reach the n-th best, ascending.

    There are n rows, more with ties, or fewer if fewer scores are positive.
    """
    if scores.size <= n:
        positive: Offsets = (scores > 0.0).nonzero()[0]
        return positive
    maxima = _block_maxima(scores, n)
    if not maxima.size:
        return _reaching(scores, maxima, _nth_best(scores, n))
    rows = _reaching(scores, maxima, _nth_best(maxima, n))
    if rows.size <= n:
        return rows
    candidates = scores.take(rows)
    reaching: Offsets = rows[candidates >= _nth_best(candidates, n)]
    return reaching


def best_rows(scores: Floats, is_allowed: Flags, n: int) -> Offsets:
    """Return the rows of the best n scores and of the best n allowed scores, both with ties.

    Rows ascend.
    """
    best = at_least_as_good(scores, n)
    if is_allowed.all():
        return best
    allowed = is_allowed.nonzero()[0]
    best_allowed = allowed[at_least_as_good(scores[allowed], n)]
    return unique(np.concatenate((best, best_allowed)))


def best_quotients(sums: Floats, denominators: Floats, min_denominator: float, n: int) -> Offsets:
    """Return the rows of all quotients above 0 that reach the n-th best, as `at_least_as_good`.

    The quotients are ``sums / denominators``, but only sums that can reach the n-th best are
    divided. The sums are at least 0, the denominators above 0, and `min_denominator` is the lowest
    denominator.
    """
    maxima = _block_maxima(sums, n) if sums.size >= _MIN_BLOCKED_SCORES else _NO_SCORES
    if not maxima.size:
        return at_least_as_good(sums / denominators, n)
    rows = _reaching(sums, maxima, _nth_best(maxima, n))
    quotients = sums.take(rows) / denominators.take(rows)
    if rows.size >= n:
        # At least n quotients reach the n-th best of these. Any other quotient that does has a sum
        # of about at least that quotient times the lowest denominator.
        bound = _nth_best(quotients, n) * min_denominator * _ROUNDING
        rows = _reaching(sums, maxima, bound)
        quotients = sums.take(rows) / denominators.take(rows)
    return rows.take(at_least_as_good(quotients, n))


def _nth_best(values: Floats, n: int) -> float:
    ordered = values.copy()
    ordered.partition(values.size - n)
    return float(ordered[values.size - n])


def _block_maxima(scores: Floats, n: int) -> Floats:
    """Return the maximum of each block of scores; an empty array if blocks would be too small.

    At least n scores are greater than or equal to the n-th best maximum. So the caller only needs
    to compare the scores of the blocks whose maximum is at least the n-th best maximum, and the
    scores that are in no block. With b blocks, a block consists of every b-th score, so that numpy
    computes the maxima by comparing rows; the last scores, fewer than b, are in no block.
    """
    n_blocks = max(_BLOCKS_PER_RESULT * n, scores.size // _MAX_BLOCK_SIZE)
    block_size = scores.size // n_blocks
    if block_size < _MIN_BLOCK_SIZE:
        return _NO_SCORES
    blocks = scores[: block_size * n_blocks].reshape(block_size, n_blocks)
    maxima: Floats = np.maximum.reduce(blocks)
    return maxima


def _reaching(scores: Floats, maxima: Floats, bound: float) -> Offsets:
    """Return the rows of the positive scores that reach a bound, ascending.

    `maxima`: the result of `_block_maxima` for the scores.
    """
    rows: Offsets
    if scores.size >= _MIN_BLOCKED_SCORES and bound > 0.0:
        blocks = (maxima >= bound).nonzero()[0]
        if blocks.size < maxima.size // _BLOCK_DIVISOR:
            # Rows of the scores in these blocks, and of the scores in no block.
            end = scores.size // maxima.size * maxima.size
            first_rows = np.arange(0, end, maxima.size)
            in_blocks = np.add.outer(first_rows, blocks).ravel()
            rows = np.concatenate((in_blocks, np.arange(end, scores.size)))
            return rows[scores.take(rows) >= bound]
    rows = (scores >= bound if bound > 0.0 else scores > 0.0).nonzero()[0]
    return rows
