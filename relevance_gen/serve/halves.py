"""The two halves of the library, as the server uses them."""

from __future__ import annotations

from relevance_gen.serve.generating import Backend, NoBackend
from relevance_gen.serve.searching import Index
from relevance_gen.settings import Settings


def index_of(texts: list[str]) -> Index:
    """Index `texts`."""
    from relevance_gen.retrieval.index import ChunkIndex

    return ChunkIndex(texts)


def backend_of(settings: Settings) -> Backend:
    """Load the model that `settings` name.

    Raises:
        ModelLoadError: it cannot be loaded.
    """
    if settings.model == "none":
        return NoBackend()
    from relevance_gen.generation.runner import Runner

    given = {name: getattr(settings, name) for name in _RUNNER_OPTIONS if getattr(settings, name) is not None}
    return Runner(settings.model, **given)


_RUNNER_OPTIONS = ("n_ctx", "n_slots", "n_batch", "n_threads", "n_gpu_layers", "max_queue", "prefix_cache_bytes")
