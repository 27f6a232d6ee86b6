"""Chunks and queries for tests of the cluster, and waiting for conditions."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from typing import Any

from ray.exceptions import ActorUnavailableError, RayError

from relevance_gen.cluster import ClusterIndex, actors
from relevance_gen.errors import TimedOutError
from tests import strategies

OPTIONS: dict[str, Any] = {"n_slots": 4, "n_ctx": 1024, "n_threads": 1}
"""Options of the runners."""
QUERIES = [
    "What do cats do?",
    "running connections",
    "Москва столицы",
    "getUserName in café",
    "zebra zebra",
]


def texts(n: int, seed: int = 0) -> list[str]:
    """Return chunks of words of many scripts, with ties and doubles among them."""
    draw = random.Random(seed)  # noqa: S311
    words = strategies.ENGLISH + strategies.IDENTIFIERS + strategies.OTHER
    return [" ".join(draw.choices(words, k=draw.randint(1, 30))) for _ in range(n)]


RESTORED_S = 120.0
"""Time limit on a loaded machine; on an idle machine the conditions hold within two seconds."""


def until(holds: Callable[[], bool], what: str) -> None:
    """Wait until something is so; what dies in a cluster answers for a while."""
    end_s = time.monotonic() + RESTORED_S
    while not holds():
        assert time.monotonic() < end_s, f"in {RESTORED_S} s it did not come about that {what}"
        time.sleep(0.05)


def process_of(handle: Any, timeout_s: float | None = None) -> int:
    """Return the process of an actor, if it answers in time; wait for an actor that restarts."""
    end_s = time.monotonic() + RESTORED_S
    while True:
        try:
            return int(actors.get(handle.__ray_call__.remote(lambda _: os.getpid()), timeout_s))
        except ActorUnavailableError:
            assert time.monotonic() < end_s, f"the actor did not restart in {RESTORED_S} s"
            time.sleep(0.05)


def responds(handle: Any) -> bool:
    """Return whether an actor answers within half a second."""
    try:
        actors.get(handle.ping.remote(), 0.5)
    except (RayError, TimedOutError):
        return False
    return True


def kill_process(handle: Any) -> None:
    """Kill the process of an actor, as the system does when memory runs out."""
    os.kill(process_of(handle), signal.SIGKILL)


def searchers_of(index: ClusterIndex) -> list[Any]:
    """Return the actors that search an index."""
    return [searcher.actor for searcher in index._pool.searchers]


def forget_rankings(index: ClusterIndex) -> None:
    """Clear the cache of rankings, so that the next search asks the searchers."""
    index._current().rankings.clear()
