"""Requests between their caller and an engine, and the bounded queue where they wait."""

from __future__ import annotations

import secrets
import threading
from collections import deque
from collections.abc import Callable, Hashable

import numpy as np
from attrs import define, field

from relevance_gen.errors import OverloadedError, RunnerClosedError
from relevance_gen.generation.model import Logits, SavedState, Tokens
from relevance_gen.generation.stopping import NO_STOPS, StopStrings
from relevance_gen.types import Completion, GenerationRequest, GenerationResponse

NO_LOGITS: Logits = np.empty(0, np.float32)
NO_STATE: SavedState = np.empty(0, np.uint8)


@define(eq=False)
class Job:
    """One request on its way.

    Args:
        request: what was asked for.
        created: Unix time in seconds when it was accepted.
        on_text: called with sample index and text whenever text is released.
        on_done: called once, with the response or with the error; not called for a cancelled job.

    Attributes:
        seed: the request's, or a fresh one.
        ends: the tokens that end a sample.
        cancelled: whether the caller gave it up; set from any thread, acted on between steps.
        interrupt: while the prompt is being computed, makes that stop.
        prompt: its tokens; empty until it is at the head of an engine's queue.
        stops: its stop strings, compiled; that takes much more memory than they do, so not before `prompt` either.
        logits: shape (V,), after the prompt; empty until that is computed.
        state: what the prompt left in its slot, for samples that start elsewhere; empty until then.
        slot: where the prompt is being computed.
        n_done: tokens of the prompt that are computed.
        n_started: samples that have produced a token.
        completions: the finished samples, by index.
    """

    request: GenerationRequest
    created: float
    on_text: Callable[[int, str], None]
    on_done: Callable[[GenerationResponse | BaseException], None]
    seed: int = field(init=False)
    ends: frozenset[int] = field(init=False)
    cancelled: bool = field(default=False, init=False)
    interrupt: Callable[[], None] | None = field(default=None, init=False)
    prompt: Tokens = field(factory=lambda: np.empty(0, np.int32), init=False)
    stops: StopStrings = field(default=NO_STOPS, init=False)
    logits: Logits = field(default=NO_LOGITS, init=False)
    state: SavedState = field(default=NO_STATE, init=False)
    slot: int | None = field(default=None, init=False)
    n_done: int = field(default=0, init=False)
    n_started: int = field(default=0, init=False)
    completions: dict[int, Completion] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.seed = secrets.randbits(128) if self.request.seed is None else self.request.seed
        self.ends = frozenset(self.request.eos_token_ids)

    @property
    def n_unstarted(self) -> int:
        """Samples that have not produced a token."""
        return self.request.num_samples - self.n_started

    def settle(self, outcome: GenerationResponse | BaseException) -> None:
        """Call `on_done` and let go of it: whoever waits gets the error, whose traceback may hold this job."""
        on_done, self.on_done = self.on_done, _ignore
        on_done(outcome)


class JobQueue:
    """The first-come-first-served queue between callers and one or more runners.

    Args:
        max_waiting: samples that may wait; while as many do, further requests are refused.

    Attributes:
        changed: guards everything here, and is notified of every change.
        n_waiting: samples that wait.
        n_cancelled: requests that were cancelled while they waited.
    """

    def __init__(self, max_waiting: int) -> None:
        self.changed = threading.Condition()
        self.n_waiting = 0
        self.n_cancelled = 0
        self._max_waiting = max_waiting
        self._jobs: deque[Job] = deque()
        self._consumers: set[Hashable] = set()
        self._closed: BaseException | None = None

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def fair_share(self) -> int:
        """How many of the waiting jobs one consumer may take without leaving another idle, rounded up."""
        return -(-len(self._jobs) // max(1, len(self._consumers)))

    def join(self, consumer: Hashable) -> None:
        """Register who will take jobs."""
        with self.changed:
            self._consumers.add(consumer)

    def leave(self, consumer: Hashable, error: BaseException | None) -> None:
        """Unregister a consumer; when the last one leaves, every waiting job fails."""
        with self.changed:
            self._consumers.discard(consumer)
            if self._consumers:
                return
            self._closed = error or RunnerClosedError("the runner was closed before it got to this request")
            orphans = self._drain()
        for job in orphans:
            job.settle(self._closed)

    def is_last(self, consumer: Hashable) -> bool:
        """Tell whether nobody but `consumer` takes jobs."""
        return self._consumers <= {consumer}

    def close(self) -> None:
        """Refuse new jobs; those that wait stay."""
        with self.changed:
            self._closed = self._closed or RunnerClosedError("the runner is closed")
            self.changed.notify_all()

    def put(self, job: Job) -> None:
        """Append a job.

        Raises:
            OverloadedError: `max_waiting` samples wait already.
            RunnerClosedError: nobody is left to take it.
        """
        with self.changed:
            if self._closed is not None:
                raise RunnerClosedError(f"the runner takes no more requests: {self._closed}") from self._closed
            if self.n_waiting >= self._max_waiting:
                raise OverloadedError(f"{self.n_waiting} samples wait already, and at most {self._max_waiting} may")
            self._append(job)

    def take(self) -> Job:
        """Remove and return the oldest job; the caller holds `changed`."""
        job = self._jobs.popleft()
        self.n_waiting -= job.n_unstarted
        return job

    def cancel(self, job: Job) -> None:
        """Give up a job, wherever it is."""
        with self.changed:
            job.cancelled = True
            if job in self._jobs:
                self._jobs.remove(job)
                self.n_waiting -= job.n_unstarted
                self.n_cancelled += 1
            self.changed.notify_all()
        interrupt = job.interrupt
        if interrupt is not None:
            interrupt()

    def hand_over(self, other: JobQueue) -> None:
        """Move the waiting jobs to another queue."""
        with self.changed:
            jobs = self._drain()
            self.changed.notify_all()
        with other.changed:
            closed = other._closed
            if closed is None:
                for job in jobs:
                    other._append(job)
                return
        for job in jobs:
            job.settle(closed)

    def _append(self, job: Job) -> None:
        self._jobs.append(job)
        self.n_waiting += job.n_unstarted
        self.changed.notify_all()

    def _drain(self) -> list[Job]:
        jobs = list(self._jobs)
        self._jobs.clear()
        self.n_waiting = 0
        return jobs


def _ignore(_outcome: GenerationResponse | BaseException) -> None:
    pass
