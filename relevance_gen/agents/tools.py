"""The tools of agents: their parameters, descriptions and answers.

Answers are text. A location is written ``path:first-last`` with line numbers. Without line numbers,
it is the path, followed by the page, slide or sheet if there is one, as in ``path page 3``. For a
result without a path, it is ``index[position]``. Each line of a text is printed after its line
number, or after a bar if it lacks a number.

The last line of an answer of ``search`` or ``files`` contains the number of results that are shown;
the last line of an answer of ``read`` contains the location of the lines that are shown. The other
lines of these answers have together at most ``max_tokens`` tokens, counted with the encoding that
is part of this package. The answers of ``ask`` have neither this limit nor this last line.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, Final, TypeAlias

import attrs
from attrs import field, frozen

from relevance_gen import checks, wire
from relevance_gen.agents.folders import Folders, ToolSearchResult, escape_path
from relevance_gen.asking.api import ask
from relevance_gen.errors import InvalidRequestError, did_you_mean, pluralize, shorten
from relevance_gen.generation.runner import Runner
from relevance_gen.text.chunking import sentences, spans_of_tokens
from relevance_gen.text.token_counting import token_counter
from relevance_gen.types import Chunk, SearchResponse, SearchResult

NamedSearches: TypeAlias = Mapping[str, Callable[[str, int], SearchResponse]]
"""For each index by name, a function from a query and a number of results to a response."""
RefreshIndex: TypeAlias = Callable[[str], Callable[[], Awaitable[None]] | None]
"""A function that begins to refresh an index, given its name.

It returns a function whose result must be awaited until the refresh ends, or None if there is
nothing to wait for.
"""

MAX_TOKENS: Final = 100_000
"""Maximum tokens of an answer: more than most models can read."""
_MAX_TOKEN_CHARS: Final = 128
"""Maximum characters of a token, except for rare runs of one character."""
_MIN_RESULT_TOKENS: Final = 32
"""Minimum tokens for the text of a result, even if fewer results fit into the answer then.

