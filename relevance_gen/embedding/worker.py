"""A worker: a thread that loads an embedding model and encodes for one queue, from its birth to its end."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol, TypeAlias

from relevance_gen.embedding.jobs import Job, Jobs, Vectors
from relevance_gen.errors import EncoderError, ModelLoadError, RelevanceGenError
from relevance_gen.llama import aborts

GRACE_S = 5.0
"""How long the thread may take to end the text it is at."""


class EmbeddingModel(Protocol):
    """What encoding needs of a model; `relevance_gen.llama.embedder.Embedder` is the one that llama.cpp computes."""

    n_ctx: int
    n_dims: int
    pooling: str

    def embed(self, text: str) -> tuple[Vectors, int]:
        """Return the vector of a text, of length 1, shape (n_dims,), and how many of its tokens were read."""


Load: TypeAlias = Callable[[Callable[[float], bool]], AbstractContextManager[EmbeddingModel]]
"""Loads a model. It is given a function to call with the share that is loaded, which returns whether to go on."""


class Worker:
    """The thread and its model.

    Args:
        jobs: where its work comes from.
        load: loads the model, in the worker's own thread.
    """

    def __init__(self, jobs: Jobs, load: Load) -> None:
        self._jobs = jobs
        self._load = load
        self._model: EmbeddingModel | None = None
        self._job: Job | None = None
        self._lost = False
        self._is_loaded = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relevance_gen-encoder", daemon=True)

    def start(self) -> EmbeddingModel:
        """Start the thread, and return the model when it is loaded; only the worker itself may compute with it.

        Raises:
            ModelLoadError: it cannot be loaded.
        """
        self._thread.start()
        atexit.register(self._stop_at_exit)
        self._is_loaded.wait()
        if self._model is None:
            raise self._jobs.closed or ModelLoadError("the model cannot be loaded")
        return self._model

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end, if it can."""
        if self._thread.ident is not None and not self._lost and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)

    def _stop_at_exit(self) -> None:
        """End the thread before the interpreter does: it may be inside llama.cpp."""
        if not self._jobs.forked:
            self._jobs.close(EncoderError("the process is ending"))
            self.join(GRACE_S)

    # ── The worker's own thread ──────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        try:
            with aborts.guard(self._lose):
                self._serve()
        except RelevanceGenError as error:
            self._end(error)
        except BaseException as failure:
            reason = EncoderError(f"the encoder's thread failed: {type(failure).__name__}: {failure}")
            reason.__cause__ = failure
            self._end(reason)
        finally:
            self._is_loaded.set()
            atexit.unregister(self._stop_at_exit)

    def _serve(self) -> None:
        with self._load(lambda _: self._jobs.closed is None) as model:
            self._model = model
            self._is_loaded.set()
            while (job := self._jobs.take()) is not None:
                self._job = job
                try:
                    job.give(*model.embed(job.next_text))
                except EncoderError as error:
                    job.settle(error)
                self._job = None
                self._jobs.put_back(job)
                del job  # and with it the texts, while there is nothing to do

    def _lose(self, reason: str) -> None:
        """Give up the thread, which is inside llama.cpp and will stay there."""
        self._lost = True
        kind = EncoderError if self._is_loaded.is_set() else ModelLoadError
        self._end(kind(f"llama.cpp gave up, and keeps its memory until this process ends: {reason}"))
        self._is_loaded.set()

    def _end(self, error: BaseException) -> None:
        self._jobs.close(error)
        if self._job is not None:
            self._job.settle(error)
