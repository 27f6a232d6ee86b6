"""A runner that generates on all nodes of a cluster."""

from __future__ import annotations

import os
import secrets
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, TypeAlias, Unpack

import ray
from ray.exceptions import RayActorError

from relevance_gen.checks import check_flag, check_integer, model_source
from relevance_gen.cluster.actors import START_TIMEOUT_S, SilentError, check, get_from, start
from relevance_gen.cluster.connection import (
    Node,
    check_connected,
    check_name,
    connect,
    living_nodes,
)
from relevance_gen.cluster.generation.runner_actor import Delivery, RunnerActor, RunnerSpec
from relevance_gen.errors import ClusterError, GenerationError
from relevance_gen.generation.counters import Counters
from relevance_gen.generation.queue.events import Failed, Finished
from relevance_gen.generation.queue.request import NO_CAPACITY
from relevance_gen.generation.queue.request_queue import RequestQueue
from relevance_gen.generation.runner import (
    DEFAULT_MAX_QUEUE,
    DEFAULT_PREFIX_CACHE_BYTES,
    Runner,
    create_queue,
)
from relevance_gen.generation.worker import Worker
from relevance_gen.llama.model_thread import ThreadState
from relevance_gen.llama.options import OptionTypes, model_options, shows_options

WorkerKey: TypeAlias = tuple[str | None, int]
"""The node id of a worker's runner, and its index on this node; with `n_runners`, the node is None
and the index is that of the runner."""

_NODE_POLL_S: Final = 1.0
"""Seconds between two checks for new nodes."""
_MAX_START_ATTEMPTS: Final = 5
"""Attempts to start the first runners; if all of them die while they start, the cluster runner
fails."""
_MIN_RETRY_S: Final = 0.05
_MAX_RETRY_S: Final = 30.0
"""Maximum seconds between two attempts to start a runner: the pause begins at twice `_MIN_RETRY_S`,
and is doubled after each attempt."""
_MAX_CALLS: Final = 64
"""Maximum number of calls that an actor runs at a time: one `exchange` of each client, which may
wait, and calls that cancel requests."""
_STEP_WAIT_S: Final = 0.02
"""Maximum seconds to wait for a step's events before new and cancelled requests are sent."""
_IDLE_PING_S: Final = 1.0
"""Seconds between two calls to an idle runner, which show whether it still runs."""
_END_STATES: Final = (ThreadState.CLOSED, ThreadState.FAILED, ThreadState.LOST)


