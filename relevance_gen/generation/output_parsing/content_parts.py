"""Content parts of a model's turn: merging streamed pieces, and the finish reason they imply."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import attrs

from relevance_gen import wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.types import ContentPart, FinishReason
from relevance_gen.wire import JsonObject


def merge_parts(pieces: Sequence[ContentPart]) -> tuple[ContentPart, ...]:
    """Merge pieces with the same `index` into one part; return the parts of a turn.

    Parts are in the order in which their first pieces were streamed, which is the order of `index`.

    >>> merge_parts([ContentPart("text", "He", 0), ContentPart("text", "llo", 0)])
    (ContentPart(kind='text', text='Hello', index=0, name='', id=''),)
    """
    pieces_by_index: dict[int, list[ContentPart]] = {}
    for piece in pieces:
        pieces_by_index.setdefault(piece.index, []).append(piece)
    return tuple(map(_merge_part, pieces_by_index.values()))


def _merge_part(pieces: Sequence[ContentPart]) -> ContentPart:
    """Merge the pieces of one part; the first piece has the part's kind, name and id."""
    text = "".join(piece.text for piece in pieces)
    return attrs.evolve(pieces[0], text=text)


def finish_reason_of(reason: FinishReason, parts: Sequence[ContentPart]) -> FinishReason:
    """Return the finish reason of a turn whose sample ended for `reason`.

    A turn with a tool call ends with "tool_calls", unless the token limit or the end of the text
    cut its last call off.
    """
    has_call = any(part.kind == "tool_call" for part in parts)
    if reason == "length" or not has_call:
        return reason
    is_truncated = parts[-1].kind == "tool_call" and parse_arguments(parts[-1].text) is None
    return reason if is_truncated else "tool_calls"


def parse_arguments(text: str) -> JsonObject | None:
    """Return the arguments of a tool call as an object; None if they are truncated or invalid."""
    with suppress(InvalidRequestError):
        arguments = wire.parse(text.encode(errors="replace"))
        return arguments if isinstance(arguments, dict) else None
    return None
