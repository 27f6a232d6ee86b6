"""The life of one process of the server: start, serve, drain, end."""

from __future__ import annotations

import asyncio
import gc
import logging
import multiprocessing
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Callable, Mapping
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
from relevance_gen.serve.http.middleware import middleware
from relevance_gen.serve.http.resources.resource_pools import make_resource_pools
from relevance_gen.serve.http.route import Router
from relevance_gen.serve.http.service import Service
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.processes.descriptors import Descriptor
from relevance_gen.serve.services.agents import open_exchange
from relevance_gen.serve.services.embedding import EmbeddingService, load_encoder
from relevance_gen.serve.services.generation import Backend, Generator
from relevance_gen.serve.services.model_registry import ModelRegistry
from relevance_gen.serve.services.reranking import RerankingService, load_reranker
from relevance_gen.serve.services.search import Searcher
from relevance_gen.serve.services.search_encoder import SearchEncoderService
from relevance_gen.serve.settings import ModelTask, NamedModel, Settings

_log = logging.getLogger(__name__)

Role: TypeAlias = Literal["alone", "front", "model"]
LoadBackend: TypeAlias = Callable[[Settings, NamedModel], Backend]

_MAX_FILES = 65_536

_SWITCH_INTERVAL_S = 5e-4
"""How long a thread may hold the GIL: with Python's 5 ms, a search in a thread delays all other
responses."""

_FORWARDING_S = 10.0
"""Time to forward and parse a large body, in addition to the time limit of a generation."""

_MIN_CONNECTIONS = 1024
"""Minimum limit on open connections, even if `max_buffered_bytes` has memory for fewer."""
_CLOSE_TIMEOUT_S = 5.0
"""Maximum seconds to wait at shutdown until the models are closed."""

_CLEANUP_TIMEOUT_S = 0.5
"""Maximum seconds of each wait at shutdown: for the last requests, and until connections close."""


@frozen
class ProcessSpec:
    """The configuration of one process.

    Attributes:
        settings: the settings of the server.
        key_digests: digests of the API keys of the environment, or of the generated key. They are
            valid until the process ends; the keys of a key file can change.
        role: "alone" does everything; "front", a worker, searches and forwards generations; "model"
            generates for the workers.
        listener: the socket to serve, bound and listening.
        model_socket: for a front, the path to the Unix socket of the model process; None if there
            is no model process.
        metrics_file: the file with the metrics of several processes; None for a single process.
        row: the row of this process in the metrics.
    """

    settings: Settings
    key_digests: tuple[bytes, ...]
    role: Role
    listener: socket.socket
    model_socket: os.PathLike[str] | None = None
    metrics_file: Descriptor | None = None
    row: int = 0


def run(
    spec: ProcessSpec, load_backend: LoadBackend, make_searcher: Callable[..., Searcher] = Searcher
) -> None:
    """Serve requests until a shutdown is requested, for example by SIGTERM.

    Models are loaded in threads. If work is still running at the end of the shutdown, the process
    exits with status 0 at once; otherwise the function returns. An exception ends the process with
    status 1.
    """
    logs.configure(spec.settings)
    _raise_file_limit()
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        is_busy = asyncio.run(_serve(spec, load_backend, make_searcher))
    except Exception:
        _log.critical("the process ends because of an unexpected error", exc_info=True)
        sys.exit(1)
    if is_busy:
        # Running threads cannot be stopped, and the time to wait for them is over.
        logging.shutdown()
        os._exit(0)


async def _serve(
    spec: ProcessSpec, load_backend: LoadBackend, make_searcher: Callable[..., Searcher]
) -> bool:
    """Serve until a shutdown is requested, and shut down within the time limits.

    Returns:
        Whether a request was aborted, or a thread is still running or loading or closing a model.
    """
    shutdown = _shutdown_event(spec)
    settings = spec.settings
    metrics = _metrics(spec)
    registry = ModelRegistry(settings, _loaders(spec, load_backend), metrics)
    registry.preload()
    registry_task = asyncio.create_task(registry.update_periodically())
    forwarder = None
    if spec.model_socket is not None:
        forwarder = Forwarder(spec.model_socket, settings.generation_timeout_s + _FORWARDING_S)
    service = _service(spec, metrics, registry, forwarder, make_searcher)
    # Imports need file descriptors, which connections can use up.
    await asyncio.to_thread(service.searcher.warm_up)
    # Modules and tables stay until the process ends. Without this, each full garbage collection
    # traverses them for 50 ms, in which no thread runs.
    gc.freeze()
    service.searcher.indexes.start()
    listener = _listen(spec, service)
    await shutdown.wait()
    was_aborted = await _drain(service, listener)
    executors = [pool.executor for pool in service.pools.values()]
    is_busy = was_aborted or registry.is_loading
    is_busy = is_busy or any(executor.n_running for executor in executors)
    for executor in executors:
        executor.close()
    if not is_busy:
        service.extractor.close()
    await listener.close(_CLEANUP_TIMEOUT_S)
    if forwarder is not None:
        await forwarder.close()
    registry_task.cancel()
    closing = threading.Thread(target=registry.close, daemon=True)
    closing.start()
    await asyncio.to_thread(closing.join, _CLOSE_TIMEOUT_S)
    return is_busy or closing.is_alive()


def _listen(spec: ProcessSpec, service: Service) -> connection.Listener:
    settings = spec.settings
    memory_connections = settings.max_buffered_bytes // connection.PER_CONNECTION_BYTES
    max_connections = max(_MIN_CONNECTIONS, memory_connections)
    served_routes = routes.MODEL_PROCESS_ROUTES
    if spec.role != "model":
        served_routes = routes.ROUTES
        if settings.folder:
            open_exchange(settings.folder)
        service.anonymous = Quota(connection.MAX_ANONYMOUS_FRACTION * max_connections)
    router = Router(served_routes)
    server = connection.Server(
        application(service, router),
        middleware(service, router),
        settings.idle_timeout_s,
    )
    return connection.Listener(spec.listener, server, max_connections)


