"""Incremental parsers of tool-call arguments, which return JSON.

There is a parser for JSON itself, for tagged values, and for unquoted names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

from attrs import frozen

from relevance_gen import wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.output_parsing.opening_markers import may_become
from relevance_gen.generation.output_parsing.tool_call_formats import ArgumentTags

_PYTHON_VALUES: Final = {"True": "true", "False": "false", "None": "null"}
"""Some templates write values in Python's syntax, so models do, too."""
_CONTROL_CHARACTERS: Final = {
    code: json.dumps(chr(code)).strip('"')  # without the quotation marks of the string
    for code in range(32)
}
"""The JSON escapes of line breaks and other control characters, which models write unescaped into
strings."""
_ESCAPE: Final = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}|(?P<unknown>.))', re.DOTALL)
_JSON_DELIMITER: Final = re.compile(r'["\\{}\[\]]')
_MAX_OPENING_CHARACTERS: Final = 600
"""Characters within which the tag before a name, the name and the tag after it must end."""


@frozen
class ArgumentsChunk:
    """The result of parsing a piece of a call's arguments.

    Attributes:
        n_read: number of characters parsed at the start of the text. The caller passes the rest of
            the text, which is short, again when more text has arrived.
        json: the JSON text of the characters parsed in this call, which continues the JSON of the
            previous calls.
        is_finished: whether the arguments are complete.
    """

    n_read: int
    json: str = ""
    is_finished: bool = False


class ArgumentsParser(Protocol):
    """An incremental parser of the arguments of one call."""

    def read(self, text: str) -> ArgumentsChunk:
        """Parse text of the arguments, and return how much was parsed and its JSON.

        One call may parse only a part of the text. The caller passes the rest again, followed by
        new text. `text` is the text that was not parsed before.

        If the last text ends inside the arguments, the JSON is incomplete, too: nothing is added to
        close strings, lists and objects. An incomplete tag or delimiter, an incomplete tagged value
        and an unquoted value at the end are omitted.
        """


class JsonArguments:
    """Parses arguments that are a JSON object.

    The arguments can be nested in `n_outer` other objects. The text between the end of the
    arguments and the end of the outermost of these objects is read and not returned.
    """

    def __init__(self, n_outer: int) -> None:
        self._outer_depth = -n_outer
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False  # the first character of the next text
        # Whether the text belongs to the arguments, not to the object around them.
        self._is_inside = True

    def read(self, text: str) -> ArgumentsChunk:
        """Parse up to the brace that closes the arguments; see `ArgumentsParser`."""
        end = len(text)
        is_closed = False
        escaped = 0 if self._is_escaped else -1
        for match in _JSON_DELIMITER.finditer(text):
            delimiter = match[0]
            if match.start() == escaped:
                continue
            if self._is_in_string:
                self._is_in_string = delimiter != '"'
                escaped = match.end() if delimiter == "\\" else -1
                continue
            self._is_in_string = delimiter == '"'
            self._depth += _depth_change(delimiter)
            if delimiter in "}]" and self._depth <= (0 if self._is_inside else self._outer_depth):
                end = match.end()
                is_closed = True
                break
        self._is_escaped = escaped == end
        arguments = text[:end] if self._is_inside else ""
        is_finished = is_closed and self._depth <= self._outer_depth
        if is_closed:
            self._is_inside = False
        return ArgumentsChunk(end, arguments, is_finished)


class TaggedArguments:
    """Converts arguments with tags around each name and value to a JSON object.

    A value is a string, JSON or a Python constant; `as_json` converts it. `schemas` maps the names
    of arguments to their JSON schemas; it is ignored if it is not a mapping.
    """

    def __init__(self, tags: ArgumentTags, schemas: object) -> None:
        self._before_name = tags.before_name
        self._after_value = tags.after_value.strip()
        before_value = r"\s{0,200}".join(map(re.escape, tags.before_value.split()))
        if tags.before_value.endswith("\n"):
            before_value += r"(?:\n|(?=.))"
        self._opening = re.compile(
            rf'{re.escape(self._before_name)}([^<>"]{{1,300}}+){before_value}', re.DOTALL
        )
        self._value_end = "\n" if tags.after_value.startswith("\n") else ""
        self._schemas = schemas if isinstance(schemas, Mapping) else {}
        self._separator = "{"  # before the next argument
        self._name: str | None = None
        self._value: list[str] = []

    def read(self, text: str) -> ArgumentsChunk:
        """Parse the next name or value; see `ArgumentsParser`."""
        if self._name is not None:
            return self._read_value(self._name, text)
        n_space = len(text) - len(text.lstrip())
        if opening := self._opening.match(text, n_space):
            self._name = opening[1].strip()
            return ArgumentsChunk(opening.end())
        n_rest = len(text) - n_space
        is_opening = text.startswith(self._before_name, n_space)
        is_short_opening = is_opening and n_rest < _MAX_OPENING_CHARACTERS
        if is_short_opening or may_become(self._before_name, text, n_space):
            return ArgumentsChunk(n_space)
        return ArgumentsChunk(n_space, "}" if self._separator == ", " else "{}", is_finished=True)

    def _read_value(self, name: str, text: str) -> ArgumentsChunk:
        end = text.find(self._after_value)
        if end < 0:
            # The end of the text may be the beginning of the closing tag.
            n_certain = max(0, len(text) - len(self._after_value) + 1)
            self._value.append(text[:n_certain])
            return ArgumentsChunk(n_certain)
        self._value.append(text[:end])
        value = "".join(self._value).removesuffix(self._value_end)
        key = json.dumps(name, ensure_ascii=False)
        argument = f"{self._separator}{key}: {as_json(value, self._schemas.get(name))}"
        self._separator = ", "
        self._name = None
        self._value = []
        return ArgumentsChunk(end + len(self._after_value), argument)


