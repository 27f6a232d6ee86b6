"""Ask the shards of an index in a cluster as one collection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Final

import numpy as np
from ray import cloudpickle

from relevance_gen.cluster.calls import Calls, Pace, Round
from relevance_gen.cluster.shard import Ahead
from relevance_gen.cluster.state import IndexState, ShardState
from relevance_gen.retrieval.arrays import Offsets
from relevance_gen.retrieval.question.collection import Collection
from relevance_gen.retrieval.question.scoring import Answer, Rest, SegmentScorer
from relevance_gen.retrieval.question.weighting import weighting_named

_MAX_AHEAD: Final = 100
"""Chunks that are read ahead; there are more only where many are equally good."""


class ClusterCollection(Collection):
    """The shards of an index that live, searched as one.

    Args:
        state: of the index.
        pace: of whoever asks.

    Attributes:
        state: what was known of the index when this was made.

    Raises:
        OutdatedError: a shard died or has forgotten this state; raised by whatever asks.
        TimedOutError: a shard did not answer.
    """

    def __init__(self, state: IndexState, pace: Pace) -> None:
        super().__init__((), weighting_named(state.weighting))
        self.statistics = state.statistics
        self.state = state
        self._pace = pace
        self._asking = threading.local()
        self._ahead = threading.local()
        self._shards = [shard for shard in state.shards if shard.replicas]

    def ask(
        self, method: Callable[Concatenate[SegmentScorer, Rest], Answer], *args: Rest.args, **kwargs: Rest.kwargs
    ) -> list[Answer]:
        """Return what the scorer of each segment answers, wherever it is."""
        return self._call(self._shards, method, *args, **kwargs).answers()

    def read(
        self,
        positions: Offsets,
        method: Callable[Concatenate[SegmentScorer, Offsets, Rest], Answer],
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> list[tuple[Offsets, Answer]]:
        """Ask the shards that may hold some positions about the chunks there."""
        found = self._read_before(positions, method)
        if found is not None:
            return found
        shards = [shard for shard in self._shards if shard.spans.hold(positions).any()]
        calls = self._call(shards, SegmentScorer.at, positions, method, *args, **kwargs)
        if method is SegmentScorer.look and positions.size <= _MAX_AHEAD:
            plan: Any = args[0]
            self._ahead.calls = self._call(shards, Ahead.read, positions, plan.reads_letters)
        return calls.answers()

    def _read_before(self, positions: Offsets, method: Callable[..., Any]) -> list[tuple[Offsets, Any]] | None:
        """Return what was read ahead of chunks at some positions; None where something is missing.

        A question is asked by one thread from beginning to end. What an earlier one left is not wrong, either: it
        depends on positions and on nothing else.
        """
        calls = getattr(self._ahead, "calls", None)
        if calls is None or method not in (SegmentScorer.letters, SegmentScorer.contents):
            return None
        told: list[Ahead] = calls.answers()
        if method is SegmentScorer.contents:
            self._ahead.calls = None
        found: list[tuple[Offsets, Any]] = []
        for part in told:
            here = np.isin(positions, part.positions).nonzero()[0]
            kept = part.positions.searchsorted(positions[here])
            if method is SegmentScorer.letters and part.letters is not None:
                found.append((here, part.letters.take(kept)))
            elif method is SegmentScorer.contents and part.contents is not None:
                found.append((here, [part.contents[place] for place in kept.tolist()]))
        return found if sum(here.size for here, _ in found) == positions.size else None

    def _call(self, shards: Sequence[ShardState], function: Callable[..., Any], *args: Any, **kwargs: Any) -> Round:
        """Ask shards the same, all at once. A question begins with its words, and may go to other replicas."""
        if function is SegmentScorer.match or not hasattr(self._asking, "calls"):
            self._asking.calls = Calls(self.state, self._pace)
        return Round(self._asking.calls, shards, cloudpickle.dumps((function, args, kwargs)))
