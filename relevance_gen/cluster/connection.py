"""Reach a cluster of Ray, start actors on its nodes, and wait for what they answer."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any, Final

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when ray is imported

import numpy as np
import ray
from attrs import frozen
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import relevance_gen
from relevance_gen.errors import ClusterError, InvalidRequestError, TimedOutError

NAMESPACE: Final = "relevance_gen"
"""Of all names that this library gives in a cluster."""
_CONNECT_S: Final = 5.0
_connecting: Final = threading.Lock()


def connect(address: str | None) -> None:
    """Join a cluster, unless this process is in one already.

    Args:
        address: ``"auto"`` for the cluster that this machine is in, or ``HOST:PORT`` of its head; None for the same
            or, where there is none, for one that is started on this machine and ends with this process.

    Raises:
        InvalidRequestError: it is no address.
        ClusterError: nothing answers there.
    """
    if address is not None and (not isinstance(address, str) or not address or "://" in address):
        raise InvalidRequestError.must_be("address", '"auto" or the HOST:PORT of a cluster\'s head', address)
    with _connecting:
        if not ray.is_initialized():
            _join(address)


def _join(address: str | None) -> None:
    if address not in (None, "auto"):
        _check_reachable(address)
    quiet: dict[str, Any] = {"namespace": NAMESPACE, "logging_level": "WARNING", "log_to_driver": False}
    try:
        ray.init(address=address or "auto", **quiet)
    except (ConnectionError, ValueError, RuntimeError) as error:
        if address is not None:
            raise ClusterError(f"no cluster answers at {address}: {error}") from None
        ray.init(include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)


def _check_reachable(address: str) -> None:
    """Raise at once if nobody listens there: Ray itself tries for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
    except (OSError, ValueError, OverflowError) as error:
        raise ClusterError(f"no cluster answers at {address}: {error}") from None


# ── Nodes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Node:
    """A machine of the cluster.

    Attributes:
        id: what Ray calls it.
        n_cpus: the processors that it offers.
        n_gpus: the GPUs that it offers.
    """

    id: str
    n_cpus: float
    n_gpus: float


def living_nodes() -> list[Node]:
    """Return the nodes that live, as far as is known: of one that died a moment ago nothing may be known yet."""
    nodes = [
        Node(one["NodeID"], one["Resources"].get("CPU", 0.0), one["Resources"].get("GPU", 0.0))
        for one in ray.nodes()
        if one["Alive"]
    ]
    return sorted(nodes, key=lambda node: node.id)


def own_node() -> str:
    """Return the id of the node that this process is on."""
    return str(ray.get_runtime_context().get_node_id())


# ── Actors ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def start(kind: type, node_id: str, *args: Any, **options: Any) -> Any:
    """Start an actor on a node, and return its handle at once; what fails, such as a dead node, fails its first call.

    Args:
        kind: its class.
        node_id: the node.
        *args: what the class takes.
        **options: further options of `ray.remote`.
    """
    where = NodeAffinitySchedulingStrategy(node_id, soft=False)
    return ray.remote(kind).options(num_cpus=0, scheduling_strategy=where, **options).remote(*args)


def get(refs: Any, timeout_s: float | None = None) -> Any:
    """Wait for the answer of an actor, or for those of several.

    Raises:
        TimedOutError: it did not come in time.
        RayActorError: an actor died.
        Exception: what an actor raised.
    """
    try:
        return ray.get(refs, timeout=timeout_s)
    except RayTaskError as error:
        raise error.cause from None
    except GetTimeoutError:
        raise TimedOutError(f"the cluster did not answer within {timeout_s:g} seconds") from None


# ── Versions ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Versions:
    """What must be the same everywhere, so that results are the same bits and objects understand each other."""

    relevance_gen: str
    numpy: str
    python: tuple[int, int]

    @classmethod
    def here(cls) -> Versions:
        """Return those of this process."""
        return cls(relevance_gen.__version__, np.__version__, sys.version_info[:2])


def check_versions(node_id: str, theirs: Versions) -> None:
    """Compare versions of another process with those of this one.

    Raises:
        ClusterError: they are not the same.
    """
    ours = Versions.here()
    if theirs != ours:
        raise ClusterError(
            f"node {node_id} has {_told(theirs)}, and this process {_told(ours)}: install the same on all nodes"
        )


def _told(versions: Versions) -> str:
    python = ".".join(map(str, versions.python))
    return f"relevance_gen {versions.relevance_gen}, numpy {versions.numpy} and Python {python}"


def start_checked(kind: type, node_id: str, *args: Any, **options: Any) -> tuple[Any, str]:
    """Start an actor that can tell its whereabouts, compare its versions, and return its handle and its node's id.

    Raises:
        ClusterError: it does not start there, or has other versions.
        RayActorError: it died.
    """
    handle = start(kind, node_id, *args, **options)
    try:
        real_node_id, versions = get(handle.whereabouts.remote())
    except RayActorError:
        raise
    except Exception as error:
        raise ClusterError(f"node {node_id} cannot run relevance_gen: {error}") from None
    check_versions(real_node_id, versions)
    return handle, real_node_id


class Actor:
    """What all actors of this library can tell."""

    def whereabouts(self) -> tuple[str, Versions]:
        """Return the id of the node that it runs on, and the versions there."""
        return own_node(), Versions.here()


def least_loaded(nodes: Sequence[Node], loads: dict[str, float], avoided: Sequence[str] = ()) -> Node:
    """Return the node with the least load for each of its processors, one that is not to be avoided if there is one.

    Raises:
        ClusterError: there is no node.
    """
    if not nodes:
        raise ClusterError("the cluster has no node")
    return min(nodes, key=lambda node: (node.id in avoided, loads.get(node.id, 0.0) / max(node.n_cpus, 1.0), node.id))
