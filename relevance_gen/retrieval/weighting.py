r"""The formulas: how much a term weighs in a chunk, in the query, and what a chunk's length takes off.

Both weightings are cosines of TF-IDF vectors, with N chunks, df(t) of which hold term t:

``pivoted`` (the default) answers questions best::

    w(t, d) = tf / (tf + 1.6)            idf(t) = ln(1 + N / df)
    w(t, q) = (1 + ln qtf) · idf(t)      n(d) = ‖w(·, d)‖₂      m = mean of n over all chunks
    cosine(q, d) = Σ_t w(t, q) w(t, d) / (‖w(·, q)‖₂ · (0.4 m + 0.6 n(d)))

It is a cosine once every chunk has one more component, in a direction that no query has, that makes its length what
stands below the line: pivoted normalisation. Source: Singhal, Buckley, Mitra, "Pivoted Document Length
Normalization", SIGIR 1996; the saturation of tf is BM25's (Robertson and Walker, SIGIR 1994).

``cosine`` is the textbook's, SMART ltc.ltc with scikit-learn's smoothed idf, to check us by: where the terms are the
same, its scores are those of ``TfidfVectorizer(sublinear_tf=True)``::

    w(t, d) = (1 + ln tf) · idf(t)       idf(t) = 1 + ln((1 + N) / (1 + df))
    cosine(q, d) = Σ_t w(t, q) w(t, d) / (‖w(·, q)‖₂ ‖w(·, d)‖₂)

As in scikit-learn, query terms that no chunk has are left out.
Source: Manning, Raghavan, Schütze, "Introduction to Information Retrieval", section 6.4.
"""

from __future__ import annotations

import math
from typing import Any, Final, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from relevance_gen.errors import InvalidRequestError

Weighting: TypeAlias = Literal["pivoted", "cosine"]
Floats: TypeAlias = npt.NDArray[np.float64]

_SATURATION: Final = 1.6
_SLOPE: Final = 0.6
"""Share of a chunk's own norm in the pivot; the mean norm has the rest."""


def check_weighting(name: object) -> Weighting:
    """Return `name` if it is a weighting.

    Raises:
        InvalidRequestError: it is none.
    """
    if name == "pivoted" or name == "cosine":
        return name
    allowed = " or ".join(f'"{known}"' for known in get_args(Weighting))
    raise InvalidRequestError.must_be("weighting", allowed, name)


def saturated(tf: npt.NDArray[Any]) -> Floats:
    """Return ``tf / (tf + 1.6)``, in [0, 1): the second occurrence counts less than the first."""
    return np.asarray(tf / (tf + _SATURATION), np.float64)


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
    """Return what stands below the line for chunks of these norms, ``0.4 m + 0.6 n``; where all is 0, 1."""
    lengths = (1.0 - _SLOPE) * mean_norm + _SLOPE * norms
    return np.where(lengths > 0.0, lengths, 1.0)


def sum_by(place: npt.NDArray[Any], weight: npt.NDArray[Any], n: int) -> Floats:
    """Return the sums of the weights that share a place, shape (n,), added in the order they stand in."""
    return np.asarray(np.bincount(place, weight, n), np.float64)


def mean_norm(norms: Floats) -> float:
    """Return the mean of the norms, the same bits in whatever order the chunks stand."""
    return float(np.sort(norms).mean()) if norms.size else 0.0
