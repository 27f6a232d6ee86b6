"""Show how far a long work has come: by a caller's function, by tqdm's bar, or by a plain one."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from attrs import define

from relevance_gen.errors import InvalidRequestError

Progress: TypeAlias = Callable[[int, int], None]
"""Called now and then with what is done and with all there is to do."""

_CELLS: Final = 30
_REDRAW_S: Final = 0.1


@contextmanager
def reporting(progress: Progress | bool | None, unit: str = "chunks") -> Iterator[Progress | None]:
    """Yield what to call as the work goes on. A bar ends when the work does, well or not.

    Args:
        progress: the caller's function; True for a bar on the standard error, of tqdm's where it is installed; None or
            False for neither.
        unit: what is counted.

    Raises:
        InvalidRequestError: `progress` is none of these.
    """
    if progress is None or progress is False:
        yield None
    elif progress is not True:
        if not callable(progress):
            raise InvalidRequestError.must_be(
                "progress", "true, false or a function of two numbers", progress
            )
        yield progress
    else:
        bar = _bar(unit)
        try:
            yield bar.show
        finally:
            bar.close()


def draw_bar(done: int, total: int) -> str:
    """Return how far some work is: as a share, a bar and numbers.

    >>> draw_bar(1, 2000)
    '  0% ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░ 1 of 2,000'
    """
    share = done / max(total, 1)
    return f"{share:4.0%} {'█' * round(share * _CELLS):░<{_CELLS}} {done:,} of {total:,}"


def _bar(unit: str) -> _Bar | _TqdmBar:
    try:
        return _TqdmBar(unit)
    except ImportError:
        return _Bar(unit)


class _TqdmBar:
    """tqdm's bar: in a terminal a line of text, in a notebook a widget."""

    def __init__(self, unit: str) -> None:
        from tqdm.auto import tqdm

        class Bar(tqdm):  # type: ignore[misc]
            monitor_interval = (
                0  # no thread beside the bar: beside one, processes could not be forked
            )

        self._bar = Bar(total=0, unit=f" {unit}", unit_scale=True)

    def show(self, done: int, total: int) -> None:
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        self._bar.close()


@define
class _Bar:
    """A line on the standard error, drawn again in place, and ended by a line end."""

    _unit: str
    _drawn_s: float = 0.0
    _is_drawn: bool = False

    def show(self, done: int, total: int) -> None:
        now_s = time.monotonic()
        if sys.stderr is None or (done < total and now_s - self._drawn_s < _REDRAW_S):
            return
        self._drawn_s, self._is_drawn = now_s, True
        sys.stderr.write(f"\r{draw_bar(done, total)} {self._unit}")
        sys.stderr.flush()

    def close(self) -> None:
        if self._is_drawn and sys.stderr is not None:
            sys.stderr.write("\n")
            sys.stderr.flush()
