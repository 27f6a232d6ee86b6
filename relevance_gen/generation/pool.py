"""Several runners behind one queue: one for each device."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from relevance_gen.generation.counters import Counters
from relevance_gen.generation.front import DEFAULT_MAX_QUEUE, Front
from relevance_gen.generation.runner import Runner
from relevance_gen.types import Stats


class RunnerPool(Front):
    """Runners that share one queue; the pool owns them. It goes on while one of them lives.

    More runners are for more devices. On one CPU several are slower than one: their thread pools fight for the cores.

    Args:
        runners: the runners, loaded or loading.
        max_queue: samples that may wait, all runners together.
    """

    def __init__(self, runners: Iterable[Runner], *, max_queue: int = DEFAULT_MAX_QUEUE) -> None:
        super().__init__(max_queue)
        self.runners = tuple(runners)
        if not self.runners:
            raise ValueError("a pool needs at least one runner")
        self._queue.join(self)  # so that the queue outlives runners that are dead already
        for runner in self.runners:
            runner.adopt(self._queue)
        self._queue.leave(self, next((runner.error for runner in self.runners if runner.error), None))

    @property
    def alive(self) -> bool:
        """Whether a runner is ready."""
        return any(runner.alive for runner in self.runners)

    def stats(self) -> Stats:
        """Return the samples that wait for any runner, and how many runners are ready."""
        n_ready = sum(runner.alive for runner in self.runners)
        n_seated = sum(runner.n_seated for runner in self.runners)
        return Stats(backlog=self._queue.n_waiting + n_seated, num_total_runners=n_ready)

    def counters(self) -> Counters:
        """Return what all runners together did so far."""
        each = [attrs.astuple(runner.served()) for runner in self.runners]
        counters = Counters(*map(sum, zip(*each, strict=True)))
        counters.requests_cancelled += self._queue.n_cancelled
        return counters

    def _runs_here(self) -> bool:
        return any(runner._runs_here() for runner in self.runners)

    def close(self, drain: bool = True, timeout_s: float | None = None) -> None:
        """Close every runner; see `Runner.close`."""
        for runner in self.runners:
            runner.close(drain, timeout_s)
