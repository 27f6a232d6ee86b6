"""Start actors on the nodes of a cluster, and wait for their responses."""

from __future__ import annotations

import sys
from typing import Any, ClassVar, Final

import numpy as np
import ray
from attrs import frozen
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import relevance_gen
from relevance_gen.cluster.connection import NAMESPACE, check_connected
from relevance_gen.errors import ClusterError, TimedOutError

START_TIMEOUT_S: Final = 600.0
"""Seconds within which an actor must start, even if hundreds of others start at the same time."""
SILENCE_TIMEOUT_S: Final = 6.0
"""Seconds without a ping response after which a process is considered hung or disconnected. A
process that pauses while its virtual machine is migrated is silent for less."""
_N_WAITS: Final = 12
HEALTH: Final = "health"
"""The concurrency group of calls that an actor answers while calls of other groups run."""


class SilentError(ClusterError):
    """A process of the cluster does not respond to pings, although it is not known to be dead."""


@frozen
class NodeVersions:
    """The id of a node, and what is installed there."""

    node_id: str
    versions: str  # as `versions` returns them


class Actor:
    """Base class of all actors of this library, with the methods that each of them has.

    Attributes:
        groups: the concurrency groups of the actor: for the name of each group, the maximum number
            of calls of methods of this group that run at the same time.
    """

    groups: ClassVar[dict[str, int]] = {HEALTH: 2}

    @ray.method(concurrency_group=HEALTH)
    def node_versions(self) -> NodeVersions:
        """Return the id of the actor's node, and the versions installed there."""
        return NodeVersions(own_node(), versions())

    @ray.method(concurrency_group=HEALTH)
    def ping(self) -> None:
        """Respond, regardless of the number of calls that wait for a thread of this actor."""


def start(
    kind: type[Actor],
    node_id: str,
    *args: Any,
    name: str | None = None,
    **options: Any,
) -> Any:
    """Start an actor on a node, and return its handle without waiting.

    If the actor cannot start, for example because the node is dead, its first call fails. If an
    actor with the given name exists, the handle of this actor is returned.

    Args:
        kind: the actor's class.
        node_id: id of the node.
        *args: arguments of the class.
        name: name under which all processes find the actor; it does not end with this process.
        **options: options of `ray.remote`.
    """
    if name is not None:
        shared = {"namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
        options |= {"name": name, **shared}
    strategy = NodeAffinitySchedulingStrategy(node_id, soft=False)
    decorated: Any = ray.remote  # its type stubs lack concurrency groups
    actor = decorated(num_cpus=0, concurrency_groups=kind.groups)(kind)
    return actor.options(scheduling_strategy=strategy, **options).remote(*args)


def get(refs: Any, timeout_s: float | None = None) -> Any:
    """Wait for responses of actors and return them; one response for one reference.

    Args:
        refs: a reference of a response, or a list of references.
        timeout_s: maximum seconds to wait; None for no limit.

    Raises:
        TimedOutError: a response did not arrive in time.
        Exception: the exception that an actor raised.
    """
    try:
        return ray.get(refs, timeout=timeout_s)
    except RayTaskError as error:
        raise error.cause from None
    except GetTimeoutError:
        raise TimedOutError(f"the cluster did not answer within {timeout_s:g} seconds") from None


def get_from(handle: Any, answer: Any) -> Any:
    """Wait for a response of a started actor while the actor responds to pings, and return it.

    The response is returned, or its error raised, as by `get`. `SILENCE_TIMEOUT_S` is divided into
    several short waits, and the completed waits are counted. Therefore, if this process is
    suspended, the time of the suspension counts as at most one wait.

    Args:
        handle: the actor.
        answer: the reference of the response.

    Raises:
        SilentError: a ping was not answered for `SILENCE_TIMEOUT_S` seconds.
        ClusterError: the connection to the cluster was closed meanwhile.
        Exception: the exception that the actor raised.
    """
    wait_s = SILENCE_TIMEOUT_S / _N_WAITS
    while not ray.wait([answer], timeout=wait_s, fetch_local=False)[0]:
        check_connected()
        ping = handle.ping.remote()
        for _ in range(_N_WAITS):
            if ray.wait([answer, ping], timeout=wait_s, fetch_local=False)[0]:
                break
        else:
            raise SilentError(
                f"a process of the cluster has not answered for {SILENCE_TIMEOUT_S:g} seconds"
            )
    return get(answer)


def own_node() -> str:
    """Return the id of the node that this process runs on."""
    return str(ray.get_runtime_context().get_node_id())


def versions() -> str:
    """Return the versions of relevance_gen, numpy and Python, which must be equal on all nodes.

    Otherwise results could differ, and messages could be incompatible.
    """
    python = ".".join(map(str, sys.version_info[:2]))
    return f"relevance_gen {relevance_gen.__version__}, numpy {np.__version__} and Python {python}"


def check(handle: Any, limit_s: float) -> str:
    """Wait until an actor has started, check its versions, and return the id of its node.

    Args:
        handle: the actor.
        limit_s: maximum seconds to wait.

    Raises:
        ClusterError: the actor did not start in time, cannot start, or its node has other versions
            than this process; see `versions`.
        RayActorError: the actor died.
    """
    try:
        node: NodeVersions = get(handle.node_versions.remote(), limit_s)
    except RayActorError:
        raise
    except Exception as error:
        raise ClusterError(f"a node cannot run relevance_gen: {error}") from None
    check_versions(node)
    return node.node_id


def check_versions(node: NodeVersions) -> None:
    """Raise a `ClusterError` if the versions on a node differ from this process's."""
    own = versions()
    if node.versions != own:
        message = f"node {node.node_id} has {node.versions}, and this process {own}"
        raise ClusterError(f"{message}: install the same on all nodes")
