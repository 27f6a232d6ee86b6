"""The command among processes: terminals, pipes and signals."""

import contextlib
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from relevance_gen.cli import main
from tests.cli.conftest import FRUIT

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "relevance_gen", *arguments]


def test_runs_as_a_module(folder: Path) -> None:
    """`python -m relevance_gen` is the same command."""
    done = subprocess.run(
        command("search", "bananas", "-"), input=FRUIT.encode(), capture_output=True, check=False, env=ENVIRONMENT
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"(standard input):1" in done.stdout


def in_terminal(*arguments: str, **environment: str) -> str:
    """Run the command in a terminal of its own and return all that it showed."""
    ours, theirs = pty.openpty()
    environment = {**ENVIRONMENT, "TERM": "xterm", **environment}
    process = subprocess.Popen(command(*arguments), stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a terminal, on Linux
        while piece := os.read(ours, 65536):
            shown += piece
    os.close(ours)
    assert process.wait(30) == 0
    return shown.decode()


def test_terminal_gets_colour_unless_refused(folder: Path) -> None:
    """On a terminal the words are coloured and a summary follows; `NO_COLOR` is respected."""
    shown = in_terminal("search", "bananas", "fruit.txt", NO_COLOR="")
    assert "\x1b[1;31mBananas\x1b[0m" in shown
    assert "1 of 1 chunks, " in shown
    assert "\x1b" not in in_terminal("search", "bananas", "fruit.txt", NO_COLOR="1")


def test_broken_pipe_is_quiet(folder: Path) -> None:
    """When the reader leaves, the command ends without a traceback."""
    Path("many.txt").write_text("\n\n".join(f"apple number {n} " + "x " * 400 for n in range(2_000)))
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
    assert process.wait(30) == 141
    assert process.stderr.read() == b""
    process.stderr.close()


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
        assert process.wait(30) == 130
    assert process.stderr.read() == b""
    process.stderr.close()


def test_progress_bar_for_long_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long build shows how far it is on a terminal, and leaves nothing behind."""
    monkeypatch.setattr("relevance_gen.cli.terminal._QUIET_S", 0.0)
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
