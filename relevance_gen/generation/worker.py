"""A worker: a thread that loads a model and generates for one backlog, from its birth to its end."""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import Enum
from typing import Protocol, TypeAlias

from relevance_gen.errors import GenerationError, ModelLoadError, RelevanceGenError, RunnerClosedError
from relevance_gen.generation.cache import PrefixCache
from relevance_gen.generation.counters import Counters
from relevance_gen.generation.engine import Engine
from relevance_gen.generation.ticket import Reports, Ticket
from relevance_gen.llama import aborts
from relevance_gen.llama.language_model import ChatFormat, LanguageModel

Load: TypeAlias = Callable[[Callable[[float], bool]], AbstractContextManager[LanguageModel]]
"""Loads a model. It is given a function to call with the share that is loaded, which returns whether to go on."""

GRACE_S = 5.0
"""How long a thread that was told to stop may take to end its current step."""


class Pulls(Reports, Protocol):
    """How a worker takes tickets and says what becomes of them: see `relevance_gen.generation.backlog.Puller`."""

    def take(
        self, n_most: int, n_most_to_hold: int | None = None, timeout_s: float | None = None
    ) -> list[Ticket] | None:
        """Return the oldest tickets; None if there is nothing to come."""

    def leave(self, error: BaseException) -> None:
        """Take no more."""


class Queue(Protocol):
    """Where tickets come from: a `relevance_gen.generation.backlog.Backlog`, or what stands in for some elsewhere."""

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the one that made this."""

    def join(self, on_cancel: Callable[[int], None]) -> Pulls:
        """Return what a worker takes tickets with from now on."""


class State(Enum):
    """Where a worker is in its life."""

    LOADING = "it loads its model"
    READY = "it takes requests"
    STOPPING = "it was told to give up, and its thread has not ended yet"
    CLOSED = "it ended as it should"
    FAILED = "it ended by an exception"
    LOST = "its thread is inside llama.cpp and will stay there"


_NEXT = {
    State.LOADING: {State.READY, State.STOPPING, State.CLOSED, State.FAILED, State.LOST},
    State.READY: {State.STOPPING, State.CLOSED, State.FAILED, State.LOST},
    State.STOPPING: {State.CLOSED, State.LOST},
}
"""The states that may follow each; the others are ends."""


class Worker:
    """A thread with a model and an engine.

    Args:
        backlog: where its requests come from.
        load: loads the model, in the worker's own thread.
        prefix_cache_bytes: memory for the computed prompts of recent requests.

    Attributes:
        state: changed by `_become` alone.
        error: what it failed of; set together with the states FAILED and LOST.
        counters: what its engine computed.
        chat_format: what its model's file says about conversations, once that is loaded.
        thread: where the model is loaded and computes.
    """

    def __init__(self, backlog: Queue, load: Load, prefix_cache_bytes: int) -> None:
        self.state = State.LOADING
        self.error: BaseException | None = None
        self.counters = Counters()
        self.chat_format: ChatFormat | None = None
        self._changed = threading.Condition()
        self._backlog = backlog
        self._load = load
        self._prefix_cache_bytes = prefix_cache_bytes
        self._engine: Engine | None = None
        self._cancelled: deque[int] = deque()
        self.thread = threading.Thread(target=self._run, name="relevance_gen-worker", daemon=True)
        self._puller = backlog.join(self._cancel)

    def start(self) -> None:
        """Start the thread. First make all workers of a backlog, because the last one to leave closes it."""
        self.thread.start()
        atexit.register(self._stop_at_exit)

    def wait_loaded(self, timeout_s: float | None = None) -> bool:
        """Wait until the model is loaded or will not be; tell whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: self.state is not State.LOADING, timeout_s)

    def stop(self) -> None:
        """Give up at once what it has: its requests are answered, and its thread ends with the step under way."""
        if self._become(State.STOPPING):
            self._puller.leave(RunnerClosedError("the runner was closed before this request was finished"))
            if self._engine is not None:
                self._engine.interrupt()

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the thread has ended or is lost; tell whether that is so."""
        if self.thread.ident is None:
            return True  # it was never started
        with self._changed:
            ended = self._changed.wait_for(lambda: self.state not in _NEXT, timeout_s)
        if not ended or self.state is State.LOST:
            return ended
        self.thread.join(timeout_s)
        return not self.thread.is_alive()

    # ── Any thread ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _become(self, state: State, error: BaseException | None = None) -> bool:
        """Go over to `state` if it may follow the present one; tell whether it did."""
        with self._changed:
            if state not in _NEXT.get(self.state, ()):
                return False
            self.state, self.error = state, error
            self._changed.notify_all()
        return True

    def _end(self, state: State, error: BaseException | None = None) -> None:
        """End in `state`, and answer everybody who still waits for this worker."""
        if not self._become(state, error):
            self._become(State.CLOSED)  # stopping interrupts loading too, and that is no failure
        self._puller.leave(error or RunnerClosedError("the runner was closed before it got to this request"))
        atexit.unregister(self._stop_at_exit)

    def _cancel(self, ticket_id: int) -> None:
        """Have a ticket dropped before the next step, and do not wait for its prompt to be computed."""
        self._cancelled.append(ticket_id)
        if self._engine is not None:
            self._engine.interrupt(ticket_id)

    def _lose(self, reason: str) -> None:
        """Give up the thread, which is inside llama.cpp and will stay there."""
        kind = ModelLoadError if self.state is State.LOADING else GenerationError
        self._end(State.LOST, kind(f"llama.cpp gave up, and keeps its memory until this process ends: {reason}"))

    def _stop_at_exit(self) -> None:
        """End the thread before the interpreter does: it may be inside llama.cpp."""
        if not self._backlog.forked:
            self.stop()
            self.join(GRACE_S)

    # ── The worker's own thread ──────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            with aborts.guard(self._lose):
                self._serve()
        except RelevanceGenError as error:
            self._end(State.FAILED, error)
        except BaseException as failure:
            reason = GenerationError(f"the runner's thread failed: {type(failure).__name__}: {failure}")
            reason.__cause__ = failure
            self._end(State.FAILED, reason)
        else:
            self._end(State.CLOSED)

    def _serve(self) -> None:
        with self._load(lambda _: self.state is State.LOADING) as model:
            engine = self._engine = Engine(model, PrefixCache(self._prefix_cache_bytes), self._puller)
            self.counters, self.chat_format = engine.counters, model.chat_format
            try:
                self._become(State.READY)
                while self._take_tickets(engine):
                    engine.step()
            finally:
                engine.clear()

    def _take_tickets(self, engine: Engine) -> bool:
        """Hand the engine what it has room for, waiting while it is idle; tell whether to go on."""
        if self.state is not State.READY:
            return False
        tickets = self._puller.take(engine.room, engine.room_to_hold, timeout_s=None if engine.idle else 0)
        if tickets is None:
            return False
        for ticket in tickets:
            engine.add(ticket)
        while self._cancelled:
            engine.drop(self._cancelled.popleft())
        return True
