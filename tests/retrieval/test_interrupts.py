"""^C while chunks are read ends with KeyboardInterrupt, at any moment and however often, and never with an abort."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest

WORK = """
import sys
from relevance_gen import ChunkIndex, search
chunks = [f"word{n} is one of many words, and word{n * 7919 % 10007} is another. " * 8 for n in range(6000)]
search("many", chunks[:9])
sys.stdout.write("ready\\n")
sys.stdout.flush()
while True:
    {work}
"""


@pytest.mark.parametrize(
    ("work", "n_signals", "delays_s"),
    [
        ('search("many words", chunks)', 1, (0.005,)),
        ("ChunkIndex(chunks)", 4, (0.03,)),
        ("ChunkIndex(chunks, progress=True)", 1, (0.08,)),
        ("ChunkIndex(chunks * 4, n_jobs=2)", 4, (0.03,)),
    ],
    ids=["search", "index", "bar", "processes"],
)
def test_interrupt_raises_keyboard_interrupt(
    work: str, n_signals: int, delays_s: tuple[float, ...]
) -> None:
    """The process ends at once with the traceback of a KeyboardInterrupt, as ^C ends any Python program."""
    interrupt(work, n_signals, delays_s)


@pytest.mark.soak
@pytest.mark.parametrize("n_signals", [1, 4])
@pytest.mark.parametrize(
    "work", ['search("many words", chunks)', "ChunkIndex(chunks)", "ChunkIndex(chunks, n_jobs=2)"]
)
def test_interrupt_at_any_time_raises_keyboard_interrupt(work: str, n_signals: int) -> None:
    """The same at ten moments, once and again and again."""
    interrupt(work, n_signals, tuple(moment / 50 for moment in range(10)))


def interrupt(work: str, n_signals: int, delays_s: tuple[float, ...]) -> None:
    """Start a computation, and send a number of signals after a number of seconds."""
    for delay_s in delays_s:
        command = [sys.executable, "-c", WORK.replace("{work}", work)]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            time.sleep(delay_s)
            for _ in range(n_signals):
                process.send_signal(signal.SIGINT)
                time.sleep(0.005)
            _, reported = process.communicate(timeout=60)
        finally:
            process.kill()
            process.communicate()
        # Python itself ends with 1 if another ^C comes while it prints the traceback.
        assert process.returncode == -signal.SIGINT or (
            n_signals > 1 and process.returncode == 1
        ), reported
        assert "KeyboardInterrupt" in reported
        assert "FATAL" not in reported
