"""Changes one member of a JSON file with comments.

The rest of the text is kept, except the white space and the comments between a removed member and
its neighbor; see `remove_member`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

from attrs import define, field, frozen

from relevance_gen.errors import InvalidRequestError

_SPACE: Final = re.compile(r"(?:[ \t\r\n\ufeff]|//[^\n]*|/\*(?:[^*]|\*(?!/))*\*/)*")
_STRING: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_SCALAR: Final = re.compile(r"-?[0-9][-+.0-9eE]*|true|false|null")
_MAX_DEPTH: Final = 100
_DEFAULT_INDENT: Final = "  "


@frozen
class _Member:
    """A member of a JSON object: its key and its value.

    In the text, the member begins at the position `start`, with its key, and ends before the
    position `end`, after its value.
    """

    key: str
    start: int
    value: _Value
    end: int


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
    members: tuple[_Member, ...] | None = None


@define
class _SettingsParser:
    """Parses JSON with comments and trailing commas, and records where each member is."""

    text: str
    position: int = 0
    _depth: int = field(default=0, init=False)

    def parse(self) -> _Value:
        """Parse the complete text and return its value, which must be an object.

        Raises:
            InvalidRequestError: the text is not valid, or its value is not an object.
        """
        self._skip_space()
        value = self._parse_value()
        self._skip_space()
        if self.position < len(self.text) or value.members is None:
            raise self._invalid()
        return value

    def _invalid(self) -> InvalidRequestError:
        line = self.text.count("\n", 0, self.position) + 1
        return InvalidRequestError(f"line {line} is not valid JSON with comments")

    def _skip_space(self) -> None:
        match = _SPACE.match(self.text, self.position)
        if match is not None:
            self.position = match.end()

    def _accept(self, char: str) -> bool:
        is_next = self.text.startswith(char, self.position)
        self.position += is_next
        return is_next

    def _parse_value(self) -> _Value:
        start = self.position
        if self._accept("{"):
            members = self._parse_members()
            plain = {member.key: member.value.plain for member in members}
            return _Value(start, self.position, plain, members)
        if self._accept("["):
            items = self._parse_items()
            return _Value(start, self.position, items)
        match = _STRING.match(self.text, start) or _SCALAR.match(self.text, start)
        if match is None:
            raise self._invalid()
        try:
            plain = json.loads(match[0])
        except ValueError:
            raise self._invalid() from None
        self.position = match.end()
        return _Value(start, self.position, plain)

    def _parse_members(self) -> tuple[_Member, ...]:
        members: list[_Member] = []
        self._skip_space()
        while not self._accept("}"):
            start = self.position
            key = self._parse_value().plain
            self._skip_space()
            if not isinstance(key, str) or not self._accept(":"):
                raise self._invalid()
            self._skip_space()
            value = self._parse_nested()
            members.append(_Member(key, start, value, self.position))
            self._end_item("}")
        return tuple(members)

    def _parse_items(self) -> list[Any]:
        items: list[Any] = []
        self._skip_space()
        while not self._accept("]"):
            items.append(self._parse_nested().plain)
            self._end_item("]")
        return items

    def _end_item(self, close: str) -> None:
        """Skip the white space, the comments and the comma after an item of a list or an object.

        Args:
            close: the closing bracket of the list or object, "]" or "}"; it is not skipped.

        Raises:
            InvalidRequestError: neither a comma nor the closing bracket follows.
        """
        self._skip_space()
        if self._accept(","):
            self._skip_space()
        elif not self.text.startswith(close, self.position):
            raise self._invalid()

    def _parse_nested(self) -> _Value:
        if self._depth >= _MAX_DEPTH:
            raise self._invalid()
        self._depth += 1
        value = self._parse_value()
        self._depth -= 1
        return value


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
    if not text.strip():
        return _Value(0, len(text), {}, ())
    return _SettingsParser(text).parse()


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
    last_end = parent.members[-1].end
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
        return text[: members[index - 1].end] + text[removed.end :]
    if len(members) > 1:
        return text[: removed.start] + text[members[1].start :]
    return text[: removed.start] + text[_skip_comma(text, removed.end) :]


def _skip_comma(text: str, position: int) -> int:
    """Return the position after the comma that follows a value, or `position` without a comma.

    Args:
        text: the text of the document.
        position: the position after the value; white space and comments may precede the comma.
    """
    parser = _SettingsParser(text, position)
    parser._skip_space()
    return parser.position if parser._accept(",") else position


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
