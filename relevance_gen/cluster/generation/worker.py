"""Workers on other machines.

Each consists of an actor with the model, and a thread of this process that forwards requests to the
actor.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import ray
from attrs import evolve, frozen
from ray.exceptions import RayActorError

from relevance_gen.cluster.actors import START_TIMEOUT_S, Actor, SilentError, check, get_from, start
from relevance_gen.cluster.connection import NAMESPACE, check_connected
from relevance_gen.cluster.generation.mailbox import Delivery, Mailbox
from relevance_gen.cluster.placing import Node
from relevance_gen.errors import ClusterError, GenerationError
from relevance_gen.generation.queue.events import Failed, Finished
from relevance_gen.generation.queue.request import Capacity, QueuedRequest
from relevance_gen.generation.queue.request_queue import RequestQueue
from relevance_gen.generation.worker import Worker
from relevance_gen.llama.language_model import ChatFormat, LanguageModel
from relevance_gen.llama.model_thread import Load, ThreadState

_MAX_CALLS: Final = 64
"""Maximum number of calls that an actor runs at a time: one `exchange` of each client, which may
wait, and calls that cancel requests."""
_UNUSED_TIMEOUT_S: Final = 60.0
"""Seconds without a call of any client after which a shared runner ends."""
_STEP_WAIT_S: Final = 0.02
"""Maximum seconds to wait for a step's events before new and cancelled requests are sent."""
_IDLE_PING_S: Final = 1.0
"""Seconds between two calls to an idle runner, which show whether it still runs."""
_MIN_RETRY_S: Final = 0.05
_MAX_RETRY_S: Final = 30.0
"""Maximum seconds between two attempts to start a runner: the pause begins at twice `_MIN_RETRY_S`,
and is doubled after each attempt."""


@frozen
class LoadedModel:
    """Properties of the model that a `RunnerActor` has loaded.

    Attributes:
        chat_format: as `Worker.chat_format`.
        description: the model and its options as text, as in `RunnerSpec`.
    """

    chat_format: ChatFormat | None
    description: str


def limit_devices(gpu_ids: Sequence[int | str]) -> None:
    """Limit llama.cpp to the GPUs that Ray assigned to this process.

    It must be called before llama.cpp is loaded. Ray itself sets the environment variables of the
    GPU vendors, such as ``CUDA_VISIBLE_DEVICES``. A Vulkan build of llama.cpp reads its own
    variable, ``GGML_VK_VISIBLE_DEVICES``, which contains Vulkan's device numbers. This function
    sets it to the ids that Ray assigned, if there are any and it is not already set.
    """
    if gpu_ids:
        os.environ.setdefault("GGML_VK_VISIBLE_DEVICES", ",".join(map(str, gpu_ids)))


class RunnerActor(Actor):
    """The actor of a runner: a model with its worker in a process of its own.

    Args:
        load: loads the model.
        prefix_cache_bytes: memory for the computed prompts of recent requests.
        description: model and options as text; a process that shares this runner raises an error
            if its own description is different.
        is_shared: whether several processes can use the runner; then its process ends by itself
            when no client has called `exchange` for `_UNUSED_TIMEOUT_S`.
    """

    def __init__(
        self, load: Load[LanguageModel], prefix_cache_bytes: int, description: str, is_shared: bool
    ) -> None:
        limit_devices(ray.get_gpu_ids())
        self._description = description
        self._mailbox = Mailbox()
        self._worker = Worker(self._mailbox, load, prefix_cache_bytes)
        self._worker.start()
        if is_shared:
            threading.Thread(target=self._end_unused, daemon=True).start()

    def wait_loaded(self) -> LoadedModel:
        """Wait until the model is loaded, and return its properties.

        Raises:
            BaseException: the error with which loading failed.
        """
        self._worker.wait_loaded()
        if self._worker.error is not None:
            raise self._worker.error
        return LoadedModel(self._worker.chat_format, self._description)

    def exchange(
        self,
        client: str,
        requests: Sequence[QueuedRequest],
        cancelled: Sequence[int],
        timeout_s: float,
    ) -> Delivery:
        """Call `Mailbox.exchange`, and add the worker's counters to the delivery."""
        delivery = self._mailbox.exchange(client, requests, cancelled, timeout_s)
        return evolve(delivery, counters=self._worker.counters)

    def _end_unused(self) -> None:
        while self._mailbox.idle_s < _UNUSED_TIMEOUT_S:
            time.sleep(1.0)
        os._exit(0)


@frozen
class RunnerSpec:
    """How to start a runner.

    Attributes:
        load: loads the model.
        prefix_cache_bytes: memory for the computed prompts of recent requests.
        description: model and options as text; a shared runner must have the same description.
    """

    load: Load[LanguageModel]
    prefix_cache_bytes: int
    description: str


