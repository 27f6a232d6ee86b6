"""The calls that a single runner and a pool have in common: requests go in, futures come out."""

from __future__ import annotations

import os
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, Future, InvalidStateError
from typing import Any, Self

from relevance_gen import wire
from relevance_gen.errors import InvalidRequestError, RequestCancelledError, RunnerClosedError
from relevance_gen.generation.counters import Counters
from relevance_gen.generation.jobs import Job, JobQueue
from relevance_gen.generation.stream import TextStream
from relevance_gen.types import GenerationRequest, GenerationResponse, Stats

DEFAULT_MAX_QUEUE = 256
MAX_STOP_CHARACTERS = 1 << 16
"""All stop strings of a request together: enough for any use, and little to compile."""
MAX_END_TOKENS = 1 << 12

OnText = Callable[[int, str], None]


class Front(ABC):
    """What a single runner and a pool have in common: requests go in, futures come out."""

    def __init__(self, max_queue: int) -> None:
        self._queue = JobQueue(max_queue)
        self._pid = os.getpid()

    def submit(
        self, request: GenerationRequest | Mapping[str, Any], *, on_text: OnText | None = None
    ) -> Future[GenerationResponse]:
        """Accept a request and return at once.

        Args:
            request: what to generate, or a mapping of its fields.
            on_text: called with sample index and text as it is generated: whole characters, never part of a stop
                string. It runs in the runner's thread, so it must be quick; if it raises, the request fails with that.

        Returns:
            A future. Its `cancel()` works until the response is there: the request's slots are free at the next step,
            and whoever waits sees `concurrent.futures.CancelledError`.

        Raises:
            InvalidRequestError: a field is wrong, the stop strings are too long, or the end tokens too many. What
                depends on the model fails the future instead.
            OverloadedError: as many samples as allowed wait already.
            RunnerClosedError: the runner is closed, has died, or belongs to the process this one was forked from.
        """
        self._check_process()
        if not isinstance(request, GenerationRequest):
            request = wire.structure(GenerationRequest, request)
        if sum(map(len, request.stop)) > MAX_STOP_CHARACTERS:
            raise InvalidRequestError(
                f"stop must hold at most {MAX_STOP_CHARACTERS:,} characters altogether", field="stop"
            )
        if len(request.eos_token_ids) > MAX_END_TOKENS:
            raise InvalidRequestError.must_be(
                "eos_token_ids", f"a list of at most {MAX_END_TOKENS:,} tokens", request.eos_token_ids
            )
        future: Future[GenerationResponse] = Future()
        job = Job(request, time.time(), on_text or _ignore, _resolver(future))
        self._queue.put(job)
        reference = weakref.ref(job)  # a future that held its job would be a cycle, and keep its texts

        def give_up(done: Future[GenerationResponse]) -> None:
            if done.cancelled():
                done.set_running_or_notify_cancel()  # what `concurrent.futures.wait` waits for
                if (job := reference()) is not None:
                    self._queue.cancel(job)

        future.add_done_callback(give_up)
        return future

    def generate(self, request: GenerationRequest | Mapping[str, Any]) -> GenerationResponse:
        """Submit a request and wait for its response.

        Raises:
            RelevanceGenError: as `submit` raises, or what the request failed with.
        """
        if self._runs_here():
            raise InvalidRequestError("on_text must not wait for the thread that it runs in; call submit, not generate")
        future = self.submit(request)
        try:
            return future.result()
        except CancelledError:
            raise RequestCancelledError("the request was cancelled") from None
        finally:
            future.cancel()  # after an interrupt in this thread nobody waits for it any more
            del future  # it holds the exception, whose traceback holds this frame

    def stream(self, request: GenerationRequest | Mapping[str, Any]) -> TextStream:
        """Submit a request and return its text piece by piece, as it comes.

        Raises:
            RelevanceGenError: as `submit` raises.
        """
        return TextStream(lambda on_text: self.submit(request, on_text=on_text))

    @abstractmethod
    def stats(self) -> Stats:
        """Return the samples that wait, and how many runners are ready."""

    @abstractmethod
    def counters(self) -> Counters:
        """Return what was done so far; a copy."""

    @abstractmethod
    def close(self, drain: bool = True, timeout_s: float | None = None) -> None:
        """Take no more requests and end."""

    @abstractmethod
    def _runs_here(self) -> bool:
        """Tell whether the calling thread is one that runs a model."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(drain=kind is None)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise RunnerClosedError(
                "this runner belongs to the process that this one was forked from, and its thread did not come along; "
                "start processes with the 'spawn' method, or make the runner after the fork"
            )


def _resolver(future: Future[GenerationResponse]) -> Callable[[GenerationResponse | BaseException], None]:
    """Make the function that settles `future`, unless it was cancelled meanwhile."""

    def resolve(outcome: GenerationResponse | BaseException) -> None:
        try:
            if isinstance(outcome, BaseException):
                future.set_exception(outcome)
            else:
                future.set_result(outcome)
        except InvalidStateError:
            pass  # cancelled between two steps

    return resolve


def _ignore(_sample: int, _text: str) -> None:
    pass
