"""Ranking: a scale that people can read, and the best of many."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relevance_gen.index.formulas import soft_clip_to_one
from relevance_gen.retrieval.ranking import top_n as ranking
from relevance_gen.retrieval.ranking.top_n import at_least_as_good, best_quotients

KNEE = 1.0 - 5e-7
scores = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.5000000000000001, 1.0, 3.0]), max_size=70)


@given(st.lists(st.floats(0.0, 1e3), max_size=10))
def test_ratios_stay_in_order_and_below_one(ratios: list[float]) -> None:
    """Below the knee a score is its ratio; above it, it stays below 1 and in order."""
    squeezed = soft_clip_to_one(np.array(ratios)).tolist()
    ranked = sorted(zip(ratios, squeezed, strict=True))
    assert [score for _, score in ranked] == sorted(squeezed)
    assert all(score == ratio if ratio <= KNEE else KNEE <= score < 1.0 for ratio, score in ranked)


def test_ratios_above_one_are_distinguished() -> None:
    """A chunk that scores above the query itself precedes chunks with lower scores."""
    ratios = np.linspace(KNEE, 5.0, 1001)
    assert (np.diff(soft_clip_to_one(ratios)) > 0.0).all()


@pytest.mark.parametrize("many", [0, 1 << 14])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(scores, st.one_of(st.integers(1, 4), st.integers(1, 50), st.integers(2**62, 2**80)))
def test_best_rows_reach_nth_best_score(
    monkeypatch: pytest.MonkeyPatch, many: int, values: list[float], n: int
) -> None:
    """All positive scores that are as good as the n-th best are found, in ascending place, and no other."""
    monkeypatch.setattr(ranking, "_MIN_BLOCKED_SCORES", many)
    monkeypatch.setattr(ranking, "_BLOCK_DIVISOR", 1)
    places = at_least_as_good(np.array(values), n).tolist()
    bound = (sorted((value for value in values if value), reverse=True)[:n] or [1.0])[-1]
    assert places == [place for place, value in enumerate(values) if value and value >= bound]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(st.sampled_from([0.0, 0.1, 0.3, 1 / 3, 1.0, 7.0]), st.floats(0.4, 9.0)),
        max_size=70,
    ),
    st.one_of(st.integers(1, 4), st.integers(1, 50)),
)
def test_best_quotients_equal_full_division(
    monkeypatch: pytest.MonkeyPatch, pairs: list[tuple[float, float]], n: int
) -> None:
    """Dividing only possible best sums selects the same rows as dividing all sums, with ties."""
    monkeypatch.setattr(ranking, "_MIN_BLOCKED_SCORES", 0)
    monkeypatch.setattr(ranking, "_BLOCK_DIVISOR", 1)
    sums, denominators = (
        (np.array(values) for values in zip(*pairs, strict=True)) if pairs else np.zeros((2, 0))
    )
    least = float(denominators.min(initial=np.inf))
    places = best_quotients(sums, denominators, least, n).tolist()
    assert places == at_least_as_good(sums / denominators, n).tolist()
