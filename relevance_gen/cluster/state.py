"""What callers know of an index in a cluster: enough to ask its shards themselves."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from relevance_gen.cluster.runs import PositionRuns
from relevance_gen.index.segment import Statistics
from relevance_gen.text.token_counting import TokenCounter
from relevance_gen.types import WeightingName


@frozen(eq=False)
class HostState:
    """A process that holds shards."""

    number: int  # no other host of the index has it
    handle: Any
    node_id: str


@frozen(eq=False)
class ShardState:
    """Where a shard is, and what it holds."""

    number: int  # no other shard of the index has it
    runs: PositionRuns  # the positions of its chunks
    n_chunks: int
    hosts: tuple[HostState, ...]  # those that hold it, all of them the same; none while it is lost
    n_lacking: int  # how many should hold it besides
    error: str | None  # why these could not be had yet

    @property
    def node_ids(self) -> tuple[str, ...]:
        """The node of each host."""
        return tuple(host.node_id for host in self.hosts)


@frozen(eq=False)
class IndexState:
    """An index between two changes."""

    version: int  # grows whenever anything here changes
    epoch: int  # grows when chunks change
    shards: tuple[ShardState, ...]
    statistics: Statistics  # of all chunks, without arrays: what a question needs to be weighed
    n_positions: int  # number of positions that were ever given
    n_tokens: int  # tokens in all chunks
    weighting: WeightingName
    counter: TokenCounter  # counts tokens as they were counted for the chunks

    @property
    def n_missing_chunks(self) -> int:
        """Number of chunks that nobody can search now."""
        return sum(shard.n_chunks for shard in self.shards if not shard.hosts)

    @property
    def errors(self) -> tuple[str, ...]:
        """Which shards are lost or lack replicas, the lost ones first, and why they could not be restored yet."""
        lacking = [
            (number, shard) for number, shard in enumerate(self.shards) if shard.n_lacking > 0
        ]
        return tuple(
            f"shard {number} has {len(shard.hosts)} of {len(shard.hosts) + shard.n_lacking} replicas"
            + (f": {shard.error}" if shard.error else "")
            for number, shard in sorted(lacking, key=lambda pair: bool(pair[1].hosts))
        )


@frozen
class ShardStats:
    """One shard of an index.

    Attributes:
        num_chunks: number of its chunks.
        nodes: ids of the nodes that have it; none while it is lost.
        size_bytes: memory of its texts and arrays in one replica; 0 while it is lost.
    """

    num_chunks: int
    nodes: tuple[str, ...]
    size_bytes: int


@frozen
class IndexStats:
    """An index in a cluster.

    Attributes:
        num_chunks: number of chunks.
        num_missing_chunks: those among them that cannot be searched now.
        shards: the shards.
        errors: which shards are lost or lack replicas, and why they could not be restored yet.
    """

    num_chunks: int
    num_missing_chunks: int
    shards: tuple[ShardStats, ...]
    errors: tuple[str, ...]

    @property
    def num_shards(self) -> int:
        """Number of shards."""
        return len(self.shards)
