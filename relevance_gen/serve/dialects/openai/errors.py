"""The one body of an error that the clients of OpenAI, Cohere and Jina all read."""

from __future__ import annotations


def error(kind: str, message: str, field: str | None) -> dict[str, object]:
    """Return the body of an error: OpenAI's clients read ``error``, Cohere's ``message``, and Jina's ``detail``."""
    return {
        "error": {"message": message, "type": kind, "param": field, "code": kind},
        "message": message,
        "detail": message,
    }
