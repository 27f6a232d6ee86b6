"""Progress reports of long operations: to the caller's function, or as a progress bar."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

from attrs import define

from relevance_gen.errors import InvalidRequestError

Progress: TypeAlias = Callable[[int, int], None]
"""A function that is called repeatedly with the amount of completed work and the total amount."""

_CELLS: Final = 30
_REDRAW_S: Final = 0.1


@contextmanager
def reporting(progress: Progress | bool | None, unit: str = "chunks") -> Iterator[Progress | None]:
    """Yield the function to call with the progress; None if no reports are wanted.

    A bar is closed at the end of the context, also after an exception.

    Args:
        progress: the caller's function; True for a bar on standard error, drawn by tqdm if it is
            installed; None or False for no reports.
        unit: the name of the items that are counted, in the plural.

    Raises:
        InvalidRequestError: `progress` has another value.
    """
    if progress is None or progress is False:
        yield None
    elif progress is not True:
        if not callable(progress):
            raise InvalidRequestError.must_be(
                "progress", "True, False, None or a function of two numbers", progress
            )
        yield progress
    else:
        bar = _bar(unit)
        try:
            yield bar.show
        finally:
            bar.close()


def draw_bar(done: int, total: int) -> str:
    """Return a line with the progress as a percentage, a bar and numbers.

    >>> draw_bar(1, 2000)
    '  0% ░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░ 1 of 2,000'
    """
    fraction = done / max(total, 1)
    bar = "█" * round(fraction * _CELLS)
    return f"{fraction:4.0%} {bar:░<{_CELLS}} {done:,} of {total:,}"


def _bar(unit: str) -> _PlainBar | _TqdmBar:
    try:
        return _TqdmBar(unit)
    except ImportError:
        return _PlainBar(unit)


class _TqdmBar:
    """A progress bar of tqdm: a line of text in a terminal, a widget in a notebook.

    Raises:
        ImportError: tqdm is not installed.
    """

    def __init__(self, unit: str) -> None:
        from tqdm.auto import tqdm

        class UnmonitoredBar(tqdm):  # type: ignore[misc]
            monitor_interval = 0  # no monitor thread: with a thread, processes cannot be forked

        self._bar = UnmonitoredBar(total=0, unit=f" {unit}", unit_scale=True)

    def show(self, done: int, total: int) -> None:
        self._bar.total = total
        self._bar.update(done - self._bar.n)

    def close(self) -> None:
        self._bar.close()


@define
class _PlainBar:
    """A progress bar in a line on standard error, which is redrawn in place.

    It is redrawn at most once in `_REDRAW_S` seconds, and when all work is done. `close` ends the
    line.
    """

    _unit: str
    _drawn_s: float = 0.0
    _is_drawn: bool = False

    def show(self, done: int, total: int) -> None:
        now_s = time.monotonic()
        if sys.stderr is None or (done < total and now_s - self._drawn_s < _REDRAW_S):
            return
        self._drawn_s = now_s
        self._is_drawn = True
        sys.stderr.write(f"\r{draw_bar(done, total)} {self._unit}")
        sys.stderr.flush()

    def close(self) -> None:
        if self._is_drawn and sys.stderr is not None:
            sys.stderr.write("\n")
            sys.stderr.flush()
