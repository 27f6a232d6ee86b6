"""The Model Context Protocol: passes messages on to `relevance_gen.agents.protocol`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from relevance_gen import wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.serve.adapters import Operation
from relevance_gen.serve.services.agents import Message
from relevance_gen.serve.services.indexes.index_registry import IndexRef

_SERVER_ERROR = -32000
"""JSON-RPC's first code for errors of a server."""


def read(body: object, headers: Iterable[tuple[bytes, bytes]]) -> Operation:
    """Read the body of ``POST /mcp``; the service refuses invalid messages."""
    index = None
    match body:
        case {"method": "tools/call", "params": {"arguments": {"index": name}}}:
            with suppress(InvalidRequestError):  # the tool reports the error
                index = IndexRef(name)
    lower_headers = tuple((name.lower(), value) for name, value in headers)
    message = Message(lower_headers, wire.serialize(body), index)
    return message, lambda reply: reply.body


def error(kind: str, message: str, _field: str | None) -> dict[str, object]:
    """Return the body of an error that does not concern a particular message."""
    details = {"code": _SERVER_ERROR, "message": message, "data": kind}
    return {"jsonrpc": "2.0", "id": None, "error": details}
