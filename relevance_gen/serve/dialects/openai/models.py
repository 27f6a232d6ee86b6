"""``GET /v1/models`` and ``GET /v1/models/{id}``: the models that the server has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def listed(models: Sequence[dict[str, Any]]) -> dict[str, object]:
    """Return the list of models, each as `described`."""
    return {"object": "list", "data": models}


def described(name: str, task: str, state: str, created: int) -> dict[str, Any]:
    """Describe a model for a task, ``"generate"`` or ``"embed"``, in a state, since a Unix time in seconds."""
    head = {"id": name, "object": "model", "created": created, "owned_by": "relevance_gen"}
    return {**head, "task": task, "status": {"value": state}}
