"""Tests of the command with terminals, pipes and signals."""

import contextlib
import io
import itertools
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.cli import main
from relevance_gen.cli.terminal import StatusLine, WordWrap
from tests.cli.conftest import ENVIRONMENT, FRUIT


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "relevance_gen", *arguments]


def test_python_m_runs_command(folder: Path) -> None:
    """`python -m relevance_gen` is the same command."""
    done = subprocess.run(
        command("search", "bananas", "-"),
        input=FRUIT.encode(),
        capture_output=True,
        check=False,
        env=ENVIRONMENT,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"(standard input):3" in done.stdout


def in_terminal(*arguments: str, **environment: str) -> str:
    """Run the command in a terminal of its own and return all that it showed."""
    ours, theirs = pty.openpty()
    environment = {**ENVIRONMENT, "TERM": "xterm", **environment}
    process = subprocess.Popen(
        command(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, env=environment
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal, on Linux
        while piece := os.read(ours, 65536):
            shown += piece
    os.close(ours)
    assert process.wait(60) == 0
    return shown.decode()


def test_terminal_gets_colour_unless_refused(folder: Path) -> None:
    """On a terminal the words are coloured and a summary follows; `NO_COLOR` is respected."""
    shown = in_terminal("search", "bananas", "fruit.txt", NO_COLOR="")
    assert "\x1b[1;31mBananas\x1b[0m" in shown
    assert "1 of 1 chunk, " in shown
    # The status line of a long search is still erased; its escape sequence sets no color.
    assert not re.search(
        r"\x1b\[[0-9;]*m", in_terminal("search", "bananas", "fruit.txt", NO_COLOR="1")
    )


def test_terminal_shows_best_result_last_if_needed(folder: Path) -> None:
    """If the results exceed the terminal height, the best is printed last, else first."""
    texts = ["apples apples apples", *(f"apples, and {'much else ' * n}" for n in range(2, 12))]
    Path("many.txt").write_text("\n\n".join(texts))
    arguments = ["search", "apples", "many.txt", "--max-chars", "40", "--color", "never"]
    for n, is_last in ((10, True), (3, False)):
        shown = in_terminal(*arguments, "-n", str(n))
        scores = [float(score) for score in re.findall(r"(\d\.\d\d)  many\.txt:", shown)]
        assert scores == sorted(scores, reverse=not is_last)
        assert len(set(scores)) > 1
        assert (", the best last, " in shown) == is_last


def test_terminal_reports_low_confidence(folder: Path) -> None:
    """If few query words match, the output warns that the answer is probably missing."""
    unlikely = in_terminal(
        "search", "which bananas did the emperor of Rome prefer to wine", "fruit.txt"
    )
    assert re.search(
        r"confidence 0\.[0-4]\d: probably none of these holds what was asked\r\n$", unlikely
    )
    assert re.search(
        r"confidence 0\.9\d\r\n$", in_terminal("search", "yellow bananas", "fruit.txt")
    )


class Terminal(io.StringIO):
    """A terminal of 80 columns."""

    def isatty(self) -> bool:
        """Return True."""
        return True


_WORDS = st.text(st.sampled_from("ab猫\u0301"), min_size=1, max_size=20)


@given(
    st.lists(st.tuples(_WORDS, st.sampled_from([" ", "\n", "  ", "\n\n"])), max_size=60), st.data()
)
def test_word_wrap_keeps_words_and_line_ends(
    words: list[tuple[str, str]], data: st.DataObject
) -> None:
    """For any pieces, the wrapped lines fit the terminal, with complete words and line ends."""
    text = "".join(word + space for word, space in words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=9)))
    shown = Terminal()
    wrap = WordWrap(shown)
    for start, end in itertools.pairwise([0, *cuts, len(text)]):
        wrap.write(text[start:end])
    wrap.end()
    assert shown.getvalue().split() == text.split()
    lines = shown.getvalue().split("\n")
    assert all(sum(1 + (char == "猫") for char in line) <= 80 for line in lines)
    assert len(lines) >= text.count("\n") + 1
    plain = io.StringIO()
    WordWrap(plain).write(text)
    assert plain.getvalue() == text


def test_broken_pipe_is_quiet(folder: Path) -> None:
    """If the reader closes the pipe, the command ends without a traceback."""
    Path("many.txt").write_text(
        "\n\n".join(f"apple number {n} " + "x " * 400 for n in range(2_000))
    )
    process = subprocess.Popen(
        command("search", "apple", "many.txt", "-n", "2000", "--lines", "0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


@pytest.mark.parametrize(
    ("redirection", "message"),
    [
        (">/dev/full", "relevance-gen: No space left on device\n"),
        (">&-", "relevance-gen: standard output is closed; redirect it to a file\n"),
    ],
)
def test_output_that_cannot_be_written_is_an_error(
    folder: Path, redirection: str, message: str
) -> None:
    """A full device or a closed output is reported in one line, with status 2 and not 1."""
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {redirection}', "sh", *command("search", "apple")],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, message)


def test_interrupt_is_quiet(folder: Path) -> None:
    """Ctrl-C ends the command with status 130 and without a traceback."""
    os.mkfifo("pipe")
    process = subprocess.Popen(  # in a background job SIGINT may be ignored, and would be here too
        command("search", "apple", "pipe"),
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    with open("pipe", "wb"):
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    assert process.stderr.read() == b""
    process.stderr.close()


def test_progress_bar_is_shown_and_erased(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long build shows its progress on a terminal and erases it at the end."""
    monkeypatch.setattr("relevance_gen.cli.terminal._MIN_DURATION_S", 0.0)
    Path("big.txt").write_text("apple pie. " * 200_000)
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        assert main(["search", "apple", "big.txt", "-n", "1"]) == 0
        shown = os.read(master, 65536).decode()
    os.close(master)
    assert "\rindexing " in shown
    assert "%" in shown
    assert shown.endswith("\r\x1b[K")


def test_slow_file_shows_status_line(folder: Path) -> None:
    """Within two seconds the terminal shows the current file, and erases it at the end."""
    os.mkfifo("slow")
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command("search", "bananas", "fruit.txt", "slow"),
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=theirs, env=ENVIRONMENT,
    )  # fmt: skip
    os.close(theirs)
    with open("slow", "wb"):  # opens when the command reads, and gives it nothing
        shown = b""
        while b"\x1b[K" not in shown:
            shown += os.read(ours, 65536)
    with contextlib.suppress(OSError):
        while piece := os.read(ours, 65536):
            shown += piece
    os.close(ours)
    assert process.wait(60) == 0
    assert shown.startswith(b"\rreading 1 file, 0 MiB  slow\x1b[K")
    assert shown.endswith(b"\r\x1b[K")


def test_message_replaces_status_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message is printed in place of the status line."""
    monkeypatch.setattr("relevance_gen.cli.terminal._MIN_DURATION_S", 0.0)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        status = StatusLine(terminal)
        status.draw("reading\x07")
        status.print("a.txt: gone\x1b[2J")
        shown = b""
        while not shown.endswith(b"\n"):
            shown += os.read(ours, 4096)
        assert shown.decode() == "\rreading␇\x1b[K\r\x1b[Krelevance-gen: a.txt: gone␛[2J\r\n"
    os.close(ours)


START = """
import signal, sys
from relevance_gen.__main__ import main

def install_first(*arguments):
    signal.signal = install
    before = install(*arguments)
    print(flush=True)
    return before

install, signal.signal = signal.signal, install_first
sys.exit(main())
"""
"""A program that runs the command and prints a line when the command has installed its SIGINT
handler."""


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text that takes some seconds to search."""
    path = tmp_path_factory.mktemp("big") / "big.txt"
    path.write_text("\n".join(f"apple number {n} is number {n % 1999}" for n in range(1_000_000)))
    return path


@pytest.mark.parametrize(
    ("seconds", "options"),
    [
        pytest.param(
            seconds, options, marks=() if (place + len(options) // 2) % 2 == 0 else pytest.mark.soak
        )
        for place, seconds in enumerate((0, 0.1, 0.2, 0.4, 0.8, 1.6))
        for options in ([], ["--jobs", "2"])
    ],
)
def test_interrupt_ends_all_processes(seconds: float, options: list[str], big: Path) -> None:
    """Ctrl-C during any phase ends the command and its processes silently with status 130."""
    process = subprocess.Popen(
        [sys.executable, "-c", START, "search", "apple", *[str(big)] * 3, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=ENVIRONMENT,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    assert process.stdout.read(1) == b"\n"
    time.sleep(seconds)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all processes of the command
    said = process.communicate(timeout=60)
    assert (process.returncode, *said) == (130, b"", b"")
