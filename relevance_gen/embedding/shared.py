"""A model in a separate thread that many callers share: the base of encoder and reranker."""

from __future__ import annotations

import functools
import hashlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError, wait
from contextlib import suppress
from typing import Any, Generic, Self, TypeVar

from attrs import define, field

from relevance_gen.checks import as_list, model_source
from relevance_gen.errors import InvalidRequestError, ModelLoadError, RelevanceGenError
from relevance_gen.llama.model_files import resolve as model_file
from relevance_gen.llama.model_thread import GRACE_S, Load, ModelThread, ThreadState
from relevance_gen.llama.options import ModelOptions
from relevance_gen.progress import Progress, reporting

Outcome = TypeVar("Outcome")
Model = TypeVar("Model")
_PROGRESS_INTERVAL_S = 0.05
"""Seconds between two calls of a progress function."""


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
                f"this {self.owner} was created before this process was forked, and its thread "
                "exists only in the parent; start processes with the 'spawn' method, or create the "
                f"{self.owner} after the fork"
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


class SharedModel(Generic[Model]):
    """A GGUF file, loaded in a separate thread that serves the jobs of many callers round-robin."""

    def __init__(
        self,
        model: str | os.PathLike[str],
        options: Mapping[str, Any],
        load: Callable[..., Any],
        jobs: Jobs,
        **own: Any,
    ) -> None:
        """Start a thread that loads a model, and wait until the model is loaded.

        Args:
            model: the path of a GGUF file, or the name of a model on the Hugging Face hub.
            options: the fields of a `ModelOptions` that the subclass has as arguments.
            load: called in the thread with the path of the file and the `ModelOptions`; returns the
                model.
            jobs: the queue of jobs that the thread serves.
            own: further arguments of the subclass, used only to create it again when unpickling.
        """
        model_options = ModelOptions(**options)
        model_source.check("model", model)
        self._reopen = functools.partial(type(self), str(model), **options, **own)
        self._path = model_file.resolve(model)
        self._jobs = jobs
        self._thread = _Thread[Model](jobs, functools.partial(load, self._path, model_options))
        # End the thread when this object is garbage-collected.
        weakref.finalize(self, self._thread.stop).atexit = False
        try:
            self._thread.start()
            self._thread.wait_loaded()
            if self._thread.model is None:
                closed = f"the {jobs.owner} was closed before its model was loaded"
                raise self._thread.error or ModelLoadError(closed)
            self._model = self._thread.model
        except (
            BaseException
        ):  # also on KeyboardInterrupt: the caller never receives the object to close it
            self.close()
            raise

    def _put(self, job: Job[Outcome]) -> Job[Outcome]:
        """Queue a job and return it; a job without texts is settled at once."""
        if job.texts:
            self._jobs.put(job)
        else:
            job.settle(job.outcome)
        return job

    def _finish(self, job: Job[Outcome], progress: Progress | bool | None) -> Outcome:
        """Queue a job, wait for it, and return its outcome; raise its error if it fails.

        `progress` is called in the calling thread with the number of finished texts and the number
        of all texts; True shows a bar. If the wait is interrupted, for example by
        KeyboardInterrupt, the job is cancelled.
        """
        with reporting(progress, "texts") as report:
            self._put(job)
            try:
                while report is not None and not job.future.done():
                    report(job.n_done, len(job.texts))
                    wait([job.future], _PROGRESS_INTERVAL_S)
                outcome = job.future.result()
                if report is not None:
                    report(len(job.texts), len(job.texts))
                return outcome
            finally:
                # After a KeyboardInterrupt the caller discards the remaining results.
                job.future.cancel()

    def _fingerprint(self, *settings: object) -> str:
        """Return a hexadecimal SHA-256 digest of the model's file and of `settings`."""
        with self._path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        digest.update("".join(f"\n{setting}" for setting in settings).encode(errors="replace"))
        return digest.hexdigest()

    @property
    def name(self) -> str:
        """The name of the model's file."""
        return self._path.name

    @property
    def closed(self) -> bool:
        """Whether no more texts are accepted."""
        return self._jobs.close_reason is not None

    def close(self) -> None:
        """Fail all unfinished jobs, and end the thread, which frees the model.

        Waits at most `GRACE_S` seconds for the thread. Does nothing in a forked process.
        """
        if not self._jobs.is_forked:
            self._thread.stop()
            self._thread.join(GRACE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, _: Any) -> Self:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return self._reopen, ()


class _Thread(ModelThread, Generic[Model]):
    """The thread of a shared model.

    Only this thread may compute with `model`, which is None until it is loaded.
    """

    def __init__(self, jobs: Jobs, load: Load[Model]) -> None:
        super().__init__(jobs.owner)
        self.error_class = jobs.error_class
        self.model: Model | None = None
        self._jobs = jobs
        self._load = load
        self._job: Job[Any] | None = None

    def _fail_work(self, error: BaseException | None) -> None:
        error = self._jobs.close(error or self.error_class(f"the {self._jobs.owner} is closed"))
        if (job := self._job) is not None:
            job.settle(error)

    def _serve(self) -> None:
        with self._load(self._should_continue) as model:
            self.model = model
            self._transition(ThreadState.READY)
            while (job := self._jobs.take()) is not None:
                self._job = job
                try:
                    job.step(model)
                except self.error_class as error:
                    job.settle(error)
                self._job = None
                self._jobs.put_back(job)
                del job  # release the texts while the thread waits


def checked_texts(texts: Iterable[str]) -> list[str]:
    """Return texts as a list.

    Raise `InvalidRequestError` if they are not strings in an iterable.
    """
    texts = as_list(texts)
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise InvalidRequestError.must_be(
            "texts", "a list of strings", texts, remedy="put a single text in a list"
        )
    texts = list(texts)
    for index, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidRequestError.must_be(f"texts[{index}]", "a string", text)
    return texts
