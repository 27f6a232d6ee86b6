"""Turns as Anthropic's messages have them: each part is a content block, told whole or as events in their order."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

from relevance_gen import wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.serve.adapters.anthropic.citations import CitedText, DocumentCiter
from relevance_gen.serve.services.generation import Responses
from relevance_gen.types import Completion, ContentPart, GenerationResponse

_ERRORS = {
    "invalid_request": "invalid_request_error",
    "method_not_allowed": "invalid_request_error",
    "unsupported_media_type": "invalid_request_error",
    "too_large": "request_too_large",
    "unauthorized": "authentication_error",
    "forbidden": "permission_error",
    "not_found": "not_found_error",
    "model_not_found": "not_found_error",
    "rate_limited": "rate_limit_error",
    "overloaded": "overloaded_error",
    "timeout": "timeout_error",
}
"""Anthropic's types of errors; all others are its ``api_error``."""
_DELTAS = {
    "text": ("text_delta", "text"),
    "reasoning": ("thinking_delta", "thinking"),
    "tool_call": ("input_json_delta", "partial_json"),
}
"""What adds to a block of each kind, and where its text stands."""
_ENDS = {
    "eos": "end_turn",
    "stop": "stop_sequence",
    "tool_calls": "tool_use",
    "length": "max_tokens",
}
_FULL = "model_context_window_exceeded"


def error(kind: str, message: str, field: str | None) -> dict[str, Any]:
    """Return the body of an error; the message names the field."""
    del field
    return {"type": "error", "error": {"type": _ERRORS.get(kind, "api_error"), "message": message}}


class BlockEvents:
    """The events of one stream, which tell, put together, the whole message; or only that.

    Of the turn at most `max_tokens` were asked for; `citer` has what its text is cited from.
    """

    def __init__(self, model: str, max_tokens: int, citer: DocumentCiter | None = None) -> None:
        self._head = {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": model,
        }
        self._max_tokens = max_tokens
        self._is_begun = False
        self._place: int | None = None
        self._n_blocks = 0
        self._citer = citer
        self._cited: CitedText | None = None

    def whole(self, responses: Responses) -> dict[str, object]:
        """Return the whole message."""
        (response,) = responses
        (completion,) = response.responses
        content = [block for part in completion.parts or () for block in self._blocks(part)]
        return {
            **self._head,
            "content": content,
            **self._ending(completion),
            "usage": _usage(response),
        }

    def text(self, sample: int, piece: ContentPart) -> bytes:
        """Return the events of a piece of the turn."""
        del sample  # there is one
        events = self._begin()
        if piece.place != self._place:
            events += self._close()
            self._place = piece.place
            block = _block(ContentPart(piece.kind, "", piece.place, piece.name, piece.id))
            events += _event("content_block_start", index=self._n_blocks, content_block=block)
            self._cited = CitedText(self._citer) if self._citer and piece.kind == "text" else None
        if self._cited is not None:
            events += self._cited_events(self._cited.deltas(piece.text))
        elif piece.text:
            kind, name = _DELTAS[piece.kind]
            events += _event(
                "content_block_delta", index=self._n_blocks, delta={"type": kind, name: piece.text}
            )
        return events

    def end(self, responses: Responses) -> bytes:
        """Return the events that end the turn: why it did, and what it took."""
        (response,) = responses
        (completion,) = response.responses
        ending = _event("message_delta", delta=self._ending(completion), usage=_usage(response))
        return self._begin() + self._close() + ending + _event("message_stop")

    def error(self, kind: str, message: str, field: str | None) -> bytes:
        """Return the event that ends a stream that failed."""
        return _event("error", error=error(kind, message, field)["error"])

    def _begin(self) -> bytes:
        """Return the event of a message before anything is said; what it takes is known when it ends."""
        if self._is_begun:
            return b""
        self._is_begun = True
        unknown = {
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }
        return _event("message_start", message={**self._head, "content": [], **unknown})

    def _close(self) -> bytes:
        if self._place is None:
            return b""
        events = (
            b"" if self._cited is None else self._cited_events(self._cited.deltas("", is_last=True))
        )
        self._place, self._n_blocks = None, self._n_blocks + 1
        return events + _event("content_block_stop", index=self._n_blocks - 1)

    def _cited_events(self, deltas: Iterable[tuple[bool, dict[str, object]]]) -> bytes:
        events = b""
        for begins, delta in deltas:
            if begins:
                events += _event("content_block_stop", index=self._n_blocks)
                self._n_blocks += 1
                events += _event(
                    "content_block_start",
                    index=self._n_blocks,
                    content_block=_block(ContentPart("text", "")),
                )
            events += _event("content_block_delta", index=self._n_blocks, delta=delta)
        return events

    def _blocks(self, part: ContentPart) -> list[dict[str, Any]]:
        if part.kind != "text" or self._citer is None:
            return [_block(part)]
        blocks = [_block(ContentPart("text", ""))]
        for begins, delta in CitedText(self._citer).deltas(part.text, is_last=True):
            blocks += [_block(ContentPart("text", ""))] if begins else []
            blocks[-1]["text"] += delta.get("text", "")
            if "citation" in delta:
                blocks[-1].setdefault("citations", []).append(delta["citation"])
        return blocks

    def _ending(self, completion: Completion) -> dict[str, object]:
        """Return why a turn ended: where it is cut off before the limit, the context is full."""
        reason = completion.finish_reason
        is_full = reason == "length" and completion.generated_tokens < self._max_tokens
        sequence = completion.stop_string if reason == "stop" else None
        return {"stop_reason": _FULL if is_full else _ENDS[reason], "stop_sequence": sequence}


def _event(kind: str, **said: object) -> bytes:
    return wire.event({"type": kind, **said}, kind)


def _block(part: ContentPart) -> dict[str, Any]:
    match part.kind:
        case "text":
            return {"type": "text", "text": part.text}
        case "reasoning":
            return {"type": "thinking", "thinking": part.text, "signature": ""}
        case "tool_call":
            return {
                "type": "tool_use",
                "id": part.id,
                "name": part.name,
                "input": _input(part.text),
            }


def _input(arguments: str) -> object:
    """Return the arguments of a call as an object: an empty one where they were cut off, or are none."""
    try:
        value = wire.parse(arguments.encode(errors="replace"))
    except InvalidRequestError:
        return {}
    return value if isinstance(value, dict) else {}


def _usage(response: GenerationResponse) -> dict[str, int]:
    """Return the tokens used: those of the prompt that were known already are counted apart."""
    return {
        "input_tokens": response.prompt_tokens - response.reused_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": response.reused_tokens,
        "output_tokens": sum(one.generated_tokens for one in response.responses),
    }
