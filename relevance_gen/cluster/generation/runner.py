"""A runner over the machines of a cluster, as its callers use it."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Final, Unpack

from relevance_gen.checks import check_integer
from relevance_gen.cluster.connection import check_name, connect
from relevance_gen.cluster.generation.worker import ClusterWorker
from relevance_gen.cluster.placing import Node, least_loaded, living_nodes
from relevance_gen.errors import ClusterError, InvalidRequestError
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

_LOOK_S: Final = 1.0
"""How often it is looked whether nodes have joined."""
_ATTEMPTS: Final = 5
"""How often the first runners are started, if all of them die meanwhile."""
_ENDED: Final = (ThreadState.CLOSED, ThreadState.FAILED, ThreadState.LOST)


@shows_options
class ClusterRunner(Runner):
    """A model on the machines of a cluster; everything else is as `relevance_gen.Runner` has it, samples bit for bit.

    Requests wait in one backlog here, and runners, each an actor with the whole model, pull them when they have free
    slots. Where a runner dies, another is started; its requests that have shown no text are done elsewhere, the others
    fail with a `GenerationError`. A node that joins gets a runner at once, unless `n_runners` is given.

    Args:
        model: as for `relevance_gen.Runner`; a file must be at the same path on every node.
        n_runners: how many runners; by default one for each GPU of a node, or one for a node without.
        address: as for `ClusterIndex`.
        name: runners with a name are shared by all processes that use it; they end a minute after the last of these.
        max_queue: samples of one client that may wait here, at least 1; while as many do, `submit` raises
            `OverloadedError`.
        prefix_cache_bytes: memory, for each runner, for the computed prompts of recent requests; 0 turns it off.
        wait: wait until the model is loaded; otherwise return at once and load meanwhile.
        **options: each as `ModelOptions` has it.

    Raises:
        ModelLoadError: the model cannot be loaded (where `wait`).
        ClusterError: there is no such cluster, or its nodes have other versions.
        InvalidRequestError: an option is out of range.
        TypeError: there is no such option.
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
        if model is not None and not isinstance(model, str | os.PathLike):
            raise InvalidRequestError.must_be(
                "model", "the path of a GGUF file or the name of a repository", model
            )
        if n_runners is not None:
            check_integer("n_runners", n_runners, 1)
        if name is not None:
            check_name(name)
        model = None if model is None else os.fspath(model)
        chosen = model_options(options)
        self._load = partial(load_model, model, chosen)
        self._made_of = f"{model} {chosen} {prefix_cache_bytes}"
        self._prefix_cache_bytes = prefix_cache_bytes
        self._name = name
        self._n_runners = n_runners
        self._growing = threading.Lock()
        self._past = Counters()
        self._has_begun = False
        connect(address)
        self._start(self._first_workers, max_queue, prefix_cache_bytes, wait)
        watching = threading.Thread(
            target=_watch, args=(weakref.ref(self),), name="watch-nodes", daemon=True
        )
        watching.start()

    def _first_workers(self, backlog: RequestQueue) -> list[ClusterWorker]:
        if not (wanted := self._wanted_keys()):
            raise ClusterError("the cluster has no node")
        return [self._worker(backlog, key) for key in wanted]

    def _wanted_keys(self) -> list[str]:
        """Return a key for each runner that there should be: its number, or its node and its number there."""
        if self._n_runners is not None:
            return [str(number) for number in range(self._n_runners)]
        return [
            f"{node.id} {number}"
            for node in living_nodes()
            for number in range(max(1, int(node.n_gpus)))
        ]

    def _worker(self, backlog: RequestQueue, key: str) -> ClusterWorker:
        held = weakref.ref(self)  # a worker's thread shall not keep a runner that nobody holds

        def choose(worker: ClusterWorker) -> Node | None:
            runner = held()
            return None if runner is None else runner._choose(worker)

        def on_death(dead: ClusterWorker) -> None:
            if (runner := held()) is not None:
                runner._replace(dead)

        made_of = self._load, self._prefix_cache_bytes, self._made_of
        name = None if self._name is None else f"runner {self._name} {key}"
        return ClusterWorker(backlog, *made_of, choose, on_death, key, name)

    def _choose(self, worker: ClusterWorker) -> Node | None:
        """Return where a worker's runner is to be; None if its node is gone and there are others."""
        self._has_begun = self._has_begun or any(
            one.state is ThreadState.READY for one in self._workers
        )
        if worker.n_deaths >= _ATTEMPTS and not self._has_begun:
            raise ClusterError(
                "no runner could be started: its process or its node died, again and again"
            )
        nodes = living_nodes()
        others = [one for one in self._workers if one is not worker and one.state not in _ENDED]
        node_id, _, number = worker.key.partition(" ")
        own = next((node for node in nodes if number and node.id == node_id), None)
        if own is None:
            if number and others:
                return None
            loads = Counter(one.node_id for one in others if one.node_id is not None)
            own = least_loaded(nodes, loads)
        worker.node_id = own.id
        return own

    def _replace(self, dead: ClusterWorker) -> None:
        """Start a runner in place of one that has died."""
        with self._growing:
            self._has_begun = True
            if not self.closed:
                self._add(dead.key, dead)

    def _add(self, key: str, dead: ClusterWorker | None = None) -> None:
        """Start a runner, and forget those that have ended, but for what they did."""
        ended = [one for one in self._workers if one is dead or one.state in _ENDED]
        self._past = sum((one.counters for one in ended), self._past)
        worker = self._worker(self._backlog, key)
        self._workers = [*(one for one in self._workers if one not in ended), worker]
        worker.start()

    def counters(self) -> Counters:
        """Return what was done so far; runners that are shared count what they computed for all."""
        return super().counters() + self._past

    def _look(self) -> None:
        """Give nodes that have joined their runners."""
        if self._n_runners is not None:
            return
        with self._growing:
            held = {one.key for one in self._workers if one.state not in _ENDED}
            for key in self._wanted_keys():
                if key not in held and not self.closed:
                    self._add(key)


def _watch(held: weakref.ref[ClusterRunner]) -> None:
    """Look for new nodes for as long as somebody holds the runner."""
    while True:
        time.sleep(_LOOK_S)
        runner = held()
        if runner is None or runner.closed:
            return
        runner._look()
        del runner
