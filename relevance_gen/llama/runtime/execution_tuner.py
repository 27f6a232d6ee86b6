"""How many threads compute a step, and how many rows at once: whatever has been the fastest on this machine of late.

More threads are not always faster. They wait for each other at every operation of a model, so that one core which other
work has taken holds all of them up: a step then takes ten times as long as with one thread. Nor are more rows at once:
some processors multiply three rows more slowly together than one after the other. Both are known only by trying, and
change while a program runs. What is computed is the same, bit for bit.
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

_MAX_CUT: Final = 7
"""Most rows that are also tried one by one: more have always been faster together."""
_N_REMEMBERED: Final = 5
"""Steps whose median is what a way takes."""
_MUCH_SLOWER: Final = 2.0
"""A step that takes so many times as long as usual lets fewer threads be tried at once."""
_FASTER: Final = 0.9
"""A way that takes at most this share of the time of the present one takes its place."""
_PAID_BACK: Final = 50.0
"""After a trial that took longer than the present way, so many times the loss passes before the next one."""
_MIN_PAUSE_S, _MAX_PAUSE_S = 0.02, 60.0


@frozen
class Strategy:
    """A way to compute a step: with how many threads, and whether its rows are computed one by one, or `may_cut` be."""

    n_threads: int
    one_by_one: bool = False
    may_cut: bool = False


@define
class _Rows:
    """What is known of steps of one size.

    At `present` one way is the fastest; `times_s` has the seconds that each took the last times. The next way may be
    tried at `due_s`, and `n_trials` have been.
    """

    present: Strategy
    times_s: dict[Strategy, deque[float]] = field(factory=dict)
    due_s: float = 0.0
    n_trials: int = 0

    def usual_s(self) -> float:
        """Return what a step takes in the present way; infinite if that is not known."""
        return statistics.median(self.times_s.get(self.present) or [float("inf")])


class ExecutionTuner:
    """Choose the way of each step, by what steps of its size have taken. It belongs to one thread.

    It begins with the most threads. Of what the `clock` returns, in seconds, only differences count.
    """

    def __init__(
        self, max_threads: int, min_threads: int = 1, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        halves = (max_threads >> power for power in itertools.count())
        self._n_threads = tuple(
            itertools.takewhile(lambda n_threads: n_threads >= min_threads, halves)
        )
        self._clock = clock
        self._sizes: dict[tuple[int, bool], _Rows] = {}
        self._n_threads_now = max_threads

    def way(self, n_rows: int, *, may_cut: bool = False) -> Strategy:
        """Return how to compute a step of so many rows: mostly the fastest way, now and then one to try.

        The rows are those of all sequences. They `may_cut` be where they have the same bits one by one as together.
        """
        rows = self._of(n_rows, may_cut=may_cut and 1 < n_rows <= _MAX_CUT)
        if rows.present not in rows.times_s or self._clock() < rows.due_s:
            return rows.present
        others = self._beside(rows.present)
        return others[rows.n_trials % len(others)] if others else rows.present

    @contextmanager
    def timing(self, n_rows: int, way: Strategy) -> Iterator[None]:
        """Learn what the step takes that is computed in the context; nothing of one that fails."""
        started_s = self._clock()
        yield
        self.note(n_rows, way, self._clock() - started_s)

    def note(self, n_rows: int, way: Strategy, seconds: float) -> None:
        """Learn what a step took."""
        rows = self._of(n_rows, may_cut=way.may_cut)
        usual_s = rows.usual_s()
        if way == rows.present:
            rows.times_s.setdefault(way, deque(maxlen=_N_REMEMBERED)).append(seconds)
            if seconds > _MUCH_SLOWER * usual_s and way.n_threads > 1:
                rows.n_trials, rows.due_s = 0, 0.0  # fewer threads come first
            return
        rows.n_trials += 1
        loss_s = max(0.0, seconds - usual_s)
        rows.due_s = self._clock() + min(max(_MIN_PAUSE_S, _PAID_BACK * loss_s), _MAX_PAUSE_S)
        if seconds < _FASTER * usual_s:
            rows.present, rows.times_s[way] = way, deque([seconds], maxlen=_N_REMEMBERED)
            self._n_threads_now = way.n_threads

    def _of(self, n_rows: int, *, may_cut: bool) -> _Rows:
        size = n_rows if n_rows <= _MAX_CUT else _MAX_CUT + n_rows.bit_length()
        if (size, may_cut) not in self._sizes:
            self._sizes[size, may_cut] = _Rows(Strategy(self._n_threads_now, may_cut=may_cut))
        return self._sizes[size, may_cut]

    def _beside(self, way: Strategy) -> list[Strategy]:
        """Return the ways to try: fewer threads, the other way to compute rows, more threads."""
        place = self._n_threads.index(way.n_threads)
        fewer = [
            evolve(way, n_threads=n_threads) for n_threads in self._n_threads[place + 1 : place + 2]
        ]
        more = [
            evolve(way, n_threads=n_threads)
            for n_threads in self._n_threads[max(place - 1, 0) : place]
        ]
        cut = [evolve(way, one_by_one=not way.one_by_one)] if way.may_cut else []
        return [*fewer, *cut, *more]
