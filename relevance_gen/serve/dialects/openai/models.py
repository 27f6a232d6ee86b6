"""``GET /v1/models`` and ``GET /v1/models/{id}``: the model that generates, if there is one."""

from __future__ import annotations

from pathlib import Path

from relevance_gen.llama.model_file import NO_MODEL
from relevance_gen.serve.dialects.openai.requests import MODEL


def name_of(model: str | None) -> str | None:
    """Return what to call the model that the settings name.

    >>> name_of("/models/qwen-0.5b.gguf"), name_of("owner/name"), name_of(None), name_of("none")
    ('qwen-0.5b', 'owner/name', 'relevance_gen', None)
    """
    if model is None:
        return MODEL
    if model == NO_MODEL:
        return None
    return Path(model).stem if model.endswith(".gguf") else model


def listed(model: str | None, created: int) -> dict[str, object]:
    """Return the list of models, given what the settings name and a Unix time in seconds."""
    name = name_of(model)
    return {"object": "list", "data": [] if name is None else [_described(name, created)]}


def found(model: str | None, created: int, name: str) -> dict[str, object] | None:
    """Return the model of that `name`, or None if it is another's; the rest is as for `listed`."""
    return _described(name, created) if name == name_of(model) else None


def _described(name: str, created: int) -> dict[str, object]:
    return {"id": name, "object": "model", "created": created, "owned_by": "relevance_gen"}
