"""Formulas that several parts of a score use.

These are term frequency, inverse document frequency and length normalization.
"""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relevance_gen.arrays import Floats

SLOPE: Final = 0.6
"""Weight of a chunk's own norm in the pivoted norm; the mean norm has the remaining weight."""
SATURATION: Final = 1.6
"""Count of a term at which its saturated weight is 1/2."""
MAX_NUMBER_SHARE: Final = 0.1
"""Maximum part of a squared norm that numbers add, as a share of the part of other terms: otherwise
tables rank below prose."""
_SMALL_COUNTS: Final[Floats] = np.arange(256, dtype=np.float64)
_SATURATED: Final[Floats] = _SMALL_COUNTS / (_SMALL_COUNTS + SATURATION)
_KNEE: Final = 1.0 - 5e-7


def saturate(tf: npt.NDArray[Any]) -> Floats:
    """Return ``tf / (tf + 1.6)``, in [0, 1): a second occurrence weighs less than the first."""
    try:
        return _SATURATED.take(tf)
    except (IndexError, TypeError):  # a count beyond the table, or a float
        return np.asarray(tf / (tf + SATURATION), np.float64)


def sublinear(tf: npt.NDArray[Any]) -> Floats:
    """Return ``1 + ln tf``."""
    return np.asarray(1.0 + np.log(tf), np.float64)


def idf(df: int, n_chunks: int) -> float:
    """Return ``ln(1 + N / df)``, with df = 1 for a term that occurs in 0 chunks."""
    return math.log(1.0 + n_chunks / max(df, 1))


def smoothed_idf(
    df: npt.NDArray[Any],
    n_chunks: int,
) -> Floats:
    """Return scikit-learn's smoothed idf, ``1 + ln((1 + N) / (1 + df))``."""
    ratio = (1.0 + n_chunks) / (1.0 + df)
    return np.asarray(1.0 + np.log(ratio), np.float64)


def norms(word_squares: Floats, number_squares: Floats) -> Floats:
    """Return the norm of each chunk, ``√(w + min(z, w / 10))``, shape (n,).

    Args:
        word_squares: sum w of the squared saturated counts of words and years, shape (n,).
        number_squares: sum z of the squared saturated counts of other numbers, shape (n,).
    """
    counted = np.minimum(number_squares, MAX_NUMBER_SHARE * word_squares)
    return np.sqrt(word_squares + counted)


def pivot(norms: Floats, mean_norm: float) -> Floats:
    """Return the pivoted norm ``0.4 m + 0.6 n`` for each norm n of a chunk and the mean norm m.

    A result of 0 is replaced by 1, so that scores can be divided by it.
    Source: Singhal, Buckley, Mitra: Pivoted document length normalization (SIGIR 1996).
    """
    mixed = (1.0 - SLOPE) * mean_norm + SLOPE * norms
    return np.where(mixed > 0.0, mixed, 1.0)


def soft_clip_to_one(ratios: Floats) -> Floats:
    """Return ratios mapped into [0, 1) monotonically: unchanged up to a knee, compressed above it.

        s(r) = r                                  for r ≤ knee
        s(r) = 1 − (1 − knee) / (1 + r − knee)    for r > knee

    The knee is 1 − 5·10⁻⁷. A chunk that repeats the query can score above a chunk that equals the
    query. If ratios were clipped at 1, such chunks would tie.
    """
    is_above = ratios > _KNEE
    if not is_above.any():
        return ratios
    clipped = ratios.copy()
    clipped[is_above] = 1.0 - (1.0 - _KNEE) / (1.0 + ratios[is_above] - _KNEE)
    return clipped


def clip_to_one(ratios: Floats) -> Floats:
    """Return the ratios, limited to 1, which they exceed only because of rounding errors."""
    return np.minimum(ratios, 1.0)
