"""Ask the shards of an index in a cluster as one collection."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, Final

from ray import cloudpickle
from ray.exceptions import RayActorError

from relevance_gen.cluster.connection import get
from relevance_gen.cluster.shard import OutdatedError
from relevance_gen.cluster.state import IndexState, ShardState
from relevance_gen.errors import TimedOutError
from relevance_gen.retrieval.collection import Collection
from relevance_gen.retrieval.scoring import Answer, Rest, SegmentScorer
from relevance_gen.retrieval.terms import Offsets
from relevance_gen.retrieval.weighting import weighting_named

ROUND_S: Final = 60.0
"""Longest time that shards may take for one round of a question."""


class ClusterCollection(Collection):
    """The shards of an index that live, searched as one.

    Attributes:
        state: what was known of the index when this was made.

    Raises:
        OutdatedError: a shard died or has forgotten this state; raised by whatever asks.
        TimedOutError: a shard did not answer.
    """

    def __init__(self, state: IndexState) -> None:
        super().__init__((), weighting_named(state.weighting))
        self.statistics = state.statistics
        self.state = state
        self._shards = [shard for shard in state.shards if shard.replicas]

    def ask(
        self, method: Callable[Concatenate[SegmentScorer, Rest], Answer], *args: Rest.args, **kwargs: Rest.kwargs
    ) -> list[Answer]:
        """Return what the scorer of each segment answers, wherever it is."""
        return self._round(self._shards, "ask", (method.__name__, args, kwargs))

    def read(
        self,
        positions: Offsets,
        method: Callable[Concatenate[SegmentScorer, Offsets, Rest], Answer],
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> list[tuple[Offsets, Answer]]:
        """Ask the shards that may hold some positions about the chunks there."""
        shards = [shard for shard in self._shards if shard.may_hold(positions)]
        return self._round(shards, "read", (method.__name__, positions, args, kwargs))

    def _round(self, shards: Sequence[ShardState], verb: str, question: tuple[Any, ...]) -> list[Any]:
        """Ask shards the same, all at once; pickled only once, for there may be a thousand of them."""
        pickled = cloudpickle.dumps(question)
        calls = [getattr(shard.choose(), verb).remote(self.state.epoch, pickled) for shard in shards]
        try:
            return list(itertools.chain.from_iterable(get(calls, ROUND_S)))
        except RayActorError:
            raise OutdatedError from None
        except TimedOutError:
            raise TimedOutError(f"a shard did not answer within {ROUND_S:g} seconds") from None
