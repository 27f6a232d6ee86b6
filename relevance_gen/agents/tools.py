"""The tools that an agent is given: what they are called with, what is said of them, and what they answer.

Answers are text, as agents read text: places as ``path:from-to``, or ``index[position]`` where there is no path,
lines as they stand in the file behind their numbers, and in the end what of how much was shown. No answer is longer
than its caller allowed, in tokens of the embedded encoding, but for its last line.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import attrs
from attrs import field, frozen

from relevance_gen import checks, wire
from relevance_gen.agents.folders import Folders, Found, shown
from relevance_gen.asking.api import ask
from relevance_gen.errors import InvalidRequestError, pluralize
from relevance_gen.generation.runner import Runner
from relevance_gen.text.chunking import sentences, spans_of_tokens
from relevance_gen.text.token_counting import token_counter
from relevance_gen.types import Chunk, SearchResponse, SearchResult

Indexes: TypeAlias = Mapping[str, Callable[[str, int], SearchResponse]]
"""What searches each index that may be named, given a question and how many results, the best first, are wanted."""
Look: TypeAlias = Callable[[str], Callable[[], Awaitable[None]] | None]
"""Begins to look what has changed in an index, given its name, and returns what waits for that, if need be."""

MOST_TOKENS: Final = 100_000
"""Most tokens of an answer: more than most models can read."""
_TOKEN_CHARS: Final = 128
"""A token has no more characters, but for rare runs of one kind."""
_FEWEST_TOKENS: Final = 32
"""Tokens of a result's text that go before more results: with fewer it would say nothing."""
_LIKELY: Final = 0.5
"""The confidence from which on an answer is more likely than none."""
_JSON_TYPES: Final = {"str": "string", "int": "integer"}
_OF_FILES: Final = (
    "Rank files by a question and show the best lines of each, numbered. Use it first, when you know what "
    "the files are about and not where or in which words: one call instead of many greps. It sees names of "
    "files, too, and every change at once. For all uses of one exact name, use grep."
)
_OF_INDEXES: Final = "Rank the chunks of an index by a question and show the best lines of each."


def _text(purpose: str, default: Any = attrs.NOTHING) -> Any:
    check = checks.not_blank if default is attrs.NOTHING else checks.string
    return field(default=default, validator=check, metadata={"purpose": purpose})


def _number(purpose: str, default: int, low: int, high: int) -> Any:
    limits = {"minimum": low, "maximum": high}
    return field(
        default=default,
        validator=checks.integer(low, high),
        metadata={"purpose": purpose, "limits": limits},
    )


_QUESTION: Final = "what to find: a question or a description in plain words, names and words of the files among them"
_FOLDER: Final = "only files below this folder"
_GLOB: Final = "only files that match, as in .gitignore: *.py, docs/**, !tests/"
_INDEX: Final = "search this index, and no files"
_TOKENS: Final = "most tokens of the answer"


@frozen(kw_only=True)
class Search:
    """What the tool ``search`` is called with."""

    question: str = _text(_QUESTION)
    folder: str = _text(_FOLDER, "")
    glob: str = _text(_GLOB, "")
    top_n: int = _number("most results", 10, 1, 100)
    max_tokens: int = _number(_TOKENS, 1500, 1, MOST_TOKENS)
    index: str = _text(_INDEX, "")


@frozen(kw_only=True)
class Read:
    """What the tool ``read`` is called with."""

    path: str = _text("path of the file, as the other tools write it")
    first_line: int = _number("first line wanted", 1, 1, 1 << 53)
    last_line: int = _number("last line wanted; 0 for the file's last", 0, 0, 1 << 53)
    max_tokens: int = _number(_TOKENS, 10_000, 1, MOST_TOKENS)


@frozen(kw_only=True)
class Files:
    """What the tool ``files`` is called with."""

    folder: str = _text(_FOLDER, "")
    glob: str = _text(_GLOB, "")
    max_tokens: int = _number(_TOKENS, 2000, 1, MOST_TOKENS)


@frozen(kw_only=True)
class Ask:
    """What the tool ``ask`` is called with."""

    question: str = _text(_QUESTION)
    folder: str = _text(_FOLDER, "")
    glob: str = _text(_GLOB, "")
    top_n: int = _number("most passages that the answer is written from", 5, 1, 20)
    index: str = _text(_INDEX, "")


