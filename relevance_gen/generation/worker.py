"""A worker: a thread with a model and an engine, which generates for one queue."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from relevance_gen.errors import GenerationError, RunnerClosedError
from relevance_gen.generation.counters import Counters
from relevance_gen.generation.engine.engine import Engine
from relevance_gen.generation.engine.prefix_cache import PrefixCache
from relevance_gen.generation.queue.events import EngineEvent
from relevance_gen.generation.queue.request import Capacity, QueuedRequest
from relevance_gen.llama.language_model import ChatFormat, LanguageModel
from relevance_gen.llama.model_thread import Load, ModelThread, ThreadState


class RequestSource(Protocol):
    """Source of a worker's requests and receiver of its events.

    See `relevance_gen.generation.queue.request_queue.RequestQueue`.
    """

    def register(self, on_cancel: Callable[[int], None]) -> int:
        """Add a worker, and return the worker's id.

        `on_cancel` is called with the id of each request that the worker has taken and must drop.
        """

    def take(
        self, worker_id: int, capacity: Capacity, timeout_s: float | None = None
    ) -> list[QueuedRequest] | None:
        """Return the next requests for a worker; ``None`` if the worker will get no more requests.

        Args:
            worker_id: id of the worker, from `register`.
            capacity: how many more requests the worker accepts, by priority.
            timeout_s: seconds to wait if no request is available, after which the list may be
                empty; ``None`` for no limit, 0 to return at once.
        """

    def deliver(self, worker_id: int, event: EngineEvent) -> None:
        """Pass an event to the caller of its request."""

    def unregister(self, worker_id: int, error: BaseException) -> None:
        """Remove a worker, whose requests end with `error` unless another worker takes them."""


class Worker(ModelThread):
    """A thread with a model and an engine, which serves the requests of a queue.

    Create all workers of a queue before any of them is started, because the last worker that leaves
    closes the queue: it then refuses requests. The thread loads the model.

    Args:
        queue: source of requests.
        load: loads the model.
        prefix_cache_bytes: maximum bytes of this worker's cache of computed prompts; 0 disables the
            cache.

    Attributes:
        counters: numbers of tokens and steps that the engine computed.
        chat_format: chat format of the model's file; ``None`` until the model is loaded.
    """

    error_class = GenerationError

    def __init__(
        self, queue: RequestSource, load: Load[LanguageModel], prefix_cache_bytes: int
    ) -> None:
        super().__init__("runner")
        self.counters = Counters()
        self.chat_format: ChatFormat | None = None
        self._load = load
        self._prefix_cache_bytes = prefix_cache_bytes
        self._engine: Engine | None = None
        self._cancelled: deque[int] = deque()
        self._queue = queue
        self._worker_id = queue.register(self._cancel)

    # ── Any thread ───────────────────────────────────────────────────────────────────────────────

    def _fail_work(self, error: BaseException | None) -> None:
        closed = RunnerClosedError("the runner was closed before this request was finished")
        self._queue.unregister(self._worker_id, error or closed)

    def stop(self) -> None:
        """Stop the thread and interrupt its current computation.

        The queue gives the unfinished requests to other workers, or makes them fail.
        """
        super().stop()
        if self._engine is not None:
            self._engine.interrupt()

    def _cancel(self, request_id: int) -> None:
        """Drop a request before the engine's next step; interrupt the computation of its prompt.

        The queue calls this from any thread.
        """
        self._cancelled.append(request_id)
        if self._engine is not None:
            self._engine.interrupt(request_id)

    # ── The worker's own thread ──────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        with self._load(self._should_continue) as model:
            engine = self._engine = Engine(model, PrefixCache(self._prefix_cache_bytes))
            self.counters, self.chat_format = engine.counters, model.chat_format
            try:
                self._transition(ThreadState.READY)
                while self._take_requests(engine):
                    for event in engine.step():
                        self._queue.deliver(self._worker_id, event)
            finally:
                engine.clear()

    def _take_requests(self, engine: Engine) -> bool:
        """Pass new and cancelled requests to the engine, waiting while it is idle.

        Return whether to continue.
        """
        if self.state is not ThreadState.READY:
            return False
        timeout_s = None if engine.is_idle else 0
        requests = self._queue.take(self._worker_id, engine.capacity, timeout_s)
        if requests is None:
            return False
        for queued in requests:
            engine.add(queued)
        while self._cancelled:
            engine.drop(self._cancelled.popleft())
        return True
