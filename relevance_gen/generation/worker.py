"""A worker: a thread with a model and an engine, which generates for one backlog."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

from relevance_gen.errors import GenerationError, RunnerClosedError
from relevance_gen.generation.counters import Counters
from relevance_gen.generation.engine.engine import Engine
from relevance_gen.generation.engine.prefix_cache import PrefixCache
from relevance_gen.generation.queue.request import QueuedRequest, Reports, Rooms
from relevance_gen.llama.language_model import ChatFormat, LanguageModel
from relevance_gen.llama.model_thread import Load, ModelThread, ThreadState


class Pulls(Reports, Protocol):
    """How a worker takes tickets and says what becomes of them: see `relevance_gen.generation.queue.request_queue.WorkerHandle`."""

    def take(self, rooms: Rooms, timeout_s: float | None = None) -> list[QueuedRequest] | None:
        """Return the next tickets; None if there is nothing to come."""

    def leave(self, error: BaseException) -> None:
        """Take no more."""


class Queue(Protocol):
    """Where tickets come from: a `relevance_gen.generation.queue.request_queue.RequestQueue`, or what stands in for some elsewhere."""

    def join(self, on_cancel: Callable[[int], None]) -> Pulls:
        """Return what a worker takes tickets with from now on."""


class Worker(ModelThread):
    """A thread with a model and an engine, which works for a backlog.

    Make all workers of one backlog before any is started, because the last one to leave closes it. The model is loaded
    in the thread; of the `prefix_cache_bytes` each worker has so many for itself. Its `counters` say what its engine
    computed, and once the model is loaded `chat_format` what its file says about conversations.
    """

    failure = GenerationError

    def __init__(self, backlog: Queue, load: Load[LanguageModel], prefix_cache_bytes: int) -> None:
        super().__init__("runner")
        self.counters = Counters()
        self.chat_format: ChatFormat | None = None
        self._load = load
        self._prefix_cache_bytes = prefix_cache_bytes
        self._engine: Engine | None = None
        self._cancelled: deque[int] = deque()
        self._puller = backlog.join(self._cancel)

    # ── Any thread ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _leave(self, error: BaseException | None) -> None:
        self._puller.leave(
            error or RunnerClosedError("the runner was closed before this request was finished")
        )

    def stop(self) -> None:
        """Give up all work at once, and the computation under way with it."""
        super().stop()
        if self._engine is not None:
            self._engine.interrupt()

    def _cancel(self, ticket_id: int) -> None:
        """Have a ticket dropped before the next step, and do not wait for its prompt to be computed."""
        self._cancelled.append(ticket_id)
        if self._engine is not None:
            self._engine.interrupt(ticket_id)

    # ── The worker's own thread ──────────────────────────────────────────────────────────────────────────────────────

    def _serve(self) -> None:
        with self._load(self._goes_on_loading) as model:
            engine = self._engine = Engine(
                model, PrefixCache(self._prefix_cache_bytes), self._puller
            )
            self.counters, self.chat_format = engine.counters, model.chat_format
            try:
                self._become(ThreadState.READY)
                while self._take_tickets(engine):
                    engine.step()
            finally:
                engine.clear()

    def _take_tickets(self, engine: Engine) -> bool:
        """Hand the engine what it has room for, waiting while it is idle; tell whether to go on."""
        if self.state is not ThreadState.READY:
            return False
        tickets = self._puller.take(engine.rooms, timeout_s=None if engine.idle else 0)
        if tickets is None:
            return False
        for ticket in tickets:
            engine.add(ticket)
        while self._cancelled:
            engine.drop(self._cancelled.popleft())
        return True
