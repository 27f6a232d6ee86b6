"""Content parts of a model's turn: merging streamed pieces, and the finish reason they imply."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from relevance_gen import wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.types import ContentPart, FinishReason


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
    if reason == "length" or not has_call or _is_truncated_call(parts[-1]):
        return reason
    return "tool_calls"


def _is_truncated_call(part: ContentPart) -> bool:
    """Return whether a part is a tool call whose arguments are not a complete JSON object."""
    if part.kind != "tool_call":
        return False
    try:
        arguments = wire.parse(part.text.encode(errors="replace"))
    except InvalidRequestError:
        return True
    return not isinstance(arguments, dict)
