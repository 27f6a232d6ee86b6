"""Read the arguments of a call as JSON where a model writes them in another notation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from relevance_gen import wire
from relevance_gen.errors import InvalidRequestError

_PYTHON: Final = {"True": "true", "False": "false", "None": "null"}
"""Templates write some values as Python does, and so models do, too."""
_CONTROLS: Final = {number: json.dumps(chr(number))[1:-1] for number in range(32)}
"""How JSON writes line ends and their like, which models write into texts as they are."""
_ESCAPE: Final = re.compile(r'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}|(?P<unknown>.))', re.DOTALL)
_LONGEST_HEAD: Final = 600
"""Characters in which a tag before a name, the name and what stands behind it end, if they do."""


def as_json(text: str, schema: Any = None) -> str:
    """Return the JSON that a text is, or that of the text itself, where it is none or its schema allows a text.

    >>> optional = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    >>> as_json("5"), as_json("5", optional), as_json("null", optional), as_json("null", {"type": "string"})
    ('5', '"5"', 'null', '"null"')
    """
    written = _PYTHON.get(text.strip(), text.strip())
    try:
        is_text = isinstance(wire.parse(written.encode(errors="replace")), str)
    except InvalidRequestError:
        is_text = True
    may_be = _allows(schema, "string") and not (written == "null" and _allows(schema, "null"))
    return json.dumps(text, ensure_ascii=False) if is_text or may_be else written


def _allows(schema: Any, kind: str) -> bool:
    """Tell whether a schema says that it allows a type of JSON."""
    given = schema if isinstance(schema, Mapping) else {}
    named = given.get("type")
    inner = [
        one
        for name in ("anyOf", "oneOf")
        if isinstance(some := given.get(name), list)
        for one in some
    ]
    return kind in (named if isinstance(named, list) else [named]) or any(
        _allows(one, kind) for one in inner
    )


class TaggedArguments:
    """Reads arguments that stand between tags each: texts as they are, and all else as JSON or as Python writes it.

    The `tags` stand before, between and behind name and value; a line's end there belongs to neither. `schemas` are
    those of the arguments, by their names; anything else where they are not known.
    """

    def __init__(self, tags: tuple[str, str, str], schemas: object) -> None:
        self._before, self._after = tags[0], tags[2].strip()
        between = r"\s{0,200}".join(map(re.escape, tags[1].split()))
        between += r"(?:\n|(?=.))" * tags[1].endswith("\n")
        self._head = re.compile(rf'{re.escape(self._before)}([^<>"]{{1,300}}+){between}', re.DOTALL)
        self._line_end, self._sign = "\n" * tags[2].startswith("\n"), "{"
        self._schemas = schemas if isinstance(schemas, Mapping) else {}
        self._name: str | None = None
        self._value: list[str] = []

    def read(self, text: str, *, is_whole: bool) -> tuple[int, str, bool]:
        """Return how much of a text is read, its JSON, and whether the call is over.

        What is not read is short, so that it costs little to look at it again. The text is what has come, without what
        was read before. Where it `is_whole`, nothing follows, and what is cut off is left out.
        """
        if self._name is not None:
            return self._read_value(self._name, text, is_whole=is_whole)
        space = len(text) - len(text.lstrip())
        if found := self._head.match(text, space):
            self._name = found[1].strip()
            return found.end(), "", False
        if _may_become(self._before, text, space) or (
            text.startswith(self._before, space) and len(text) - space < _LONGEST_HEAD
        ):
            return len(text) if is_whole else space, "", False
        return space, "}" if self._sign == ", " else "{}", True

    def _read_value(self, name: str, text: str, *, is_whole: bool) -> tuple[int, str, bool]:
        end = text.find(self._after)
        if end < 0:
            n_read = len(text) if is_whole else max(0, len(text) - len(self._after) + 1)
            self._value.append(text[:n_read])
            return n_read, "", False
        value = "".join((*self._value, text[:end])).removesuffix(self._line_end)
        told = f"{self._sign}{json.dumps(name, ensure_ascii=False)}: {as_json(value, self._schemas.get(name))}"
        self._sign, self._name, self._value = ", ", None, []
        return end + len(self._after), told, False


class BareArguments:
    """Reads an object whose names are bare and whose texts stand between marks; JSON itself is read, too."""

    def __init__(self, mark: str) -> None:
        first, beginnings = (
            re.escape(mark[0]),
            "|".join(re.escape(mark[1:n]) for n in range(1, len(mark))),
        )
        no_mark = rf"{first}(?!{re.escape(mark[1:])}|(?:{beginnings})\Z)"
        self._inside = {
            mark: re.compile(rf"(?:[^{first}]|{no_mark})*+"),
            '"': re.compile(r'(?:[^"\\]|\\[^u]|\\u(?:[0-9a-fA-F]{4}|(?![0-9a-fA-F]{0,3}\Z)))*+'),
            "": re.compile(rf'(?:[^{{}}\[\],:"{first}]|{no_mark})*+'),
        }
        self._mark, self._depth = mark, 0
        self._end: str | None = (
            None  # what ends that of which a part is read; nothing does so of its own if it is bare
        )
        self._bare: list[str] = []

    def read(self, text: str, *, is_whole: bool) -> tuple[int, str, bool]:
        """Return how much of a text is read, its JSON, and whether the call is over, as `TaggedArguments` do."""
        start = 0
        if self._end is None:
            start = len(text) - len(text.lstrip())
            if _may_become(self._mark, text, start):
                return len(text) if is_whole else start, "", False
            sign = self._mark if text.startswith(self._mark, start) else text[start]
            if sign in "{}[],:":
                self._depth += (sign in "{[") - (sign in "}]")
                return start + 1, {",": ", ", ":": ": "}.get(sign, sign), not self._depth
            self._end = sign if sign in self._inside else ""
            if self._end:
                return start + len(sign), '"', False
        said = self._inside[self._end].match(text, start)[0]  # type: ignore[index]
        end = start + len(said)
        if not self._end:
            self._bare.append(said)
            if _may_become(self._mark, text, end):
                return len(text) if is_whole else end, "", False
            bare, self._bare, self._end = "".join(self._bare).strip(), [], None
            is_name = text.startswith(":", end)
            return end, json.dumps(bare, ensure_ascii=False) if is_name else as_json(bare), False
        if self._end == self._mark:
            told = json.dumps(said, ensure_ascii=False)[1:-1]
        else:
            told = _ESCAPE.sub(_known_escape, said).translate(_CONTROLS)
        if not text.startswith(self._end, end):
            return len(text) if is_whole else end, told, False
        end, self._end = end + len(self._end), None
        return end, told + '"', False


def _known_escape(found: re.Match[str]) -> str:
    """Return an escape as JSON knows it: models write those of other languages, or a backslash that is meant as one."""
    unknown = found["unknown"]
    return found[0] if unknown is None else unknown if unknown == "'" else "\\\\" + unknown


def _may_become(word: str, text: str, start: int) -> bool:
    """Tell whether what a text has from a place on may become a word when more of it comes."""
    return len(text) - start < len(word) and word.startswith(text[start:])
