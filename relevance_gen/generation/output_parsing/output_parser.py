"""Parse the output of a chat model into content parts: text, reasoning and tool calls."""

from __future__ import annotations

import base64
import codecs
import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from attrs import evolve, field, frozen

from relevance_gen import wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.output_parsing.opening_markers import (
    MarkerMatch,
    OpeningMarker,
    may_become,
)
from relevance_gen.generation.output_parsing.tool_call_arguments import (
    ArgumentsParser,
    JsonArguments,
    TaggedArguments,
    UnquotedArguments,
)
from relevance_gen.generation.output_parsing.tool_call_formats import (
    ReasoningFormat,
    ToolCallFormat,
)
from relevance_gen.types import ContentPart, FinishReason, PartKind
from relevance_gen.wire import JsonObject

CALL_ID_CHARACTERS = 9
"""The length of call ids that Mistral's templates require; other templates accept any length."""
_BATCH_CHARACTERS = 1 << 12
"""Characters parsed at once: parsed text is removed from the start of the buffer, which takes time
in proportion to its length."""
_FIRST_WORD = re.compile(r"<(?:(?!NAME)[^<>\s])+>?|\[[A-Z_]+\]")


def call_id(text: str) -> str:
    """Return the id of a call, derived from `text`: 9 lower-case letters and digits."""
    digest = hashlib.blake2b(text.encode(errors="replace")).digest()
    return base64.b32encode(digest)[:CALL_ID_CHARACTERS].decode().lower()


@frozen
class OutputFormat:
    """The format of a model's turn in one conversation.

    Attributes:
        tools: the names of the tools that the model may call.
        tool_calls: the format of tool calls; None if the model may not call tools.
        reasoning: the format of reasoning; None if the model does not reason.
        starts_with_reasoning: whether the prompt already ends with the opening marker of reasoning.
        schemas: for each tool name, a mapping of the names of the tool's arguments to their JSON
            schemas; read only if `tool_calls` has `argument_tags`.
    """

    tools: frozenset[str] = frozenset()
    tool_calls: ToolCallFormat | None = None
    reasoning: ReasoningFormat | None = None
    starts_with_reasoning: bool = False
    schemas: Mapping[str, Any] = field(factory=dict)


class ReasoningTokenCounter:
    """Counts the reasoning tokens of one sample.

    The count includes the last token of the opening marker and all tokens of the closing marker. It
    is 0 if the output format has no reasoning.

    Attributes:
        n_tokens: number of reasoning tokens so far.
    """

    def __init__(self, output_format: OutputFormat) -> None:
        self.n_tokens = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._parser = OutputParser(output_format, "") if output_format.reasoning else None

    def add_token(self, token_bytes: bytes) -> None:
        """Count the next token, given the bytes that it prints."""
        if self._parser is None:
            return
        was_reasoning = self._parser.is_reasoning
        self._parser.push(self._decoder.decode(token_bytes))
        if was_reasoning or self._parser.is_reasoning:
            self.n_tokens += 1


