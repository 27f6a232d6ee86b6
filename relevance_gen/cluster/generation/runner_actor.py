"""The actor of a runner: a model in a process of its own, which serves requests of other processes.

The other processes are called clients. A client calls `exchange` to send requests and to receive
the events of its requests. A `Worker` in the actor takes the requests of all clients and generates
text in steps, each of which computes one batch of tokens.
"""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import Final

import ray
from attrs import define, evolve, field, frozen

from relevance_gen.cluster.actors import Actor
from relevance_gen.errors import ClusterError
from relevance_gen.generation.counters import Counters
from relevance_gen.generation.queue.events import EngineEvent, Failed, Finished
from relevance_gen.generation.queue.request import NO_CAPACITY, Capacity, QueuedRequest
from relevance_gen.generation.runner import load_model
from relevance_gen.generation.worker import Worker
from relevance_gen.llama.language_model import ChatFormat, LanguageModel
from relevance_gen.llama.options import ModelOptions

CLIENT_TIMEOUT_S: Final = 30.0
"""Seconds without a call of a client after which its requests are dropped."""
_UNUSED_TIMEOUT_S: Final = 60.0
"""Seconds without a call of any client after which a shared runner ends."""


@frozen
class RunnerSpec:
    """The model of a runner, and its options. Processes that share a runner have equal specs.

    Attributes:
        model: as for `relevance_gen.Runner`.
        options: options of loading the model.
        prefix_cache_bytes: memory for the computed prompts of recent requests.
        name: name under which processes share the runner; None for a runner of one process.
    """

    model: str | None
    options: ModelOptions
    prefix_cache_bytes: int
    name: str | None = None

    def load(self, on_progress: Callable[[float], bool]) -> AbstractContextManager[LanguageModel]:
        """Load the model, see `load_model`."""
        return load_model(self.model, self.options, on_progress)


@frozen
class Delivery:
    """The response of a runner to a client.

    Attributes:
        events: events of the client's requests since its last delivery, in order.
        capacity: capacity that remains for new requests of any client.
        counters: counts of the work so far, for all clients.
    """

    events: Sequence[EngineEvent]
    capacity: Capacity
    counters: Counters


@define(eq=False)
class _Client:
    """The state of a client.

    Attributes:
        last_call_s: time of the client's last call of `exchange`.
        events: events that the client has not received yet.
    """

    last_call_s: float
    events: list[EngineEvent] = field(factory=list)


@frozen
class _Origin:
    """The client of a request, and the id that the client uses for the request."""

    client_id: str
    request_id: int


