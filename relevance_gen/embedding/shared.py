"""A model in a thread of its own that many callers share: what an encoder and a reranker are."""

from __future__ import annotations

import functools
import hashlib
import os
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import wait
from typing import Any, Generic, Self, TypeVar

from relevance_gen.checks import as_list
from relevance_gen.embedding.jobs import Job, Jobs, Outcome
from relevance_gen.errors import InvalidRequestError, ModelLoadError
from relevance_gen.llama.model_files import resolve as model_file
from relevance_gen.llama.model_thread import GRACE_S, Load, ModelThread, ThreadState
from relevance_gen.llama.options import ModelOptions
from relevance_gen.progress import Progress, reporting

Model = TypeVar("Model")

_LOOK_S = 0.05
"""How often a caller who wants to see the progress is told of it."""


class SharedModel(Generic[Model]):
    """A GGUF file, loaded in a thread of its own, which does the jobs of many callers in turn."""

    def __init__(
        self,
        model: str | os.PathLike[str],
        options: ModelOptions,
        load: Callable[..., Any],
        jobs: Jobs,
        **own: Any,
    ) -> None:
        """Load `model` in the thread; `own` are the subclass's arguments beside those of `options`."""
        if not isinstance(model, str | os.PathLike):
            raise InvalidRequestError.must_be(
                "model", "the path of a GGUF file or the name of a repository", model
            )
        numbers = {name: getattr(options, name) for name in ("n_ctx", "n_threads", "n_gpu_layers")}
        self._opened = functools.partial(type(self), str(model), **numbers, **own)
        self._path = model_file.resolve(model)
        self._jobs = jobs
        self._thread = _Thread[Model](jobs, functools.partial(load, self._path, options))
        # What nobody holds any more ends its thread.
        weakref.finalize(self, self._thread.stop).atexit = False
        try:
            self._thread.start()
            self._thread.wait_loaded()
            self._model = self._loaded()
        except BaseException:  # an interrupt too: nobody would have this to close it
            self.close()
            raise

    def _loaded(self) -> Model:
        """Return the model, of which this thread may read what describes it, or raise why there is none."""
        if self._thread.model is None:
            closed = ModelLoadError(
                f"the {self._jobs.owner} was closed before its model was loaded"
            )
            raise self._thread.error or closed
        return self._thread.model

    def _put(self, job: Job[Outcome]) -> Job[Outcome]:
        """Queue a job, and return it; one without texts is done."""
        if job.texts:
            self._jobs.put(job)
        else:
            job.settle(job.outcome)
        return job

    def _finish(self, job: Job[Outcome], progress: Progress | bool | None) -> Outcome:
        """Have a job done and return what becomes of it, telling `progress` in this thread of texts done and all."""
        with reporting(progress, "texts") as report:
            self._put(job)
            try:
                while report is not None and not job.future.done():
                    report(job.n_done, len(job.texts))
                    wait([job.future], _LOOK_S)
                outcome = job.future.result()
                if report is not None:
                    report(len(job.texts), len(job.texts))
                return outcome
            finally:
                job.future.cancel()  # of an interrupt: nobody wants the rest

    def _fingerprint(self, *what: object) -> str:
        """Hash the model's file and what else counts."""
        with self._path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        digest.update("".join(f"\n{each}" for each in what).encode(errors="replace"))
        return digest.hexdigest()

    @property
    def name(self) -> str:
        """The name of the model's file."""
        return self._path.name

    @property
    def closed(self) -> bool:
        """Whether it takes no more texts."""
        return self._jobs.closed is not None

    def close(self) -> None:
        """Give up what waits, and free the model; safe to call twice."""
        if not self._jobs.forked:
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
        return self._opened, ()


class _Thread(ModelThread, Generic[Model]):
    """The thread of a shared model, and once it is loaded the model; only this thread may compute with it."""

    def __init__(self, jobs: Jobs, load: Load[Model]) -> None:
        super().__init__(jobs.owner)
        self.failure = jobs.failure
        self.model: Model | None = None
        self._jobs = jobs
        self._load = load
        self._job: Job[Any] | None = None

    def _leave(self, error: BaseException | None) -> None:
        error = self._jobs.close(error or self.failure(f"the {self._jobs.owner} is closed"))
        if (job := self._job) is not None:
            job.settle(error)

    def _serve(self) -> None:
        with self._load(self._goes_on_loading) as model:
            self.model = model
            self._become(ThreadState.READY)
            while (job := self._jobs.take()) is not None:
                self._job = job
                try:
                    job.step(model)
                except self.failure as error:
                    job.settle(error)
                self._job = None
                self._jobs.put_back(job)
                del job  # and with it the texts, while there is nothing to do


def checked_texts(texts: Iterable[str]) -> list[str]:
    """Return texts as a list, or raise an `InvalidRequestError` where they are no strings in an iterable."""
    texts = as_list(texts)
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise InvalidRequestError.must_be(
            "texts", "a list of strings", texts, remedy="put a single text in a list"
        )
    texts = list(texts)
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidRequestError.must_be(f"texts[{place}]", "a string", text)
    return texts
