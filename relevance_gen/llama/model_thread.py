"""A thread that loads a model and computes with it: the base of all threads that call llama.cpp."""

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
"""Loads a model. The argument is called with the loaded fraction, and returns whether to
continue."""

GRACE_S = 5.0
"""Seconds that a stopping thread may take to finish its current computation."""


class ThreadState(Enum):
    """The state of a thread: its value describes it in words.

    `LOADING` is the first state, and `READY` follows if loading succeeds. `LOADING` can follow
    `READY` if the model is in another process, which must be replaced. `stop` changes either state
    to `STOPPING`. `CLOSED`, `FAILED` and `LOST` are final.
    """

    LOADING = "loading its model"
    READY = "ready for work"
    STOPPING = "stopping after its current computation"
    CLOSED = "ended normally"
    FAILED = "ended by an exception"
    LOST = "blocked inside llama.cpp forever"


_NEXT = {
    ThreadState.LOADING: set(ThreadState) - {ThreadState.LOADING},
    ThreadState.READY: set(ThreadState) - {ThreadState.READY},
    ThreadState.STOPPING: {ThreadState.CLOSED, ThreadState.LOST},
}
"""The states that may follow each state; states that are not listed are final."""


class ModelThread(ABC):
    """A thread that owns a model.

    Args:
        owner: a word for the kind of object that the thread belongs to, such as "runner"; the
            thread's name and its errors contain it.

    Attributes:
        state: the state of the thread, changed only by `_transition`.
        error: the reason of a failure, set together with the state; None if there is none.
        thread: the thread.
        error_class: the class of errors that wrap unexpected exceptions.
    """

    error_class: type[RelevanceGenError]

    def __init__(self, owner: str) -> None:
        self.state = ThreadState.LOADING
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run, name=f"relevance_gen-{owner}", daemon=True)
        self._condition = threading.Condition()
        self._owner = owner
        self._pid = os.getpid()

    # ── Implemented by subclasses ─────────────────────────────────────────────────────────────────

    @abstractmethod
    def _serve(self) -> None:
        """Load the model, become ready, and work until no work is left or the thread is stopped."""

    @abstractmethod
    def _fail_work(self, error: BaseException | None) -> None:
        """Accept no more work, and make all unfinished work fail.

        Args:
            error: the error with which the work fails; None to make it fail with the error of a
                closed object.
        """

    # ── Any thread ────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()
        atexit.register(self._stop_at_exit)

    def wait_loaded(self, timeout_s: float | None = None) -> bool:
        """Wait until loading has succeeded, failed or been stopped; return False after a timeout.

        Without `timeout_s`, waits as long as loading takes.
        """
        with self._condition:
            return self._condition.wait_for(
                lambda: self.state is not ThreadState.LOADING, timeout_s
            )

    def stop(self) -> None:
        """Fail all work immediately; the thread ends after its current computation."""
        if self._transition(ThreadState.STOPPING):
            self._fail_work(None)

    def join(self, timeout_s: float | None = None) -> bool:
        """Wait until the thread has ended or is lost; return False after a timeout.

        Returns True at once in this thread itself, and if the thread was never started.
        """
        if self.thread.ident is None or self.thread is threading.current_thread():
            return True
        with self._condition:
            ended = self._condition.wait_for(lambda: self.state not in _NEXT, timeout_s)
        if not ended or self.state is ThreadState.LOST:
            return ended
        self.thread.join(timeout_s)
        return not self.thread.is_alive()

    def _transition(self, state: ThreadState, error: BaseException | None = None) -> bool:
        """Change to `state` if it may follow the current state; return whether it did.

        If it did, the attribute `error` is set to the argument `error`.
        """
        with self._condition:
            if state not in _NEXT.get(self.state, ()):
                return False
            self.state = state
            self.error = error
            self._condition.notify_all()
        return True

    def _end(self, state: ThreadState, error: BaseException | None = None) -> None:
        """Change to the final state `state`, and make all unfinished work fail.

        If the thread was stopped before, `FAILED` is replaced by `CLOSED`, because an error after
        `stop` is not a failure.

        Args:
            state: `CLOSED`, `FAILED` or `LOST`.
            error: the error with which the work fails; None to make it fail with the error of a
                closed object.
        """
        if not self._transition(state, error):
            # The thread was stopped; that interrupts loading, too, and is not a failure.
            self._transition(ThreadState.CLOSED)
        self._fail_work(error)
        atexit.unregister(self._stop_at_exit)

    def _mark_lost(self, reason: str) -> None:
        """Mark the thread as lost, because it is blocked inside llama.cpp forever; its work fails.

        `reason` is the message with which llama.cpp aborted.
        """
        is_loading = self.state is ThreadState.LOADING
        error_class = ModelLoadError if is_loading else self.error_class
        message = f"llama.cpp aborted; its memory is not freed until this process ends: {reason}"
        self._end(ThreadState.LOST, error_class(message))

    def _stop_at_exit(self) -> None:
        """Stop the thread before the interpreter exits, and wait for its end for at most `GRACE_S`.

        Without this, the interpreter could exit while the thread is inside llama.cpp. Does nothing
        in a forked process, which does not have the thread.
        """
        if self._pid == os.getpid():  # a forked process does not have the thread
            self.stop()
            self.join(GRACE_S)

    # ── The thread itself ─────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            with aborts.guard(self._mark_lost):
                self._serve()
        except RelevanceGenError as error:
            self._end(ThreadState.FAILED, error)
        except BaseException as error:
            thread_error = self.error_class(
                f"the {self._owner}'s thread failed: {type(error).__name__}: {error}"
            )
            thread_error.__cause__ = error
            self._end(ThreadState.FAILED, thread_error)
        else:
            self._end(ThreadState.CLOSED)

    def _should_continue(self, _fraction: float) -> bool:
        """Return whether loading should continue; called with the fraction that is loaded."""
        return self.state is ThreadState.LOADING
