"""Say what makes loads even: which shards are cut, and which replicas move to other nodes, or other processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from attrs import frozen

from relevance_gen.cluster.kept import KeptHost, KeptShard
from relevance_gen.cluster.parts import CHARS_PER_TOKEN
from relevance_gen.cluster.placing import (
    LEAST_CHARS,
    MOST_CHARS,
    Node,
    least_loaded,
    optional_count,
)

_MOST_TOKENS: Final = MOST_CHARS // CHARS_PER_TOKEN
"""A shard takes no more chunks with which it had more, and is cut where it has."""
_LEAST_TOKENS: Final = LEAST_CHARS // CHARS_PER_TOKEN
"""No shard is cut into halves that have less, to have more of them."""
_ENOUGH_TOKENS: Final = 1 << 24
"""A host that has more, about 64 Mi characters, takes longer for a question than it takes to ask another one."""
_WORTH: Final = 1.25
"""A shard is moved where its node, or host, has so many times the load that the other one will have."""


def has_room(shard: KeptShard, n_chars: int) -> bool:
    """Tell whether a shard may take about so many characters more; one without any takes all."""
    return (
        not shard.contribution.n_tokens or shard.size + n_chars // CHARS_PER_TOKEN <= _MOST_TOKENS
    )


def too_large(shards: Iterable[KeptShard], n_cpus: int, whole: set[KeptShard]) -> list[KeptShard]:
    """Return the shards to be cut: all that have too much, and while there are fewer than processors, the largest ones.

    Those are not cut that must stay `whole`.
    """
    by_size = sorted(shards, key=lambda one: -one.size)
    n_lacking = optional_count(CHARS_PER_TOKEN * sum(one.size for one in by_size), n_cpus) - len(
        by_size
    )
    return [
        shard
        for rank, shard in enumerate(one for one in by_size if one not in whole)
        if shard.size > (2 * _LEAST_TOKENS if rank < n_lacking else _MOST_TOKENS)
    ]


@frozen
class Move:
    """What is worth moving."""

    shard: KeptShard
    host: KeptHost  # where it is
    node: Node  # where it is to be, in another process if it is there already


class Balance:
    """The loads of nodes and hosts: the sizes of all replicas that are, or will soon be, on each."""

    def __init__(self, shards: Iterable[KeptShard], hosts: Iterable[KeptHost]) -> None:
        self._shards, self._hosts = [*shards], [*hosts]
        self.of_nodes: Counter[str] = Counter()
        self.of_hosts: Counter[Any] = Counter()
        for shard in self._shards:
            for host in (*shard.replicas, *shard.coming):
                self.of_nodes[host.node_id] += shard.size
                self.of_hosts[host] += shard.size

    def fitting(self, shard: KeptShard, node: Node) -> tuple[KeptHost | None, int]:
        """Return the host of a node that a shard is to be made in, and its load; None for a new one, without load.

        That is the one with the least, or if it would have enough a new one, while there are fewer than processors.
        """
        hosts = self._of(node)
        fit = [one for one in hosts if one not in shard.replicas and one not in shard.coming]
        best = min(fit, key=lambda one: self.of_hosts[one], default=None)
        load = self.of_hosts[best]
        is_full = load > 0 and load + shard.size > _ENOUGH_TOKENS
        return (
            (None, 0)
            if best is None or (is_full and len(hosts) < int(node.n_cpus))
            else (best, load)
        )

    def next_move(self, nodes: Sequence[Node], unfit: Collection[str] = ()) -> Move | None:
        """Return what to move so that the loads of nodes, or else those of the hosts of one, are more even.

        No node with an `unfit` id is moved to.
        """
        fit = [node for node in nodes if node.id not in unfit]
        if not fit:
            return None
        n_cpus = {node.id: max(node.n_cpus, 1.0) for node in nodes}
        target = least_loaded(fit, self.of_nodes)
        for shard in self._shards:
            held = {one.node_id: one for one in shard.replicas}
            if held and target.id not in held:
                load, source = max((self.of_nodes[one] / n_cpus.get(one, 1.0), one) for one in held)
                if load > _WORTH * (self.of_nodes[target.id] + shard.size) / n_cpus[target.id]:
                    return Move(shard, held[source], target)
        moves = (self._within(node) for node in fit)
        return next((move for move in moves if move is not None), None)

    def _within(self, node: Node) -> Move | None:
        """Return what to move from a host of a node that has enough to another process there."""
        hosts = self._of(node)
        for host in [one for one in hosts if self.of_hosts[one] > _ENOUGH_TOKENS]:
            for shard in [one for one in self._shards if host in one.replicas]:
                other, load = self.fitting(shard, node)
                has_place = other is not None or len(hosts) < int(node.n_cpus)
                if has_place and self.of_hosts[host] > _WORTH * (load + shard.size):
                    return Move(shard, host, node)
        return None

    def _of(self, node: Node) -> list[KeptHost]:
        return [one for one in self._hosts if one.node_id == node.id]
