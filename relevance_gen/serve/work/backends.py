"""What generates: the runner as the server needs it, or what stands in for one where there is none."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Protocol

import attrs

from relevance_gen.asking.model import Model
from relevance_gen.errors import RunnerClosedError
from relevance_gen.generation.call import OnText
from relevance_gen.generation.reading import AnswerFormat
from relevance_gen.generation.ticket import PLAIN, Manner
from relevance_gen.generation.turns import Conversation
from relevance_gen.llama.model_file import NO_MODEL
from relevance_gen.serve.settings import Settings
from relevance_gen.types import GenerationRequest, GenerationResponse, Stats


class Backend(Model, Protocol):
    """What the server needs of `relevance_gen.generation.runner.Runner`."""

    def submit(
        self,
        request: GenerationRequest,
        *,
        on_text: OnText | None = None,
        manner: Manner = PLAIN,
    ) -> Future[GenerationResponse]:
        """Queue `request` without waiting; `on_text(sample, piece)` is called in the runner's thread."""

    def write_chat(
        self, conversation: Conversation, request: GenerationRequest, *, client: str | None = None
    ) -> tuple[GenerationRequest, AnswerFormat]:
        """Return a request that continues a conversation as the model's template has it, and how its answer is read."""

    def stats(self) -> Stats:
        """Return the backlog and the runners that take work."""

    def close(self, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """Finish (`drain`) or abort what runs, and end the thread."""


def _refuse(*_: object, **__: object) -> Any:
    raise RunnerClosedError("this server has no model")


class NoBackend:
    """The backend of a server without a model: it refuses whatever needs one."""

    chat_format = property(_refuse)
    count_tokens = count_chat_tokens = submit = write_chat = _refuse

    def stats(self) -> Stats:
        """Return zeros."""
        return Stats(backlog=0, num_total_runners=0)

    def close(self, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """Do nothing."""


def load_backend(settings: Settings) -> Backend:
    """Load the model that `settings` name.

    Raises:
        ModelLoadError: it cannot be loaded.
        ClusterError: the settings name a cluster, and it does not answer as it must.
    """
    if settings.model == NO_MODEL:
        return NoBackend()
    given: dict[str, Any] = attrs.asdict(settings.model_options, filter=lambda one, value: value != one.default)
    given |= {"max_queue": settings.max_queue, "prefix_cache_bytes": settings.prefix_cache_bytes}
    given = {name: value for name, value in given.items() if value is not None}
    if settings.cluster is None:
        from relevance_gen.generation.runner import Runner

        return Runner(settings.model, **given)
    from relevance_gen.cluster import ClusterRunner

    # Servers of one model share its runners.
    name = f"of servers: {settings.model or 'the embedded model'}"
    return ClusterRunner(
        settings.model, address=settings.cluster, n_runners=settings.cluster_runners, name=name, **given
    )
