"""Several processes, one port: start them, replace those that die, and end them together."""

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
from types import FrameType
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
"""How long a process may take to end itself, beyond the drain's limit, before it is killed."""

_STEADY_S = 10.0
"""A process that lived this long is replaced at once; one that lived shorter, after a delay that doubles each time."""

_MAX_DELAY_S = 30.0


@define
class _Child:
    """One place in the server and the process that fills it now."""

    spec: ProcessSpec
    process: SpawnProcess | None = None
    started_s: float = 0.0
    start_at_s: float = 0.0
    delay_s: float = 0.0


class Supervisor:
    """Runs `specs`, one process each, until a signal.

    Every worker has a listening socket of its own on the shared port (SO_REUSEPORT: the kernel spreads connections over
    them), but this process made them all and keeps them open: connections to a worker that died wait in its socket for
    the worker that replaces it. None is refused, unless that dies soon, too: until the next one starts, its socket is
    shut, so that new connections go to the workers that live.

    The process that holds the model is last. What each process runs, `target`, must be importable by its name.
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
        """Start the processes, replace those that die, and return the exit status once a signal has ended them all."""
        reader, writer = socket.socketpair()
        writer.setblocking(False)
        signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, *terminal_signals()):
            signal.signal(number, self._note)
        while not self._signals:
            for child in self._children:
                self._tend(child)
            waiting = [c.start_at_s - time.monotonic() for c in self._children if c.process is None]
            running = [child.process for child in self._children if child.process is not None]
            self._wait(reader, running, max(0.0, min(waiting)) if waiting else None)
        return self._end(reader)

    def _note(self, number: int, _: FrameType | None) -> None:
        self._signals.append(number)

    def _wait(
        self, reader: socket.socket, processes: Sequence[SpawnProcess], timeout_s: float | None
    ) -> None:
        if reader in wait([reader, *(process.sentinel for process in processes)], timeout_s):
            reader.recv(4096)

    def _tend(self, child: _Child) -> None:
        now_s = time.monotonic()
        if child.process is not None and child.process.exitcode is not None:
            _log.error(
                "%s process %s %s",
                child.spec.role,
                child.process.pid,
                _end_of(child.process.exitcode),
            )
            steady = now_s - child.started_s >= _STEADY_S
            child.start_at_s = now_s + (0.0 if steady else child.delay_s)
            child.delay_s = 0.0 if steady else min(_MAX_DELAY_S, max(0.1, 2 * child.delay_s))
            child.process.close()
            child.process = None
            if (
                child.start_at_s > now_s and child.spec.role == "front"
            ):  # its connections go to those that live
                child.spec.listener.shutdown(socket.SHUT_RDWR)
        if child.process is None and now_s >= child.start_at_s:
            child.spec.listener.listen(BACKLOG)  # again, if it was shut
            child.process = self._context.Process(
                target=self._target, args=(child.spec,), name=child.spec.role
            )
            child.process.start()
            child.started_s = now_s
            _log.info("%s process %s started", child.spec.role, child.process.pid)

    def _end(self, reader: socket.socket) -> int:
        """End the workers, then the process that holds the model; on a second signal, all at once."""
        for child in self._children:
            child.spec.listener.close()
        fronts = [child for child in self._children if child.spec.role != "model"]
        end_s = time.monotonic() + self._drain_timeout_s + _GRACE_S
        for group in (fronts, [child for child in self._children if child not in fronts]):
            for child in group:
                if child.process is not None:
                    child.process.terminate()
            while (alive := _alive(group)) and len(self._signals) == 1 and time.monotonic() < end_s:
                self._wait(reader, alive, end_s - time.monotonic())
        for process in _alive(self._children):
            process.kill()
        return 0 if len(self._signals) == 1 else 128 + self._signals[-1]


def _end_of(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    hint = (
        ": a file that it had mapped was cut, such as the model's"
        if -status == signal.SIGBUS
        else ""
    )
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
    """Serve with a worker for each of `listeners`, and a process for the model, if any; return the exit status."""
    logs.configure(settings)
    has_model = bool(settings.models["generate"])
    n_rows = len(listeners) + has_model
    with ExitStack() as stack:
        metrics_file = stack.enter_context(
            nameless_file(Metrics.shared_bytes(layout(settings), n_rows))
        )
        model = stack.enter_context(private_socket()) if has_model else None
        specs = [
            ProcessSpec(
                settings, key_digests, "front", listener, model and model[1], metrics_file, row
            )
            for row, listener in enumerate(listeners)
        ]
        if model is not None:  # only workers reach it, and they have checked and log each request
            inner = attrs.evolve(
                settings,
                allowed_hosts=("*",),
                generation_requires_key=False,
                access_log=False,
                api_keys_file=None,
                rate_limit="off",
            )
            specs.append(ProcessSpec(inner, (), "model", model[0], None, metrics_file, n_rows - 1))
        return Supervisor(specs, target, drain_timeout_s=settings.drain_timeout_s).run()


def bind(host: str, port: int, n_workers: int) -> list[socket.socket]:
    """Open one listening socket for each worker, all on the same port; raise an OSError if it cannot be had."""
    family, _, _, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    first = _listener(family, address, shared=False)
    if n_workers == 1:
        return [first]
    # The first socket does not share its port, so binding it fails where another server listens; the workers' sockets
    # would bind all the same, and share that server's port. It also finds the free port where 0 was asked for.
    address = first.getsockname()
    first.close()
    listeners: list[socket.socket] = []
    try:
        listeners.extend(_listener(family, address, shared=True) for _ in range(n_workers))
    except OSError:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _listener(family: int, address: tuple[Any, ...], *, shared: bool) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener
