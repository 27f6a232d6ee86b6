"""Read a turn as the model writes it: what is said, what is thought, and which tools are called."""

from __future__ import annotations

import base64
import codecs
import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from attrs import field, frozen

from relevance_gen.generation.output_parsing.tool_call_arguments import (
    BareArguments,
    TaggedArguments,
)
from relevance_gen.generation.output_parsing.tool_call_formats import (
    OpeningMarker,
    ReasoningFormat,
    ToolCallFormat,
)
from relevance_gen.types import ContentPart, PartKind

ID_CHARACTERS = 9
"""Of the ids of calls: so many the templates of Mistral want, and nobody else wants a number."""
_STEP = 1 << 12
"""Characters that are read together: what is read is taken off their beginning, so more of them take longer each."""
_JSON = re.compile(r'["\\{}\[\]]')
_MARKER = re.compile(r"<(?:(?!NAME)[^<>\s])+>?|\[[A-Z_]+\]")


def call_id(text: str) -> str:
    """Return an id of a call that is made of a text."""
    return (
        base64.b32encode(hashlib.blake2b(text.encode(errors="replace")).digest())[:ID_CHARACTERS]
        .decode()
        .lower()
    )


@frozen
class OutputFormat:
    """How a model writes a turn.

    Args:
        tools: the names of the tools that it may call.
        syntax: how it does so; ``None`` where it may not.
        thoughts: how it thinks; ``None`` where it does not.
        is_thinking: whether it does so from the beginning, as its prompt ends with what leads to that.
        schemas: of the arguments of each tool, by their names if they are any, where they are not written as JSON.
    """

    tools: frozenset[str] = frozenset()
    syntax: ToolCallFormat | None = None
    thoughts: ReasoningFormat | None = None
    is_thinking: bool = False
    schemas: Mapping[str, Any] = field(factory=dict)


class ReasoningTokenCounter:
    """Counts the tokens that a model writes while it thinks, `n_tokens` so far.

    Those are all from behind the mark that begins that to its end. The last token of the mark counts, and so does all
    of the one that ends it.
    """

    def __init__(self, form: OutputFormat) -> None:
        self.n_tokens = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._reader = OutputParser(form, "") if form.thoughts else None

    def note(self, piece: bytes) -> None:
        """Take the next token, as it is printed."""
        if self._reader is not None:
            was_thinking = self._reader.is_thinking
            self._reader.push(self._decoder.decode(piece))
            self.n_tokens += was_thinking or self._reader.is_thinking


