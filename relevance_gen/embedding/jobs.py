"""The texts that wait for a model: many jobs, served in turn, a text of each.

So a single question waits for one text of every job before it, and not for an index of 20,000 chunks.
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
    """The vectors of texts, float32 of shape (n, n_dims), and how many tokens of each were read, shape (n,)."""

    vectors: Vectors
    n_tokens: NDArray[np.int64]


@define(eq=False)
class Job(Generic[Outcome]):
    """Some texts to read, and the future of whoever wants to know what they become.

    Cancelling the future drops the job before its next step. The outcome is arrays, filled by `reading`: given the
    model, it reads the texts, and after each part of one yields how many are read, which `n_done` says.
    """

    texts: Sequence[str]
    outcome: Outcome
    reading: Callable[[Any], Iterator[int]]
    n_done: int = 0
    future: Future[Outcome] = field(factory=Future)
    _steps: Iterator[int] | None = None

    def step(self, model: Any) -> None:
        """Have the model read as much as it reads at once; settle when all is read."""
        self._steps = self._steps or self.reading(model)
        self.n_done = next(self._steps)
        if self.n_done == len(self.texts):
            self.settle(self.outcome)

    def settle(self, outcome: Outcome | BaseException) -> None:
        """End the job, well or with an error."""
        with suppress(InvalidStateError):  # it was cancelled a moment ago
            if isinstance(outcome, BaseException):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)


class Jobs:
    """A queue from which jobs are taken in turn. Safe to share between threads.

    They are the `owner`'s, for people, and a `failure` stands for whatever goes wrong. Once `closed`, which says why,
    no job is taken any more.
    """

    def __init__(self, owner: str, failure: type[RelevanceGenError]) -> None:
        self.owner, self.failure = owner, failure
        self._changed = threading.Condition()
        self._waiting: deque[Job[Any]] = deque()
        self._pid = os.getpid()
        self.closed: BaseException | None = None

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the one that made this: who takes jobs did not come along."""
        return self._pid != os.getpid()

    def check_here(self) -> None:
        """Raise a `failure` in a process that was forked from the one that made this."""
        if self.forked:
            raise self.failure(
                f"this {self.owner} belongs to the process that this one was forked from, and its thread did not come "
                f"along; start processes with the 'spawn' method, or make the {self.owner} after the fork"
            )

    def put(self, job: Job[Any]) -> None:
        """Queue a job, or raise a `failure` where no job is taken any more."""
        self.check_here()
        with self._changed:
            if self.closed is not None:
                # A new error each time: one object raised often would keep all its callers' texts in its traceback.
                raise self.failure(str(self.closed)) from self.closed.__cause__
            self._waiting.append(job)
            self._changed.notify()

    def take(self) -> Job[Any] | None:
        """Return the job whose turn it is, when there is one; None once closed."""
        with self._changed:
            while True:
                if self.closed is not None:
                    return None
                while self._waiting:
                    job = self._waiting.popleft()
                    if not job.future.done():
                        return job
                self._changed.wait()

    def put_back(self, job: Job[Any]) -> None:
        """Queue a job behind the others, if any of its texts is left."""
        with self._changed:
            if self.closed is None and not job.future.done():
                self._waiting.append(job)
                return
        if self.closed is not None:
            job.settle(self.closed)

    def close(self, error: BaseException) -> BaseException:
        """Take no more jobs, and fail those that wait; return why: the first reason counts."""
        with self._changed:
            self.closed = error = self.closed or error
            failed = list(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()
        for job in failed:
            job.settle(error)
        return error
