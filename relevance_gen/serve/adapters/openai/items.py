"""Responses of ``/v1/responses``: each part of a turn is an item, in one object or as events."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Mapping

from attrs import evolve

from relevance_gen import wire
from relevance_gen.serve.adapters.openai.tools import ClientTool, custom_input
from relevance_gen.serve.adapters.shared import Problem
from relevance_gen.serve.services.generation import Responses
from relevance_gen.types import Completion, ContentPart, GenerationResponse
from relevance_gen.wire import JsonObject

_ENCODED_PREFIX = "base64:"
"""Prefix of reasoning that this server encoded; only another server can read its own encoding."""
_CUSTOM_CALL = "custom_tool_call"
_ITEM_TYPES = {
    "text": "message",
    "reasoning": "reasoning",
    "tool_call": "function_call",
    _CUSTOM_CALL: _CUSTOM_CALL,
}
"""Types of items by the kind of the part; the call of a custom tool is a kind of its own."""
_ID_PREFIXES = {"text": "msg", "reasoning": "rs", "tool_call": "fc", _CUSTOM_CALL: "ctc"}
_EVENT_NAMES = {
    "text": "output_text",
    "reasoning": "reasoning_text",
    "tool_call": "function_call_arguments",
    _CUSTOM_CALL: "custom_tool_call_input",
}


def decode_reasoning(encoded: object) -> str:
    """Return the reasoning in an item's ``encrypted_content``; "" if another server encoded it."""
    if not isinstance(encoded, str) or not encoded.startswith(_ENCODED_PREFIX):
        return ""
    try:
        return base64.b64decode(encoded.removeprefix(_ENCODED_PREFIX)).decode()
    except ValueError:
        return ""


