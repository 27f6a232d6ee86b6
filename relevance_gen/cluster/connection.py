"""Reach a cluster of Ray, start actors on its nodes, and wait for what they answer."""

from __future__ import annotations

import os
import socket
import sys
import threading
from typing import Any, Final

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # read when ray is imported

import numpy as np
import ray
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


def check_name(name: object) -> None:
    """Check a name that other processes find something by.

    Raises:
        InvalidRequestError: it is none.
    """
    if not isinstance(name, str) or not name:
        raise InvalidRequestError.must_be("name", "a string that is not empty", name)


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


def versions() -> str:
    """Return what must be the same everywhere, so that results are the same bits and objects understand each other."""
    python = ".".join(map(str, sys.version_info[:2]))
    return f"relevance_gen {relevance_gen.__version__}, numpy {np.__version__} and Python {python}"


def check(handle: Any) -> str:
    """Wait until an actor of this library has started, compare its versions, and return the id of its node.

    Raises:
        ClusterError: it cannot start, or has other versions.
        RayActorError: it died.
    """
    try:
        node_id, theirs = get(handle.whereabouts.remote())
    except RayActorError:
        raise
    except Exception as error:
        raise ClusterError(f"a node cannot run relevance_gen: {error}") from None
    if theirs != (ours := versions()):
        raise ClusterError(f"node {node_id} has {theirs}, and this process {ours}: install the same on all nodes")
    return str(node_id)


class Actor:
    """What all actors of this library can tell."""

    def whereabouts(self) -> tuple[str, str]:
        """Return the id of the node that it runs on, and the versions there."""
        return own_node(), versions()
