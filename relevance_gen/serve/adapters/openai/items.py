"""Turns as OpenAI's responses have them: each part is an item, told whole or as events in their order."""

from __future__ import annotations

import base64
import time
import uuid
from collections.abc import Mapping
from typing import Any

from relevance_gen import wire
from relevance_gen.serve.services.generation import Responses
from relevance_gen.types import ContentPart

_PACKED = "base64:"
"""Begins thoughts that are packed here: others have packed theirs otherwise, and only they can read those."""
_ITEMS = {
    "text": ("message", "msg"),
    "reasoning": ("reasoning", "rs"),
    "tool_call": ("function_call", "fc"),
}
"""What an item of each kind of part is called, and how its id begins."""
_STREAMED = {
    "text": "output_text",
    "reasoning": "reasoning_text",
    "tool_call": "function_call_arguments",
}
_NO_LOGPROBS: Mapping[str, Mapping[str, Any]] = {"text": {"logprobs": []}}


def unpacked(thoughts: object) -> str:
    """Return the thoughts that an item has packed; an empty text where that was not done here."""
    if not isinstance(thoughts, str) or not thoughts.startswith(_PACKED):
        return ""
    try:
        return base64.b64decode(thoughts.removeprefix(_PACKED)).decode()
    except ValueError:
        return ""


class ItemEvents:
    """The events of one stream, which tell, put together, the whole response; or only that.

    The response tells what is `told` of the request; it `packs_thoughts` in the field that clients send back.
    """

    def __init__(self, told: Mapping[str, Any], *, packs_thoughts: bool) -> None:
        self._nonce = uuid.uuid4().hex
        self._head = {
            "id": f"resp_{self._nonce}",
            "object": "response",
            "created_at": int(time.time()),
            **told,
        }
        self._packs_thoughts = packs_thoughts
        self._n_events = 0
        self._part: ContentPart | None = None
        self._texts: list[str] = []

    def whole(self, responses: Responses) -> dict[str, Any]:
        """Return the whole response."""
        (response,) = responses
        (completion,) = response.responses
        parts, is_cut = completion.parts or (), completion.finish_reason == "length"
        is_broken = is_cut or (
            bool(parts)
            and parts[-1].kind == "tool_call"
            and completion.finish_reason != "tool_calls"
        )
        usage = {
            "input_tokens": response.prompt_tokens,
            "input_tokens_details": {
                "cached_tokens": response.reused_tokens,
                "cache_write_tokens": 0,
            },
            "output_tokens": completion.generated_tokens,
            "output_tokens_details": {"reasoning_tokens": completion.reasoning_tokens or 0},
            "total_tokens": response.prompt_tokens + completion.generated_tokens,
        }
        output = [
            self._item(part, "incomplete" if is_broken and part is parts[-1] else "completed")
            for part in parts
        ]
        details = {"reason": "max_output_tokens"} if is_cut else None
        status = "incomplete" if is_cut else "completed"
        return self._response(status, output=output, usage=usage, incomplete_details=details)

    def text(self, sample: int, piece: ContentPart) -> bytes:
        """Return the events of a piece of the turn."""
        del sample  # there is one
        events = self._begin()
        if self._part is None or self._part.place != piece.place:
            events += self._close("completed") + self._open(piece)
        if piece.text:
            self._texts.append(piece.text)
            more = _NO_LOGPROBS.get(piece.kind, {})
            events += self._event(
                f"{_STREAMED[piece.kind]}.delta", **self._place(piece), delta=piece.text, **more
            )
        return events

    def end(self, responses: Responses) -> bytes:
        """Return the events that end the turn, the last of which has all of it."""
        whole = self.whole(responses)
        ended = whole["output"][-1]["status"] if whole["output"] else "completed"
        return self._begin() + self._close(ended) + self._event(whole["status"], response=whole)

    def error(self, kind: str, message: str, field: str | None) -> bytes:
        """Return the events that end a stream that failed."""
        failed = self._response("failed", error={"code": "server_error", "message": message})
        event = self._event("error", code=kind, message=message, param=field)
        return event + self._event("failed", response=failed)

    def _response(self, status: str, **more: object) -> dict[str, Any]:
        said: dict[str, object] = {
            "error": None,
            "incomplete_details": None,
            "output": [],
            "usage": None,
        }
        return {
            **self._head,
            "status": status,
            "store": False,
            "tools": [],
            "metadata": {},
            **said,
            **more,
        }

    def _item(self, part: ContentPart, status: str) -> dict[str, object]:
        """Return the item of a part, which is without content while that is still to come."""
        head: dict[str, object] = {
            "id": self._place(part)["item_id"],
            "type": _ITEMS[part.kind][0],
            "status": status,
        }
        content = [] if status == "in_progress" else [_content(part)]
        match part.kind:
            case "tool_call":
                return {**head, "call_id": part.id, "name": part.name, "arguments": part.text}
            case "text":
                return {**head, "role": "assistant", "content": content}
            case "reasoning":
                packed = _PACKED + base64.b64encode(part.text.encode(errors="replace")).decode()
                packs = {"encrypted_content": packed} if self._packs_thoughts and content else {}
                return {**head, "summary": [], "content": content, **packs}

    def _place(self, part: ContentPart) -> dict[str, object]:
        index = {} if part.kind == "tool_call" else {"content_index": 0}
        return {
            "item_id": f"{_ITEMS[part.kind][1]}_{self._nonce}{part.place}",
            "output_index": part.place,
            **index,
        }

    def _begin(self) -> bytes:
        if self._n_events:
            return b""
        begun = self._response("in_progress")
        return self._event("created", response=begun) + self._event("in_progress", response=begun)

    def _open(self, piece: ContentPart) -> bytes:
        self._part, self._texts = ContentPart(piece.kind, "", piece.place, piece.name, piece.id), []
        item = self._item(self._part, "in_progress")
        event = self._event("output_item.added", output_index=piece.place, item=item)
        if piece.kind == "tool_call":
            return event
        return event + self._event(
            "content_part.added", **self._place(piece), part=_content(self._part)
        )

    def _close(self, status: str) -> bytes:
        if self._part is None:
            return b""
        part = ContentPart(
            self._part.kind, "".join(self._texts), self._part.place, self._part.name, self._part.id
        )
        self._part, place = None, self._place(part)
        said = (
            {"arguments": part.text, "name": part.name}
            if part.kind == "tool_call"
            else {"text": part.text}
        )
        events = self._event(
            f"{_STREAMED[part.kind]}.done", **place, **said, **_NO_LOGPROBS.get(part.kind, {})
        )
        if part.kind != "tool_call":
            events += self._event("content_part.done", **place, part=_content(part))
        item = self._item(part, status)
        return events + self._event("output_item.done", output_index=part.place, item=item)

    def _event(self, kind: str, **said: object) -> bytes:
        name = kind if kind == "error" else f"response.{kind}"
        data = {"type": name, "sequence_number": self._n_events, **said}
        self._n_events += 1
        return wire.event(data, name)


def _content(part: ContentPart) -> dict[str, object]:
    if part.kind == "text":
        return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}
    return {"type": "reasoning_text", "text": part.text}
