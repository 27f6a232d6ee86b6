"""Choose the number of threads and the batching of each step by timing steps on this machine.

A step is one computation of a model on the rows of a batch; a row is one token of one sequence. The
batching is the choice between computing all rows at once and computing each row separately.

More threads are not always faster. They synchronize after every operation, so a single core taken
by another process can make a step ten times slower than it would be on one thread. Larger batches
are not always faster either: some CPUs multiply three rows more slowly as a batch than
individually. The fastest choice can only be measured, and it changes while a program runs. The
results of all choices are bit-identical.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from attrs import define, evolve, field, frozen

_MAX_SPLIT_ROWS: Final = 7
"""Maximum rows of a batch that are also tried row by row; larger batches have always been
faster."""
_N_TIMINGS: Final = 5
"""Timings of a strategy whose median is its step time."""
_SLOW_STEP_FACTOR: Final = 2.0
"""Factor over the median step time at which a trial with fewer threads starts immediately."""
_FASTER_RATIO: Final = 0.9
"""A strategy replaces the current one if its step time is at most this fraction of the current
strategy's."""
_PAUSE_FACTOR: Final = 50.0
"""The pause after a trial that was slower than the current strategy, as a multiple of the time
lost."""
_MIN_PAUSE_S: Final = 0.02
_MAX_PAUSE_S: Final = 60.0


@frozen
class Strategy:
    """A way to compute a step.

    Attributes:
        n_threads: CPU threads.
        row_by_row: whether each row is computed separately.
        can_split: whether the tuner may choose `row_by_row` for the step, because the results are
            bit-identical.
    """

    n_threads: int
    row_by_row: bool = False
    can_split: bool = False


@define
class _StepTimings:
    """Timings of steps of one size.

    Attributes:
        current: the fastest strategy known.
        times_s: the last timings, in seconds, of each strategy that is or was current.
        next_trial_s: when the next trial may start, by the tuner's clock.
        n_trials: number of trials since the start or since the last slow step, which resets it to
            0; it selects the alternative of the next trial.
    """

    current: Strategy
    times_s: dict[Strategy, deque[float]] = field(factory=dict)
    next_trial_s: float = 0.0
    n_trials: int = 0

    def median_s(self) -> float:
        """Return the median time of the current strategy; infinity without timings."""
        return statistics.median(self.times_s.get(self.current) or [float("inf")])


class ExecutionTuner:
    """Chooses the strategy of each step from the timings of steps of similar size.

    A tuner is used by one thread. Its first strategy has `max_threads` threads.

    Args:
        max_threads: maximum number of threads of a step.
        min_threads: minimum number of threads; `max_threads` is halved repeatedly to get the
            numbers to try.
        clock: returns the time in seconds from any fixed start.
    """

    def __init__(
        self, max_threads: int, min_threads: int = 1, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        halves = (max_threads >> power for power in itertools.count())
        allowed = itertools.takewhile(lambda n_threads: n_threads >= min_threads, halves)
        self._thread_counts = tuple(allowed)  # descending
        self._clock = clock
        self._timings: dict[tuple[int, bool], _StepTimings] = {}
        self._n_threads = max_threads

    def strategy(self, n_rows: int, *, can_split: bool = False) -> Strategy:
        """Return the strategy for a step: usually the fastest, sometimes an alternative to try.

        Args:
            n_rows: rows of the batch, over all sequences.
            can_split: whether computing each row separately gives bit-identical results, so that
                the strategy may do this.
        """
        can_split = can_split and 1 < n_rows <= _MAX_SPLIT_ROWS
        timings = self._timings_of(n_rows, can_split=can_split)
        current = timings.current
        if current not in timings.times_s or self._clock() < timings.next_trial_s:
            return current
        alternatives = self._alternatives(current)
        if not alternatives:
            return current
        return alternatives[timings.n_trials % len(alternatives)]

    @contextmanager
    def timing(self, n_rows: int, strategy: Strategy) -> Iterator[None]:
        """Record the time of the step inside the context, unless it raises."""
        started_s = self._clock()
        yield
        self.record(n_rows, strategy, self._clock() - started_s)

    def record(self, n_rows: int, strategy: Strategy, seconds: float) -> None:
        """Record the time of a step.

        Args:
            n_rows: rows of the step's batch.
            strategy: the strategy by which the step was computed, as `strategy` returned it for
                `n_rows`.
            seconds: the time of the step.
        """
        timings = self._timings_of(n_rows, can_split=strategy.can_split)
        median_s = timings.median_s()
        if strategy == timings.current:
            timings.times_s.setdefault(strategy, deque(maxlen=_N_TIMINGS)).append(seconds)
            if seconds > _SLOW_STEP_FACTOR * median_s and strategy.n_threads > 1:
                # Fewer threads are the first alternative.
                timings.n_trials = 0
                timings.next_trial_s = 0.0
            return
        timings.n_trials += 1
        lost_s = max(0.0, seconds - median_s)
        pause_s = min(max(_MIN_PAUSE_S, _PAUSE_FACTOR * lost_s), _MAX_PAUSE_S)
        timings.next_trial_s = self._clock() + pause_s
        if seconds < _FASTER_RATIO * median_s:
            timings.current = strategy
            timings.times_s[strategy] = deque([seconds], maxlen=_N_TIMINGS)
            self._n_threads = strategy.n_threads

    def _timings_of(self, n_rows: int, *, can_split: bool) -> _StepTimings:
        """Return the timings of steps of `n_rows` rows, and of steps of similar size.

        Up to `_MAX_SPLIT_ROWS` rows each number of rows has its own timings; larger numbers are
        grouped by powers of two. Timings for either value of `can_split` are separate.
        """
        size = n_rows
        if n_rows > _MAX_SPLIT_ROWS:
            size = _MAX_SPLIT_ROWS + n_rows.bit_length()
        if (size, can_split) not in self._timings:
            strategy = Strategy(self._n_threads, can_split=can_split)
            self._timings[size, can_split] = _StepTimings(strategy)
        return self._timings[size, can_split]

    def _alternatives(self, strategy: Strategy) -> list[Strategy]:
        """Return the strategies to try, in this order.

        They are: the next smaller number of threads; if `strategy.can_split`, the same threads with
        the opposite `row_by_row`; the next larger number of threads.
        """
        alternatives = []
        index = self._thread_counts.index(strategy.n_threads)
        for fewer in self._thread_counts[index + 1 : index + 2]:
            alternatives.append(evolve(strategy, n_threads=fewer))
        if strategy.can_split:
            alternatives.append(evolve(strategy, row_by_row=not strategy.row_by_row))
        for more in self._thread_counts[max(index - 1, 0) : index]:
            alternatives.append(evolve(strategy, n_threads=more))
        return alternatives
