"""The texts that wait for an encoder: many jobs, served in turn, a text of each.

So a single question waits for one text of every job before it, and not for an index of 20,000 chunks.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from typing import NamedTuple, TypeAlias

import numpy as np
from attrs import define, field
from numpy.typing import NDArray

from relevance_gen.errors import EncoderError

Vectors: TypeAlias = NDArray[np.float32]


class Embeddings(NamedTuple):
    """The vectors of texts, float32 of shape (n, n_dims), and how many tokens of each were read, shape (n,)."""

    vectors: Vectors
    n_tokens: NDArray[np.int64]


@define(eq=False)
class Job:
    """Some texts to encode, and the future of whoever wants their vectors.

    Attributes:
        texts: what to encode, prefixes included.
        n_done: texts that are encoded.
        future: cancelling it drops the job before its next text.
    """

    texts: Sequence[str]
    n_done: int = 0
    future: Future[Embeddings] = field(factory=Future)
    _vectors: list[Vectors] = field(factory=list)
    _n_tokens: list[int] = field(factory=list)

    @property
    def next_text(self) -> str:
        """The text to encode next."""
        return self.texts[self.n_done]

    def give(self, vector: Vectors, n_tokens: int) -> None:
        """Take the vector of `next_text`, and how many of its tokens were read."""
        self._vectors.append(vector)
        self._n_tokens.append(n_tokens)
        self.n_done += 1
        if self.n_done == len(self.texts):
            self.settle(Embeddings(np.stack(self._vectors), np.array(self._n_tokens, np.int64)))

    def settle(self, outcome: Embeddings | BaseException) -> None:
        """End the job, well or with an error."""
        with suppress(InvalidStateError):  # it was cancelled a moment ago
            if isinstance(outcome, BaseException):
                self.future.set_exception(outcome)
            else:
                self.future.set_result(outcome)


class Jobs:
    """A queue from which jobs are taken in turn. Safe to share between threads.

    Attributes:
        closed: why no job is taken any more; None while jobs are.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._pid = os.getpid()
        self.closed: BaseException | None = None

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the one that made this: who takes jobs did not come along."""
        return self._pid != os.getpid()

    def put(self, job: Job) -> None:
        """Queue a job.

        Raises:
            EncoderError: no job is taken any more.
        """
        with self._changed:
            if self.closed is not None:
                # A new error each time: one object raised often would keep all its callers' texts in its traceback.
                raise EncoderError(str(self.closed)) from self.closed.__cause__
            self._waiting.append(job)
            self._changed.notify()

    def take(self) -> Job | None:
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

    def put_back(self, job: Job) -> None:
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
