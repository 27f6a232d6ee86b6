"""Server processes that are forked from a process in which the server is imported already.

Importing the server takes nine tenths of the CPU time of its start, and the tests start hundreds of
servers. Each process of tests has one preloaded process, which imports the server once and then
only waits and forks. It runs no threads and no server code itself, so a forked process is in the
state of a new interpreter that has just finished its imports.

Run as a program, this module is the preloaded process.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any

ROOT = Path(__file__).parents[2]
ENVIRON = {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
"""Variables that Python reads when it starts: only servers with these values can be forked."""
_MODULES = (
    "relevance_gen.serve.processes.command",
    "relevance_gen.serve.routes",
    "tests.serve.scripted",
    "tests.serve.half_scripted",
    "tiktoken",
)
_MAX_MESSAGE_BYTES = 1 << 20


class ForkedProcess:
    """A forked process, with the methods of `subprocess.Popen` that tests use.

    Attributes:
        pid: the id of the process.
        returncode: as for `subprocess.Popen`.
        stdout: the text that the process writes to its standard output.
    """

    def __init__(self, preloaded: Preloaded, pid: int, stdout: IO[str]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdout = stdout
        self._preloaded = preloaded
        self._pidfd = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return the return code; None while the process runs."""
        return self._poll(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the process, and return the return code."""
        returncode = self._poll(timeout)
        if returncode is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return returncode

    def send_signal(self, number: int) -> None:
        """Send a signal to the process unless it has ended."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        """Kill the process unless it has ended."""
        self.send_signal(signal.SIGKILL)

    def _poll(self, timeout_s: float | None) -> int | None:
        if self.returncode is None and select.select([self._pidfd], [], [], timeout_s)[0]:
            self.returncode = self._preloaded.reap(self.pid)
            os.close(self._pidfd)
        return self.returncode


class Preloaded:
    """The preloaded process of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.serve.preloaded", str(theirs.fileno())],
                env={**os.environ, **ENVIRON},
                cwd=ROOT,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def fork(
        self, arguments: Sequence[str], environ: Mapping[str, str], stderr: IO[str]
    ) -> ForkedProcess:
        """Run a script, or with "-m" a module, with its arguments in a forked process."""
        reading, writing = os.pipe()
        try:
            request = {"arguments": list(arguments), "environ": dict(environ)}
            pid = self._ask(request, [writing, stderr.fileno()])
        finally:
            os.close(writing)
        return ForkedProcess(self, pid, os.fdopen(reading))

    def reap(self, pid: int) -> int:
        """Return the return code of an ended process, as `subprocess.Popen` has it."""
        return self._ask({"reap": pid}, [])

    def close(self) -> None:
        """End the preloaded process; forked processes continue."""
        self._socket.close()
        self._process.wait()

    def _ask(self, request: Mapping[str, Any], descriptors: Sequence[int]) -> int:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
            answer = self._socket.recv(_MAX_MESSAGE_BYTES)
        return int(json.loads(answer))


@cache
def preloaded() -> Preloaded:
    """Return the preloaded process of this process; the first call starts it."""
    return Preloaded()


def close_preloaded() -> None:
    """End the preloaded process if there is one."""
    if preloaded.cache_info().currsize:
        preloaded().close()
        preloaded.cache_clear()


def _forked_arguments(control: socket.socket) -> list[str]:
    """Answer requests until the socket is closed; return only in a forked process.

    Returns:
        The arguments of the program to run in the forked process.
    """
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _MAX_MESSAGE_BYTES, 2)
        if not message:
            os._exit(0)
        request = json.loads(message)
        if "reap" in request:
            _, status = os.waitpid(request["reap"], 0)
            control.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())
            continue
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            control.close()
            for number, descriptor in enumerate(descriptors, 1):
                os.dup2(descriptor, number)
                os.close(descriptor)
            os.environ.clear()
            os.environ.update(request["environ"])
            arguments: list[str] = request["arguments"]
            return arguments
        for descriptor in descriptors:
            os.close(descriptor)
        control.send(json.dumps(pid).encode())


def main(descriptor: int) -> None:
    """Import the server, fork on request, and run the program of the forked process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the tests end it
    for module in _MODULES:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()
    arguments = _forked_arguments(socket.socket(fileno=descriptor))
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")


if __name__ == "__main__":
    main(int(sys.argv[1]))