class ItemEvents:
    """The events of one stream, or the whole response as one object.

    Args:
        request_fields: fields of the request that the response repeats.
        tools: the tools of the request, by the names of their functions.
        encodes_reasoning: whether reasoning is also written in ``encrypted_content``, the field
            that clients send back.
    """

    stream_format = wire.EVENT_STREAM

    def __init__(
        self,
        request_fields: JsonObject,
        tools: Mapping[str, ClientTool],
        *,
        encodes_reasoning: bool,
    ) -> None:
        self._nonce = uuid.uuid4().hex
        self._identity = {
            "id": f"resp_{self._nonce}",
            "object": "response",
            "created_at": int(time.time()),
            **request_fields,
        }
        self._tools = tools
        self._encodes_reasoning = encodes_reasoning
        self._n_events = 0
        self._part: ContentPart | None = None
        self._texts: list[str] = []

    def full_response(self, responses: Responses) -> JsonObject:
        """Return the whole response."""
        (response,) = responses
        (completion,) = response.responses
        is_truncated = completion.finish_reason == "length"
        output = [self._item(part, "completed") for part in completion.parts or ()]
        if completion.parts:
            is_call = completion.parts[-1].kind == "tool_call"
            if is_truncated or (is_call and completion.finish_reason != "tool_calls"):
                output[-1]["status"] = "incomplete"
        return self._response(
            "incomplete" if is_truncated else "completed",
            output=output,
            usage=_usage(response, completion),
            incomplete_details={"reason": "max_output_tokens"} if is_truncated else None,
        )

    def text(self, _sample: int, piece: ContentPart) -> bytes:
        """Return the events of a piece of the turn; there is one sample."""
        events = self._start()
        if self._part is None or self._part.index != piece.index:
            events += self._close_item("completed") + self._open_item(piece)
        if piece.text:
            self._texts.append(piece.text)
            if self._kind(piece) != _CUSTOM_CALL:
                events += self._delta(piece, piece.text)
        return events

    def end(self, responses: Responses) -> bytes:
        """Return the events that end the turn; the last event contains the whole response."""
        response = self.full_response(responses)
        output = response["output"]
        last_status = output[-1]["status"] if output else "completed"
        events = self._start() + self._close_item(last_status)
        return events + self._event(response["status"], response=response)

    def error(self, problem: Problem) -> bytes:
        """Return the events that end a stream that failed."""
        error = {"code": "server_error", "message": problem.message}
        event = self._event(
            "error", code=problem.kind, message=problem.message, param=problem.field
        )
        return event + self._event("failed", response=self._response("failed", error=error))

    def _response(self, status: str, **fields: object) -> JsonObject:
        return {
            **self._identity,
            "status": status,
            "store": False,
            "tools": [],
            "metadata": {},
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
            **fields,
        }

    def _item(self, part: ContentPart, status: str) -> JsonObject:
        """Return the item of a part of the turn.

        `status` is "in_progress", "completed" or "incomplete". While it is "in_progress", the list
        ``content`` of a text or of reasoning is empty.
        """
        kind = self._kind(part)
        item: JsonObject = {
            "id": self._item_ref(part)["item_id"],
            "type": _ITEM_TYPES[kind],
            "status": status,
        }
        content = [] if status == "in_progress" else [_content(part)]
        match part.kind:
            case "tool_call":
                item |= {"call_id": part.id, **self._tool_name(part), **self._call_fields(part)}
            case "text":
                item |= {"role": "assistant", "content": content}
            case "reasoning":
                item |= {"summary": [], "content": content}
                if self._encodes_reasoning and content:
                    encoded = base64.b64encode(part.text.encode(errors="replace")).decode()
                    item["encrypted_content"] = _ENCODED_PREFIX + encoded
        return item

    def _item_ref(self, part: ContentPart) -> JsonObject:
        """Return the fields by which an event refers to the item of a part.

        These are ``item_id`` and ``output_index``, the part's index in the turn; and, except for a
        tool call, ``content_index``.
        """
        ref: JsonObject = {
            "item_id": f"{_ID_PREFIXES[self._kind(part)]}_{self._nonce}{part.index}",
            "output_index": part.index,
        }
        if part.kind != "tool_call":
            ref["content_index"] = 0
        return ref

    def _start(self) -> bytes:
        """Return the events that start the stream; b"" if they were returned before."""
        if self._n_events:
            return b""
        response = self._response("in_progress")
        events = self._event("created", response=response)
        return events + self._event("in_progress", response=response)

    def _open_item(self, piece: ContentPart) -> bytes:
        self._part = evolve(piece, text="")
        self._texts = []
        item = self._item(self._part, "in_progress")
        events = self._event("output_item.added", output_index=piece.index, item=item)
        if piece.kind != "tool_call":
            content = _content(self._part)
            events += self._event("content_part.added", **self._item_ref(piece), part=content)
        return events

    def _close_item(self, status: str) -> bytes:
        if self._part is None:
            return b""
        part = evolve(self._part, text="".join(self._texts))
        self._part = None
        kind = self._kind(part)
        events = b""
        fields: JsonObject = {}
        match kind:
            case "tool_call":
                fields = {"arguments": part.text, "name": self._tool_name(part)["name"]}
            case "custom_tool_call":
                # The text can only be read from complete arguments.
                fields = self._call_fields(part)
                events = self._delta(part, fields["input"]) if fields["input"] else b""
            case "text":
                fields = {"text": part.text, "logprobs": []}
            case "reasoning":
                fields = {"text": part.text}
        item_ref = self._item_ref(part)
        events += self._event(f"{_EVENT_NAMES[kind]}.done", **item_ref, **fields)
        if part.kind != "tool_call":
            events += self._event("content_part.done", **item_ref, part=_content(part))
        item = self._item(part, status)
        return events + self._event("output_item.done", output_index=part.index, item=item)

    def _kind(self, part: ContentPart) -> str:
        """Return `_CUSTOM_CALL` for the call of a custom tool, otherwise the kind of the part."""
        tool = self._tools.get(part.name)
        return _CUSTOM_CALL if tool is not None and tool.is_custom else part.kind

    def _tool_name(self, part: ContentPart) -> JsonObject:
        """Return the client's ``name`` of the tool that a call names, and its ``namespace``.

        A tool that is in no namespace has no ``namespace`` field.
        """
        tool = self._tools.get(part.name)
        return {"name": part.name} if tool is None else tool.identity

    def _call_fields(self, part: ContentPart) -> JsonObject:
        """Return the field ``arguments`` of a call, or for a custom tool the text as ``input``."""
        if self._kind(part) == _CUSTOM_CALL:
            return {"input": custom_input(part.text) if part.text else ""}
        return {"arguments": part.text}

    def _delta(self, part: ContentPart, text: str) -> bytes:
        fields: JsonObject = {"logprobs": []} if part.kind == "text" else {}
        name = f"{_EVENT_NAMES[self._kind(part)]}.delta"
        return self._event(name, **self._item_ref(part), delta=text, **fields)

    def _event(self, kind: str, **fields: object) -> bytes:
        name = kind if kind == "error" else f"response.{kind}"
        data = {"type": name, "sequence_number": self._n_events, **fields}
        self._n_events += 1
        return wire.event(data, name)


def _content(part: ContentPart) -> JsonObject:
    if part.kind == "text":
        return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}
    return {"type": "reasoning_text", "text": part.text}


def _usage(response: GenerationResponse, completion: Completion) -> JsonObject:
    return {
        "input_tokens": response.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": response.reused_tokens,
            "cache_write_tokens": 0,
        },
        "output_tokens": completion.generated_tokens,
        "output_tokens_details": {"reasoning_tokens": completion.reasoning_tokens or 0},
        "total_tokens": response.prompt_tokens + completion.generated_tokens,
    }
