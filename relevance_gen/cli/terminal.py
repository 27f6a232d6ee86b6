"""Output for terminals: colors, text without control characters, and progress."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, Literal, TextIO, TypeAlias
from unicodedata import east_asian_width

from attrs import define, field

from relevance_gen.progress import draw_bar

ColorChoice: TypeAlias = Literal["auto", "always", "never"]

_MIN_DURATION_S: Final = 0.5
"""Seconds from the start of the command before progress is shown."""
_REDRAW_S: Final = 0.1
_SPACE: Final = re.compile(r"(\s)")
_CLEAR_LINE: Final = "\r\x1b[K"

# Text of files must not move the cursor or change the title of the terminal.
_VISIBLE = {
    **{code: chr(0x2400 + code) for code in range(32)},
    **dict.fromkeys(range(0x80, 0xA0), "\ufffd"),
    0x7F: "\u2421",
    ord("\t"): "    ",
    ord("\r"): "",
    ord("\n"): "\n",
}


def wants_color(choice: ColorChoice, stream: TextIO, environ: Mapping[str, str]) -> bool:
    """Return whether to color the output; a non-empty ``NO_COLOR`` disables automatic colors.

    Source: https://no-color.org.
    """
    if choice == "auto":
        return stream.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    return choice == "always"


def visible(text: str) -> str:
    r"""Replace control characters by visible characters, and tabs by four spaces.

    Newlines are kept, and carriage returns are removed.

    >>> visible("a\x1b[2Jb")
    'a␛[2Jb'
    """
    return text.translate(_VISIBLE)


def write_json(value: object) -> None:
    """Write a value to standard output, as JSON in one line."""
    from relevance_gen.wire import serialize  # imports cattrs

    sys.stdout.write(serialize(value).decode("ascii") + "\n")


def size(stream: TextIO) -> tuple[int, int]:
    """Return the columns and lines of the terminal of a stream; 80 and 24 without a terminal."""
    try:
        columns, lines = os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        columns = lines = 0
    return columns or 80, lines or 24


@define
class WordWrap:
    """Writes text that arrives in pieces; on a terminal, lines break between words."""

    stream: TextIO
    _columns: int = field(init=False)
    _column: int = field(default=0, init=False)
    _word: str = field(default="", init=False)

    def __attrs_post_init__(self) -> None:
        self._columns = size(self.stream)[0]

    def write(self, text: str) -> None:
        """Write a piece of text; on a terminal, its last word waits until the word is complete."""
        if not self.stream.isatty():
            self.stream.write(text)
        else:
            *parts, self._word = _SPACE.split(self._word + visible(text))
            for part in parts:
                self._put(part)
            if len(self._word) >= self._columns:  # a script without spaces
                self.end()
        self.stream.flush()

    def end(self) -> None:
        """Write the last word; the caller must call this method after the last `write`."""
        self._put(self._word)
        self._word = ""

    def _put(self, part: str) -> None:
        n_columns = sum(2 if east_asian_width(char) in "WF" else 1 for char in part)
        if part != "\n" and self._column + n_columns > self._columns:
            if part.isspace():  # replaced by the line break
                part = "\n"
            elif self._column:
                self.stream.write("\n")
                self._column = 0
        column = self._column + n_columns
        self._column = (column - 1) % self._columns + 1 if column and part != "\n" else 0
        self.stream.write(part)


@define
class StatusLine:
    """A line of a terminal that shows the progress of a command.

    If the stream is not a terminal, no progress is shown; messages are printed in any case.

    Attributes:
        stream: the terminal, or another stream.
        started_s: the start of the command, in seconds of `time.monotonic`.
    """

    stream: TextIO
    started_s: float = field(factory=time.monotonic)
    _drawn: float = field(default=0.0, init=False)

    def draw(self, text: str) -> None:
        """Show a text in the line, if the stream is a terminal.

        The text is skipped within `_MIN_DURATION_S` of the start of the command, and within
        `_REDRAW_S` of the last drawing.
        """
        now = time.monotonic()
        if (
            not self.stream.isatty()
            or now - self.started_s < _MIN_DURATION_S
            or now - self._drawn < _REDRAW_S
        ):
            return
        self._drawn = now
        self.stream.write(f"\r{visible(text)[: size(self.stream)[0] - 1]}\x1b[K")
        self.stream.flush()

    def clear(self) -> None:
        """Remove the line from the terminal, if it is shown."""
        if self._drawn:
            self._drawn = 0.0
            self.stream.write(_CLEAR_LINE)
            self.stream.flush()

    def print(self, message: str) -> None:
        """Write a message in a line of its own, after removing the line of the progress."""
        beginning = _CLEAR_LINE if self._drawn else ""
        self.stream.write(f"{beginning}relevance-gen: {visible(message)}\n")
        self.stream.flush()

    def draw_share(self, label: str, n_done: int, n_total: int) -> None:
        """Show `label` and a bar with the fraction ``n_done / n_total``, as `draw` shows a text."""
        self.draw(f"{label} {draw_bar(n_done, n_total)}")

    @contextmanager
    def watching(self, describe: Callable[[], str]) -> Iterator[None]:
        """Show a description of the progress again and again, from a thread, during the context.

        `describe` returns the description; it is called in that thread.
        """
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
