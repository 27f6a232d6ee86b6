"""Run code on untrusted input in a child process: a crash, a hang or a memory bomb ends only the child."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, cast

from attrs import field, frozen

from relevance_gen.errors import GenerationError

_CHILD = Path(__file__).with_name("child.py")

_PATIENCE = 5
"""An answer may take so many times its processor time by the clock, as the machine may be busy."""

_START_S = 60.0
"""For a process to start, which takes longer than an answer may where the machine is busy."""


@frozen(eq=False)
class _Process:
    """A running program, and the process that started it."""

    popen: subprocess.Popen[bytes]
    stdin: IO[bytes]
    stdout: IO[bytes]
    parent: int = field(factory=os.getpid)

    @property
    def lives_here(self) -> bool:
        return self.parent == os.getpid() and self.popen.poll() is None

    def read_line(self, timeout_s: float) -> bytes:
        end_s = time.monotonic() + timeout_s
        received = bytearray()
        with selectors.DefaultSelector() as selector:
            selector.register(self.stdout, selectors.EVENT_READ)
            while not received.endswith(b"\n"):
                if not selector.select(max(0.0, end_s - time.monotonic())):
                    raise TimeoutError
                part = os.read(self.stdout.fileno(), 1 << 20)
                if not part:
                    raise _ends_by(self.popen.wait())
                received += part
        return bytes(received)

    def end(self) -> None:
        if self.parent == os.getpid():
            self.popen.kill()
            self.popen.wait()
        for pipe in (self.stdin, self.stdout):
            with suppress(OSError):  # what could not be written to a dead process
                pipe.close()


def _ends_by(status: int) -> Exception:
    """Return what the status says of a process that has ended before it answered."""
    if status == -signal.SIGXCPU:
        return TimeoutError()
    if status in (-signal.SIGKILL, -signal.SIGTERM):
        return GenerationError("the process was killed from outside")
    return EOFError()


class Sandbox:
    """A program in a child process, which starts when it is first needed and is killed when it exceeds a limit.

    Args:
        program: a file that defines ``answer``, which takes a mapping and returns one.
        timeout_s: how long the processor may work on one answer; once the process has started, it may take `_PATIENCE`
            times as long.
        memory_bytes: how much memory the process may have, where the system can tell.
    """

    def __init__(self, program: Path, *, timeout_s: float, memory_bytes: int) -> None:
        self._program = program
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._process: _Process | None = None

    def ask(self, question: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to `question`, which JSON can hold; one thread asks, and others wait.

        Raises:
            TimeoutError: it took too long.
            EOFError: the process has died of it.
            GenerationError: the process cannot be started, or somebody else has killed it.
        """
        line = json.dumps(question).encode() + b"\n"
        with self._lock:
            try:
                return self._ask(line)
            except BaseException:
                self._end()
                raise

    def close(self) -> None:
        """End the process; safe to call twice."""
        with self._lock:
            self._end()

    def _ask(self, line: bytes) -> dict[str, Any]:
        if self._process is None or not self._process.lives_here:
            self._end()
            self._process = self._start()
            self._process.read_line(_START_S)
        process = self._process
        with suppress(BrokenPipeError):  # it has died, and reading tells
            process.stdin.write(b"%g " % self._timeout_s + line)
            process.stdin.flush()
        answer: dict[str, Any] = json.loads(process.read_line(_PATIENCE * self._timeout_s))
        return answer

    def _start(self) -> _Process:
        # Keys may stand in the server's variables, and a document or a template has no business with any of them.
        environ = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("RELEVANCE_GEN_")
        }
        try:
            popen = subprocess.Popen(  # noqa: S603 - this package's own program
                [sys.executable, "-P", _CHILD, self._program, str(self._memory_bytes)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environ,
            )
        except OSError as error:
            raise GenerationError(
                f"the process of {self._program.name} cannot be started: {error}"
            ) from None
        return _Process(popen, cast(IO[bytes], popen.stdin), cast(IO[bytes], popen.stdout))

    def _end(self) -> None:
        if self._process is not None:
            self._process.end()
            self._process = None
