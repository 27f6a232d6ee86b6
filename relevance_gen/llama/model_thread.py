"""A thread that loads a model and works with it, from its birth to its end: whoever computes with llama.cpp is one."""

from __future__ import annotations

import atexit
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from enum import Enum
from typing import TypeAlias, TypeVar

from relevance_gen.errors import ModelLoadError, RelevanceGenError
from relevance_gen.llama.runtime import aborts

Model = TypeVar("Model")
Load: TypeAlias = Callable[[Callable[[float], bool]], AbstractContextManager[Model]]
"""Loads a model. It is given a function to call with the share that is loaded, which returns whether to go on."""

GRACE_S = 5.0
"""How long a thread that was told to stop may take to end its current computation."""


class ThreadState(Enum):
    """Where a thread is in its life."""

    LOADING = "it loads its model"
    READY = "it works"
    STOPPING = "it was told to give up, and has not ended yet"
    CLOSED = "it ended as it should"
    FAILED = "it ended by an exception"
    LOST = "it is inside llama.cpp and will stay there"


_NEXT = {
    ThreadState.LOADING: set(ThreadState) - {ThreadState.LOADING},
    ThreadState.READY: set(ThreadState) - {ThreadState.LOADING, ThreadState.READY},
    ThreadState.STOPPING: {ThreadState.CLOSED, ThreadState.LOST},
}
"""The states that may follow each; the others are ends."""


class ModelThread(ABC):
    """A thread that has a model for itself.

    Its `owner` is whose thread it is, for people. The `state` is changed by `_become` alone, and set together with the
    `error` that it failed of; a `failure` stands for an unexpected exception.
    """

    failure: type[RelevanceGenError]

    def __init__(self, owner: str) -> None:
        self.state = ThreadState.LOADING
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=f"relevance_gen-{owner}", daemon=True)
        self._changed = threading.Condition()
        self._owner = owner
        self._pid = os.getpid()

    # ── What it does: said by each kind ──────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def _serve(self) -> None:
        """Load the model, become ready, and work until there is nothing to come or the state says so."""

    @abstractmethod
    def _leave(self, error: BaseException | None) -> None:
        """Take no more work, and answer everybody who still waits: with `error`, or that this was closed."""

    # ── Any thread ───────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()
        atexit.register(self._stop_at_exit)

    def wait_loaded(self, timeout_s: float | None = None) -> bool:
        """Wait until the model is loaded or will not be; tell whether that is so."""
        with self._changed:
            return self._changed.wait_for(lambda: self.state is not ThreadState.LOADING, timeout_s)

    def stop(self) -> None:
        """Give up all work at once: whoever waits is answered, and the thread ends with the computation under way."""
        if self._become(ThreadState.STOPPING):
            self._leave(None)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the thread has ended or is lost, if it is another and was started; tell whether that is so."""
        if self.thread.ident is None or self.thread is threading.current_thread():
            return True
        with self._changed:
            ended = self._changed.wait_for(lambda: self.state not in _NEXT, timeout_s)
        if not ended or self.state is ThreadState.LOST:
            return ended
        self.thread.join(timeout_s)
        return not self.thread.is_alive()

    def _become(self, state: ThreadState, error: BaseException | None = None) -> bool:
        """Go over to `state` if it may follow the present one; tell whether it did."""
        with self._changed:
            if state not in _NEXT.get(self.state, ()):
                return False
            self.state, self.error = state, error
            self._changed.notify_all()
        return True

    def _end(self, state: ThreadState, error: BaseException | None = None) -> None:
        """End in `state`, and answer everybody who still waits for this thread."""
        if not self._become(state, error):
            self._become(
                ThreadState.CLOSED
            )  # stopping interrupts loading too, and that is no failure
        self._leave(error)
        atexit.unregister(self._stop_at_exit)

    def _lose(self, reason: str) -> None:
        """Give up the thread, which is inside llama.cpp and will stay there."""
        kind = ModelLoadError if self.state is ThreadState.LOADING else self.failure
        reason = f"llama.cpp gave up, and keeps its memory until this process ends: {reason}"
        self._end(ThreadState.LOST, kind(reason))

    def _stop_at_exit(self) -> None:
        """End the thread before the interpreter does: it may be inside llama.cpp."""
        if self._pid == os.getpid():  # into a forked process the thread does not come along
            self.stop()
            self.join(GRACE_S)

    # ── The thread itself ────────────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            with aborts.guard(self._lose):
                self._serve()
        except RelevanceGenError as error:
            self._end(ThreadState.FAILED, error)
        except BaseException as failure:
            reason = self.failure(
                f"the {self._owner}'s thread failed: {type(failure).__name__}: {failure}"
            )
            reason.__cause__ = failure
            self._end(ThreadState.FAILED, reason)
        else:
            self._end(ThreadState.CLOSED)

    def _goes_on_loading(self, _share: float) -> bool:
        """Tell a `Load` whether to go on."""
        return self.state is ThreadState.LOADING