class OutputParser:
    """Parses one turn incrementally; `nonce` makes the ids of its calls unique.

    The pieces returned by `push` and `end` merge to the same parts regardless of how the text is
    split: text that may still turn out to be a marker is held back. A call of an unknown tool, or
    an incomplete opening marker, is text.
    """

    def __init__(self, output_format: OutputFormat, nonce: str) -> None:
        self._format = output_format
        self._nonce = nonce
        tool_calls = output_format.tool_calls
        reasoning = output_format.reasoning
        call_openings = tool_calls.first_openings if tool_calls else ()
        reasoning_openings = reasoning.openings if reasoning else ()
        self._next_call_openings = tool_calls.next_openings if tool_calls else ()
        self._first_openings = call_openings + reasoning_openings
        # Openings that are accepted anywhere, and the words that they begin with.
        self._openings = call_openings
        if reasoning and reasoning.ends_are_openings:
            self._openings += reasoning_openings
        first_words = [_FIRST_WORD.match(opening.text) for opening in self._openings]
        self._first_words = {word[0] for word in first_words if word}
        any_word = "|".join(map(re.escape, self._first_words))
        self._any_first_word = re.compile(any_word or r"(?!)")
        self._state: PartKind = "reasoning" if output_format.starts_with_reasoning else "text"
        self._is_after_marker = output_format.starts_with_reasoning
        self._expected = self._first_openings  # openings accepted at the start of the buffer only
        self._buffer = ""
        self._is_last = False  # whether no further text follows the buffer
        self._pieces: list[ContentPart] = []  # the result of the current `push`
        self._pending_space: list[str] = []  # white space that counts only if the part continues
        self._kind: PartKind | None = None
        self._index = -1
        self._n_calls = 0
        self._arguments: ArgumentsParser | None = None

    @property
    def is_reasoning(self) -> bool:
        """Whether the next text is reasoning."""
        return self._state == "reasoning"

    def push(self, text: str, *, is_last: bool = False) -> list[ContentPart]:
        """Return the pieces that `text` completes.

        If the text `is_last`, all remaining pieces are returned, except the white space at the end
        of the turn, which only `end` returns.
        """
        self._pieces = []
        self._is_last = is_last
        steps = {
            "text": self._read_text,
            "reasoning": self._read_reasoning,
            "tool_call": self._read_arguments,
        }
        for start in range(0, len(text) or 1, _BATCH_CHARACTERS):
            self._buffer += text[start : start + _BATCH_CHARACTERS]
            while self._buffer and steps[self._state]():
                pass
        return self._pieces

    def end(self) -> list[ContentPart]:
        """Return the pieces that were held back, after the last text."""
        pieces = self.push("", is_last=True)
        space = "".join(self._pending_space)
        if self._kind == "text" and space:
            pieces.append(ContentPart("text", space, self._index))
        self._pending_space = []
        return pieces

    # Each of these methods reads from the buffer, adds pieces to `_pieces`, and returns whether the
    # rest of the buffer can be read now.

    def _read_text(self) -> bool:
        """Read text up to the next opening marker, and the marker."""
        match = self._match_opening(self._expected)
        if match is None:
            self._expected = ()
            word = self._any_first_word.search(self._buffer)
            n_text = word.start() if word else self._n_certain(self._first_words)
            self._add_text("text", self._take(n_text))
            if word is None:
                return False
            match = self._match_opening(self._openings)
            if match is None:
                self._add_text("text", self._take(1))
                return True
        if match.is_partial:
            return False
        self._take(match.end)
        self._begin(match.marker.opens)
        if match.marker.opens == "tool_call":
            self._begin_call(match)
        return True

    def _read_reasoning(self) -> bool:
        """Read reasoning up to the text that ends it."""
        reasoning = self._format.reasoning
        ends = reasoning.ends if reasoning else ()
        starts = {end: self._buffer.find(end) for end in ends if end in self._buffer}
        end = min(starts, key=starts.__getitem__, default="")
        n_reasoning = starts[end] if end else self._n_certain(ends)
        self._add_text("reasoning", self._take(n_reasoning))
        if not end:
            return False
        if not (reasoning and reasoning.ends_are_openings):
            self._take(len(end))
        self._begin("text")
        return True

    def _read_arguments(self) -> bool:
        """Read arguments of the current call, and add their JSON."""
        if self._arguments is None:
            return False
        chunk = self._arguments.read(self._buffer)
        self._take(chunk.n_read)
        if chunk.json:
            self._pieces.append(ContentPart("tool_call", chunk.json, self._index))
        if chunk.is_finished:
            self._begin("text")
        return chunk.is_finished or chunk.n_read > 0

    def _match_opening(self, openings: Sequence[OpeningMarker]) -> MarkerMatch | None:
        """Return the match of the first of `openings` that the buffer starts with, or None.

        The match is partial if further text decides whether the buffer starts with the marker; if
        no further text follows, such markers are skipped. Calls of unknown tools are skipped, too.
        """
        for opening in openings:
            match = opening.match(self._buffer)
            if match is None:
                continue
            if match.is_partial:
                if not self._is_last:
                    return match
            elif opening.opens != "tool_call" or match.tool_name in self._format.tools:
                return match
        return None

    def _n_certain(self, words: Collection[str]) -> int:
        """Return how many characters at the start of the buffer are certainly text.

        The rest, at the end of the buffer, is the beginning of one of `words`, which further text
        may complete. If no further text follows, all characters are text.
        """
        n_buffer = len(self._buffer)
        if self._is_last:
            return n_buffer
        longest = max(map(len, words), default=1)
        for start in range(max(0, n_buffer - longest + 1), n_buffer):
            if any(may_become(word, self._buffer, start) for word in words):
                return start
        return n_buffer

    def _take(self, n_characters: int) -> str:
        """Remove characters from the start of the buffer and return them."""
        taken = self._buffer[:n_characters]
        self._buffer = self._buffer[n_characters:]
        return taken

    def _add_text(self, kind: PartKind, text: str) -> None:
        """Add a piece of text or reasoning, without white space next to markers.

        White space at the end of `text` is stored, and added only if more text of this part
        follows.
        """
        if self._kind != kind:
            if self._is_after_marker:
                text = text.lstrip()
            if not text:
                return
            self._kind = kind
            self._index += 1
        stripped = text.rstrip()
        if stripped:
            piece_text = "".join(self._pending_space) + stripped
            self._pieces.append(ContentPart(kind, piece_text, self._index))
            self._pending_space = []
        self._pending_space.append(text[len(stripped) :])

    def _begin(self, state: PartKind) -> None:
        """End the current part, and set the state and the opening markers to expect next.

        It is called when a marker was removed from the buffer, and when the arguments of a call
        have ended, with or without a closing marker.
        """
        self._state = state
        self._kind = None
        self._pending_space = []
        self._is_after_marker = True
        self._expected = self._first_openings
        if self._n_calls:
            self._expected = self._next_call_openings + self._first_openings

    def _begin_call(self, match: MarkerMatch) -> None:
        """Begin the call whose opening marker `match` was read.

        Add a piece with the name and a new id of the call, without arguments.
        """
        self._index += 1
        self._n_calls += 1
        self._arguments = self._arguments_parser(match)
        new_id = call_id(f"{self._nonce} {self._n_calls}")
        self._pieces.append(ContentPart("tool_call", "", self._index, match.tool_name, new_id))

    def _arguments_parser(self, match: MarkerMatch) -> ArgumentsParser:
        """Return the parser of the arguments that the buffer starts with."""
        tool_calls = self._format.tool_calls
        if tool_calls and tool_calls.argument_tags and not self._buffer.startswith("{"):
            schemas = self._format.schemas.get(match.tool_name)
            return TaggedArguments(tool_calls.argument_tags, schemas)
        if tool_calls and tool_calls.string_delimiter:
            return UnquotedArguments(tool_calls.string_delimiter)
        return JsonArguments(n_outer=match.marker.text.count("{"))


def merge_parts(pieces: Sequence[ContentPart]) -> tuple[ContentPart, ...]:
    """Merge pieces with the same `index` into one part; return the parts of a turn.

    Parts are in the order in which their first pieces were streamed, which is the order of `index`.

    >>> merge_parts([ContentPart("text", "He", 0), ContentPart("text", "llo", 0)])
    (ContentPart(kind='text', text='Hello', index=0, name='', id=''),)
    """
    pieces_by_index: dict[int, list[ContentPart]] = {}
    for piece in pieces:
        pieces_by_index.setdefault(piece.index, []).append(piece)
    parts = []
    for part_pieces in pieces_by_index.values():
        text = "".join(piece.text for piece in part_pieces)
        # The first piece has the kind, the name and the id of the part.
        parts.append(evolve(part_pieces[0], text=text))
    return tuple(parts)


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
