"""What callers know of an index in a cluster: enough to ask its shards themselves."""

from __future__ import annotations

import random
from typing import Any

from attrs import frozen

from relevance_gen.retrieval.segment import Statistics
from relevance_gen.retrieval.terms import Offsets
from relevance_gen.retrieval.weighting import WeightingName
from relevance_gen.tokens import TokenCounter


@frozen(eq=False)
class ShardState:
    """Where a shard is, and what it holds.

    Attributes:
        spans: runs of positions that hold all its chunks: first, and behind the last.
        n_chunks: number of chunks.
        replicas: the actors that have it, all of them the same; none while it is lost.
        node_ids: the node of each.
        error: why it could not be restored yet.
    """

    spans: tuple[tuple[int, int], ...]
    n_chunks: int
    replicas: tuple[Any, ...]
    node_ids: tuple[str, ...]
    error: str | None

    def may_hold(self, positions: Offsets) -> bool:
        """Tell whether any of some positions is in its spans."""
        return any(bool(((positions >= first) & (positions < behind)).any()) for first, behind in self.spans)

    def choose(self) -> Any:
        """Return one of the replicas; each gets its share of the questions."""
        return self.replicas[0] if len(self.replicas) == 1 else random.choice(self.replicas)  # noqa: S311


@frozen(eq=False)
class IndexState:
    """An index between two changes.

    Attributes:
        version: grows whenever anything here changes.
        epoch: grows when chunks change.
        shards: its shards.
        statistics: of all chunks.
        n_positions: number of positions that were ever given.
        n_tokens: tokens in all chunks.
        weighting: name of the weighting.
        counter: counts tokens as they were counted for the chunks.
    """

    version: int
    epoch: int
    shards: tuple[ShardState, ...]
    statistics: Statistics
    n_positions: int
    n_tokens: int
    weighting: WeightingName
    counter: TokenCounter

    @property
    def n_missing_chunks(self) -> int:
        """Number of chunks that nobody can search now."""
        return sum(shard.n_chunks for shard in self.shards if not shard.replicas)

    @property
    def errors(self) -> tuple[str, ...]:
        """Why shards are still lost."""
        return tuple(shard.error for shard in self.shards if shard.error is not None and not shard.replicas)


def add_span(spans: tuple[tuple[int, int], ...], first: int, behind: int) -> tuple[tuple[int, int], ...]:
    """Return runs of positions with one more run behind them.

    >>> add_span(((0, 3),), 3, 5), add_span(((0, 3),), 7, 9)
    (((0, 5),), ((0, 3), (7, 9)))
    """
    if first == behind:
        return spans
    if spans and spans[-1][1] == first:
        return (*spans[:-1], (spans[-1][0], behind))
    return (*spans, (first, behind))
