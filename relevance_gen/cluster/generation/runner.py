"""A runner that generates on all nodes of a cluster."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final, Unpack

from relevance_gen.checks import check_integer, model_source
from relevance_gen.cluster.connection import check_connected, check_name, connect
from relevance_gen.cluster.generation.worker import ClusterWorker, RunnerSpec
from relevance_gen.cluster.placing import Node, least_loaded, living_nodes
from relevance_gen.errors import ClusterError
from relevance_gen.generation.counters import Counters
from relevance_gen.generation.queue.request_queue import RequestQueue
from relevance_gen.generation.runner import (
    DEFAULT_MAX_QUEUE,
    DEFAULT_PREFIX_CACHE_BYTES,
    Runner,
    load_model,
)
from relevance_gen.llama.model_thread import ThreadState
from relevance_gen.llama.options import OptionTypes, model_options, shows_options

_NODE_POLL_S: Final = 1.0
"""Seconds between two checks for new nodes."""
_MAX_START_ATTEMPTS: Final = 5
"""Attempts to start the first runners; if all of them die while they start, the cluster runner
fails."""
_END_STATES: Final = (ThreadState.CLOSED, ThreadState.FAILED, ThreadState.LOST)


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

    _workers: Sequence[ClusterWorker]

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
        if n_runners is not None:
            check_integer("n_runners", n_runners, 1)
        if name is not None:
            check_name(name)
        path = None if model is None else os.fspath(model)
        checked_options = model_options(options)
        self._spec = RunnerSpec(
            load=partial(load_model, path, checked_options),
            prefix_cache_bytes=prefix_cache_bytes,
            description=f"{path} {checked_options} {prefix_cache_bytes}",
        )
        self._name = name
        self._n_runners = n_runners
        self._lock = threading.Lock()
        self._ended_counters = Counters()
        self._was_ready = False
        connect(address)
        self._start(self._create_workers, max_queue, prefix_cache_bytes, wait=wait)
        threading.Thread(
            target=_poll_nodes, args=(weakref.ref(self),), name="watch-nodes", daemon=True
        ).start()

    def _create_workers(self, queue: RequestQueue) -> list[ClusterWorker]:
        keys = self._worker_keys()
        if not keys:
            raise ClusterError("the cluster has no node")
        return [self._create_worker(queue, key) for key in keys]

    def _worker_keys(self) -> list[str]:
        """Return a key for each worker that should exist now.

        With `n_runners`, a key is an index; otherwise a node id, a space and an index on that node.
        """
        if self._n_runners is not None:
            return [str(index) for index in range(self._n_runners)]
        return [
            f"{node.id} {index}"
            for node in living_nodes()
            for index in range(max(1, int(node.n_gpus)))
        ]

    def _create_worker(self, queue: RequestQueue, key: str) -> ClusterWorker:
        # A worker's thread must not keep an otherwise unreferenced runner alive.
        runner_ref = weakref.ref(self)

        def choose_node(worker: ClusterWorker) -> Node | None:
            runner = runner_ref()
            return None if runner is None else runner._choose_node(worker)

        def replace(dead: ClusterWorker) -> None:
            runner = runner_ref()
            if runner is not None:
                runner._replace(dead)

        shared_name = None if self._name is None else f"runner {self._name} {key}"
        return ClusterWorker(
            queue, self._spec, choose_node, replace, key=key, shared_name=shared_name
        )

    def _choose_node(self, worker: ClusterWorker) -> Node | None:
        """Return the node for a worker's runner, and store its id as the worker's `node_id`.

        None means that the worker is not needed: its node has left, and there are other workers.

        Raises:
            ClusterError: runners died repeatedly while they started, and none was ever ready; or
                the connection to the cluster was closed.
        """
        check_connected()
        workers = self._workers
        if any(other.state is ThreadState.READY for other in workers):
            self._was_ready = True
        if worker.n_deaths >= _MAX_START_ATTEMPTS and not self._was_ready:
            raise ClusterError(
                "no runner could be started: its process or its node died repeatedly"
            )
        nodes = living_nodes()
        other_workers = [
            other for other in workers if other is not worker and other.state not in _END_STATES
        ]
        node_id, _, index_on_node = worker.key.partition(" ")
        if index_on_node:
            for node in nodes:
                if node.id == node_id:
                    worker.node_id = node.id
                    return node
            if other_workers:
                return None
        loads = Counter(other.node_id for other in other_workers if other.node_id is not None)
        node = least_loaded(nodes, loads)
        worker.node_id = node.id
        return node

    def _replace(self, dead: ClusterWorker) -> None:
        """Start a worker in place of a worker whose ready runner has died.

        Does nothing if this `ClusterRunner` is closed.
        """
        with self._lock:
            self._was_ready = True
            if not self.closed:
                self._add_worker(dead.key, dead)

    def _add_worker(self, key: str, dead: ClusterWorker | None = None) -> None:
        """Start a worker with a key, and remove ended workers from the list of workers.

        The counters of the removed workers are added to `_ended_counters`. The caller must hold
        `_lock`.

        Args:
            key: the key of the new worker, as in `_worker_keys`.
            dead: a worker to remove although its state does not yet show that it has ended.
        """
        ended = [
            worker for worker in self._workers if worker is dead or worker.state in _END_STATES
        ]
        self._ended_counters = sum((worker.counters for worker in ended), self._ended_counters)
        added = self._create_worker(self._queue, key)
        self._workers = [*(worker for worker in self._workers if worker not in ended), added]
        added.start()

    def counters(self) -> Counters:
        """Return the counts of the work of all workers so far, ended workers included.

        If several processes share the runners by a name, the counts include the work for all these
        processes.
        """
        return super().counters() + self._ended_counters

    def _add_workers_of_new_nodes(self) -> None:
        if self._n_runners is not None:
            return
        with self._lock:
            keys = {worker.key for worker in self._workers if worker.state not in _END_STATES}
            for key in self._worker_keys():
                if key not in keys and not self.closed:
                    self._add_worker(key)


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
