"""The life of one process of the server: start, serve, drain, end."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Literal, TypeAlias

from attrs import frozen

from relevance_gen.quota import Quota
from relevance_gen.serve import logs, routes
from relevance_gen.serve.http.access import auth
from relevance_gen.serve.http.access.rate_limit import RateLimit
from relevance_gen.serve.http.application import application
from relevance_gen.serve.http.connections import connection
from relevance_gen.serve.http.forwarding import Forwarder
from relevance_gen.serve.http.middleware import surround
from relevance_gen.serve.http.resources.resource_pools import make_lanes
from relevance_gen.serve.http.service import Service
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.processes.descriptors import Descriptor
from relevance_gen.serve.services.agents import open_exchange
from relevance_gen.serve.services.embedding import EmbeddingService, load_encoder
from relevance_gen.serve.services.generation import Backend, Generator
from relevance_gen.serve.services.model_registry import ModelRegistry
from relevance_gen.serve.services.reranking import RerankingService, load_reranker
from relevance_gen.serve.services.search import LibraryRetrieval, Searcher
from relevance_gen.serve.services.search_encoder import SearchEncoderService
from relevance_gen.serve.settings import NamedModel, Settings, Task

_log = logging.getLogger(__name__)

Role: TypeAlias = Literal["alone", "front", "model"]
MakeRetrieval: TypeAlias = Callable[[Settings], LibraryRetrieval]
LoadBackend: TypeAlias = Callable[[Settings, NamedModel], Backend]

_MAX_FILES = 65_536

_SWITCH_INTERVAL_S = 5e-4
"""How long a thread may hold the interpreter: with Python's 5 ms a search in a thread delays every other answer."""

_FORWARDING_S = 10.0
"""For passing on and parsing a large body, beyond the time that a generation may take."""

_FEWEST_CONNECTIONS = 1024
"""So many connections may be open however little memory requests may take."""
_CLOSE_S = 5.0
"""For the threads with models to end their current steps."""

_CLEANUP_S = 0.5
"""For the connections, once the work is done or its time is over."""


@frozen
class ProcessSpec:
    """What one process is to be.

    Attributes:
        settings: the server's settings.
        key_digests: digests of the keys that always hold.
        role: "alone" does everything; "front" searches and forwards generation; "model" generates, for the fronts.
        listener: the socket to serve, bound and listening.
        model_socket: for a front, the way to the model process's Unix socket, if there is one.
        metrics_file: where several processes count, each in its row.
    """

    settings: Settings
    key_digests: tuple[bytes, ...]
    role: Role
    listener: socket.socket
    model_socket: os.PathLike[str] | None = None
    metrics_file: Descriptor | None = None
    row: int = 0


def run(spec: ProcessSpec, make_retrieval: MakeRetrieval, load_backend: LoadBackend) -> None:
    """Be the process that `spec` describes, until SIGTERM; end with status 0. Models are loaded in threads."""
    logs.configure(spec.settings)
    _raise_file_limit()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        still_working = asyncio.run(_live(spec, make_retrieval, load_backend))
    except Exception:
        _log.critical("the process cannot go on", exc_info=True)
        sys.exit(1)
    if still_working:
        # Threads cannot be stopped, and the time to wait for them is over.
        logging.shutdown()
        os._exit(0)


async def _live(
    spec: ProcessSpec, make_retrieval: MakeRetrieval, load_backend: LoadBackend
) -> bool:
    """Serve until the end is asked for; tell whether anything was still running then."""
    ended = _end_asked_for(spec)
    settings = spec.settings
    metrics = _metrics(spec)
    registry = ModelRegistry(settings, _loads(spec, load_backend), metrics)
    registry.preload()
    tidying = asyncio.create_task(registry.keep_looking())
    way, timeout_s = spec.model_socket, settings.generation_timeout_s + _FORWARDING_S
    forwarder = None if way is None else Forwarder(way, timeout_s)
    service = _service(spec, metrics, registry, forwarder, make_retrieval)
    answered = routes.OF_MODEL if spec.role == "model" else routes.ROUTES
    await asyncio.to_thread(
        service.searcher.warm_up
    )  # imports need files, which connections may use up
    service.searcher.named.begin()
    most_connections = max(
        _FEWEST_CONNECTIONS, settings.max_buffered_bytes // connection.PER_CONNECTION_BYTES
    )
    if spec.role != "model":
        if settings.folder:
            open_exchange(settings.folder)
        service.strangers = Quota(connection.STRANGERS_SHARE * most_connections)
    server = connection.Server(
        application(service), surround(service, answered), settings.idle_timeout_s
    )
    listener = connection.Listener(spec.listener, server, most_connections)
    await ended.wait()
    was_cut = await _drain(service, listener)
    gates = [lane.gate for lane in service.lanes.values()]
    still_working = was_cut or any(gate.n_running for gate in gates) or registry.is_loading
    for gate in gates:
        gate.close()
    if not still_working:
        service.extractor.close()
    await listener.close(_CLEANUP_S)
    if forwarder is not None:
        await forwarder.close()
    tidying.cancel()
    closing = threading.Thread(target=registry.close, daemon=True)
    closing.start()
    await asyncio.to_thread(closing.join, _CLOSE_S)
    return still_working or closing.is_alive()


