"""The one body of an error that the clients of OpenAI, Cohere and Jina all read."""

from __future__ import annotations

from collections.abc import Callable, Mapping


def error(kind: str, message: str, field: str | None) -> dict[str, object]:
    """Return the body of an error: OpenAI's clients read ``error``, Cohere's ``message``, and Jina's ``detail``."""
    return {
        "error": {"message": message, "type": kind, "param": field, "code": kind},
        "message": message,
        "detail": message,
    }


def error_with(names: Mapping[str, str]) -> Callable[[str, str, str | None], dict[str, object]]:
    """Return `error` for requests whose fields have other `names` here than where they are checked at last."""

    def write(kind: str, message: str, field: str | None) -> dict[str, object]:
        if field is None or field not in names:
            return error(kind, message, field)
        name = names[field]
        return error(kind, name + message.removeprefix(field) if message.startswith(field) else message, name)

    return write
