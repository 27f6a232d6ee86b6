"""The two halves of the library, as the server uses them: imported when they are first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

from relevance_gen.serve.generating import Backend, NoBackend
from relevance_gen.settings import Settings
from relevance_gen.types import SearchResponse

if TYPE_CHECKING:
    from relevance_gen.retrieval.index import ChunkIndex


@frozen
class Retrieval:
    """Search, with the options that the settings give."""

    settings: Settings

    def search(self, query: str, texts: list[str], top_n: int, true_order: bool) -> SearchResponse:
        """Rank `texts`, once."""
        from relevance_gen.retrieval.api import search

        settings = self.settings
        return search(query, texts, top_n, true_order, weighting=settings.weighting, encoding=settings.encoding)

    def index(self, texts: list[str]) -> ChunkIndex:
        """Index `texts`, for more than one query."""
        from relevance_gen.retrieval.index import ChunkIndex

        return ChunkIndex(texts, weighting=self.settings.weighting, encoding=self.settings.encoding)


_RUNNER_OPTIONS = (
    *("n_ctx", "n_slots", "n_batch", "n_threads", "n_gpu_layers", "flash_attention"),
    *("max_queue", "prefix_cache_bytes"),
)


def load_backend(settings: Settings) -> Backend:
    """Load the model that `settings` name.

    Raises:
        ModelLoadError: it cannot be loaded.
    """
    if settings.model == "none":
        return NoBackend()
    from relevance_gen.generation.runner import Runner

    given = {name: getattr(settings, name) for name in _RUNNER_OPTIONS if getattr(settings, name) is not None}
    return Runner(settings.model, **given)
