"""The Model Context Protocol: messages as they come, which `relevance_gen.agents.protocol` answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress

from relevance_gen import wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.serve.services.agents import Message, Reply
from relevance_gen.serve.services.indexes.index_registry import IndexRef

_SERVER_ERROR = -32000
"""JSON-RPC's first number for what is wrong with a server, and not with a message."""


def read(
    body: object, headers: Iterable[tuple[bytes, bytes]]
) -> tuple[Message, Callable[[Reply], bytes]]:
    """Read the body of ``POST /mcp``; what is no message is refused by whoever answers it."""
    named = None
    match body:
        case {"method": "tools/call", "params": {"arguments": {"index": name}}}:
            with suppress(InvalidRequestError):  # the tool says what is wrong
                named = IndexRef(name)
    told = tuple((name.lower(), value) for name, value in headers)
    return Message(told, wire.serialize(body), named), lambda it: it.body


def error(kind: str, message: str, _: str | None) -> dict[str, object]:
    """Return the body of an error that has nothing to do with a message."""
    return {
        "jsonrpc": "2.0",
        "id": None,
        "error": {"code": _SERVER_ERROR, "message": message, "data": kind},
    }
