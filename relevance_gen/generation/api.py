"""The verb: `generate` continues a text."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from relevance_gen import wire
from relevance_gen.generation.runner import Runner
from relevance_gen.types import GenerationRequest, GenerationResponse

_lock = threading.Lock()
_default: Runner | None = None


def generate(request: GenerationRequest | Mapping[str, Any], *, runner: Runner | None = None) -> GenerationResponse:
    """Continue a text with a language model.

    Args:
        request: a `GenerationRequest`, or a mapping of its fields; ``text`` alone is required.
        runner: by default one that is made at the first call and kept for the process, with the model that
            ``RELEVANCE_GEN_MODEL`` names, else the embedded one.

    Returns:
        The completions, with token counts and times.

    Raises:
        InvalidRequestError: a field is wrong; nothing was computed.
        ModelLoadError: there is no model, or it cannot be loaded; the message says what to do.
        OverloadedError: too many requests wait already.
        GenerationError: the model failed.

    Source: the documented ``POST /generate``.
    """
    if not isinstance(request, GenerationRequest):
        request = wire.structure(GenerationRequest, request)
    return (runner or default_runner()).generate(request)


def default_runner() -> Runner:
    """Return the process's own runner, made now if there is none or if it was closed or has died.

    Raises:
        ModelLoadError: there is no model, or it cannot be loaded.
    """
    global _default
    with _lock:
        if _default is None or _default.closed:
            _default = Runner()
        return _default
