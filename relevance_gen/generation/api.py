"""Functions to generate text: `generate` continues a text, `chat` a conversation."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

import attrs

from relevance_gen import forks
from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.queue.request import Request, RequestFields, as_request
from relevance_gen.generation.runner import ChatOptions, Runner
from relevance_gen.llama.options import ModelOptions
from relevance_gen.types import GenerationResponse

_RUNNER_ARGUMENTS = {"model", "devices", *attrs.fields_dict(ModelOptions)}
_lock = threading.Lock()
_default_runner: Runner | None = None


def _renew_lock() -> None:
    global _lock
    _lock = threading.Lock()


forks.call_in_child(_renew_lock)


def generate(
    request: Request | None = None, *, runner: Runner | None = None, **fields: Unpack[RequestFields]
) -> GenerationResponse:
    """Continue a text with a language model: ``generate("Once upon a time", max_tokens=16)``.

    Args:
        request: the text, a `GenerationRequest`, or a mapping of its fields; only ``text`` is
            required.
        runner: by default a runner that the first call creates and the process keeps, with the
            model named in ``RELEVANCE_GEN_MODEL``, else the small model that is part of this
            package.
        fields: fields of a `GenerationRequest`; they override the fields of `request`.

    Returns:
        The completions, with token counts and times.

    Raises:
        InvalidRequestError: a field is wrong; nothing was computed.
        ModelLoadError: a model is missing or cannot be loaded; the message names a remedy.
        OverloadedError: too many requests are queued.
        GenerationError: the model failed.

    The fields are those of the server's ``POST /generate``.
    """
    refuse_fields_of_runner(fields)
    checked = as_request(request, fields)  # Before a model is loaded.
    return runner_or_default(runner).generate(checked)


def chat(
    messages: Sequence[Mapping[str, Any]],
    *,
    runner: Runner | None = None,
    **options: Unpack[ChatOptions],
) -> GenerationResponse:
    """Generate the next turn of a conversation.

    For example ``chat([{"role": "user", "content": "Hello!"}], max_tokens=100)``.

    Args:
        messages: objects with ``role`` and ``content``, and other fields that the model's template
            uses.
        runner: as in `generate`; if the model's file lacks a chat template, `options` must contain
            a template.
        options: ``chat_template``, ``template_variables`` and fields of a request; see
            `Runner.submit_chat`.

    Returns:
        The next turn; ``prompt`` is the rendered conversation.

    Raises:
        InvalidRequestError: a field is wrong, or no template accepts these messages.
        ModelLoadError: a model is missing or cannot be loaded; the message names a remedy.
        OverloadedError: too many requests are queued.
        GenerationError: the model failed.
    """
    refuse_fields_of_runner(options)
    return runner_or_default(runner).chat(messages, **options)


def refuse_fields_of_runner(names: Iterable[str]) -> None:
    """Raise `InvalidRequestError` if the fields of a request include an argument of `Runner`.

    An example is ``n_ctx``. The message advises to create a `Runner` with it.
    """
    for name in names:
        if name in _RUNNER_ARGUMENTS:
            raise InvalidRequestError(
                "is an option of Runner, not a field of a request: create a Runner with it, "
                "and pass runner=",
                name,
            )


def runner_or_default(runner: Runner | None) -> Runner:
    """Return the runner that a caller passed, or the default runner if it is ``None``.

    Raises:
        InvalidRequestError: `runner` is neither a runner nor ``None``.
        ModelLoadError: the model of the default runner cannot be loaded.
    """
    if runner is None:
        return default_runner()
    if not hasattr(runner, "generate"):
        raise InvalidRequestError.must_be(
            "runner", "a Runner or None", runner, remedy="make one: Runner(path)"
        )
    return runner


def default_runner() -> Runner:
    """Return the default runner of this process.

    The first call creates it. If it was closed or has failed, the next call creates a new one.
    """
    global _default_runner
    with _lock:
        if _default_runner is None or _default_runner.closed:
            _default_runner = Runner()
        return _default_runner