class ClusterWorker(Worker):
    """A thread that forwards requests to a runner in another process and delivers its events.

    If the runner dies, the thread starts another runner.

    Args:
        queue: source of requests.
        spec: the model and options of the runner.
        owner_ref: returns the `ClusterRunner` that chooses the nodes; None if it was deleted. The
            worker does not refer to it, because that would keep an unreferenced runner alive.
        key: identifies this worker among the workers of the `ClusterRunner`.

    Attributes:
        node_id: node of the runner; None until it is chosen.
        n_deaths: number of runners that died, or did not respond, since a runner was ready.
    """

    _queue: RequestQueue

    def __init__(
        self,
        queue: RequestQueue,
        spec: RunnerSpec,
        owner_ref: Callable[[], ClusterRunner | None],
        key: WorkerKey,
    ) -> None:
        super().__init__(queue, spec.load, spec.prefix_cache_bytes)
        self.key = key
        self.node_id: str | None = None
        self.n_deaths = 0
        self._spec = spec
        self._owner_ref = owner_ref
        self._client_id = ""
        self._actor: Any = None
        self._forwarded: set[int] = set()
        self._capacity = NO_CAPACITY
        self._ended_counters = Counters()

    def _serve(self) -> None:
        while (node := self._choose_node()) is not None:
            self._actor = self._start_actor(node)
            self._client_id = secrets.token_hex(8)
            try:
                self._wait_ready()
                while self.state is ThreadState.READY and self._exchange():
                    pass
                return
            except (Exception, SystemExit) as error:
                failure = self._failure(error)
            finally:
                self._release_actor()
            if self._queue.is_closed:
                raise failure
            self._return_requests(failure)
            self.n_deaths += 1
            self.wait_loaded(min(_MIN_RETRY_S * 2**self.n_deaths, _MAX_RETRY_S))

    def _choose_node(self) -> Node | None:
        """Return the node for the next runner; None if none is needed, or the worker was stopped.

        Raises:
            ClusterError: see `ClusterRunner.choose_node`.
        """
        owner = self._owner_ref()
        if owner is None or self.state is not ThreadState.LOADING:
            return None
        return owner.choose_node(self)

    def _start_actor(self, node: Node) -> Any:
        """Start a runner or find the shared runner; return its handle without waiting."""
        name = None
        if self._spec.name is not None:
            node_id, index = self.key
            name = f"runner {self._spec.name} {node_id} {index}"
        n_gpus = int(node.n_gpus > 0)
        options = {"max_concurrency": _MAX_CALLS, "num_gpus": n_gpus}
        return start(RunnerActor, node.id, self._spec, name=name, **options)

    def _wait_ready(self) -> None:
        """Wait until the runner has loaded its model.

        Raises:
            ClusterError: the runner cannot start, or has another model or other options.
            RayActorError: the runner died.
            SilentError: the runner does not respond.
            Exception: the error with which loading failed.
        """
        self.node_id = check(self._actor, START_TIMEOUT_S)
        loading = self._actor.wait_loaded.remote(self._spec)
        self.chat_format = get_from(self._actor, loading)
        self.n_deaths = 0
        self._transition(ThreadState.READY)

    def _exchange(self) -> bool:
        """Send requests and cancellations to the runner, and deliver its new events to the queue.

        Returns:
            Whether further requests can follow.
        """
        timeout_s = 0 if self._forwarded else _IDLE_PING_S
        requests = self._queue.take(self._worker_id, self._capacity, timeout_s)
        if requests is None:
            return False
        check_connected()
        cancelled = [self._cancelled.popleft() for _ in range(len(self._cancelled))]
        self._forwarded.update(queued.id for queued in requests)
        self._forwarded.difference_update(cancelled)
        # With no request and free capacity, `take` waits instead.
        is_busy = bool(self._forwarded) or self._capacity.is_empty
        wait_s = _STEP_WAIT_S if is_busy else 0.0
        call = self._actor.exchange.remote(self._client_id, requests, cancelled, wait_s)
        delivery: Delivery = get_from(self._actor, call)
        self._capacity = delivery.capacity
        self.counters = self._ended_counters + delivery.counters
        for event in delivery.events:
            if event.request_id not in self._forwarded:
                continue
            if isinstance(event, Finished | Failed):
                self._forwarded.remove(event.request_id)
            self._queue.deliver(self._worker_id, event)
        return True

    def _failure(self, error: BaseException) -> GenerationError:
        """Return the reason why the runner must be replaced.

        Raises:
            ClusterError: the connection to the cluster was closed; Ray raises errors of many types
                then.
            BaseException: `error`, if the runner did not become ready although it lives.
        """
        check_connected()
        if isinstance(error, SilentError):
            ray.kill(self._actor)
            return GenerationError(f"a runner on node {self.node_id} does not answer any more")
        if isinstance(error, RayActorError):
            return GenerationError(f"a runner on node {self.node_id} died")
        if self.state is not ThreadState.READY:
            raise error
        return GenerationError(f"a runner on node {self.node_id} failed: {error}")

    def _release_actor(self) -> None:
        """End the runner; if it is shared, only drop the requests of this worker."""
        if not ray.is_initialized():
            return  # The actor has ended, or ends when it is unused.
        if self._spec.name is None:
            ray.kill(self._actor)
        elif self._forwarded:
            self._actor.exchange.remote(self._client_id, (), list(self._forwarded))

    def _return_requests(self, failure: GenerationError) -> None:
        """Return the requests of an ended runner to the queue; those with streamed text fail.

        The worker registers again before it leaves the queue, because a queue without a worker
        refuses requests.

        Args:
            failure: the error of requests that cannot be repeated.
        """
        self._forwarded.clear()
        self._capacity = NO_CAPACITY
        self._ended_counters = self.counters
        self._transition(ThreadState.LOADING)
        worker_id = self._worker_id
        self._worker_id = self._queue.register(self._cancel)
        self._queue.unregister(worker_id, failure)


