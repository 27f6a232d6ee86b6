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
    inner = [one for name in ("anyOf", "oneOf") if isinstance(some := given.get(name), list) for one in some]
    return kind in (named if isinstance(named, list) else [named]) or any(_allows(one, kind) for one in inner)


class TaggedArguments:
    """Reads arguments that stand between tags each: texts as they are, and all else as JSON or as Python writes it.

    Args:
        tags: what stands before, between and behind name and value; a line's end there belongs to neither.
        schemas: of the arguments, by their names; anything else where they are not known.
    """

    def __init__(self, tags: tuple[str, str, str], schemas: object) -> None:
        before, between, after = (r"\s*".join(map(re.escape, tag.split())) for tag in tags)
        between, after = between + r"\n?" * tags[1].endswith("\n"), r"\n?" * tags[2].startswith("\n") + after
        self._one = re.compile(rf'\s*{before}([^<>"]{{1,300}}+){between}(.*?){after}', re.DOTALL)
        self._before, self._after, self._sign = tags[0], tags[2].strip(), "{"
        self._schemas = schemas if isinstance(schemas, Mapping) else {}

    def read(self, text: str, *, is_whole: bool) -> tuple[int, str, bool]:
        """Return how much of a text is read, its JSON, and whether the call is over.

        Args:
            text: what has come, without what was read before.
            is_whole: whether nothing follows: what is cut off is left out.
        """
        rest, sign = text.lstrip(), self._sign
        if self._after in text and (found := self._one.match(text)):
            self._sign, name = ", ", found[1].strip()
            value = as_json(found[2], self._schemas.get(name))
            return found.end(), f"{sign}{json.dumps(name, ensure_ascii=False)}: {value}", False
        if rest.startswith(self._before) or self._before.startswith(rest):
            return len(text) * is_whole, "", False
        return 0, "}" if sign == ", " else "{}", True


class BareArguments:
    """Reads an object whose names are bare and whose texts stand between marks; JSON itself is read, too.

    Args:
        mark: what stands around a text.
    """

    def __init__(self, mark: str) -> None:
        first, rest = re.escape(mark[0]), re.escape(mark[1:])
        text = rf"{first}{rest}((?:[^{first}]++|{first}(?!{rest}))*+){first}{rest}"
        bare = rf'([^\s{{}}\[\],:"{first}][^{{}}\[\],:"{first}]*+)(?=.)'
        self._one = re.compile(rf'\s*+(?:{text}|("(?:[^"\\]++|\\.)*+"|[{{}}\[\],:])|{bare})', re.DOTALL)
        self._depth = 0

    def read(self, text: str, *, is_whole: bool) -> tuple[int, str, bool]:
        """Return how much of a text is read, its JSON, and whether the call is over, as `TaggedArguments` do."""
        if (found := self._one.match(text)) is None:
            return len(text) * is_whole, "", False
        said, told, bare = found.groups()
        if told is None:
            is_text = bare is None or text.startswith(":", found.end())
            told = (
                json.dumps(said if bare is None else bare.strip(), ensure_ascii=False)
                if is_text
                else as_json(bare.strip())
            )
        self._depth += (told in "{[") - (told in "}]")
        return found.end(), {",": ", ", ":": ": "}.get(told, told), not self._depth
