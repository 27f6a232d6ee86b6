"""A queue of jobs for one model, served round-robin, one text of each job at a time.

A single query therefore waits for one text of each earlier job, and not for an index of 20,000
chunks.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from relevance_gen.errors import RelevanceGenError

Vectors: TypeAlias = NDArray[np.float32]
Outcome = TypeVar("Outcome")


class Embeddings(NamedTuple):
    """The vectors of n texts, and the number of tokens of each.

    Attributes:
        vectors: float32 of shape (n, n_dims).
        n_tokens: number of tokens of each text that the model has read, shape (n,).
    """

    vectors: Vectors
    n_tokens: NDArray[np.int64]


@define(eq=False)
class Job(Generic[Outcome]):
    """Texts to process, and the future of their result.

    Cancelling the future drops the job before its next step.

    Attributes:
        texts: the texts.
        outcome: the result of the future, with arrays that `process` fills.
        process: called once with the model; returns an iterator. Each step of the iterator
            processes a text or a part of a text, and yields the number of texts finished so far.
        n_done: the number of texts finished so far.
        future: the future, whose result is `outcome`.
    """

    texts: Sequence[str]
    outcome: Outcome
    process: Callable[[Any], Iterator[int]]
    n_done: int = 0
    future: Future[Outcome] = field(factory=Future)
    _steps: Iterator[int] | None = None

    def step(self, model: Any) -> None:
        """Process the next text or part of a text; after the last text, set the future's result.

        An error of `process` is raised to the caller and leaves the future unchanged.
        """
        self._steps = self._steps or self.process(model)
        self.n_done = next(self._steps)
        if self.n_done == len(self.texts):
            self.settle(self.outcome)

    def settle(self, outcome: Outcome | BaseException) -> None:
        """Set the result of the future, or its error if `outcome` is an exception.

        Does nothing if the future was cancelled or already has a result.
        """
        with suppress(InvalidStateError):  # it was cancelled
            if isinstance(outcome, BaseException):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)


class Jobs:
    """A round-robin queue of jobs. Thread-safe.

    Args:
        owner: the word for the object that owns the queue, such as "encoder", for error messages.
        error_class: the class of the errors that the queue raises.

    Attributes:
        close_reason: the error with which the queue was closed; None while it accepts jobs.
    """

    def __init__(self, owner: str, error_class: type[RelevanceGenError]) -> None:
        self.owner = owner
        self.error_class = error_class
        self._condition = threading.Condition()
        self._waiting: deque[Job[Any]] = deque()
        self._pid = os.getpid()
        self.close_reason: BaseException | None = None

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked after the queue was created.

        It then lacks the thread that serves jobs.
        """
        return self._pid != os.getpid()

    def check_not_forked(self) -> None:
        """Raise an `error_class` in a process that was forked after the queue was created."""
        if self.is_forked:
            raise self.error_class(
                f"this {self.owner} was created before this process was forked, and its thread exists only in the parent; "
                f"start processes with the 'spawn' method, or create the {self.owner} after the fork"
            )

    def put(self, job: Job[Any]) -> None:
        """Queue a job.

        Raise an `error_class` if the queue is closed, or if this process was forked after its
        creation.
        """
        self.check_not_forked()
        with self._condition:
            if self.close_reason is not None:
                # A new error each time: one object raised repeatedly would keep the texts of all
                # callers alive in its traceback.
                raise self.error_class(str(self.close_reason)) from self.close_reason.__cause__
            self._waiting.append(job)
            self._condition.notify()

    def take(self) -> Job[Any] | None:
        """Wait for the next job whose future is not done; return None if the queue is closed."""
        with self._condition:
            while True:
                if self.close_reason is not None:
                    return None
                while self._waiting:
                    job = self._waiting.popleft()
                    if not job.future.done():
                        return job
                self._condition.wait()

    def put_back(self, job: Job[Any]) -> None:
        """Queue a job again unless its future is done; fail the job if the queue is closed."""
        with self._condition:
            if self.close_reason is None and not job.future.done():
                self._waiting.append(job)
                return
        if self.close_reason is not None:
            job.settle(self.close_reason)

    def close(self, error: BaseException) -> BaseException:
        """Accept no more jobs, and fail all waiting jobs with `error`.

        If the queue is already closed, the error of the first call is used instead. Return the
        error that is used.
        """
        with self._condition:
            self.close_reason = error = self.close_reason or error
            failed = list(self._waiting)
            self._waiting.clear()
            self._condition.notify_all()
        for job in failed:
            job.settle(error)
        return error
