"""Runs of positions are the set of these positions."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.cluster.runs import NO_POSITIONS, PositionRuns

sets = st.sets(st.integers(0, 40))


def runs_of(positions: set[int]) -> PositionRuns:
    return PositionRuns.of(np.array(sorted(positions), np.int64))


@given(sets, sets, st.integers(0, 41), st.integers(0, 41), st.integers(-9, 9))
def test_they_are_sets(some: set[int], others: set[int], first: int, behind: int, by: int) -> None:
    """What they hold, alone, together and moved on, is what sets hold, and there are as few runs as can be."""
    asked = np.arange(-9, 50)
    between = set(range(first, behind))
    for runs, expected in (
        (runs_of(some), some),
        (runs_of(some) | runs_of(others), some | others),
        (runs_of(some) | PositionRuns.between(first, behind), some | between),
        (NO_POSITIONS | runs_of(some) | NO_POSITIONS, some),
        (runs_of(some).moved(by), {position + by for position in some}),
    ):
        assert {*asked[runs.hold(asked)].tolist()} == expected
        assert bool(runs) == bool(expected)
        assert (runs.first[1:] > runs.behind[:-1]).all()
        assert (runs.first < runs.behind).all()
