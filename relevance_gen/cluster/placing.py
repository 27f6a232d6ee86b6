"""Choose the nodes of a cluster on which actors run, and the number of shards of an index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import ray
from attrs import frozen

from relevance_gen.errors import ClusterError

MIN_SHARD_CHARS: Final = 256 << 20
"""Smallest shard of an index that is divided: for smaller shards, the messages cost more time than they save."""
MAX_SHARD_CHARS: Final = 1 << 30
"""A larger shard takes long to fetch and to merge."""


@frozen
class Node:
    """A machine of the cluster."""

    id: str
    n_cpus: float
    n_gpus: float
    address: str = ""  # IP address


def living_nodes() -> list[Node]:
    """Return the nodes that are alive according to the cluster, which detects a death after some seconds.

    Nodes without CPUs and GPUs, such as a head that only coordinates, are left out unless all nodes are of this kind.
    """
    if not ray.is_initialized():  # `ray.nodes` would start a cluster
        return []
    nodes = []
    for node in ray.nodes():
        resources = node["Resources"]
        if node["Alive"]:
            n_cpus, n_gpus = resources.get("CPU", 0.0), resources.get("GPU", 0.0)
            nodes.append(Node(node["NodeID"], n_cpus, n_gpus, node["NodeManagerAddress"]))
    with_processors = [node for node in nodes if node.n_cpus or node.n_gpus]
    return sorted(with_processors or nodes, key=lambda node: node.id)


def optional_count(n_chars: int, n_cpus: int) -> int:
    """Return the default number of shards for a number of characters and processors."""
    n_min = -(-n_chars // MAX_SHARD_CHARS)
    return max(1, min(n_cpus, n_chars // MIN_SHARD_CHARS), n_min)


def least_loaded(
    nodes: Sequence[Node], loads: Mapping[str, int], avoided: Sequence[str] = ()
) -> Node:
    """Return the node with the least load for each of its processors, if possible not an avoided node.

    Args:
        nodes: the nodes to choose from.
        loads: number of actors by node id.
        avoided: ids of nodes that are chosen only if all nodes are avoided.
    """
    if not nodes:
        raise ClusterError("the cluster has no node")

    def rank(node: Node) -> tuple[bool, float, str]:
        load = loads.get(node.id, 0) / max(node.n_cpus, 1.0)
        return node.id in avoided, load, node.id

    return min(nodes, key=rank)
