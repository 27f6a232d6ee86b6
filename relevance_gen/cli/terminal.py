"""What a terminal needs: colours where they are wanted, text without control characters, a progress bar."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Literal, TextIO, TypeAlias
from unicodedata import east_asian_width

from attrs import define, field

from relevance_gen.progress import draw_bar

Colour: TypeAlias = Literal["auto", "always", "never"]

_QUIET_S = 0.5
"""What is done sooner needs no bar."""
_REDRAW_S = 0.1
_SPACE = re.compile(r"(\s)")
_CLEAR_LINE = "\r\x1b[K"

# Text from a file must not move the cursor or change the title: a control character shows as its Unicode picture.
_VISIBLE = {code: chr(0x2400 + code) for code in range(32)} | dict.fromkeys(
    range(0x80, 0xA0), "\ufffd"
)
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


def write_json(value: object) -> None:
    """Write a value to the standard output, as JSON in one line."""
    from relevance_gen.wire import serialize  # imports cattrs

    sys.stdout.write(serialize(value).decode("ascii") + "\n")


def size(stream: TextIO) -> tuple[int, int]:
    """Return the columns and the lines of the terminal behind `stream`; 80 and 24 where there is none."""
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        columns = lines = 0
    return columns or 80, lines or 24


@define
class WordWrap:
    """Write a text that comes piece by piece; on a terminal no word is broken at the end of a line."""

    stream: TextIO
    _columns: int = field(init=False)
    _column: int = field(default=0, init=False)
    _word: str = field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        self._columns = size(self.stream)[0]

    def write(self, text: str) -> None:
        """Write some more; on a terminal without control characters, and the last word once it has ended."""
        if not self.stream.isatty():
            self.stream.write(text)
        else:
            *parts, self._word = _SPACE.split(self._word + visible(text))
            for word, space in zip(parts[::2], parts[1::2], strict=True):
                self._put(word)
                self._put(space)
            if len(self._word) >= self._columns:  # in a script without spaces
                self.end()
        self.stream.flush()

    def end(self) -> None:
        """Write the last word."""
        self._put(self._word)
        self._word = ""

    def _put(self, part: str) -> None:
        n_columns = sum(2 if east_asian_width(char) in "WF" else 1 for char in part)
        if part != "\n" and self._column + n_columns > self._columns:
            if part.isspace():  # it ends the line in place of a line end
                part = "\n"
            elif self._column:
                self.stream.write("\n")
                self._column = 0
        column = self._column + n_columns
        self._column = (column - 1) % self._columns + 1 if column and part != "\n" else 0
        self.stream.write(part)


@define
class StatusLine:
    """A line on a terminal that says how far some work is, and goes away; nothing where there is no terminal.

    The command `started` at so many seconds of `time.monotonic`.
    """

    stream: TextIO
    started: float = field(factory=time.monotonic)
    _drawn: float = field(default=0.0, init=False)

    def draw(self, text: str) -> None:
        """Show `text`, unless the work has hardly begun or the line was drawn just now."""
        now = time.monotonic()
        if (
            not self.stream.isatty()
            or now - self.started < _QUIET_S
            or now - self._drawn < _REDRAW_S
        ):
            return
        self._drawn = now
        self.stream.write(f"\r{visible(text)[: size(self.stream)[0] - 1]}\x1b[K")
        self.stream.flush()

    def clear(self) -> None:
        """Take the line away."""
        if self._drawn:
            self._drawn = 0.0
            self.stream.write(_CLEAR_LINE)
            self.stream.flush()

    def say(self, message: str) -> None:
        """Write a message in a line of its own."""
        beginning = _CLEAR_LINE if self._drawn else ""
        self.stream.write(f"{beginning}relevance-gen: {visible(message)}\n")
        self.stream.flush()

    def draw_share(self, label: str, done: int, total: int) -> None:
        """Show as a bar that `done` of `total` is done."""
        self.draw(f"{label} {draw_bar(done, total)}")

    @contextmanager
    def watching(self, describe: Callable[[], str]) -> Iterator[None]:
        """Show again and again how far some work is, even while one step of it takes long."""
        if not self.stream.isatty():
            yield
            return
        finished = threading.Event()

        def watch() -> None:
            while not finished.wait(_REDRAW_S):
                self.draw(describe())

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            finished.set()
            watcher.join()
            self.clear()