def _loads(
    spec: ProcessSpec, load_backend: LoadBackend
) -> dict[Task, Callable[[NamedModel], object]]:
    """Return what loads the models of this process: the fronts generate nothing, and all of them search."""
    loads: dict[Task, Callable[[Settings, NamedModel], object]] = {
        "embed": load_encoder,
        "rerank": load_reranker,
    }
    loads = loads if spec.role == "front" else {"generate": load_backend, **loads}
    return {task: partial(load, spec.settings) for task, load in loads.items()}


async def _drain(service: Service, listener: connection.Listener) -> bool:
    """Let running work finish, within the limit; cut and answer what outlasts it, and tell whether anything did."""
    service.draining = True
    _log.info("draining: %d requests are running", service.n_working)
    if await _is_idle_within(service, service.settings.drain_timeout_s):
        await listener.stop()
        if await _is_idle_within(service, _CLEANUP_S):
            return False
    _log.warning("the time to drain is over: %d requests are cut", service.n_working)
    service.cut()
    await listener.stop()
    await _is_idle_within(service, _CLEANUP_S)
    return True


async def _is_idle_within(service: Service, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await service.until_idle()
    except TimeoutError:
        return False
    return True


def _end_asked_for(spec: ProcessSpec) -> asyncio.Event:
    """Return an event that SIGTERM sets; so do a terminal's signals without a supervisor, or the supervisor's death."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def ask(signal_number: int) -> None:
        if ended.is_set() and spec.role == "alone":
            os._exit(128 + signal_number)  # on the second signal, at once
        ended.set()

    def orphaned(sentinel: int) -> None:
        loop.remove_reader(sentinel)  # it stays readable: this would be called again and again
        ended.set()

    loop.add_signal_handler(signal.SIGTERM, ask, signal.SIGTERM)
    supervisor = multiprocessing.parent_process()
    for number in terminal_signals():
        if supervisor is None:
            loop.add_signal_handler(number, ask, number)
        else:
            # A terminal sends them to every process; the supervisor alone decides what they mean.
            loop.add_signal_handler(number, lambda: None)
    if supervisor is not None:
        loop.add_reader(supervisor.sentinel, orphaned, supervisor.sentinel)
    return ended


def terminal_signals() -> tuple[signal.Signals, ...]:
    """Return SIGINT, for ^C, and SIGHUP, for a terminal that is closed, unless `nohup` has that ignored."""
    is_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return (signal.SIGINT,) if is_ignored else (signal.SIGINT, signal.SIGHUP)


def _metrics(spec: ProcessSpec) -> Metrics:
    layout = routes.layout(spec.settings)
    if spec.metrics_file is None:
        return Metrics.alone(layout)
    return Metrics.shared(layout, spec.metrics_file.number, spec.row)


def _service(
    spec: ProcessSpec,
    metrics: Metrics,
    registry: ModelRegistry,
    forwarder: Forwarder | None,
    make_retrieval: MakeRetrieval,
) -> Service:
    settings, is_model = spec.settings, spec.role == "model"
    generator, embedder = (
        Generator(registry, settings, metrics),
        EmbeddingService(registry, settings, metrics),
    )
    lifting = SearchEncoderService(settings, embedder, metrics) if settings.encoder else None
    reranking = RerankingService(registry, settings, metrics) if settings.reranker else None
    keys = auth.Keys(spec.key_digests, settings.api_keys_file)
    return Service(
        settings=settings,
        identify=(lambda headers: headers.get(auth.KEY_ID_HEADER)) if is_model else keys.identify,
        rate=RateLimit(
            "off" if is_model else settings.rate_limit, settings.rate_limit_storage, metrics
        ),
        lanes=make_lanes(settings, metrics),
        searcher=Searcher(settings, make_retrieval(settings), metrics, lifting, reranking),
        embedder=embedder,
        generator=generator,
        stats=generator.stats if forwarder is None else forwarder.stats,
        forward=None if forwarder is None else forwarder.answer,
        metrics=metrics,
        # The workers have counted each request and checked its key before the model's process gets it.
        http_metrics=Metrics.alone(metrics.layout) if is_model else metrics,
    )


def _raise_file_limit() -> None:
    """Allow as many connections as the system allows: the usual soft limit of 1,024 files is few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
