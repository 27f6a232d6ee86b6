"""JSON schemas: removing unknown formats, and finding the paths of keys."""

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
"""The formats that llguidance supports. By the standard, any other format is an annotation and
excludes no text."""
_DATA_KEYS: Final = frozenset(("const", "default", "enum", "examples"))
"""Keys whose values are not schemas."""
_NAMED_SCHEMA_KEYS: Final = frozenset(
    ("$defs", "definitions", "dependentSchemas", "patternProperties", "properties")
)
"""Keys whose values map names to schemas."""


def without_unknown_formats(schema: Any) -> Any:
    """Return a schema without the formats that llguidance does not support.

    >>> password = {"type": "string", "format": "password"}
    >>> without_unknown_formats({"properties": {"format": password}})
    {'properties': {'format': {'type': 'string'}}}
    """
    if isinstance(schema, list):
        return [without_unknown_formats(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    known: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "format" and isinstance(value, str) and value not in FORMATS:
            continue
        if key in _DATA_KEYS:
            known[key] = value
        elif key in _NAMED_SCHEMA_KEYS and isinstance(value, dict):
            known[key] = {name: without_unknown_formats(item) for name, item in value.items()}
        else:
            known[key] = without_unknown_formats(value)
    return known


def paths_of(key: str, schema: Any, path: str = "") -> Iterator[str]:
    """Yield the path of each occurrence of a key in a schema, whose own path is `path`.

    >>> list(paths_of("not", {"items": [{}, {"not": {}}]}))
    ['items[1].not']
    """
    if isinstance(schema, list):
        for index, item in enumerate(schema):
            yield from paths_of(key, item, f"{path}[{index}]")
    elif isinstance(schema, dict):
        for name, value in schema.items():
            value_path = f"{path}.{name}" if path else name
            if name == key:
                yield value_path
            yield from paths_of(key, value, value_path)
