"""The supervisor: starts several processes on one port, replaces dead processes, and ends all."""

from __future__ import annotations

import logging
import multiprocessing
import signal
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from typing import Any, TypeAlias

import attrs
from attrs import define

from relevance_gen.serve import logs
from relevance_gen.serve.http.connections.connection import BACKLOG
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.processes.descriptors import nameless_file, private_socket
from relevance_gen.serve.processes.process import ProcessSpec, terminal_signals
from relevance_gen.serve.routes import layout
from relevance_gen.serve.settings import Settings

_log = logging.getLogger(__name__)

Target: TypeAlias = Callable[[ProcessSpec], None]

_GRACE_S = 5.0
"""Seconds after the time limit to drain until processes that are still running are killed."""

_STABLE_S = 10.0
"""A process that ran for at least this time is replaced at once.

If processes end sooner, the delay before each replacement is twice the previous delay.
"""

_MIN_DELAY_S = 0.1
_MAX_DELAY_S = 30.0


@define
class _Child:
    """A child process that the supervisor restarts when it ends, with exponential backoff.

    Attributes:
        spec: the specification of the process.
        process: the running process; None after it ended, until its replacement starts.
        started_s: when the last process started, in seconds of the monotonic clock.
        start_at_s: the earliest time of the next start, on the same clock.
        delay_s: seconds to wait before the next restart of a process that ended less than
            `_STABLE_S` after its start.
    """

    spec: ProcessSpec
    process: SpawnProcess | None = None
    started_s: float = 0.0
    start_at_s: float = 0.0
    delay_s: float = 0.0


class Supervisor:
    """Runs one process for each specification, until a signal.

    Each worker has its own listening socket on the shared port; with SO_REUSEPORT the kernel
    distributes connections among them. This process creates the sockets and keeps them open:
    connections to a worker that died wait in its socket for the worker that replaces it. No
    connection is refused, unless the replacement also dies soon: then the socket is shut down until
    the next replacement starts, so that new connections go to the other workers.

    Args:
        specs: the specifications; the specification of the process with the model must be the last.
        target: the main function of each process; must be importable by name.
        drain_timeout_s: maximum seconds that running requests may take after a signal.
    """

    def __init__(
        self, specs: Sequence[ProcessSpec], target: Target, *, drain_timeout_s: float
    ) -> None:
        self._children = [_Child(spec) for spec in specs]
        self._target = target
        self._drain_timeout_s = drain_timeout_s
        self._signals: list[int] = []
        self._context = multiprocessing.get_context("spawn")

    def run(self) -> int:
        """Run the processes until a signal arrives, end them, and return the exit status.

        The status is 0, or 128 plus the number of the last signal if several arrived.
        """
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, *terminal_signals()):
            signal.signal(number, lambda number, _: self._signals.append(number))
        while not self._signals:
            for child in self._children:
                self._update(child)
            start_times = [child.start_at_s for child in self._children if child.process is None]
            timeout_s = None
            if start_times:
                timeout_s = max(0.0, min(start_times) - time.monotonic())
            running = [child.process for child in self._children if child.process is not None]
            self._wait(reader, running, timeout_s)
        return self._end(reader)

    def _wait(
        self, reader: socket.socket, processes: Sequence[SpawnProcess], timeout_s: float | None
    ) -> None:
        if reader in wait([reader, *(process.sentinel for process in processes)], timeout_s):
            reader.recv(4096)

    def _update(self, child: _Child) -> None:
        """Schedule a replacement if the process has ended; start it once its delay is over."""
        now_s = time.monotonic()
        if child.process is not None and child.process.exitcode is not None:
            self._note_end(child, child.process, now_s)
        if child.process is None and now_s >= child.start_at_s:
            child.spec.listener.listen(BACKLOG)  # again if it was shut down
            child.process = self._context.Process(
                target=self._target, args=(child.spec,), name=child.spec.role
            )
            child.process.start()
            child.started_s = now_s
            _log.info("%s process %s started", child.spec.role, child.process.pid)

    def _note_end(self, child: _Child, process: SpawnProcess, now_s: float) -> None:
        """Log the end of a process, and set the time at which its replacement starts.

        If the process is a worker and its replacement does not start at once, its listening socket
        is shut down until then, so that new connections go to the other workers.
        """
        role = child.spec.role
        _log.error("%s process %s %s", role, process.pid, _end_of(process.exitcode or 0))
        if now_s - child.started_s >= _STABLE_S:
            child.start_at_s = now_s
            child.delay_s = 0.0
        else:
            child.start_at_s = now_s + child.delay_s
            child.delay_s = min(_MAX_DELAY_S, max(_MIN_DELAY_S, 2 * child.delay_s))
        process.close()
        child.process = None
        if child.start_at_s > now_s and role == "front":
            # New connections go to the other workers.
            child.spec.listener.shutdown(socket.SHUT_RDWR)

    def _end(self, reader: socket.socket) -> int:
        """End the workers, then the process with the model, and return the exit status.

        A second signal, or the end of the time limit (`drain_timeout_s` and `_GRACE_S`), kills all
        processes that are still running. The exit status is as for `run`.

        Args:
            reader: a socket that becomes readable when this process receives a signal.
        """
        for child in self._children:
            child.spec.listener.close()
        end_s = time.monotonic() + self._drain_timeout_s + _GRACE_S
        for is_model in (False, True):
            group = [child for child in self._children if (child.spec.role == "model") == is_model]
            for child in group:
                if child.process is not None:
                    child.process.terminate()
            while len(self._signals) == 1 and time.monotonic() < end_s:
                alive = _alive(group)
                if not alive:
                    break
                self._wait(reader, alive, end_s - time.monotonic())
        for process in _alive(self._children):
            process.kill()
        return 0 if len(self._signals) == 1 else 128 + self._signals[-1]


