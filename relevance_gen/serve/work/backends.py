"""What generates: the runner as the server needs it, or what stands in for one where there is none."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any, Protocol

import attrs

from relevance_gen.asking.preparation import Model
from relevance_gen.generation.call import OnText
from relevance_gen.generation.reading import AnswerFormat
from relevance_gen.generation.ticket import PLAIN, Manner
from relevance_gen.generation.turns import Conversation
from relevance_gen.serve.settings import NamedModel, Settings
from relevance_gen.types import GenerationRequest, GenerationResponse, Stats


class Backend(Model, Protocol):
    """What the server needs of `relevance_gen.generation.runner.Runner`."""

    def submit(
        self, request: GenerationRequest, *, on_text: OnText | None = None, manner: Manner = PLAIN
    ) -> Future[GenerationResponse]:
        """Queue `request` without waiting; `on_text(sample, piece)` is called in the runner's thread."""

    def write_chat(
        self, conversation: Conversation, request: GenerationRequest, *, client: str | None = None
    ) -> tuple[GenerationRequest, AnswerFormat]:
        """Return a request that continues a conversation as the model's template has it, and how its answer is read."""

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests, because it was closed or has died."""

    def stats(self) -> Stats:
        """Return the backlog and the runners that take work."""

    def close(self) -> None:
        """Finish what was accepted, and end the thread."""


def load_backend(settings: Settings, model: NamedModel) -> Backend:
    """Load one of the models that `settings` name; raise what `Runner` and `ClusterRunner` raise."""
    given: dict[str, Any] = attrs.asdict(settings.model_options, filter=lambda one, value: value != one.default)
    given |= {"max_queue": settings.max_queue, "prefix_cache_bytes": settings.prefix_cache_bytes}
    given = {name: value for name, value in given.items() if value is not None}
    if settings.cluster is None:
        from relevance_gen.generation.runner import Runner

        return Runner(model.file, **given)
    from relevance_gen.cluster import ClusterRunner

    # Servers of one model share its runners.
    name = f"of servers: {model.file or 'the embedded model'}"
    return ClusterRunner(model.file, address=settings.cluster, n_runners=settings.cluster_runners, name=name, **given)
