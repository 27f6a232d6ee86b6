"""Say on which node an actor is to be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import ray
from attrs import frozen

from relevance_gen.errors import ClusterError

LEAST_CHARS: Final = 256 << 20
"""With less text for each, asking more shards takes longer than they save."""
MOST_CHARS: Final = 1 << 30
"""A larger shard takes long to make again, and to move."""


@frozen
class Node:
    """A machine of the cluster."""

    id: str
    n_cpus: float
    n_gpus: float


def living_nodes() -> list[Node]:
    """Return the nodes that live, as far as is known: of one that died a moment ago nothing may be known yet.

    One that offers neither processors nor GPUs is left alone, such as a head that is to do nothing else, unless all do.
    """
    nodes = [
        Node(one["NodeID"], one["Resources"].get("CPU", 0.0), one["Resources"].get("GPU", 0.0))
        for one in (
            ray.nodes() if ray.is_initialized() else []
        )  # Ray would start a cluster of its own
        if one["Alive"]
    ]
    offering = [node for node in nodes if node.n_cpus or node.n_gpus]
    return sorted(offering or nodes, key=lambda node: node.id)


def optional_count(n_chars: int, n_cpus: int) -> int:
    """Return how many shards to make of so many characters for so many processors."""
    return max(1, min(n_cpus, n_chars // LEAST_CHARS), -(-n_chars // MOST_CHARS))


def least_loaded(
    nodes: Sequence[Node], loads: Mapping[str, int], avoided: Sequence[str] = ()
) -> Node:
    """Return the node with the least load for each of its processors; one that is not to be avoided if there is one.

    A load is the number of actors, or the size of what they hold, by the id of their node.
    """
    if not nodes:
        raise ClusterError("the cluster has no node")
    return min(
        nodes,
        key=lambda node: (
            node.id in avoided,
            loads.get(node.id, 0) / max(node.n_cpus, 1.0),
            node.id,
        ),
    )