def _end_of(status: int) -> str:
    """Return a description of the end of a process, given its exit status.

    A negative status is the number of the signal that ended it.
    """
    if status >= 0:
        return f"ended with status {status}"
    hint = ""
    if -status == signal.SIGBUS:
        hint = ": a file that it had mapped was cut, such as the model's"
    return f"was ended by signal {-status}, {signal.strsignal(-status)}{hint}"


def _alive(children: Sequence[_Child]) -> list[SpawnProcess]:
    return [
        child.process
        for child in children
        if child.process is not None and child.process.is_alive()
    ]


def supervise(
    settings: Settings,
    key_digests: tuple[bytes, ...],
    listeners: Sequence[socket.socket],
    target: Target,
) -> int:
    """Run a worker for each listener, and one process for the generation models, if there are any.

    Args:
        settings: the settings of the server.
        key_digests: digests of the API keys, which the workers check.
        listeners: the listening socket of each worker.
        target: the main function of each process; must be importable by name.

    Returns:
        The exit status, when a signal has ended the processes.
    """
    logs.configure(settings)
    has_model = bool(settings.models["generate"])
    n_rows = len(listeners) + has_model
    n_bytes = Metrics.shared_bytes(layout(settings), n_rows)
    with ExitStack() as stack:
        metrics_file = stack.enter_context(nameless_file(n_bytes))
        model_listener, model_path = None, None
        if has_model:
            model_listener, model_path = stack.enter_context(private_socket())
        specs = [
            ProcessSpec(settings, key_digests, "front", listener, model_path, metrics_file, row)
            for row, listener in enumerate(listeners)
        ]
        if model_listener is not None:
            # Only the workers reach it; they have checked each request and log it.
            model_settings = attrs.evolve(
                settings,
                allowed_hosts=("*",),
                generation_requires_key=False,
                access_log=False,
                api_keys_file=None,
                rate_limit="off",
            )
            model_spec = ProcessSpec(
                model_settings,
                key_digests=(),
                role="model",
                listener=model_listener,
                metrics_file=metrics_file,
                row=n_rows - 1,
            )
            specs.append(model_spec)
        return Supervisor(specs, target, drain_timeout_s=settings.drain_timeout_s).run()


def bind(host: str, port: int, n_workers: int) -> list[socket.socket]:
    """Open one listening socket for each worker, all on the same port; port 0 selects a free port.

    Raises:
        OSError: the host is unknown, or the port is not available.
    """
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    first = _bound_socket(family, address, shares_port=False)
    listeners = [first]
    try:
        if n_workers > 1:
            # The first socket does not share its port, so binding it fails if another server
            # listens there; the sockets of the workers would share the port of that server. It also
            # finds a free port if the port is 0. It never listens: closing it would reset the
            # connections that wait in it.
            address = first.getsockname()
            first.close()
            listeners = []
            for _ in range(n_workers):
                listeners.append(_bound_socket(family, address, shares_port=True))
        for listener in listeners:
            listener.listen(BACKLOG)
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _bound_socket(
    family: int,
    address: tuple[Any, ...],
    *,
    shares_port: bool,
) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shares_port:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(address)
    except OSError:
        bound.close()
        raise
    return bound
