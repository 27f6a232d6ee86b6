"""Weighting: each formula by itself."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import InvalidRequestError
from relevance_gen.arrays import sum_by
from relevance_gen.index.formulas import idf, pivot, saturate, smoothed_idf, sublinear
from relevance_gen.index.segment import Statistics, exact_sum
from relevance_gen.retrieval.weighting import weighting_named

counts = st.integers(1, 2**31)
norms = st.lists(st.floats(0.0, 1e6), max_size=20)


@given(counts)
def test_saturation_is_below_one_and_never_falls(tf: int) -> None:
    """Each further occurrence counts, but less than the one before."""
    before, here, after = saturate(np.array([tf - 1, tf, tf + 1], np.uint32))
    assert here == tf / (tf + 1.6)
    assert 0.0 <= before <= here <= after < 1.0


@given(counts)
def test_sublinear_is_one_and_the_logarithm(tf: int) -> None:
    """A term weighs 1 + ln tf."""
    assert sublinear(np.array([tf], np.uint32))[0] == pytest.approx(1.0 + math.log(tf), abs=1e-12)


@given(st.integers(0, 10**9), st.integers(1, 10**9))
def test_rare_terms_weigh_more(df: int, n_chunks: int) -> None:
    """A term in fewer chunks has a higher idf, and df 0 has the idf of df 1."""
    assert idf(df + 1, n_chunks) <= idf(df, n_chunks)
    assert idf(0, n_chunks) == idf(1, n_chunks) == math.log(1 + n_chunks)
    assert smoothed_idf(np.array([df]), n_chunks)[0] == pytest.approx(
        1.0 + math.log((1 + n_chunks) / (1 + df))
    )


@given(norms, norms)
def test_sums_of_norms_are_exact(values: list[float], more: list[float]) -> None:
    """Sums of norms add up in any order and any parts, and their mean is the float nearest to the truth."""
    whole = exact_sum(np.array([*values, *more]))
    assert (
        whole
        == exact_sum(np.array([*more, *values][::-1]))
        == exact_sum(np.array(values)) + exact_sum(np.array(more))
    )
    assert whole == sum(map(Fraction, [*values, *more])) * 2**1126
    if values:
        mean = Statistics(len(values), exact_sum(np.array(values))).mean_norm
        assert mean == float(sum(map(Fraction, values)) / len(values))
    assert Statistics().mean_norm == 0.0


@given(norms.filter(bool), st.floats(0.0, 1e6))
def test_pivoted_norm_is_between_norm_and_mean(values: list[float], mean: float) -> None:
    """The pivoted norm is below the norm of long chunks, above the norm of short chunks, and never 0."""
    for norm, length in zip(values, pivot(np.array(values), mean), strict=True):
        assert length > 0.0
        if norm or mean:
            assert min(norm, mean) <= length * (1 + 1e-12)
            assert length <= max(norm, mean) * (1 + 1e-12)


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0.0, 1.0)), max_size=20))
def test_sums_by_place_are_sums(pairs: list[tuple[int, float]]) -> None:
    """Weights are added where their place is, places without any are 0."""
    places = np.array([place for place, _ in pairs], np.uint32)
    sums = sum_by(places, np.array([weight for _, weight in pairs]), 5)
    expected = [
        math.fsum(weight for place, weight in pairs if place == wanted) for wanted in range(5)
    ]
    assert sums.tolist() == pytest.approx(expected)


@pytest.mark.parametrize("name", ["", "Cosine", "bm25", None, 1, ["cosine"]])
def test_unknown_weighting_raises(name: object) -> None:
    """An unknown weighting is refused, and the error lists the known weightings."""
    with pytest.raises(
        InvalidRequestError, match=r'weighting must be "pivoted" or "cosine", got'
    ) as caught:
        weighting_named(name)
    assert caught.value.field == "weighting"