@frozen
class Tool:
    """A tool: what it does and when it is the right one, what it is called with, and what returns its answer.

    It may be called with some `indexes`, by their names, and, if it `has_files`, for files.
    """

    purpose: str
    call: type
    do: Callable[[Any], str]
    indexes: Sequence[str] = ()
    has_files: bool = True

    @property
    def schema(self) -> dict[str, Any]:
        """What it is called with, as a JSON schema in which every type is a single one."""
        taken = {"folder": self.has_files, "glob": self.has_files, "index": bool(self.indexes)}
        fields = [one for one in attrs.fields(self.call) if taken.get(one.name, True)]
        needed = [] if self.has_files else ["index"]
        properties = {
            one.name: {"type": _JSON_TYPES[str(one.type)], "description": one.metadata["purpose"]}
            | one.metadata.get("limits", {})
            | ({"enum": [*self.indexes]} if one.name == "index" else {})
            | (
                {}
                if one.default is attrs.NOTHING or one.name == "index"
                else {"default": one.default}
            )
            for one in fields
        }
        required = [
            one.name for one in fields if one.default is attrs.NOTHING or one.name in needed
        ]
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }


class Tools:
    """The tools for some folders and indexes, by name; with a runner, also ``ask``."""

    def __init__(
        self, folders: Folders, runner: Runner | None = None, indexes: Indexes | None = None
    ) -> None:
        self._folders = folders
        self._runner = runner
        self._indexes = indexes or {}
        self._count = token_counter(None).count
        self.by_name: dict[str, Tool] = {}
        choices = tuple(self._indexes), bool(folders.indexes)
        if any(choices):
            purpose = _OF_FILES if folders.indexes else _OF_INDEXES
            self.by_name["search"] = Tool(purpose, Search, self._search, *choices)
        if folders.indexes:
            purpose = "Read lines of a file, or the text of a PDF or an Office file, numbered."
            self.by_name["read"] = Tool(purpose, Read, self._read)
            self.by_name["files"] = Tool(
                "List the files that can be searched and read.", Files, self._files
            )
        if any(choices) and runner is not None:
            purpose = "Have a small model answer a question from what is found, with its sources. search shows more."
            self.by_name["ask"] = Tool(purpose, Ask, self._ask, *choices)

    def call(self, name: str, arguments: Mapping[str, object]) -> str:
        """Return the answer of a tool; raise what is wrong with an argument, or what the model failed with."""
        tool = self.by_name[name]
        return tool.do(wire.structure(tool.call, arguments))

    def _find(self, call: Search | Ask, top_n: int) -> Found:
        """Search the index that a call names, or else the files."""
        if not call.index and self._folders.indexes:
            return self._folders.search(call.question, top_n, call.folder, call.glob)
        if call.index not in self._indexes:
            if not self._indexes:
                raise InvalidRequestError("must not be given: no index is offered here", "index")
            raise InvalidRequestError.must_be(
                "index", f"one of {', '.join(self._indexes)}", call.index
            )
        for name in ("folder", "glob"):
            if getattr(call, name):
                raise InvalidRequestError(
                    "cannot be combined with index", name, remedy="it chooses among files"
                )
        response = self._indexes[call.index](call.question, top_n)
        return Found([*response.results], f"index {call.index}", response.confidence)

    def _search(self, call: Search) -> str:
        found = self._find(call, call.top_n)
        shares: list[str] = []
        left = call.max_tokens
        for place, result in enumerate(found.results):
            is_titled = call.index and result.title not in ("", result.metadata.get("path"))
            title = f"  {shown(result.title[:200])}" if is_titled else ""
            head = f"{_place(result, call.index)}  {result.chunk_score:.2f}{title}\n"
            if (n_head := self._count(head)) > left:
                break
            lines = _numbered(result.chunk_txt, result.metadata.get("first_line"))
            first, behind = (result.passage.start, result.passage.end) if result.passage else (0, 0)
            best, line_start = (
                result.chunk_txt.count("\n", 0, first),
                result.chunk_txt.rfind("\n", 0, first) + 1,
            )
            share = max(left // (len(found.results) - place), n_head + _FEWEST_TOKENS)
            room = min(share, left) - n_head
            start, end, n_body = self._fitting(lines, best, room)
            body = "".join(lines[start:end])
            if not body:
                body, n_body = self._window(
                    lines[best], first - line_start, behind - line_start, room
                )
            shares.append(head + body)
            left -= n_head + n_body
        if not found.results:
            return f"nothing found in {found.searched}; try other words, or fewer"
        totals = _totals(
            len(shares),
            len(found.results),
            "result",
            call.max_tokens - left,
            has_files=not call.index,
        )
        doubt = ", probably none of these answers it" if found.confidence < _LIKELY else ""
        return f"{''.join(shares)}{totals}; {found.searched} searched, confidence {found.confidence:.2f}{doubt}"

    def _read(self, call: Read) -> str:
        found = self._folders.read(call.path, call.first_line, call.last_line or None)
        lines = _numbered(found.text, found.first_line)
        _, end, n_tokens = self._fitting(lines, 0, call.max_tokens)
        if not end:  # one line may be a whole program
            lines[0], n_tokens = self._cut(lines[0], call.max_tokens)
        shown_lines = "".join(lines[: end or 1])
        last = found.first_line + max(end, 1) - 1
        rest = (
            ""
            if end == len(lines)
            else f"; go on with first_line={last + 1}"
            if end
            else f"; line {last} is cut"
        )
        place = f"{shown(call.path)}:{found.first_line}-{last}"
        return f"{shown_lines}{place} of {pluralize(found.n_lines, 'line')}, {pluralize(n_tokens, 'token')}{rest}"

    def _files(self, call: Files) -> str:
        paths = [shown(path) + "\n" for path in self._folders.files(call.folder, call.glob)]
        _, end, n_tokens = self._fitting(paths, 0, call.max_tokens)
        return "".join(paths[:end]) + _totals(end, len(paths), "file", n_tokens)

    def _ask(self, call: Ask) -> str:
        found = self._find(call, 4 * call.top_n).results
        chunks = [Chunk(one.chunk_txt, one.metadata, title=one.title) for one in found]
        answer = ask(call.question, chunks, runner=self._runner, top_n=call.top_n)
        sources = enumerate((found[source.result.original_index] for source in answer.sources), 1)
        return "\n".join(
            [
                answer.text_with_citations,
                *(f"[{number}] {_place(one, call.index)}" for number, one in sources),
            ]
        )

    def _fitting(self, lines: Sequence[str], best: int, most: int) -> tuple[int, int, int]:
        """Return which lines to show within a number of tokens: from the best on, and then those before it.

        They are told by the first, the one behind the last, and their tokens.
        """
        start = end = best
        left = most
        while end < len(lines) and (n_tokens := self._n_tokens(lines[end], left)) <= left:
            end, left = end + 1, left - n_tokens
        while (
            end == len(lines)
            and start
            and (n_tokens := self._n_tokens(lines[start - 1], left)) <= left
        ):
            start, left = start - 1, left - n_tokens
        return start, end, most - left

    def _n_tokens(self, line: str, most: int) -> int:
        """Return the tokens of a line; of one that is far too long only that they are too many."""
        return self._count(line) if len(line) <= _TOKEN_CHARS * max(most, 1) else most + 1

    def _window(self, line: str, start: int, end: int, most: int) -> tuple[str, int]:
        """Return what there is room for of a numbered line that holds a passage of its text, with its tokens.

        It begins with the sentence that the passage begins in, or with the passage if that would have no room.
        """
        number, _, text = line.removesuffix("\n").partition("\t")
        room = most - self._count(f"{number}\t… …\n")
        if room < 1:
            return "", 0
        first = max((one for one, _ in sentences(text[:end]) if one <= start), default=0)
        if self._n_tokens(text[first:end], room) > room:
            first = start
        rest = text[first : first + _TOKEN_CHARS * room]
        begin, behind = next(spans_of_tokens(rest, room, self._count), (0, 0))
        more = " …" if first + behind < len(text.rstrip()) else ""
        shown_line = f"{number}\t{'… ' if first else ''}{rest[begin:behind]}{more}\n"
        return shown_line, self._count(shown_line)

    def _cut(self, line: str, most: int) -> tuple[str, int]:
        """Return the beginning of a line that is at most so many tokens, with their number."""
        line = line[: _TOKEN_CHARS * most]
        while (n_tokens := self._count(line)) > most:
            line = line[: len(line) * most // n_tokens]
        return line + "\n", n_tokens


def _numbered(text: str, first: object) -> list[str]:
    """Return the lines of a text behind their numbers, or behind a bar where lines have none, as on a page."""
    lines = text.split("\n")
    if not checks.is_integer(first):
        return [f"|\t{line}\n" for line in lines]
    return [f"{number}\t{line}\n" for number, line in enumerate(lines, first)]


def _place(result: SearchResult, index: str) -> str:
    """Say where a result stands; the metadata of an index may be of any kind."""
    metadata = result.metadata
    if not isinstance(metadata.get("path"), str):
        return f"{index}[{result.original_index}]"
    path = metadata["path"]
    if checks.is_integer(metadata.get("first_line")) and checks.is_integer(
        metadata.get("last_line")
    ):
        return f"{shown(path)}:{metadata['first_line']}-{metadata['last_line']}"
    part = next(
        (f" {kind} {metadata[kind]}" for kind in ("page", "slide", "sheet") if kind in metadata), ""
    )
    return shown(f"{path}{part}")


def _totals(n_shown: int, n_found: int, noun: str, n_tokens: int, *, has_files: bool = True) -> str:
    narrow = " or narrow with glob" if has_files else ""
    more = "" if n_shown == n_found else f" (raise max_tokens{narrow} for the others)"
    return f"{n_shown:,} of {pluralize(n_found, noun)} shown{more}, {pluralize(n_tokens, 'token')}"