def _loaders(
    spec: ProcessSpec, load_backend: LoadBackend
) -> dict[ModelTask, Callable[[NamedModel], object]]:
    """Return the functions that load a model, by the purpose of the model.

    Each process can load encoders and rerankers; only a process that is not a front can load
    generation models.
    """
    loaders: dict[ModelTask, Callable[[NamedModel], object]] = {}
    if spec.role != "front":
        loaders["generate"] = partial(load_backend, spec.settings)
    loaders["embed"] = partial(load_encoder, spec.settings)
    loaders["rerank"] = partial(load_reranker, spec.settings)
    return loaders


async def _drain(service: Service, listener: connection.Listener) -> bool:
    """Refuse new requests, and wait for the running requests within the time limit.

    After the limit, abort the remaining requests.

    Returns:
        Whether requests were aborted.
    """
    service.is_draining = True
    _log.info("draining: %d requests are running", service.n_active)
    if await _is_idle_within(service, service.settings.drain_timeout_s):
        await listener.stop()
        if await _is_idle_within(service, _CLEANUP_TIMEOUT_S):
            return False
    _log.warning("the drain timeout has passed: %d requests are aborted", service.n_active)
    service.abort()
    await listener.stop()
    await _is_idle_within(service, _CLEANUP_TIMEOUT_S)
    return True


async def _is_idle_within(service: Service, timeout_s: float) -> bool:
    try:
        async with asyncio.timeout(timeout_s):
            await service.wait_until_idle()
    except TimeoutError:
        return False
    return True


def _shutdown_event(spec: ProcessSpec) -> asyncio.Event:
    """Return an event that is set when the process must end.

    SIGTERM sets it. In a process without a supervisor, SIGINT and SIGHUP also set it, and a second
    signal ends a process with the role "alone" at once. In a process with a supervisor, the death
    of the supervisor sets it.
    """
    loop = asyncio.get_running_loop()
    shutdown = asyncio.Event()

    def on_signal(signal_number: int) -> None:
        if shutdown.is_set() and spec.role == "alone":
            os._exit(128 + signal_number)  # exit at once on the second signal
        shutdown.set()

    def on_supervisor_death(sentinel: int) -> None:
        loop.remove_reader(sentinel)  # it stays readable and would call this again and again
        shutdown.set()

    loop.add_signal_handler(signal.SIGTERM, on_signal, signal.SIGTERM)
    supervisor = multiprocessing.parent_process()
    for number in terminal_signals():
        if supervisor is None:
            loop.add_signal_handler(number, on_signal, number)
        else:
            # A terminal sends its signals to all processes; the supervisor decides what to do.
            loop.add_signal_handler(number, lambda: None)
    if supervisor is not None:
        loop.add_reader(supervisor.sentinel, on_supervisor_death, supervisor.sentinel)
    return shutdown


def terminal_signals() -> tuple[signal.Signals, ...]:
    """Return the signals of a terminal: SIGINT, for ^C, and SIGHUP, for a closed terminal.

    SIGHUP is left out if the process ignores it, as ``nohup`` arranges.
    """
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        return (signal.SIGINT,)
    return (signal.SIGINT, signal.SIGHUP)


def _metrics(spec: ProcessSpec) -> Metrics:
    layout = routes.layout(spec.settings)
    if spec.metrics_file is None:
        return Metrics.for_one_process(layout)
    return Metrics.shared(layout, spec.metrics_file.number, spec.row)


def _service(
    spec: ProcessSpec,
    metrics: Metrics,
    registry: ModelRegistry,
    forwarder: Forwarder | None,
    make_searcher: Callable[..., Searcher],
) -> Service:
    settings = spec.settings
    keys = auth.Keys(spec.key_digests, settings.api_keys_file)
    identify = keys.identify
    rate_limit = settings.rate_limit
    http_metrics = metrics
    if spec.role == "model":
        # The workers have checked the key of each request and counted it.
        identify = _forwarded_key_id
        rate_limit = "off"
        http_metrics = Metrics.for_one_process(metrics.layout)
    # A single key may use all threads and memory. The keys of a file can change at any time, and
    # the model process does not know the keys.
    limits_keys = len(spec.key_digests) != 1 or settings.api_keys_file is not None
    generator = Generator(registry, settings, metrics)
    embedder = EmbeddingService(registry, settings, metrics)
    encoder_service = (
        SearchEncoderService(settings, embedder, metrics) if settings.encoder else None
    )
    reranking_service = RerankingService(registry, settings, metrics) if settings.reranker else None
    return Service(
        settings=settings,
        identify=identify,
        rate=RateLimit(rate_limit, settings.rate_limit_storage, metrics),
        pools=make_resource_pools(settings, metrics, limits_keys=limits_keys),
        searcher=make_searcher(settings, metrics, encoder_service, reranking_service),
        embedder=embedder,
        generator=generator,
        stats=generator.stats if forwarder is None else forwarder.stats,
        forward=None if forwarder is None else forwarder.answer,
        metrics=metrics,
        http_metrics=http_metrics,
    )


def _forwarded_key_id(headers: Mapping[str, str]) -> str | None:
    return headers.get(auth.KEY_ID_HEADER)


def _raise_file_limit() -> None:
    """Raise the soft limit of open files, and so of connections, from the usual 1,024.

    The new limit is the hard limit, but at most `_MAX_FILES`. An error of the system is ignored.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = _MAX_FILES if hard == resource.RLIM_INFINITY else min(hard, _MAX_FILES)
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, limit), hard))