@shows_options
class ClusterRunner(Runner):
    """A model on the nodes of a cluster.

    Interface and samples equal those of `relevance_gen.Runner`, bit for bit. The model is loaded
    completely by each of several actors, which are called runners below. Requests wait in one queue
    of this process; a runner takes requests when it has free slots, each of which is used for one
    sample. If a runner dies, another runner is started. The requests of the dead runner that have
    streamed no text are then served by other runners; its other requests fail with a
    `GenerationError`. A node that joins gets a runner at once, unless `n_runners` is given.

    Args:
        model: as for `relevance_gen.Runner`; a file must have the same path on every node.
        n_runners: number of runners; by default one per GPU, and one per node without a GPU.
        address: as for `ClusterIndex`.
        name: a name under which the runners are shared: all processes that use the same name use
            the same runners. They end a minute after the last process.
        max_queue: samples of one client that may wait in this process, at least 1; at this limit
            `submit` raises `OverloadedError`.
        prefix_cache_bytes: memory of each runner for computed prompts of recent requests; 0
            disables the prefix cache.
        wait: wait until the model is loaded; otherwise return at once and load in the background.
        **options: options of `ModelOptions`.

    Raises:
        ModelLoadError: the model cannot be loaded (only with `wait`).
        ClusterError: the cluster does not exist, or its nodes have other versions.
        InvalidRequestError: an option is out of range.
        TypeError: an option does not exist.
    """

    _workers: list[ClusterWorker]

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        n_runners: int | None = None,
        address: str | None = None,
        name: str | None = None,
        max_queue: int = DEFAULT_MAX_QUEUE,
        prefix_cache_bytes: int = DEFAULT_PREFIX_CACHE_BYTES,
        wait: bool = True,
        **options: Unpack[OptionTypes],
    ) -> None:
        if model is not None:
            model_source.check("model", model)
        check_flag("wait", wait)
        if n_runners is not None:
            check_integer("n_runners", n_runners, 1)
        if name is not None:
            check_name(name)
        path = None if model is None else os.fspath(model)
        self._spec = RunnerSpec(path, model_options(options), prefix_cache_bytes, name)
        self._n_runners = n_runners
        self._ended_counters = Counters()
        connect(address)
        keys = self._worker_keys()
        if not keys:
            raise ClusterError("the cluster has no node")
        queue = create_queue(max_queue, prefix_cache_bytes)
        self._start(queue, self._create_workers(keys, queue), wait=wait)
        if n_runners is None:
            threading.Thread(
                target=_poll_nodes, args=(weakref.ref(self),), name="watch-nodes", daemon=True
            ).start()

    def _worker_keys(self) -> list[WorkerKey]:
        """Return a key for each worker that should exist now."""
        if self._n_runners is not None:
            return [(None, index) for index in range(self._n_runners)]
        keys: list[WorkerKey] = []
        for node in living_nodes():
            n_workers = max(1, int(node.n_gpus))
            keys += [(node.id, index) for index in range(n_workers)]
        return keys

    def _create_workers(self, keys: list[WorkerKey], queue: RequestQueue) -> list[ClusterWorker]:
        return [ClusterWorker(queue, self._spec, weakref.ref(self), key) for key in keys]

    def choose_node(self, worker: ClusterWorker) -> Node | None:
        """Return the node for a worker's runner, and store its id as the worker's `node_id`.

        It is the node of the worker's key if there is one, otherwise the node with the fewest
        runners per processor. None means that the worker is not needed: its node has left, and
        there are other workers.

        Raises:
            ClusterError: the connection was closed, there are no nodes, or the first runners
                repeatedly died while they started.
        """
        check_connected()
        was_any_ready = any(other.chat_format is not None for other in self._workers)
        if worker.n_deaths >= _MAX_START_ATTEMPTS and not was_any_ready:
            raise ClusterError(
                "no runner could be started: its process or its node died repeatedly"
            )
        nodes = living_nodes()
        other_workers = [
            other
            for other in self._workers
            if other is not worker and other.state not in _END_STATES
        ]
        node_id, _ = worker.key
        own_nodes = [node for node in nodes if node.id == node_id]
        if node_id is not None and not own_nodes and other_workers:
            return None
        if not nodes:
            raise ClusterError("the cluster has no node")
        n_runners = Counter(other.node_id for other in other_workers)

        def load(node: Node) -> float:
            return n_runners[node.id] / max(node.n_cpus, 1.0)

        node = min(own_nodes or nodes, key=load)
        worker.node_id = node.id
        return node

    def counters(self) -> Counters:
        """Return the counts of the work of all workers so far, ended workers included.

        If several processes share the runners by a name, the counts include the work for all these
        processes.
        """
        return super().counters() + self._ended_counters

    def _add_workers_of_new_nodes(self) -> None:
        """Start workers on new nodes, and remove ended workers from the list of workers."""
        running = [worker for worker in self._workers if worker.state not in _END_STATES]
        keys = [worker.key for worker in running]
        new_keys = [key for key in self._worker_keys() if key not in keys]
        if not new_keys or self.closed:
            return
        ended = (worker.counters for worker in self._workers if worker not in running)
        self._ended_counters = sum(ended, self._ended_counters)
        added = self._create_workers(new_keys, self._queue)
        self._workers = [*running, *added]
        for worker in added:
            worker.start()


def _poll_nodes(runner_ref: weakref.ref[ClusterRunner]) -> None:
    """Start workers on new nodes, every `_NODE_POLL_S`, until the `ClusterRunner` ends.

    The function returns when the `ClusterRunner` is closed or is no longer referenced.
    """
    while True:
        time.sleep(_NODE_POLL_S)
        runner = runner_ref()
        if runner is None or runner.closed:
            return
        runner._add_workers_of_new_nodes()
        del runner
