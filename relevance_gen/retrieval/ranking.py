"""From scores to results: a scale that people can read, and the best of many with their ties."""

from __future__ import annotations

from typing import Final

import numpy as np

from relevance_gen.retrieval.terms import Offsets
from relevance_gen.retrieval.weighting import Floats

_KNEE: Final = 1.0 - 5e-7


def below_one(ratios: Floats) -> Floats:
    """Squeeze ratios into [0, 1): the same below the knee at 1 − 5·10⁻⁷, above it still in order.

        s(r) = r                                  for r ≤ knee
        s(r) = 1 − (1 − knee) / (1 + r − knee)    for r > knee

    A chunk can score above one that says exactly what the query says, by saying it again and again. Cut at 1, such
    chunks would tie.
    """
    above = ratios > _KNEE
    squeezed = ratios.copy()
    squeezed[above] = 1.0 - (1.0 - _KNEE) / (1.0 + ratios[above] - _KNEE)
    return squeezed


def at_least_as_good(scores: Floats, n: int) -> Offsets:
    """Return the places, ascending, of all positive scores that reach the n-th best: n of them, or more with ties."""
    positive: Offsets = np.flatnonzero(scores)
    if positive.size <= n:
        return positive
    values = scores[positive]
    bound = np.partition(values, positive.size - n)[positive.size - n]
    reaching: Offsets = positive[values >= bound]
    return reaching
