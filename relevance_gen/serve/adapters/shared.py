"""Parts of requests and responses that several adapters share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from attrs import field, frozen

from relevance_gen import checks, wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.serve.settings import DEFAULT_NAME
from relevance_gen.types import GenerationRequest

Operation: TypeAlias = tuple[Any, Any]
"""A task for a service, and the writer of the response: a function, or an object for a stream."""

_T = TypeVar("_T")


@frozen
class Problem:
    """The content of an error response, in no particular API format.

    Attributes:
        kind: the kind of the error, such as "overloaded".
        message: the message for the client, which contains the name of the field.
        field: the field of the request that is invalid; None if no single field is.
    """

    kind: str
    message: str
    field: str | None

    @property
    def general_kind(self) -> str:
        """The kind for API formats in which a full context is an invalid request like others."""
        return "invalid_request" if self.kind == "context_length_exceeded" else self.kind


def model_field() -> Any:
    """Return an attrs field for the name of a model, which every chunk of a stream repeats."""
    return field(default=DEFAULT_NAME, validator=checks.short(1024))


def read_lenient(
    cls: type[_T],
    body: object,
    unsupported_fields: Sequence[str] = (),
) -> _T:
    """Return an instance of `cls` with the fields of `body`.

    Unknown fields are ignored, and null stands for the default.

    Args:
        cls: an attrs class.
        body: the parsed JSON.
        unsupported_fields: fields that would change the response. A value that is false or empty is
            accepted.

    Raises:
        InvalidRequestError: a field is wrong or not supported.
    """
    for name in unsupported_fields:
        if isinstance(body, dict) and body.get(name):
            raise unsupported(name)
    return wire.structure(cls, body, is_lenient=True)


def unsupported(name: str, *, remedy: str = "leave it out") -> InvalidRequestError:
    """Return the error for a field that this server does not support."""
    return InvalidRequestError("is not supported by this server", name, remedy=remedy)


def new_generation(
    names: Mapping[str, str],
    text: str = "",
    **fields: Any,
) -> GenerationRequest:
    """Return the request to generate from a prompt.

    Args:
        names: fields of `GenerationRequest` to the client's names of them, for errors.
        text: the prompt; "" if it is set later, or rendered from a conversation.
        fields: fields of the request; None stands for the default.

    Raises:
        InvalidRequestError: a field is wrong.
    """
    fields = {name: value for name, value in fields.items() if value is not None}
    try:
        return GenerationRequest(text, **fields)
    except InvalidRequestError as error:
        raise error.with_field_names(names) from None
