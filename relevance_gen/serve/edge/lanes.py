"""Lanes: threads, a queue and memory for each class of callers, so that none can use up another's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, Self, TypeAlias

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


@frozen
class Lanes:
    """Every lane: searches always have a key, generations with a key are kept apart from those without."""

    search: Lane
    generation: Lane
    open_generation: Lane

    @classmethod
    def make(cls, settings: Settings, metrics: Metrics) -> Self:
        """Make the lanes of one process and start their threads."""

        def lane(name: str) -> Lane:
            n_threads, max_waiting = 1, _MAX_WAITING_GENERATIONS
            if name == "search":
                n_threads = settings.search_threads or max(1, usable_cpus() // settings.workers)
                max_waiting = settings.search_queue
            gate = Gate(name, n_threads, max_waiting=max_waiting, max_wait_s=settings.queue_timeout_s, metrics=metrics)
            return Lane(gate, Budget(name, settings.max_buffered_bytes, metrics))

        return cls(*map(lane, LANES))

    def of(self, work: Work, *, has_key: bool) -> Lane:
        """Return the lane of a request for `work`."""
        if work == "search":
            return self.search
        return self.generation if has_key else self.open_generation

    def __iter__(self) -> Iterator[Lane]:
        return iter((self.search, self.generation, self.open_generation))

    @property
    def n_running(self) -> int:
        """Tasks that threads are working on."""
        return sum(lane.gate.n_running for lane in self)

    def close(self) -> None:
        """Take no more work, and refuse what waits."""
        for lane in self:
            lane.gate.close()
