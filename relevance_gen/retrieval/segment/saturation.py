"""Say how much a count of a term weighs in a chunk: the second occurrence less than the first."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relevance_gen.retrieval.arrays import Floats

_SATURATION: Final = 1.6


def saturated(tf: npt.NDArray[Any]) -> Floats:
    """Return ``tf / (tf + 1.6)``, in [0, 1)."""
    try:
        return _SATURATED.take(tf)
    except (IndexError, TypeError):  # a count beyond the table, or one that is no integer
        return np.asarray(tf / (tf + _SATURATION), np.float64)


_SATURATED: Final[Floats] = np.arange(256) / (np.arange(256) + _SATURATION)


def saturated_one(tf: float) -> float:
    """Return `saturated` of one count.

    >>> bool(saturated_one(1) == saturated(np.array([1]))[0])
    True
    """
    return tf / (tf + _SATURATION)
