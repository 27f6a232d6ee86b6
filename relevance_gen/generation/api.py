"""The verbs: `generate` continues a text, `chat` a conversation."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

import attrs

from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.queue.request import Request, RequestFields, as_request
from relevance_gen.generation.runner import ChatOptions, Runner
from relevance_gen.llama.options import ModelOptions
from relevance_gen.types import GenerationResponse

_OF_RUNNER = {"model", "devices", *attrs.fields_dict(ModelOptions)}
_lock = threading.Lock()
_default: Runner | None = None


def generate(
    request: Request | None = None, *, runner: Runner | None = None, **fields: Unpack[RequestFields]
) -> GenerationResponse:
    """Continue a text with a language model: ``generate("Once upon a time", max_tokens=16)``.

    Args:
        request: the text, a `GenerationRequest`, or a mapping of its fields; ``text`` alone is required.
        runner: by default one that is made at the first call and kept for the process, with the model that
            ``RELEVANCE_GEN_MODEL`` names, else the embedded one.
        fields: fields of a `GenerationRequest`; they go before those of `request`.

    Returns:
        The completions, with token counts and times.

    Raises:
        InvalidRequestError: a field is wrong; nothing was computed.
        ModelLoadError: there is no model, or it cannot be loaded; the message says what to do.
        OverloadedError: too many requests wait already.
        GenerationError: the model failed.

    Source: the documented ``POST /generate``.
    """
    refuse_fields_of_runner(fields)
    asked = as_request(request, fields)  # refuses nonsense before a model is loaded
    return _runner_of(runner).generate(asked)


def chat(
    messages: Sequence[Mapping[str, Any]],
    *,
    runner: Runner | None = None,
    **options: Unpack[ChatOptions],
) -> GenerationResponse:
    """Answer a conversation: ``chat([{"role": "user", "content": "Hello!"}], max_tokens=100)``.

    Args:
        messages: objects with ``role`` and ``content``, and whatever else the model's template reads.
        runner: as in `generate`; where its model's file has no chat template, `options` must.
        options: ``chat_template``, ``template_variables`` and a request's fields, as `Runner.submit_chat` has them.

    Returns:
        The next turn; ``prompt`` is the conversation as the template wrote it.

    Raises:
        InvalidRequestError: a field is wrong, or there is no template for these messages.
        ModelLoadError: there is no model, or it cannot be loaded; the message says what to do.
        OverloadedError: too many requests wait already.
        GenerationError: the model failed.
    """
    refuse_fields_of_runner(options)
    return _runner_of(runner).chat(messages, **options)


def refuse_fields_of_runner(names: Iterable[str]) -> None:
    """Say of an argument of `Runner` among a request's fields where it goes, by an `InvalidRequestError`."""
    for name in names:
        if name in _OF_RUNNER:
            raise InvalidRequestError(
                "is no field of a request: make a Runner with it, and pass runner=", name
            )


def _runner_of(runner: Runner | None) -> Runner:
    if runner is not None and not hasattr(runner, "generate"):
        raise InvalidRequestError.must_be(
            "runner", "a Runner or None", runner, remedy="make one: Runner(path)"
        )
    return default_runner() if runner is None else runner


def default_runner() -> Runner:
    """Return the process's own runner, made now if there is none or if it was closed or has died."""
    global _default
    with _lock:
        if _default is None or _default.closed:
            _default = Runner()
        return _default