class ClusterWorker(Worker):
    """A thread that forwards requests to a runner in another process and delivers its events.

    Args:
        queue: source of requests.
        spec: the model and options of the runner.
        choose_node: returns the node for the runner, or ``None`` if the runner is not needed any
            more; called before each attempt to start the runner.
        on_death: called when a runner that was ready has died, before its requests return to the
            queue.
        key: identifies this worker among the workers of a `ClusterRunner`.
        shared_name: name under which other processes find the runner; ``None`` for a runner of this
            process alone.

    Attributes:
        node_id: node of the runner; ``None`` until it is chosen.
        n_deaths: number of runners that died, or did not respond, while they started.
    """

    def __init__(
        self,
        queue: RequestQueue,
        spec: RunnerSpec,
        choose_node: Callable[[ClusterWorker], Node | None],
        on_death: Callable[[ClusterWorker], None],
        *,
        key: str = "",
        shared_name: str | None = None,
    ) -> None:
        super().__init__(queue, spec.load, spec.prefix_cache_bytes)
        self.key = key
        self.node_id: str | None = None
        self.n_deaths = 0
        self._spec = spec
        self._choose_node = choose_node
        self._on_death = on_death
        self._shared_name = shared_name
        self._client = secrets.token_hex(8)
        self._actor: Any = None
        self._forwarded: set[int] = set()
        self._has_capacity = False

    def _end(self, state: ThreadState, error: BaseException | None = None) -> None:
        """End this worker with the state `state`, and return its requests to the queue.

        If the state is FAILED and the runner was ready before, `on_death` is called first: it
        starts another worker, so that the queue has a worker for the returned requests.
        """
        if state is ThreadState.FAILED and self.state is ThreadState.READY:
            self._on_death(self)
        super()._end(state, error)

    def _serve(self) -> None:
        if not self._start_runner():
            return
        try:
            capacity = self._exchange(())
            self._transition(ThreadState.READY)
            while self.state is ThreadState.READY:
                timeout_s = 0 if self._forwarded else _IDLE_PING_S
                requests = self._queue.take(self._worker_id, capacity, timeout_s)
                if requests is None:
                    return
                self._forwarded.update(queued.id for queued in requests)
                capacity = self._exchange(requests)
        except SilentError:
            ray.kill(self._actor)
            raise GenerationError(
                f"a runner on node {self.node_id} does not answer any more"
            ) from None
        except RayActorError:
            raise GenerationError(f"a runner on node {self.node_id} died") from None
        except (Exception, SystemExit):
            # Ray raises these types during and after its shutdown.
            check_connected()
            raise
        finally:
            if not ray.is_initialized():  # the actor has ended, or ends when it is unused
                pass
            elif self._shared_name is None:
                ray.kill(self._actor)
            else:
                self._actor.exchange.remote(self._client, (), list(self._forwarded), 0.0)

    def _start_runner(self) -> bool:
        """Start the runner or find the shared runner, and wait until its model is loaded.

        If the runner dies or does not respond while it starts, the method pauses and retries.

        Returns:
            True if the model is loaded; False if the runner is not needed any more, or this worker
            was closed.

        Raises:
            ClusterError: the shared runner has another model or other options.
        """
        name = self._shared_name
        while self.state is ThreadState.LOADING:
            node = self._choose_node(self)
            if node is None:
                return False
            options: dict[str, Any] = {
                "max_concurrency": _MAX_CALLS,
                "num_gpus": int(node.n_gpus > 0),
            }
            if name is not None:
                options["name"] = name
                options["namespace"] = NAMESPACE
                options["lifetime"] = "detached"
                options["get_if_exists"] = True
            spec = self._spec
            args = spec.load, spec.prefix_cache_bytes, spec.description, name is not None
            try:
                self._actor = start(RunnerActor, node.id, *args, **options)
                self.node_id = check(self._actor, START_TIMEOUT_S)
                loaded: LoadedModel = get_from(self._actor, self._actor.wait_loaded.remote())
            except (RayActorError, SilentError):
                ray.kill(self._actor)
                self.n_deaths += 1
                self.wait_loaded(min(_MIN_RETRY_S * 2**self.n_deaths, _MAX_RETRY_S))
                continue
            self.chat_format = loaded.chat_format
            if loaded.description != spec.description:
                raise ClusterError(
                    "the runner of this name has another model or other options; choose another name"
                )
            return True
        return False

    def _exchange(self, requests: Sequence[QueuedRequest]) -> Capacity:
        """Send requests and cancellations to the runner, and deliver its new events to the queue.

        Returns the runner's capacity for further requests.
        """
        check_connected()
        cancelled = [self._cancelled.popleft() for _ in range(len(self._cancelled))]
        self._forwarded.difference_update(cancelled)
        # With no request and free capacity, `take` waits instead.
        wait_s = _STEP_WAIT_S if self._forwarded or not self._has_capacity else 0.0
        call = self._actor.exchange.remote(self._client, list(requests), cancelled, wait_s)
        delivery: Delivery = get_from(self._actor, call)
        self._has_capacity = not delivery.capacity.is_empty
        self.counters = delivery.counters
        for event in delivery.events:
            if event.request_id not in self._forwarded:
                continue
            if isinstance(event, Finished | Failed):
                self._forwarded.remove(event.request_id)
            self._queue.deliver(self._worker_id, event)
        return delivery.capacity
