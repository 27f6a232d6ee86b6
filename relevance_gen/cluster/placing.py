"""Choose the nodes of a cluster on which actors run, and the number of shards of an index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import ray
from attrs import frozen

from relevance_gen.errors import ClusterError

MIN_SHARD_CHARS: Final = 256 << 20
"""Minimum size of the shards into which an index is divided by default: with smaller shards, the
messages between processes take more time than they save."""
MAX_SHARD_CHARS: Final = 1 << 30
"""Maximum size of a shard by default: larger shards take long to fetch and to merge."""


@frozen
class Node:
    """A node of the cluster as Ray describes it, usually a machine."""

    id: str
    n_cpus: float
    n_gpus: float
    address: str = ""  # IP address


def living_nodes() -> list[Node]:
    """Return the nodes that are alive, in the order of their ids; empty without a connection.

    The cluster detects the death of a node after some seconds. Nodes without CPUs and GPUs, such as
    a head that only coordinates, are left out unless all nodes are of this kind.
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


def default_shard_count(n_chars: int, n_cpus: int) -> int:
    """Return the default number of shards of an index, at least 1.

    The number is the largest number of shards that have at least `MIN_SHARD_CHARS` characters each,
    but at most `n_cpus`. If shards would then have more than `MAX_SHARD_CHARS` characters, it is
    the smallest number of shards that do not.

    Args:
        n_chars: number of characters of all texts.
        n_cpus: number of processors of the cluster.
    """
    n_min = -(-n_chars // MAX_SHARD_CHARS)
    return max(1, min(n_cpus, n_chars // MIN_SHARD_CHARS), n_min)


def least_loaded(
    nodes: Sequence[Node], loads: Mapping[str, int], avoided: Sequence[str] = ()
) -> Node:
    """Return the node with the fewest actors per processor, if possible not an avoided node.

    Args:
        nodes: the nodes to choose from.
        loads: number of actors by node id.
        avoided: ids of the avoided nodes.

    Raises:
        ClusterError: there are no nodes.
    """
    if not nodes:
        raise ClusterError("the cluster has no node")

    def rank(node: Node) -> tuple[bool, float, str]:
        load = loads.get(node.id, 0) / max(node.n_cpus, 1.0)
        return node.id in avoided, load, node.id

    return min(nodes, key=rank)
