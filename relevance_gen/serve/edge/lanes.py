"""Lanes: threads, a queue and memory for each class of callers, so that none can use up another's."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from attrs import frozen

from relevance_gen.machine import usable_cpus
from relevance_gen.serve.edge.budget import Budget
from relevance_gen.serve.metrics import LANES, Metrics
from relevance_gen.serve.settings import Settings
from relevance_gen.serve.work.gate import Gate

Work: TypeAlias = Literal["search", "generation"]

_MAX_WAITING_GENERATIONS = 256
"""Bodies of generations that may wait to be parsed; small ones are parsed at once and do not wait."""


@frozen
class Lane:
    """What one class of callers has for itself."""

    gate: Gate
    budget: Budget


def make_lanes(settings: Settings, metrics: Metrics) -> dict[str, Lane]:
    """Make the lanes of one process, by name, and start their threads."""
    waits: dict[str, Any] = {"max_wait_s": settings.queue_timeout_s, "metrics": metrics}
    n_search_threads = settings.search_threads or max(1, usable_cpus() // settings.workers)
    gates = {name: Gate(name, 1, max_waiting=_MAX_WAITING_GENERATIONS, **waits) for name in LANES if name != "search"}
    gates["search"] = Gate("search", n_search_threads, max_waiting=settings.search_queue, **waits)
    return {name: Lane(gate, Budget(name, settings.max_buffered_bytes, metrics)) for name, gate in gates.items()}


def lane_name(work: Work, *, has_key: bool) -> str:
    """Return the lane of a request: every search has a key, and generations with one are apart from those without."""
    return "open_generation" if work == "generation" and not has_key else work