class OutputParser:
    """Reads one turn, wherever its text is cut; the `nonce` makes the ids of its calls unique.

    The pieces that `push` and `end` return are, joined, what the whole text alone would have given: whatever can still
    become something else is held back. What looks like a call but names no tool, or is none, is text.
    """

    def __init__(self, form: OutputFormat, nonce: str) -> None:
        self._form, self._nonce = form, nonce
        calls = form.syntax.heads if form.syntax else ()
        thoughts = form.thoughts.heads if form.thoughts else ()
        self._behind_call = form.syntax.behind if form.syntax else ()
        self._at_first = calls + thoughts
        self._anywhere = calls + (thoughts if form.thoughts and form.thoughts.is_kept else ())
        self._starts = {found[0] for head in self._anywhere if (found := _MARKER.match(head.text))}
        self._any_start = re.compile("|".join(map(re.escape, self._starts)) or r"(?!)")
        self._state: Literal["text", "thought", "call"] = "thought" if form.is_thinking else "text"
        self._next = self._at_first  # what may stand where the text begins
        self._was_marked = form.is_thinking
        self._buffer = ""
        self._space: list[
            str
        ] = []  # behind what was told: it counts if something of the same kind follows
        self._kind: PartKind | None = None
        self._place = -1
        self._n_calls = 0
        self._depth, self._outer, self._in_string, self._is_own = 0, 0, False, False
        self._arguments: TaggedArguments | BareArguments | None = None

    @property
    def is_thinking(self) -> bool:
        """Whether what comes next is thought."""
        return self._state == "thought"

    def push(self, text: str, *, is_whole: bool = False) -> list[ContentPart]:
        """Return the pieces that more of the text releases; all that is left where this `is_whole`."""
        pieces: list[ContentPart] = []
        steps = {"text": self._read_text, "thought": self._read_thought, "call": self._read_noted}
        for start in range(0, len(text) or 1, _STEP):
            self._buffer += text[start : start + _STEP]
            while self._buffer and steps[self._state](pieces, is_whole):
                pass
        return pieces

    def end(self) -> list[ContentPart]:
        """Return the pieces that were held back, now that nothing follows."""
        pieces = self.push("", is_whole=True)
        if self._kind == "text" and (space := "".join(self._space)):
            pieces.append(ContentPart("text", space, self._place))
        self._space = []
        return pieces

    # ── What is said and thought ─────────────────────────────────────────────────────────────────────────────────────

    def _read_text(self, pieces: list[ContentPart], is_whole: bool) -> bool:
        """Say what comes before the next head, and follow that; tell whether there is more to read."""
        if self._next and (found := self._head_at(self._next, is_whole)) is not None:
            return found != "partly" and self._follow(pieces, *found)
        self._next = ()
        begun = self._any_start.search(self._buffer)
        self._add(
            pieces,
            "text",
            self._take(begun.start() if begun else self._free(self._starts, is_whole)),
        )
        if begun is None:
            return False
        if (found := self._head_at(self._anywhere, is_whole)) is not None:
            return found != "partly" and self._follow(pieces, *found)
        self._add(pieces, "text", self._take(1))
        return True

    def _read_thought(self, pieces: list[ContentPart], is_whole: bool) -> bool:
        thoughts = self._form.thoughts
        ends = thoughts.ends if thoughts else ()
        place, end = min(
            ((place, end) for end in ends if (place := self._buffer.find(end)) >= 0),
            default=(-1, ""),
        )
        self._add(pieces, "reasoning", self._take(place if end else self._free(ends, is_whole)))
        if end:
            self._take(0 if thoughts and thoughts.is_kept else len(end))
            self._close("text")
        return bool(end)

    def _free(self, words: Collection[str], is_whole: bool) -> int:
        """Return how much of the text begins none of some words, however it goes on."""
        n = len(self._buffer)
        lengths = () if is_whole else range(min(max(map(len, words), default=1) - 1, n), 0, -1)
        return n - next(
            (k for k in lengths if any(word.startswith(self._buffer[n - k :]) for word in words)), 0
        )

    def _take(self, n: int) -> str:
        taken, self._buffer = self._buffer[:n], self._buffer[n:]
        return taken

    def _add(self, pieces: list[ContentPart], kind: PartKind, text: str) -> None:
        """Add what is said or thought, without the white space between that and what is marked."""
        if self._kind != kind:
            text = text.lstrip() if self._was_marked else text
            if not text:
                return
            self._kind, self._place = kind, self._place + 1
        said = text.rstrip()
        if said:
            pieces.append(ContentPart(kind, "".join(self._space) + said, self._place))
            self._space = []
        self._space.append(text[len(said) :])

    def _close(self, state: Literal["text", "thought", "call"]) -> None:
        """End a part, and go on behind what is marked."""
        self._kind, self._space, self._state, self._was_marked = None, [], state, True
        self._next = (*(self._behind_call if self._n_calls else ()), *self._at_first)

    # ── What is called ───────────────────────────────────────────────────────────────────────────────────────────────

    def _head_at(
        self, heads: Sequence[OpeningMarker], is_whole: bool
    ) -> tuple[OpeningMarker, int, str] | Literal["partly"] | None:
        """Return the head that the text begins with, where it ends, and the tool's name."""
        is_partly = False
        for head in heads:
            found = head.find(self._buffer, 0)
            if found == "partly":
                is_partly = True
            elif found is None or (head.leads_to == "call" and found[1] not in self._form.tools):
                continue
            elif is_whole or not is_partly:
                return head, *found
        return "partly" if is_partly and not is_whole else None

    def _follow(self, pieces: list[ContentPart], head: OpeningMarker, end: int, name: str) -> bool:
        """Go on behind a head."""
        self._take(end)
        self._close(head.leads_to)
        if head.leads_to == "call":
            syntax, self._arguments = self._form.syntax, None
            if syntax and syntax.tags and not self._buffer.startswith("{"):
                self._arguments = TaggedArguments(syntax.tags, self._form.schemas.get(name))
            elif syntax and syntax.mark:
                self._arguments = BareArguments(syntax.mark)
            self._depth, self._outer, self._in_string, self._is_own = (
                0,
                -head.text.count("{"),
                False,
                True,
            )
            self._place, self._n_calls = self._place + 1, self._n_calls + 1
            pieces.append(
                ContentPart(
                    "tool_call", "", self._place, name, call_id(f"{self._nonce} {self._n_calls}")
                )
            )
        return True

    def _read_noted(self, pieces: list[ContentPart], is_whole: bool) -> bool:
        """Take arguments in a notation that is not JSON, where there is one."""
        if self._arguments is None:
            return self._read_arguments(pieces, is_whole)
        n_read, told, is_over = self._arguments.read(self._buffer, is_whole=is_whole)
        self._take(n_read)
        pieces += [ContentPart("tool_call", told, self._place)] if told else []
        if is_over:
            self._close("text")
        return is_over or n_read > 0

    def _read_arguments(self, pieces: list[ContentPart], is_whole: bool) -> bool:
        """Take the arguments as they come, up to the brace that closes them, and skip the rest of their object."""
        end, is_closed, escaped = len(self._buffer), False, -1
        for found in _JSON.finditer(self._buffer):
            sign, place = found[0], found.start()
            if place == escaped:
                continue
            if self._in_string:
                self._in_string = sign != '"'
                escaped = place + 1 if sign == "\\" else -1
                continue
            self._in_string = sign == '"'
            self._depth += (sign in "{[") - (sign in "}]")
            if sign in "}]" and self._depth <= (0 if self._is_own else self._outer):
                end, is_closed = place + 1, True
                break
        if escaped == end and not is_whole:  # what it escapes has not come yet
            end -= 1
        text = self._take(end)
        if self._is_own and text:
            pieces.append(ContentPart("tool_call", text, self._place))
        if is_closed and self._is_own and self._outer:
            self._is_own = False
        elif is_closed:
            self._close("text")
        return is_closed
