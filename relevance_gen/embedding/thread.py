"""The thread of an encoder: it has the embedding model, and encodes what waits in one queue."""

from __future__ import annotations

from typing import Protocol

from relevance_gen.embedding.jobs import Job, Jobs, Vectors
from relevance_gen.errors import EncoderError
from relevance_gen.llama.model_thread import Load, ModelThread, ThreadState


class EmbeddingModel(Protocol):
    """What encoding needs of a model; `relevance_gen.llama.embedder.Embedder` is the one that llama.cpp computes."""

    n_ctx: int
    n_dims: int
    pooling: str

    def embed(self, text: str) -> tuple[Vectors, int]:
        """Return the vector of a text, of length 1, shape (n_dims,), and how many of its tokens were read."""


class EncoderThread(ModelThread):
    """The thread and its model.

    Args:
        jobs: where its work comes from.
        load: loads the model, in this thread.

    Attributes:
        model: once it is loaded; only this thread may compute with it.
    """

    failure = EncoderError

    def __init__(self, jobs: Jobs, load: Load[EmbeddingModel]) -> None:
        super().__init__("encoder")
        self.model: EmbeddingModel | None = None
        self._jobs = jobs
        self._load = load
        self._job: Job | None = None

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked from the one that made this."""
        return self._jobs.forked

    def _leave(self, error: BaseException | None) -> None:
        error = self._jobs.close(error or EncoderError("the encoder is closed"))
        if (job := self._job) is not None:
            job.settle(error)

    def _serve(self) -> None:
        with self._load(self._goes_on_loading) as model:
            self.model = model
            self._become(ThreadState.READY)
            while (job := self._jobs.take()) is not None:
                self._job = job
                try:
                    job.give(*model.embed(job.next_text))
                except EncoderError as error:
                    job.settle(error)
                self._job = None
                self._jobs.put_back(job)
                del job  # and with it the texts, while there is nothing to do
