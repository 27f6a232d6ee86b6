"""The formulas that more than one part of a score uses: counts of a term, how rare it is, what a length takes off."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relevance_gen.arrays import Floats

SLOPE: Final = 0.6
"""Share of a chunk's own norm in the pivot; the mean norm has the rest."""
_SATURATION: Final = 1.6
_SATURATED: Final[Floats] = np.arange(256) / (np.arange(256) + _SATURATION)
_KNEE: Final = 1.0 - 5e-7


def saturate(tf: npt.NDArray[Any]) -> Floats:
    """Return ``tf / (tf + 1.6)``, in [0, 1): the second occurrence of a term weighs less than the first."""
    try:
        return _SATURATED.take(tf)
    except (IndexError, TypeError):  # a count beyond the table, or one that is no integer
        return np.asarray(tf / (tf + _SATURATION), np.float64)


def saturate_scalar(tf: float) -> float:
    """Return `saturate` of one count.

    >>> bool(saturated_one(1) == saturated(np.array([1]))[0])
    True
    """
    return tf / (tf + _SATURATION)


def sublinear(tf: npt.NDArray[Any]) -> Floats:
    """Return ``1 + ln tf``."""
    return np.asarray(1.0 + np.log(tf), np.float64)


def idf(df: int, n_chunks: int) -> float:
    """Return ``ln(1 + N / df)``; a term that no chunk has is as rare as one that one has."""
    return math.log(1.0 + n_chunks / max(df, 1))


def smoothed_idf(df: npt.NDArray[Any], n_chunks: int) -> Floats:
    """Return scikit-learn's smoothed idf, ``1 + ln((1 + N) / (1 + df))``."""
    return np.asarray(1.0 + np.log((1.0 + n_chunks) / (1.0 + df)), np.float64)


def pivot(norms: Floats, mean_norm: float) -> Floats:
    """Return the denominators ``0.4 m + 0.6 n`` of chunks of these norms; 1 where that is 0."""
    mixed = (1.0 - SLOPE) * mean_norm + SLOPE * norms
    return np.where(mixed > 0.0, mixed, 1.0)


def soft_clip_to_one(ratios: Floats) -> Floats:
    """Squeeze ratios into [0, 1): the same below the knee at 1 − 5·10⁻⁷, above it still in order.

        s(r) = r                                  for r ≤ knee
        s(r) = 1 − (1 − knee) / (1 + r − knee)    for r > knee

    A chunk can score above one that says exactly what the query says, by saying it again and again. Cut at 1, such
    chunks would tie.
    """
    above = ratios > _KNEE
    if not above.any():
        return ratios
    squeezed = ratios.copy()
    squeezed[above] = 1.0 - (1.0 - _KNEE) / (1.0 + ratios[above] - _KNEE)
    return squeezed


def clip_to_one(ratios: Floats) -> Floats:
    """Cut off what rounding lifted above 1."""
    return np.minimum(ratios, 1.0)