class UnquotedArguments:
    """Parses an object whose names are unquoted and whose strings are between delimiters.

    JSON is accepted, too.
    """

    def __init__(self, delimiter: str) -> None:
        first = re.escape(delimiter[0])
        rest = re.escape(delimiter[1:])
        prefix_ends = range(1, len(delimiter))
        prefixes = "|".join(re.escape(delimiter[1:end]) for end in prefix_ends)
        no_delimiter = rf"{first}(?!{rest}|(?:{prefixes})\Z)"
        self._contents = {
            delimiter: re.compile(rf"(?:[^{first}]|{no_delimiter})*+"),
            '"': re.compile(r'(?:[^"\\]|\\[^u]|\\u(?:[0-9a-fA-F]{4}|(?![0-9a-fA-F]{0,3}\Z)))*+'),
            "": re.compile(rf'(?:[^{{}}\[\],:"{first}]|{no_delimiter})*+'),
        }
        self._delimiter = delimiter
        self._depth = 0
        # The delimiter that ends the current string; empty inside an unquoted name or value, None
        # between values.
        self._end: str | None = None
        self._unquoted: list[str] = []

    def read(self, text: str) -> ArgumentsChunk:
        """Parse the next delimiter, string or unquoted text; see `ArgumentsParser`."""
        if self._end:
            return self._read_string(self._end, text)
        if self._end is not None:
            return self._read_unquoted(text, 0)
        start = len(text) - len(text.lstrip())
        if may_become(self._delimiter, text, start):
            return ArgumentsChunk(start)
        delimiter = text[start]
        if text.startswith(self._delimiter, start):
            delimiter = self._delimiter
        if delimiter in self._contents:
            self._end = delimiter
            return ArgumentsChunk(start + len(delimiter), '"')
        if delimiter in "{}[],:":
            self._depth += _depth_change(delimiter)
            json_text = {",": ", ", ":": ": "}.get(delimiter, delimiter)
            return ArgumentsChunk(start + 1, json_text, is_finished=not self._depth)
        self._end = ""
        return self._read_unquoted(text, start)

    def _read_unquoted(self, text: str, start: int) -> ArgumentsChunk:
        end = self._end_of_content("", text, start)
        self._unquoted.append(text[start:end])
        if may_become(self._delimiter, text, end):
            return ArgumentsChunk(end)
        unquoted = "".join(self._unquoted).strip()
        self._unquoted = []
        self._end = None
        is_name = text.startswith(":", end)
        json_text = json.dumps(unquoted, ensure_ascii=False) if is_name else as_json(unquoted)
        return ArgumentsChunk(end, json_text)

    def _read_string(self, delimiter: str, text: str) -> ArgumentsChunk:
        end = self._end_of_content(delimiter, text, 0)
        if delimiter == self._delimiter:
            json_text = json.dumps(text[:end], ensure_ascii=False)[1:-1]
        else:
            json_text = _ESCAPE.sub(_to_json_escape, text[:end]).translate(_CONTROL_CHARACTERS)
        if not text.startswith(delimiter, end):
            return ArgumentsChunk(end, json_text)
        self._end = None
        return ArgumentsChunk(end + len(delimiter), json_text + '"')

    def _end_of_content(self, delimiter: str, text: str, start: int) -> int:
        content = self._contents[delimiter].match(text, start)
        return content.end() if content else start


def _depth_change(delimiter: str) -> int:
    """Return 1 if a delimiter opens an object or a list, -1 if it closes one, otherwise 0."""
    return (delimiter in "{[") - (delimiter in "}]")


def _to_json_escape(escape: re.Match[str]) -> str:
    r"""Return an escape sequence of a string as JSON permits it.

    A JSON escape is returned unchanged. ``\'`` becomes an apostrophe. Before any other character,
    the backslash is doubled, because models also write escape sequences of other languages, and
    single backslashes that are not escapes.
    """
    unknown = escape["unknown"]
    if unknown is None:
        return escape[0]
    return "'" if unknown == "'" else "\\\\" + unknown


def as_json(text: str, schema: Any = None) -> str:
    """Return a text as JSON.

    A JSON number, constant, list or object is returned without surrounding white space, and a
    Python constant as the JSON constant (``True`` as ``true``). Any other text, also a text in
    quotation marks, is returned as a JSON string of the whole text. If `schema` allows strings, any
    text is returned as a JSON string, except ``null`` and ``None`` if `schema` allows null, too.

    >>> optional = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    >>> as_json("5"), as_json("5", optional)
    ('5', '"5"')
    >>> as_json("null", optional), as_json("null", {"type": "string"})
    ('null', '"null"')
    """
    value = _PYTHON_VALUES.get(text.strip(), text.strip())
    try:
        is_string = isinstance(wire.parse(value.encode(errors="replace")), str)
    except InvalidRequestError:
        is_string = True
    is_allowed_null = value == "null" and _allows_type(schema, "null")
    if is_string or (_allows_type(schema, "string") and not is_allowed_null):
        return json.dumps(text, ensure_ascii=False)
    return value


def _allows_type(schema: Any, type_name: str) -> bool:
    """Return whether a JSON schema names a type among the allowed types."""
    if not isinstance(schema, Mapping):
        return False
    types = schema.get("type")
    if type_name in (types if isinstance(types, list) else [types]):
        return True
    for keyword in ("anyOf", "oneOf"):
        alternatives = schema.get(keyword)
        if isinstance(alternatives, list):
            if any(_allows_type(alternative, type_name) for alternative in alternatives):
                return True
    return False
