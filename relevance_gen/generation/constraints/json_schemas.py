"""JSON schemas as people write them: what a grammar is made of, and where in a schema something stands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

FORMATS: Final = frozenset(
    (
        "date-time",
        "time",
        "date",
        "duration",
        "email",
        "hostname",
        "ipv4",
        "ipv6",
        "uuid",
        "uri",
        "unknown",
    )
)
"""The formats that llguidance knows. Any other is a note for readers, by the standard, and excludes no text."""
_DATA: Final = frozenset(("const", "default", "enum", "examples"))
"""What these keys hold is no schema."""
_NAMED: Final = frozenset(
    ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
)
"""What these hold is a schema for each name."""


def without_unknown_formats(schema: Any) -> Any:
    """Return a schema without the formats that nobody here knows.

    >>> without_unknown_formats({"properties": {"format": {"type": "string", "format": "password"}}})
    {'properties': {'format': {'type': 'string'}}}
    """
    match schema:
        case list():
            return [without_unknown_formats(each) for each in schema]
        case dict():
            return {
                key: value
                if key in _DATA
                else {name: without_unknown_formats(each) for name, each in value.items()}
                if key in _NAMED and isinstance(value, dict)
                else without_unknown_formats(value)
                for key, value in schema.items()
                if key != "format" or not isinstance(value, str) or value in FORMATS
            }
    return schema


def paths_of(wanted: str, schema: Any, path: str = "") -> Iterator[str]:
    """Yield where in a schema a key stands.

    >>> list(paths_of("not", {"items": [{}, {"not": {}}]}))
    ['items[1].not']
    """
    if isinstance(schema, list):
        for place, each in enumerate(schema):
            yield from paths_of(wanted, each, f"{path}[{place}]")
    elif isinstance(schema, dict):
        for key, value in schema.items():
            here = f"{path}.{key}" if path else key
            if key == wanted:
                yield here
            yield from paths_of(wanted, value, here)