The last result that is shown may have fewer tokens.
"""
_LIKELY: Final = 0.5
"""The minimum confidence of a search whose results probably contain an answer."""
_MAX_TITLE_CHARS: Final = 200
_JSON_TYPES: Final = {"str": "string", "int": "integer"}
_FILES_PURPOSE: Final = (
    "Rank files by a question and show the best lines of each, numbered. Use it first, when you "
    "know what the files are about and not where or in which words: one call instead of many "
    "greps. It sees names of files, too, and every change at once. For all uses of one exact name, "
    "use grep."
)
_INDEXES_PURPOSE: Final = (
    "Rank the chunks of an index by a question and show the best lines of each."
)
_READ_PURPOSE: Final = "Read lines of a file, or the text of a PDF or an Office file, numbered."
_LIST_PURPOSE: Final = "List the files that can be searched and read."
_ASK_PURPOSE: Final = (
    "Have a small model answer a question from what is found, with its sources. search shows more."
)
_QUESTION: Final = (
    "what to find: a question or a description in plain words, names and words of the files among "
    "them"
)
_FOLDER: Final = "only files below this folder"
_GLOB: Final = "only files that match, as in .gitignore: *.py, docs/**, !tests/"
_INDEX: Final = "search this index, and no files"
_TOKENS: Final = "most tokens of the answer"


def _text(purpose: str, default: Any = attrs.NOTHING) -> Any:
    check = checks.not_blank if default is attrs.NOTHING else checks.string
    return field(default=default, validator=check, metadata={"purpose": purpose})


def _number(purpose: str, default: int, low: int, high: int) -> Any:
    return field(
        default=default,
        validator=checks.integer(low, high),
        metadata={"purpose": purpose, "limits": {"minimum": low, "maximum": high}},
    )


@frozen(kw_only=True)
class SearchCall:
    """The parameters of the tool ``search``."""

    question: str = _text(_QUESTION)
    folder: str = _text(_FOLDER, "")
    glob: str = _text(_GLOB, "")
    top_n: int = _number("most results", 10, 1, 100)
    max_tokens: int = _number(_TOKENS, 1500, 1, MAX_TOKENS)
    index: str = _text(_INDEX, "")


@frozen(kw_only=True)
class ReadCall:
    """The parameters of the tool ``read``."""

    path: str = _text("path of the file, as the other tools write it")
    first_line: int = _number("first line wanted", 1, 1, 1 << 53)
    last_line: int = _number("last line wanted; 0 for the file's last", 0, 0, 1 << 53)
    max_tokens: int = _number(_TOKENS, 10_000, 1, MAX_TOKENS)


@frozen(kw_only=True)
class FilesCall:
    """The parameters of the tool ``files``."""

    folder: str = _text(_FOLDER, "")
    glob: str = _text(_GLOB, "")
    max_tokens: int = _number(_TOKENS, 2000, 1, MAX_TOKENS)


@frozen(kw_only=True)
class AskCall:
    """The parameters of the tool ``ask``."""

    question: str = _text(_QUESTION)
    folder: str = _text(_FOLDER, "")
    glob: str = _text(_GLOB, "")
    top_n: int = _number("most passages that the answer is written from", 5, 1, 20)
    index: str = _text(_INDEX, "")


@frozen
class AgentTool:
    """A tool that agents can call.

    Attributes:
        purpose: the description for agents: the effect of the tool, and when to use it.
        call_type: the class of its parameters, such as `SearchCall`.
        run: the function from the parameters to the answer.
        indexes: names of the indexes that a call can search.
        has_files: whether the server has folders, so that a call can select files in them.
    """

    purpose: str
    call_type: type
    run: Callable[[Any], str]
    indexes: Sequence[str]
    has_files: bool

    @property
    def schema(self) -> dict[str, Any]:
        """The JSON schema of the parameters, in which each parameter has exactly one JSON type.

        ``folder`` and ``glob`` are left out if the server lacks folders, and ``index`` if it lacks
        indexes. ``index`` is required if the server lacks folders.
        """
        is_offered = {"folder": self.has_files, "glob": self.has_files, "index": bool(self.indexes)}
        properties = {}
        required = []
        for parameter in attrs.fields(self.call_type):
            name = parameter.name
            if not is_offered.get(name, True):
                continue
            properties[name] = self._property_schema(parameter)
            is_only_index = name == "index" and not self.has_files
            if parameter.default is attrs.NOTHING or is_only_index:
                required.append(name)
        return {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    def check_names(self, names: Iterable[str]) -> None:
        """Raise an `InvalidRequestError` if one of `names` is not a field of `call_type`.

        The message suggests a similar parameter of `schema`, or lists all parameters of `schema`.
        """
        parameters = attrs.fields_dict(self.call_type)
        for name in names:
            if name not in parameters:
                offered = self.schema["properties"]
                remedy = did_you_mean(name, offered, f"the fields are {', '.join(offered)}")
                raise InvalidRequestError("is not a known field", shorten(name), remedy=remedy)

    def _property_schema(self, parameter: attrs.Attribute[Any]) -> dict[str, Any]:
        schema = {
            "type": _JSON_TYPES[str(parameter.type)],
            "description": parameter.metadata["purpose"],
        }
        schema |= parameter.metadata.get("limits", {})
        if parameter.name == "index":
            schema["enum"] = self.indexes
        elif parameter.default is not attrs.NOTHING:
            schema["default"] = parameter.default
        return schema


@frozen
class _ShownText:
    """A text that an answer shows.

    Attributes:
        text: lines, or a part of a line.
        n_tokens: number of tokens of the text.
        n_lines: number of complete lines in the text.
    """

    text: str
    n_tokens: int
    n_lines: int = 0


class Tools:
    """The tools that search, list and read folders and indexes.

    Args:
        folders: the folders.
        runner: the model that the tool ``ask`` generates answers with; None for no such tool.
        indexes: the searches of indexes, by name.

    Attributes:
        by_name: the tools by name; empty without folders and indexes.
    """

    def __init__(
        self, folders: Folders, runner: Runner | None = None, indexes: NamedSearches | None = None
    ) -> None:
        self._folders = folders
        self._runner = runner
        self._indexes = indexes or {}
        self._count = token_counter(None).count
        self.by_name: dict[str, AgentTool] = {}
        has_files = bool(folders.indexes)
        new_tool = partial(AgentTool, indexes=list(self._indexes), has_files=has_files)
        if self._indexes or has_files:
            purpose = _FILES_PURPOSE if has_files else _INDEXES_PURPOSE
            self.by_name["search"] = new_tool(purpose, SearchCall, self._search)
        if has_files:
            self.by_name["read"] = new_tool(_READ_PURPOSE, ReadCall, self._read)
            self.by_name["files"] = new_tool(_LIST_PURPOSE, FilesCall, self._files)
        if self.by_name and runner is not None:
            self.by_name["ask"] = new_tool(_ASK_PURPOSE, AskCall, self._ask)

    def call(self, name: str, arguments: Mapping[str, object]) -> str:
        """Return the answer of the tool `name`, which must exist.

        An argument that is None counts as not given.

        Raises:
            InvalidRequestError: an argument is invalid, or a file cannot be read.
            RelevanceGenError: a search or the model failed.
        """
        tool = self.by_name[name]
        non_null = {name: value for name, value in arguments.items() if value is not None}
        tool.check_names(non_null)
        return tool.run(wire.structure(tool.call_type, non_null))

    def _find(self, call: SearchCall | AskCall, top_n: int) -> ToolSearchResult:
        """Return at most `top_n` results for the question of a call.

        If the call names an index, or if there are no folders, the index is searched. Otherwise,
        the files that the call selects are searched.

        Raises:
            InvalidRequestError: there is no such index, or the call also selects files.
        """
        if not call.index and self._folders.indexes:
            return self._folders.search(call.question, top_n, call.folder, call.glob)
        if call.index not in self._indexes:
            if not self._indexes:
                raise InvalidRequestError("must not be given: no index is offered here", "index")
            names = ", ".join(self._indexes)
            raise InvalidRequestError.must_be("index", f"one of {names}", call.index)
        for name in ("folder", "glob"):
            if getattr(call, name):
                remedy = "it chooses among files"
                raise InvalidRequestError("cannot be combined with index", name, remedy=remedy)
        response = self._indexes[call.index](call.question, top_n)
        return ToolSearchResult([*response.results], f"index {call.index}", response.confidence)

    # ── Answers ──────────────────────────────────────────────────────────────────────────────────

    def _search(self, call: SearchCall) -> str:
        search_result = self._find(call, call.top_n)
        n_results = len(search_result.results)
        if not n_results:
            return f"nothing found in {search_result.scope}; try other words, or fewer"
        parts: list[str] = []
        n_left = call.max_tokens
        for rank, result in enumerate(search_result.results):
            header = _header(result, call.index)
            n_header = self._count(header)
            if n_header > n_left:
                break
            share = max(n_left // (n_results - rank), n_header + _MIN_RESULT_TOKENS)
            body = self._best_lines(result, min(share, n_left) - n_header)
            parts.append(header + body.text)
            n_left -= n_header + body.n_tokens
        has_files = not call.index
        n_tokens = call.max_tokens - n_left
        totals = _totals(len(parts), n_results, "result", n_tokens, has_files=has_files)
        doubt = ", probably none of these answers it" if search_result.confidence < _LIKELY else ""
        confidence = f"confidence {search_result.confidence:.2f}{doubt}"
        return f"{''.join(parts)}{totals}; {search_result.scope} searched, {confidence}"

    def _best_lines(self, result: SearchResult, max_tokens: int) -> _ShownText:
        """Return lines of the text of a result, with line numbers, in at most `max_tokens` tokens.

        The lines begin with the first line of the result's passage, or with the first line of the
        text without a passage. If all lines from there to the end of the text fit, lines before the
        passage are added. If not even the first line of the passage fits, a part of that line is
        returned.
        """
        text = result.chunk_txt
        lines = _number_lines(text, result.metadata.get("first_line"))
        start, end = 0, 0
        if result.passage is not None:
            start, end = result.passage.start, result.passage.end
        best = text.count("\n", 0, start)
        shown = self._fit_lines(lines, best, max_tokens)
        if shown.n_lines:
            return shown
        line_start = text.rfind("\n", 0, start) + 1
        return self._cut_to_passage(lines[best], start - line_start, end - line_start, max_tokens)

    def _read(self, call: ReadCall) -> str:
        # The characters beyond this limit have more tokens than the answer may have.
        max_chars = _MAX_TOKEN_CHARS * (call.max_tokens + 1)
        file_lines = self._folders.read(
            call.path, call.first_line, call.last_line or None, max_chars
        )
        lines = _number_lines(file_lines.text, file_lines.first_line)
        shown = self._fit_lines(lines, 0, call.max_tokens)
        last = file_lines.first_line + max(shown.n_lines, 1) - 1
        remark = ""
        if not shown.n_lines:  # a single line may be a whole program
            shown = self._truncate(lines[0], call.max_tokens)
            remark = f"; line {last} is cut"
        elif shown.n_lines < len(lines):
            remark = f"; go on with first_line={last + 1}"
        location = f"{escape_path(call.path)}:{file_lines.first_line}-{last}"
        size = f"{pluralize(file_lines.n_lines, 'line')}, {pluralize(shown.n_tokens, 'token')}"
        return f"{shown.text}{location} of {size}{remark}"

    def _files(self, call: FilesCall) -> str:
        paths = self._folders.files(call.folder, call.glob)
        lines = [escape_path(path) + "\n" for path in paths]
        shown = self._fit_lines(lines, 0, call.max_tokens)
        return shown.text + _totals(shown.n_lines, len(lines), "file", shown.n_tokens)

    def _ask(self, call: AskCall) -> str:
        results = self._find(call, 4 * call.top_n).results
        chunks = [
            Chunk(result.chunk_txt, result.metadata, title=result.title) for result in results
        ]
        answer = ask(call.question, chunks, runner=self._runner, top_n=call.top_n)
        lines = [answer.text_with_citations]
        for number, source in enumerate(answer.sources, 1):
            result = results[source.result.original_index]
            lines.append(f"[{number}] {_location(result, call.index)}")
        return "\n".join(lines)

    # ── Fitting text into a number of tokens ─────────────────────────────────────────────────────

    def _fit_lines(self, lines: Sequence[str], best: int, max_tokens: int) -> _ShownText:
        """Return adjacent lines that fit into `max_tokens`.

        They begin with the line at the index `best`, followed by later lines; only if all later
        lines fit, lines before `best` are added. The text is empty if the best line does not fit.
        """
        start = end = best
        n_left = max_tokens
        for index in chain(range(best, len(lines)), reversed(range(best))):
            n_tokens = self._count_up_to(lines[index], n_left)
            if n_tokens > n_left:
                break
            start = min(start, index)
            end = max(end, index + 1)
            n_left -= n_tokens
        text = "".join(lines[start:end])
        return _ShownText(text, max_tokens - n_left, end - start)

    def _count_up_to(self, line: str, max_tokens: int) -> int:
        """Return the number of tokens of a line.

        If the line certainly has more than `max_tokens` tokens, it is not tokenized, and the result
        is any number above `max_tokens`.
        """
        if len(line) > _MAX_TOKEN_CHARS * max(max_tokens, 1):
            return max_tokens + 1
        return self._count(line)

    def _cut_to_passage(self, line: str, start: int, end: int, max_tokens: int) -> _ShownText:
        """Return the part of a numbered line that contains the beginning of a passage.

        The part begins with the sentence in which the passage begins. If the text from there to the
        end of the passage does not fit into `max_tokens`, the part begins with the passage itself.

        Args:
            line: a line as `_number_lines` returns it.
            start: start of the passage, as a position in the text of the line after the number and
                the tab.
            end: end of the passage, counted like `start`; may be after the end of the line.
            max_tokens: maximum tokens of the part. If not even the number fits, the part is empty.
        """
        number, _, text = line.removesuffix("\n").partition("\t")
        n_left = max_tokens - self._count(f"{number}\t… …\n")
        if n_left < 1:
            return _ShownText("", 0)
        sentence_starts = [first for first, _ in sentences(text[:end]) if first <= start]
        first = max(sentence_starts, default=0)
        if self._count_up_to(text[first:end], n_left) > n_left:
            first = start
        rest = text[first : first + _MAX_TOKEN_CHARS * n_left]
        part_start, part_end = next(spans_of_tokens(rest, n_left, self._count), (0, 0))
        before = "… " if first else ""
        after = " …" if first + part_end < len(text.rstrip()) else ""
        part = f"{number}\t{before}{rest[part_start:part_end]}{after}\n"
        return _ShownText(part, self._count(part))

    def _truncate(self, line: str, max_tokens: int) -> _ShownText:
        """Return the beginning of a line, with at most `max_tokens` tokens, and a newline.

        The tokens of the appended newline are not counted.
        """
        line = line[: _MAX_TOKEN_CHARS * max_tokens]
        while (n_tokens := self._count(line)) > max_tokens:
            line = line[: len(line) * max_tokens // n_tokens]
        return _ShownText(line + "\n", n_tokens)


def _number_lines(text: str, first: object) -> list[str]:
    """Return the lines of a text, each after its number and a tab.

    `first` is the number of the first line. If it is not an integer, because a result has no line
    numbers, a bar replaces the numbers.
    """
    lines = text.split("\n")
    if not checks.is_integer(first):
        return [f"|\t{line}\n" for line in lines]
    return [f"{number}\t{line}\n" for number, line in enumerate(lines, first)]


def _header(result: SearchResult, index: str) -> str:
    """Return the line above the text of a result: its location and its score.

    If the result is from an index, its title is appended, unless it is empty or equals the path.

    Args:
        result: the result.
        index: the name of the index that was searched; "" if files were searched.
    """
    title = ""
    if index and result.title not in ("", result.metadata.get("path")):
        title = f"  {escape_path(result.title[:_MAX_TITLE_CHARS])}"
    return f"{_location(result, index)}  {result.chunk_score:.2f}{title}\n"


def _location(result: SearchResult, index: str) -> str:
    """Return the location of a result, in the form that the docstring of this module defines.

    The metadata of an index can have values of any type. A ``path`` that is not a string, and line
    numbers that are not integers, are treated as missing.

    Args:
        result: the result.
        index: the name of the index that was searched, for a result without a path.
    """
    metadata = result.metadata
    path = metadata.get("path")
    if not isinstance(path, str):
        return f"{index}[{result.original_index}]"
    first_line, last_line = metadata.get("first_line"), metadata.get("last_line")
    if checks.is_integer(first_line) and checks.is_integer(last_line):
        return f"{escape_path(path)}:{first_line}-{last_line}"
    for kind in ("page", "slide", "sheet"):
        if kind in metadata:
            return escape_path(f"{path} {kind} {metadata[kind]}")
    return escape_path(path)


def _totals(
    n_shown: int,
    n_found: int,
    noun: str,
    n_tokens: int,
    *,
    has_files: bool = True,
) -> str:
    """Return the last line of an answer: the numbers of shown results and of tokens.

    If not all results are shown, the line also names the parameters to change for further results.

    Args:
        n_shown: number of results in the answer.
        n_found: number of results that were found.
        noun: the noun for a result, such as "file".
        n_tokens: number of tokens of the answer.
        has_files: whether files were searched; then the line also suggests the parameter ``glob``.
    """
    advice = ""
    if n_shown < n_found:
        narrow = " or narrow with glob" if has_files else ""
        advice = f" (raise max_tokens{narrow} for the others)"
    total = pluralize(n_found, noun)
    return f"{n_shown:,} of {total} shown{advice}, {pluralize(n_tokens, 'token')}"