class RunnerActor(Actor):
    """The actor of a runner, and the source from which its worker takes requests. Thread-safe.

    Each client numbers its own requests, so requests get new ids in this actor; clients see only
    their own ids. The process of a runner with a name ends by itself when no client has called
    `exchange` for `_UNUSED_TIMEOUT_S`.

    Args:
        spec: the model of the runner.
    """

    def __init__(self, spec: RunnerSpec) -> None:
        limit_devices(ray.get_gpu_ids())
        self._spec = spec
        self._condition = threading.Condition()
        self._clients: dict[str, _Client] = {}
        self._last_call_s = time.monotonic()
        self._ids = itertools.count()
        self._origins: dict[int, _Origin] = {}
        self._waiting: list[QueuedRequest] = []
        self._capacity = NO_CAPACITY
        self._error: BaseException | None = None
        self._worker = Worker(self, spec.load, spec.prefix_cache_bytes)
        self._worker.start()
        if spec.name is not None:
            threading.Thread(target=self._end_when_unused, daemon=True).start()

    # ── Calls of clients ─────────────────────────────────────────────────────────────────────────

    def wait_loaded(self, spec: RunnerSpec) -> ChatFormat | None:
        """Wait until the model is loaded, and return its chat format.

        Args:
            spec: the model that the client expects.

        Raises:
            ClusterError: this runner has another model or other options.
            BaseException: the error with which loading failed.
        """
        if spec != self._spec:
            raise ClusterError(
                "the runner of this name has another model or other options; choose another name"
            )
        self._worker.wait_loaded()
        if self._worker.error is not None:
            raise self._worker.error
        return self._worker.chat_format

    def exchange(
        self,
        client_id: str,
        requests: Sequence[QueuedRequest] = (),
        cancelled: Collection[int] = (),
        timeout_s: float = 0.0,
    ) -> Delivery:
        """Accept requests of a client, and return the new events of all its requests.

        Waits until there is an event for the client, or the worker has failed.

        Args:
            client_id: id of the client.
            requests: new requests.
            cancelled: the client's ids of requests to drop; no further events of them are returned.
            timeout_s: maximum seconds to wait; then the delivery has no events.

        Raises:
            BaseException: the error that the worker failed with, after all events were returned.
        """
        with self._condition:
            self._last_call_s = time.monotonic()
            client = self._clients.setdefault(client_id, _Client(self._last_call_s))
            client.last_call_s = self._last_call_s
            for queued in requests:
                request_id = next(self._ids)
                self._origins[request_id] = _Origin(client_id, queued.id)
                self._waiting.append(evolve(queued, id=request_id))
            self._drop({_Origin(client_id, request_id) for request_id in cancelled})
            self._condition.notify_all()
            self._condition.wait_for(lambda: client.events or self._error, timeout_s)
            events, client.events = client.events, []
            if self._error is not None and not events:
                raise self._error
            capacity = self._capacity.after(self._waiting)
            return Delivery(events, capacity, self._worker.counters)

    # ── Calls of the worker ──────────────────────────────────────────────────────────────────────

    def register(self, on_cancel: Callable[[int], None]) -> int:
        """Register the only worker; return its id, which is always 0.

        Args:
            on_cancel: called with this actor's id of each request that is dropped.
        """
        self._on_cancel = on_cancel
        return 0

    def take(
        self, _worker_id: int, capacity: Capacity, timeout_s: float | None = None
    ) -> list[QueuedRequest] | None:
        """Take all waiting requests, after the clients are notified of the events of the last step.

        If no request waits, the method waits for one. Clients send as many requests as there is
        capacity; if several clients use the same capacity, the engine queues their requests.

        Args:
            capacity: the capacity of the worker, without the requests that are taken now.
            timeout_s: maximum seconds to wait; None for no limit.

        Returns:
            The requests, with the ids of this actor; None if the worker has failed.
        """
        with self._condition:
            self._capacity = capacity
            self._drop_lost_clients()
            self._condition.notify_all()
            if timeout_s != 0:  # otherwise a wait would release the lock in each step
                self._condition.wait_for(lambda: self._waiting or self._error, timeout_s)
            if self._error is not None:
                return None
            requests, self._waiting = self._waiting, []
            self._capacity = capacity.after(requests)
            return requests

    def deliver(self, _worker_id: int, event: EngineEvent) -> None:
        """Store an event for its client; ignore it if its request was dropped."""
        with self._condition:
            origin = self._origins.get(event.request_id)
            if origin is None:
                return
            client_event = evolve(event, request_id=origin.request_id)
            self._clients[origin.client_id].events.append(client_event)
            if isinstance(event, Finished | Failed):
                del self._origins[event.request_id]

    def unregister(self, _worker_id: int, error: BaseException) -> None:
        """Record the worker's error; each client receives its remaining events, then the error."""
        with self._condition:
            self._error = self._error or error
            self._condition.notify_all()

    # ── Dropping requests ────────────────────────────────────────────────────────────────────────

    def _drop_lost_clients(self) -> None:
        """Drop clients that have not called `exchange` for `CLIENT_TIMEOUT_S`.

        The caller must hold `_condition`.
        """
        oldest_s = time.monotonic() - CLIENT_TIMEOUT_S
        for client_id, client in list(self._clients.items()):
            if client.last_call_s < oldest_s:
                del self._clients[client_id]
        origins = self._origins.values()
        self._drop({origin for origin in origins if origin.client_id not in self._clients})

    def _drop(self, origins: Collection[_Origin]) -> None:
        """Drop the requests with these origins. The caller must hold `_condition`."""
        for request_id, origin in list(self._origins.items()):
            if origin in origins:
                del self._origins[request_id]
                self._on_cancel(request_id)
        self._waiting = [queued for queued in self._waiting if queued.id in self._origins]

    def _end_when_unused(self) -> None:
        self._worker.wait_loaded()
        self._last_call_s = time.monotonic()
        while time.monotonic() - self._last_call_s < _UNUSED_TIMEOUT_S:
            time.sleep(1.0)
        os._exit(0)


def limit_devices(gpu_ids: Sequence[int | str]) -> None:
    """Limit llama.cpp to the GPUs that Ray assigned to this process.

    It must be called before llama.cpp is loaded. Ray itself sets the environment variables of the
    GPU vendors, such as ``CUDA_VISIBLE_DEVICES``. A Vulkan build of llama.cpp reads its own
    variable, ``GGML_VK_VISIBLE_DEVICES``, which contains Vulkan's device numbers. This function
    sets it to the ids that Ray assigned, if there are any and it is not already set.
    """
    if gpu_ids:
        os.environ.setdefault("GGML_VK_VISIBLE_DEVICES", ",".join(map(str, gpu_ids)))
