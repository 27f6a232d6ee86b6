"""The Model Context Protocol: passes messages on to `relevance_gen.agents.protocol`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from relevance_gen import checks, wire
from relevance_gen.errors import InvalidRequestError, TooLargeError, describe
from relevance_gen.serve.adapters.shared import Operation, Problem
from relevance_gen.serve.services.agents import Message
from relevance_gen.serve.services.indexes.index_registry import IndexRef
from relevance_gen.wire import JsonObject

_SERVER_ERROR = -32000
"""JSON-RPC's first code for errors of a server."""
_MAX_MESSAGE_BYTES = 4 << 20
"""Maximum size of a message; the SDK rejects larger messages."""

_message_id = checks.Rule(
    "a string or an integer", lambda value: isinstance(value, str) or checks.is_integer(value)
)


def read(body: object, headers: Iterable[tuple[bytes, bytes]]) -> Operation:
    """Check a ``POST /mcp`` body; return its task and the writer of the response.

    The service checks the parameters of the message.

    Raises:
        InvalidRequestError: the body is not a JSON-RPC message.
        TooLargeError: the message exceeds `_MAX_MESSAGE_BYTES`.
    """
    _check_message(body)
    index = None
    match body:
        case {"method": "tools/call", "params": {"arguments": {"index": name}}}:
            with suppress(InvalidRequestError):  # the tool reports the error
                index = IndexRef(name)
    lower_headers = tuple((name.lower(), value) for name, value in headers)
    content = wire.serialize(body)
    if len(content) > _MAX_MESSAGE_BYTES:
        rule = f"the message must have at most {_MAX_MESSAGE_BYTES:,} bytes"
        raise TooLargeError(rule, got=f"{len(content):,}")
    return Message(lower_headers, content, index), lambda reply: reply.body


def _check_message(body: object) -> None:
    """Raise an `InvalidRequestError` unless a body is a request, a notification or a response."""
    if not isinstance(body, dict):
        rule = "the message must be a JSON object; a list of messages is not supported"
        raise InvalidRequestError(rule, got=describe(body))
    checks.one_of("2.0").check("jsonrpc", body.get("jsonrpc"))
    is_response = "result" in body or "error" in body
    if not is_response:
        checks.string.check("method", body.get("method"))
    message_id = body.get("id", "")
    if message_id is not None or not is_response:  # not the response to an unreadable message
        _message_id.check("id", message_id)
    checks.an_object.check("params", body.get("params", {}))


def error(problem: Problem) -> JsonObject:
    """Return the body of an error that does not concern a particular message."""
    details = {"code": _SERVER_ERROR, "message": problem.message, "data": problem.kind}
    return {"jsonrpc": "2.0", "id": None, "error": details}
