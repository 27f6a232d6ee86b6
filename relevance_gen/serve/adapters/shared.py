"""Parts of requests and responses that several adapters share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

from relevance_gen import checks, wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.types import GenerationRequest
from relevance_gen.wire import JsonObject

Operation: TypeAlias = tuple[Any, Any]
"""A task for a service, and the writer of the response: a function, or an object for a stream."""

Turns: TypeAlias = list[JsonObject]
"""The turns of a conversation, as `turn_of` appends them."""

model_name = checks.short(1024)
"""Validator of the model's name, which every chunk of a stream repeats."""


def refuse_fields(body: object, names: Sequence[str]) -> None:
    """Raise `InvalidRequestError` if the body has one of the unsupported fields `names`.

    These would change the response. A field that is false or empty is allowed.
    """
    for name in names:
        if isinstance(body, dict) and body.get(name):
            raise unsupported(name)


def unsupported(name: str, *, remedy: str = "leave it out") -> InvalidRequestError:
    """Return the error for a field that this server does not support."""
    return InvalidRequestError("is not supported by this server", name, remedy=remedy)


def new_generation(text: str, names: Mapping[str, str], **fields: Any) -> GenerationRequest:
    """Return the request to generate from a prompt.

    Args:
        text: the prompt; "" if it is rendered later from a conversation.
        names: fields of `GenerationRequest` to the client's names of them, for errors.
        fields: fields of the request; None stands for the default.

    Raises:
        InvalidRequestError: a field is wrong.
    """
    fields = {name: value for name, value in fields.items() if value is not None}
    try:
        return GenerationRequest(text, **fields)
    except InvalidRequestError as error:
        raise error.with_field_names(names) from None


def parse_arguments(text: str) -> JsonObject | None:
    """Return the arguments of a tool call as an object; None if they are truncated or invalid."""
    with suppress(InvalidRequestError):
        arguments = wire.parse(text.encode(errors="replace"))
        return arguments if isinstance(arguments, dict) else None
    return None
