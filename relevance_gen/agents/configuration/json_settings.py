"""Changes one member of a JSON file with comments.

The rest of the text is kept, except the white space and the comments between a removed member and
its neighbor; see `remove_member`.

The parser reads a copy of the text that is plain JSON: spaces replace all comments and trailing
commas, so that each position in the copy is the same position in the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from attrs import frozen

from relevance_gen.errors import InvalidRequestError

_STRING: Final = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT: Final = re.compile(rf"({_STRING})|//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/|\ufeff")
"""Matches a string as group 1, or a comment, or a byte order mark."""
_TRAILING_COMMA: Final = re.compile(rf"({_STRING}|[\[{{:,]\s*,)|,(?=\s*[\]}}])")
"""Matches a trailing comma, or as group 1 a string or a comma that no item precedes, an error."""
_COMMA: Final = re.compile(r"\s*,")
_DECODER: Final = json.JSONDecoder()
_DEFAULT_INDENT: Final = "  "


@frozen
class _Member:
    """A member of a JSON object: its key and its value.

    In the text, the member begins at the position `start`, with its key, and ends with its value.
    """

    key: str
    start: int
    value: _Value


@frozen
class _Value:
    """A JSON value in the text of the settings.

    Attributes:
        start: position in the text at which the value begins.
        end: position in the text after the last character of the value.
        plain: the value as Python's `json` module returns it.
        members: the members of an object; None for other values.
    """

    start: int
    end: int
    plain: Any
    members: list[_Member] | None = None


def read_member(text: str, path: Sequence[str]) -> Any:
    """Return the member at a path of keys in a JSON object; None if it is missing.

    Raises:
        InvalidRequestError: the text is not a JSON object with comments.
    """
    value: Any = _parse(text).plain
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def set_member(text: str, path: Sequence[str], value: object) -> str:
    """Return the text of a JSON object after the member at a path of keys is set to `value`.

    Missing members and missing objects of the path are created. Text outside the member is not
    changed.

    Args:
        text: the text of the JSON object before the change.
        path: the keys from the outermost object to the member.
        value: the new value of the member.

    Raises:
        InvalidRequestError: the text is not a JSON object with comments, or a value on the path is
            not an object.
    """
    current = _parse(text)
    for depth, key in enumerate(path):
        if current.members is None:
            raise InvalidRequestError("must be an object", ".".join(path[:depth]))
        member = _member_of(current, key)
        if member is None:
            for missing_key in reversed(path[depth + 1 :]):
                value = {missing_key: value}
            return _insert(text, current, key, value)
        current = member.value
    indent = _line_indent(text, current.start)
    return text[: current.start] + _dump(value, indent, text) + text[current.end :]


def remove_member(text: str, path: Sequence[str]) -> str:
    """Return a JSON object without the member at a path of keys; unchanged if it is missing.

    An object that becomes empty is removed, too, unless it is the whole document. The text between
    the member and the member before it is also removed, including comments; for the first member,
    this is the text between it and the next member. All other comments are kept.

    Raises:
        InvalidRequestError: the text is not a JSON object with comments.
    """
    parents = [_parse(text)]
    members: list[_Member] = []
    for key in path:
        member = _member_of(parents[-1], key)
        if member is None:
            return text
        members.append(member)
        parents.append(member.value)
    depth = len(path) - 1
    while depth and len(parents[depth].members or ()) == 1:
        depth -= 1
    return _delete(text, parents[depth], members[depth])


def _parse(text: str) -> _Value:
    """Return the object that is the complete text; an empty object for a blank text.

    Raises:
        InvalidRequestError: the text is not a JSON object with comments.
    """
    if not text.strip():
        return _Value(0, len(text), {}, [])
    json_text = _TRAILING_COMMA.sub(_blank, _without_comments(text))
    try:
        json.loads(json_text, parse_constant=int)  # int raises a ValueError for NaN and Infinity
        value = _parse_value(json_text, _skip_separators(json_text, 0))
        if value.members is None:
            raise json.JSONDecodeError("Expecting an object", json_text, len(text))
    except json.JSONDecodeError as error:
        rule = f"line {error.lineno} is not valid JSON with comments"
        raise InvalidRequestError(rule) from None
    except (ValueError, RecursionError):
        reason = "it has NaN, Infinity, a huge number, or too many levels"
        raise InvalidRequestError(f"this is not valid JSON with comments: {reason}") from None
    return value


def _without_comments(text: str) -> str:
    return _COMMENT.sub(_blank, text)


def _blank(match: re.Match[str]) -> str:
    """Return group 1 of a match; without group 1, as many spaces as the match is long.

    White space in the match is kept, so that lines keep their numbers.
    """
    return match[1] or re.sub(r"\S", " ", match[0])


def _parse_value(json_text: str, start: int) -> _Value:
    """Return the value that begins at a position of a valid JSON text."""
    plain, end = _DECODER.raw_decode(json_text, start)
    if not isinstance(plain, dict):
        return _Value(start, end, plain)
    members: list[_Member] = []
    position = _skip_separators(json_text, start + 1)
    while json_text[position] != "}":
        key, key_end = _DECODER.raw_decode(json_text, position)
        value = _parse_value(json_text, _skip_separators(json_text, key_end))
        members.append(_Member(key, position, value))
        position = _skip_separators(json_text, value.end)
    return _Value(start, end, plain, members)


def _skip_separators(json_text: str, position: int) -> int:
    """Return the position of the first character that is not white space, a comma or a colon."""
    while json_text[position] in " \t\r\n,:":
        position += 1
    return position


def _member_of(value: _Value, key: str) -> _Member | None:
    """Return the member of an object that has the key `key`; None if there is none.

    If several members have this key, the last one is returned, because JSON parsers use it.
    """
    members = [member for member in value.members or () if member.key == key]
    return members[-1] if members else None


def _insert(text: str, parent: _Value, key: str, value: object) -> str:
    """Return a document with a new member at the end of one of its objects.

    Args:
        text: the text of the document before the change.
        parent: the object in `text` that gets the member.
        key: the key of the new member.
        value: the value of the new member.
    """
    if not text.strip():
        return _dump({key: value}, "", "") + "\n"
    outer_indent = _line_indent(text, parent.start)
    indent = outer_indent + _indent_unit(text)
    member_text = f"{json.dumps(key)}: {_dump(value, indent, text)}"
    if not parent.members:
        # A comment inside the empty object is kept after the member.
        comment = text[parent.start + 1 : parent.end - 1].strip()
        comment_line = f"\n{indent}{comment}" if comment else ""
        body = f"{{\n{indent}{member_text}{comment_line}\n{outer_indent}}}"
        return text[: parent.start] + body + text[parent.end :]
    last_end = parent.members[-1].value.end
    end = _skip_comma(text, last_end)
    if end > last_end:  # a trailing comma, after which the member is inserted
        return f"{text[:end]}\n{indent}{member_text},{text[end:]}"
    return f"{text[:end]},\n{indent}{member_text}{text[end:]}"


def _delete(text: str, parent: _Value, removed: _Member) -> str:
    """Return the document `text` without the member `removed` of its object `parent`.

    The comma between the member and its neighbor is also removed, with all other text between
    them. The neighbor is the member before it, or the next member for the first member.
    """
    members = parent.members or ()
    index = members.index(removed)
    if index:
        return text[: members[index - 1].value.end] + text[removed.value.end :]
    if len(members) > 1:
        return text[: removed.start] + text[members[1].start :]
    return text[: removed.start] + text[_skip_comma(text, removed.value.end) :]


def _skip_comma(text: str, position: int) -> int:
    """Return the position after the comma that follows a value, or `position` without a comma.

    Args:
        text: the text of the document.
        position: the position after the value; white space and comments may precede the comma.
    """
    comma = _COMMA.match(_without_comments(text), position)
    return position if comma is None else comma.end()


def _dump(value: object, indent: str, text: str) -> str:
    """Return a value as JSON on several lines.

    Args:
        value: the value.
        indent: the indent that is added to all lines except the first.
        text: the document that receives the value; it determines the indent of one level, as
            `_indent_unit` returns it.
    """
    dumped = json.dumps(value, indent=_indent_unit(text), ensure_ascii=False)
    return dumped.replace("\n", f"\n{indent}")


def _indent_unit(text: str) -> str:
    """Return the indent of the first indented line of `text` that begins with a double quote.

    Without such a line, return two spaces.
    """
    match = re.search(r'^([ \t]+)"', text, re.MULTILINE)
    return match[1] if match else _DEFAULT_INDENT


def _line_indent(text: str, position: int) -> str:
    """Return the white space at the beginning of the line of a position."""
    line = text[text.rfind("\n", 0, position) + 1 : position]
    return line[: len(line) - len(line.lstrip(" \t"))]
