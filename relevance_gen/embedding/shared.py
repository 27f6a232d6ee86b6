"""A model in a separate thread that many callers share: the base of encoder and reranker."""

from __future__ import annotations

import functools
import hashlib
import os
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import wait
from typing import Any, Generic, Self, TypeVar

from relevance_gen.checks import as_list, model_source
from relevance_gen.embedding.jobs import Job, Jobs, Outcome
from relevance_gen.errors import InvalidRequestError, ModelLoadError
from relevance_gen.llama.model_files import resolve as model_file
from relevance_gen.llama.model_thread import GRACE_S, Load, ModelThread, ThreadState
from relevance_gen.llama.options import ModelOptions
from relevance_gen.progress import Progress, reporting

Model = TypeVar("Model")

_PROGRESS_INTERVAL_S = 0.05
"""Seconds between two calls of a progress function."""


class SharedModel(Generic[Model]):
    """A GGUF file, loaded in a separate thread that serves the jobs of many callers round-robin."""

    def __init__(
        self,
        model: str | os.PathLike[str],
        options: ModelOptions,
        load: Callable[..., Any],
        jobs: Jobs,
        **own: Any,
    ) -> None:
        """Start a thread that loads a model, and wait until the model is loaded.

        Args:
            model: the path of a GGUF file, or the name of a model on the Hugging Face hub.
            options: the options of loading.
            load: called in the thread with the path of the file and `options`; returns the model.
            jobs: the queue of jobs that the thread serves.
            own: further arguments of the subclass, used only to create it again when unpickling.
        """
        model_source.check("model", model)
        self._reopen = functools.partial(
            type(self),
            str(model),
            n_ctx=options.n_ctx,
            n_threads=options.n_threads,
            n_gpu_layers=options.n_gpu_layers,
            main_gpu=options.main_gpu,
            **own,
        )
        self._path = model_file.resolve(model)
        self._jobs = jobs
        self._thread = _Thread[Model](jobs, functools.partial(load, self._path, options))
        # End the thread when this object is garbage-collected.
        weakref.finalize(self, self._thread.stop).atexit = False
        try:
            self._thread.start()
            self._thread.wait_loaded()
            self._model = self._loaded()
        except (
            BaseException
        ):  # also on KeyboardInterrupt: the caller never receives the object to close it
            self.close()
            raise

    def _loaded(self) -> Model:
        """Return the model, whose attributes any thread may read.

        Raise the reason if loading failed.
        """
        if self._thread.model is None:
            closed = ModelLoadError(
                f"the {self._jobs.owner} was closed before its model was loaded"
            )
            raise self._thread.error or closed
        return self._thread.model

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
