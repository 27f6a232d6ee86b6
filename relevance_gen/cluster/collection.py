"""Ask the shards of an index in a cluster as one collection."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Concatenate, Final

from ray import cloudpickle

from relevance_gen.cluster.calls import Calls, Pace
from relevance_gen.cluster.state import IndexState, ShardState
from relevance_gen.retrieval.arrays import Offsets
from relevance_gen.retrieval.question.collection import Answer, Collection, Rest
from relevance_gen.retrieval.question.evidence import Inquiry, contents, if_short
from relevance_gen.retrieval.question.query import Query
from relevance_gen.retrieval.question.scorer import SegmentScorer
from relevance_gen.retrieval.question.stage import Plan
from relevance_gen.retrieval.question.weighting import weighting_named

_MAX_AHEAD: Final = 100
"""Chunks of which everything is asked at once; there are more only where many are equally good."""


class ClusterCollection(Collection):
    """The shards of an index that live, searched as one.

    Args:
        state: of the index.
        pace: of whoever asks.
        before: what was known before; what it remembers holds as long as no chunk changes, or is missing.

    Attributes:
        state: what was known of the index when this was made.

    Raises:
        OutdatedError: a shard died or has forgotten this state; raised by whatever asks.
        TimedOutError: a shard did not answer.
    """

    def __init__(self, state: IndexState, pace: Pace, before: ClusterCollection | None = None) -> None:
        super().__init__((), weighting_named(state.weighting))
        self.statistics = state.statistics
        self.state = state
        self._pace = pace
        self._asking = threading.local()
        self._shards = [shard for shard in state.shards if shard.replicas]
        if before is not None and all(one.is_whole and one.epoch == state.epoch for one in (before.state, state)):
            self.remember_as(before)

    def plan(self, query: Query) -> Plan:
        """Return a query, weighed; all further rounds of this thread's question go to the replicas asked for it."""
        self._asking.calls = Calls(self.state, self._pace)
        return super().plan(query)

    def ask(
        self, method: Callable[Concatenate[SegmentScorer, Rest], Answer], *args: Rest.args, **kwargs: Rest.kwargs
    ) -> list[Answer]:
        """Return what the scorer of each segment answers, wherever it is."""
        return self._call(self._shards, method, *args, **kwargs)

    def tell_each(self, positions: Offsets, inquiries: Sequence[Inquiry[Any]]) -> list[tuple[Offsets, list[Any]]]:
        """Ask the shards that may hold some positions about the chunks there."""
        shards = [shard for shard in self._shards if shard.runs.hold(positions).any()]
        return self._call(shards, SegmentScorer.tell, positions, inquiries)

    def ahead(self, plan: Plan, n: int) -> dict[Inquiry[Any], Inquiry[Any]]:
        """Ask at once whatever may be wanted of the picked chunks: another round takes longer than a longer answer.

        Of long texts only what is wanted in any case is sent.
        """
        wanted = super().ahead(plan, n)
        if n <= _MAX_AHEAD:
            others = [contents, *(stage.evidence for stage in plan.stages if stage.n_best)]
            wanted = {inquiry: partial(if_short, inquiry) for inquiry in others} | wanted
        return wanted

    def _call(self, shards: Sequence[ShardState], function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """Ask shards the same, all at once."""
        if not hasattr(self._asking, "calls"):
            self._asking.calls = Calls(self.state, self._pace)
        told: list[Any] = self._asking.calls.ask(shards, cloudpickle.dumps((function, args, kwargs)))
        return told
