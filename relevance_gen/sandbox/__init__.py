"""Process untrusted input in a child process: a crash or an endless loop ends only the child."""

from __future__ import annotations

import json
import math
import os
import queue
import re
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Final, cast

from attrs import field, frozen

from relevance_gen import forks
from relevance_gen.errors import GenerationError

_CHILD: Final = Path(__file__).with_name("child.py")
_READ_BYTES: Final = 1 << 20
_WALL_TIME_FACTOR: Final = 5
"""Seconds by the clock per second of allowed CPU time: on a busy machine the child gets a fraction
of a core.
"""
CAN_SELECT_PIPES = os.name != "nt"
"""Whether a program can wait for the output of a child with a time limit by `select`."""
_START_TIMEOUT_S: Final = 60.0
"""Maximum seconds until a child has loaded its program: on a busy machine, that is slow."""
_INHERITED_VARIABLES: Final = re.compile(
    r"PATH|HOME|LANG|LANGUAGE|LC_\w+|TZ|TMPDIR|LD_LIBRARY_PATH|DYLD_\w+|VIRTUAL_ENV|PYTHON\w+"
    r"|SYSTEMROOT|TEMP|TMP|USERPROFILE|APPDATA|LOCALAPPDATA"  # on Windows
)
"""Environment variables that a child gets. Further variables, such as keys of clouds and of this
package, stay in the parent.
"""


@frozen(eq=False)
class _ChildProcess:
    """A child process, its pipes, and the id of the process that started it."""

    popen: subprocess.Popen[bytes]
    stdin: IO[bytes]
    stdout: IO[bytes]
    parent_id: int = field(factory=os.getpid)

    @property
    def is_usable(self) -> bool:
        """Whether the child is running and this process started it.

        After a fork, the child belongs to the original process only.
        """
        return self.parent_id == os.getpid() and self.popen.poll() is None

    def read_line(self, timeout_s: float) -> bytes:
        """Return the next line of the child's standard output.

        Raises:
            TimeoutError: the line is not complete after `timeout_s`, or the child exceeded its CPU
                time.
            EOFError: the child ended by itself before the line was complete.
            GenerationError: another process killed the child.
        """
        deadline_s = time.monotonic() + timeout_s
        received = bytearray()
        while not received.endswith(b"\n"):
            piece = self._read_piece(max(0.0, deadline_s - time.monotonic()))
            if not piece:
                raise _error_of_exit(self.popen.wait())
            received += piece
        return bytes(received)

    def _read_piece(self, timeout_s: float) -> bytes:
        """Return the next bytes of the child's standard output; b"" at its end.

        Raises:
            TimeoutError: there are none after `timeout_s`.
        """
        if CAN_SELECT_PIPES:
            with selectors.DefaultSelector() as selector:
                selector.register(self.stdout, selectors.EVENT_READ)
                if not selector.select(timeout_s):
                    raise TimeoutError
            return os.read(self.stdout.fileno(), _READ_BYTES)
        pieces: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        # After a timeout the child is killed, which ends the thread.
        descriptor = self.stdout.fileno()

        def read() -> None:
            pieces.put(os.read(descriptor, _READ_BYTES))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            return pieces.get(timeout=timeout_s)
        except queue.Empty:
            raise TimeoutError from None

    def kill(self) -> None:
        """Kill the child if this process started it; in any case, close the pipes."""
        if self.parent_id == os.getpid():
            self.popen.kill()
            self.popen.wait()
        for pipe in (self.stdin, self.stdout):
            with suppress(OSError):  # closing flushes, which fails if the child is dead
                pipe.close()


def _error_of_exit(status: int) -> Exception:
    """Return the error for a child that exited before it answered, by its exit status.

    It is a `TimeoutError` if the CPU time was exceeded, a `GenerationError` if the child was killed
    by a signal from another process, and otherwise an `EOFError`.
    """
    # Windows lacks these signals and the limit of CPU time.
    if status == -getattr(signal, "SIGXCPU", math.inf):
        return TimeoutError()
    sigkill = getattr(signal, "SIGKILL", math.inf)
    if status in (-sigkill, -signal.SIGTERM):
        return GenerationError("the sandbox process was killed by another process or by the system")
    return EOFError()


class Sandbox:
    """A program in a child process that is killed when it exceeds a limit.

    The process starts at the first call, and again at the first call after it ended or was killed.
    Thread-safe: concurrent calls run sequentially.

    Args:
        program: a file that defines ``answer``, a function from a mapping to a mapping.
        timeout_s: CPU seconds of one answer; by the clock it may take `_WALL_TIME_FACTOR` times as
            long.
        memory_bytes: maximum address space of the child, on systems that can limit it.
    """

    def __init__(self, program: Path, *, timeout_s: float, memory_bytes: int) -> None:
        self._program = program
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._lock = threading.Lock()
        self._process: _ChildProcess | None = None
        forks.register(self)

    def renew_after_fork(self) -> None:
        """Create a new lock in a forked process.

        The child process of the sandbox still belongs to the process that forked; the next call in
        the forked process starts another one.
        """
        self._lock = threading.Lock()

    def call(
        self,
        request: Mapping[str, Any],
        content: bytes | None = None,
    ) -> dict[str, Any]:
        """Return the answer of the program to a request. Any error kills the child.

        Args:
            request: values that JSON can represent.
            content: bytes that the program gets as ``request["content"]``; None for no such key.

        Raises:
            TimeoutError: the answer took too much CPU time or too long by the clock, or the child
                did not start in time.
            EOFError: the child ended before it answered, for example for lack of memory.
            GenerationError: the child cannot be started, or another process killed it.
        """
        with self._lock:
            try:
                return self._call(json.dumps(request).encode(), content)
            except BaseException:
                self._kill()
                raise

    def close(self) -> None:
        """Kill the child, after the end of a running call. A later call starts a new child."""
        with self._lock:
            self._kill()

    def _call(self, request: bytes, content: bytes | None) -> dict[str, Any]:
        if self._process is None or not self._process.is_usable:
            self._kill()
            self._process = self._start()
            self._process.read_line(_START_TIMEOUT_S)
        process = self._process
        n_bytes = -1 if content is None else len(content)
        with suppress(BrokenPipeError):  # the child is dead; reading raises the right error
            header = b"%g %d " % (self._timeout_s, n_bytes)
            process.stdin.write(header + request + b"\n")
            process.stdin.write(content or b"")
            process.stdin.flush()
        line = process.read_line(_WALL_TIME_FACTOR * self._timeout_s)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _start(self) -> _ChildProcess:
        environment = {
            name: value
            for name, value in os.environ.items()
            if _INHERITED_VARIABLES.fullmatch(name)
        }
        arguments = [_CHILD, self._program, self._memory_bytes]
        command = [sys.executable, "-P", *map(str, arguments)]
        try:
            popen = subprocess.Popen(  # noqa: S603 - the program belongs to this package
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
        except OSError as error:
            raise GenerationError(
                f"the process of {self._program.name} cannot be started: {error}"
            ) from None
        stdin = cast(IO[bytes], popen.stdin)
        stdout = cast(IO[bytes], popen.stdout)
        return _ChildProcess(popen, stdin, stdout)

    def _kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None
