"""The formulas that more than one part of a score uses: how rare a term is, and what a chunk's length takes off."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relevance_gen.retrieval.arrays import Floats

SLOPE: Final = 0.6
"""Share of a chunk's own norm in the pivot; the mean norm has the rest."""
_KNEE: Final = 1.0 - 5e-7


def sublinear(tf: npt.NDArray[Any]) -> Floats:
    """Return ``1 + ln tf``."""
    return np.asarray(1.0 + np.log(tf), np.float64)


def rarity(df: int, n_chunks: int) -> float:
    """Return ``ln(1 + N / df)``; a term that no chunk has is as rare as one that one has."""
    return math.log(1.0 + n_chunks / max(df, 1))


def smoothed_idf(df: npt.NDArray[Any], n_chunks: int) -> Floats:
    """Return scikit-learn's smoothed idf, ``1 + ln((1 + N) / (1 + df))``."""
    return np.asarray(1.0 + np.log((1.0 + n_chunks) / (1.0 + df)), np.float64)


def pivot(norms: Floats, mean_norm: float) -> Floats:
    """Return the denominators ``0.4 m + 0.6 n`` of chunks of these norms; 1 where that is 0."""
    mixed = (1.0 - SLOPE) * mean_norm + SLOPE * norms
    return np.where(mixed > 0.0, mixed, 1.0)


def below_one(ratios: Floats) -> Floats:
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


def at_most_one(ratios: Floats) -> Floats:
    """Cut off what rounding lifted above 1."""
    return np.minimum(ratios, 1.0)
