"""Start actors on the nodes of a cluster, and wait for what they answer for as long as they live."""

from __future__ import annotations

import sys
import threading
from typing import Any, ClassVar, Final

import numpy as np
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import relevance_gen
from relevance_gen.errors import ClusterError, TimedOutError

START_S: Final = 600.0
"""Longest time that an actor may take to start, beside hundreds of others."""
SILENT_S: Final = 6.0
"""A process that has not answered a ping for so long is stopped, or cut off. One that is frozen while its machine moves
to another is so for less."""
_WAITS: Final = 12
HEALTH: Final = "health"
"""The calls that an actor answers whatever else it works at."""


class SilentError(ClusterError):
    """A process of the cluster does not answer pings, though it is not known to be dead."""


class Actor:
    """What all actors of this library can tell; of each group of calls they work at so many beside all others."""

    groups: ClassVar[dict[str, int]] = {HEALTH: 2}

    @ray.method(concurrency_group=HEALTH)
    def whereabouts(self) -> tuple[str, str]:
        """Return the id of the node that it runs on, and the versions there."""
        return own_node(), versions()

    @ray.method(concurrency_group=HEALTH)
    def ping(self) -> None:
        """Answer, however many calls wait for a thread of this actor."""

    @ray.method(concurrency_group=HEALTH)
    def end(self) -> None:
        """Block for ever: a caller that waits for this gets an error when the actor dies."""
        threading.Event().wait()


def start(kind: type[Actor], node_id: str, *args: Any, **options: Any) -> Any:
    """Start an actor on a node, and return its handle at once; what fails, such as a dead node, fails its first call.

    Its class takes the `args`, and `ray.remote` the options.
    """
    where = NodeAffinitySchedulingStrategy(node_id, soft=False)
    decorated: Any = ray.remote  # its types do not know of groups
    actor = decorated(num_cpus=0, concurrency_groups=kind.groups)(kind)
    return actor.options(scheduling_strategy=where, **options).remote(*args)


def get(refs: Any, timeout_s: float | None = None) -> Any:
    """Wait for answers of actors; raise what one raised, or a `TimedOutError` where one did not come in time."""
    try:
        return ray.get(refs, timeout=timeout_s)
    except RayTaskError as error:
        raise error.cause from None
    except GetTimeoutError:
        raise TimedOutError(f"the cluster did not answer within {timeout_s:g} seconds") from None


def wait_for(handle: Any, answer: Any, silent_s: float = SILENT_S) -> None:
    """Wait until an actor that has started has answered or failed, for as long as that takes, while it answers pings.

    A ping that is unanswered for `silent_s` raises a `SilentError`. That is counted in waits: if this process was
    stopped itself, that is not the fault of the actor.
    """
    wait_s = silent_s / _WAITS
    while not ray.wait([answer], timeout=wait_s, fetch_local=False)[0]:
        ping = handle.ping.remote()
        if not any(
            ray.wait([answer, ping], timeout=wait_s, fetch_local=False)[0] for _ in range(_WAITS)
        ):
            raise SilentError(f"a process of the cluster has not answered for {silent_s:g} seconds")


def get_from(handle: Any, answer: Any, silent_s: float = SILENT_S) -> Any:
    """Wait for an answer as `wait_for` does, and return it as `get` does."""
    wait_for(handle, answer, silent_s)
    return get(answer)


def own_node() -> str:
    """Return the id of the node that this process is on."""
    return str(ray.get_runtime_context().get_node_id())


def versions() -> str:
    """Return what must be the same everywhere, so that results are the same bits and objects understand each other."""
    python = ".".join(map(str, sys.version_info[:2]))
    return f"relevance_gen {relevance_gen.__version__}, numpy {np.__version__} and Python {python}"


def check(handle: Any, limit_s: float) -> str:
    """Wait until an actor of this library has started, compare its versions, and return the id of its node.

    A `ClusterError` says that it cannot start or has other versions, a `RayActorError` that it died.
    """
    try:
        node_id, theirs = get(handle.whereabouts.remote(), limit_s)
    except RayActorError:
        raise
    except Exception as error:
        raise ClusterError(f"a node cannot run relevance_gen: {error}") from None
    if theirs != (ours := versions()):
        raise ClusterError(
            f"node {node_id} has {theirs}, and this process {ours}: install the same on all nodes"
        )
    return str(node_id)
