"""What a terminal needs: colours where they are wanted, text without control characters, a progress bar."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Literal, TextIO, TypeAlias

from attrs import define, field

Colour: TypeAlias = Literal["auto", "always", "never"]

_BAR_CELLS = 30
_QUIET_S = 0.5
"""What is done sooner needs no bar."""
_REDRAW_S = 0.1

# Text from a file must not move the cursor or change the title: a control character shows as its Unicode picture.
_VISIBLE = {code: chr(0x2400 + code) for code in range(32)} | dict.fromkeys(range(0x80, 0xA0), "\ufffd")
_VISIBLE |= {0x7F: "\u2421", ord("\t"): "    ", ord("\r"): "", ord("\n"): "\n"}


def wants_colour(choice: Colour, stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Tell whether to colour what goes to `stream`; ``NO_COLOR`` in the environment speaks against, if not empty.

    Source: https://no-color.org.
    """
    if choice == "auto":
        return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    return choice == "always"


def visible(text: str) -> str:
    r"""Replace control characters by pictures of them, and tabs by spaces.

    >>> visible("a\x1b[2Jb")
    'a␛[2Jb'
    """
    return text.translate(_VISIBLE)


def width(stream: TextIO) -> int:
    """Return the columns of the terminal behind `stream`; 80 where there is none."""
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


@define
class ProgressBar:
    """A line on a terminal that shows how far some work is, and goes away; nothing where there is no terminal."""

    stream: TextIO
    label: str
    _started: float = field(factory=time.monotonic, init=False)
    _drawn: float = field(default=0.0, init=False)

    def __call__(self, done: int, total: int) -> None:
        """Show that `done` of `total` is done."""
        now = time.monotonic()
        if not self.stream.isatty() or now - self._started < _QUIET_S or now - self._drawn < _REDRAW_S:
            return
        self._drawn = now
        share = done / max(total, 1)
        bar = "█" * round(share * _BAR_CELLS)
        self.stream.write(f"\r{self.label} {bar:░<{_BAR_CELLS}} {share:4.0%}  {done:,} of {total:,}")
        self.stream.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self._drawn:
            self.stream.write("\r\x1b[K")
            self.stream.flush()
