"""What the keeper of an index knows of each shard, and of each host."""

from __future__ import annotations

from typing import Any, Final

from attrs import define, field

from relevance_gen.cluster.parts import CHARS_PER_TOKEN, Recipe
from relevance_gen.cluster.runs import NO_POSITIONS
from relevance_gen.cluster.shard import Contribution
from relevance_gen.cluster.state import HostState, ShardState
from relevance_gen.index.segment import Statistics

_SILENT_S: Final = 2.0
"""A host that has not answered a ping for so long is not asked any more, and ended if others have its shards."""
NOT_MADE: Final = Contribution(Statistics(), NO_POSITIONS, 0, 0, 0)


@define(eq=False)
class KeptHost:
    """What the keeper knows of a host."""

    state: HostState
    end: Any  # an answer that never comes, but fails when it dies
    is_up: bool = False  # whether it has started, with the right versions
    ping: Any = None  # an answer that shows that it lives; None between two pings
    next_ping_s: float = 0.0  # when to ping it again, in seconds of the monotonic clock
    silent_s: float = 0.0  # how long a ping was not answered

    @property
    def handle(self) -> Any:
        """The actor."""
        return self.state.handle

    @property
    def node_id(self) -> str:
        """The node that it runs on."""
        return self.state.node_id

    @property
    def is_silent(self) -> bool:
        """Whether callers had better not wait for it."""
        return self.silent_s > _SILENT_S


@define(eq=False)
class KeptShard:
    """What the keeper knows of a shard."""

    number: int  # no other shard of the index has it
    recipe: Recipe
    contribution: Contribution = (
        NOT_MADE  # what it adds to the whole; `NOT_MADE` before it was made for the first time
    )
    replicas: list[KeptHost] = field(factory=list)  # the hosts that have it, and live
    coming: list[KeptHost] = field(factory=list)  # those that are making it
    error: str | None = None  # why it could not be restored
    n_failures: int = 0  # how often in a row that failed
    next_try_s: float = 0.0  # when to try again, in seconds of the monotonic clock

    @property
    def statistics(self) -> Statistics:
        """Of its chunks."""
        return self.contribution.statistics

    @property
    def size(self) -> int:
        """How much it loads a host: its tokens, as far as they are known, and one."""
        is_made = self.contribution is not NOT_MADE
        return 1 + (
            self.contribution.n_tokens if is_made else self.recipe.n_chars // CHARS_PER_TOKEN
        )

    def state(self, n_wanted: int) -> ShardState:
        """Return what callers are told, where so many replicas are wanted."""
        hosts = tuple(one.state for one in self.replicas if not one.is_silent)
        of_chunks = self.contribution.runs, self.statistics.n_chunks
        return ShardState(self.number, *of_chunks, hosts, n_wanted - len(hosts), self.error)
