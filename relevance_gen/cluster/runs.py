"""Hold sets of positions that have few gaps in little room."""

from __future__ import annotations

import numpy as np
from attrs import frozen

from relevance_gen.arrays import Flags, Offsets


@frozen(eq=False)
class PositionRuns:
    """Positions, as runs of them.

    >>> runs = PositionRuns.of(np.array([0, 1, 2, 7, 8])) | PositionRuns.between(3, 5)
    >>> runs.first, runs.behind, runs.hold(np.array([2, 5, 8]))
    (array([0, 7]), array([5, 9]), array([ True, False,  True]))
    """

    first: Offsets  # the first position of each run, ascending
    behind: Offsets  # the position behind the last of each run

    @classmethod
    def of(cls, positions: Offsets) -> PositionRuns:
        """Return the runs of positions that ascend."""
        breaks = np.flatnonzero(np.diff(positions, prepend=-2) != 1)
        lasts = np.append(breaks[1:], positions.size)[: breaks.size] - 1
        return cls(positions[breaks], positions[lasts] + 1)

    @classmethod
    def between(cls, first: int, behind: int) -> PositionRuns:
        """Return the positions from `first` on that stand before `behind`."""
        return cls(np.array([first]), np.array([behind])) if first < behind else NO_POSITIONS

    def __bool__(self) -> bool:
        return bool(self.first.size)

    def __or__(self, other: PositionRuns) -> PositionRuns:
        first = np.concatenate((self.first, other.first))
        order = first.argsort(kind="stable")
        first, behind = first[order], np.concatenate((self.behind, other.behind))[order]
        reached = np.maximum.accumulate(behind)
        leads = np.flatnonzero(
            first > np.concatenate(([-1], reached))[: first.size]
        )  # behind a gap
        return PositionRuns(
            first[leads], np.maximum.reduceat(behind, leads) if leads.size else behind
        )

    def hold(self, positions: Offsets) -> Flags:
        """Tell of some positions which are among these."""
        inside: Flags = self.first.searchsorted(positions, "right") > self.behind.searchsorted(
            positions, "right"
        )
        return inside

    def moved(self, by: int) -> PositionRuns:
        """Return them, each so much further on."""
        return PositionRuns(self.first + by, self.behind + by)


NO_POSITIONS = PositionRuns(np.zeros(0, np.int64), np.zeros(0, np.int64))
