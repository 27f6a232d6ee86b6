"""Support for libraries that read responses: pydantic, pandas and readers of Arrow streams."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

from attrs import asdict, fields_dict

from relevance_gen.errors import to_install

_ARROW_TYPES = {
    "chunk_id": "int64",
    "chunk_txt": "string",
    "chunk_score": "float64",
    "original_index": "int64",
    "title": "string",
    "num_collapsed": "int64",
}
"""Arrow types by column name. pyarrow infers the types of other columns from their values."""


class PydanticSerializable:
    """A mixin for a class with a ``to_dict`` method, by which pydantic and FastAPI serialize it."""

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> dict[str, Any]:
        """Return a pydantic-core schema: a plain dict, so that pydantic need not be installed."""
        serialization = {
            "type": "function-plain",
            "function": lambda instance: instance.to_dict(),
            "return_schema": {"type": "any"},
        }
        return {"type": "is-instance", "cls": cls, "serialization": serialization}


def dataclass_fields(cls: type) -> dict[str, dataclasses.Field[Any]]:
    """Return the ``__dataclass_fields__`` of a dataclass that has the fields of an attrs class.

    With this attribute, pandas makes a column of each field of the attrs class.
    """
    dataclass = dataclasses.make_dataclass(cls.__name__, list(fields_dict(cls)))
    return dataclass.__dataclass_fields__  # type: ignore[attr-defined, no-any-return]


def arrow_stream(results: Sequence[Any], cls: type, requested_schema: object) -> object:
    """Return search results, which are instances of `cls`, as the capsule of an Arrow C stream.

    Metadata that no Arrow column can hold is written as JSON. If no result has metadata, the column
    is null.

    Args:
        results: the search results.
        cls: their attrs class; each of its fields is a column.
        requested_schema: the argument of ``__arrow_c_stream__``, which is passed to pyarrow.

    Raises:
        ImportError: pyarrow is not installed.
    """
    try:
        import pyarrow
    except ImportError:
        raise ImportError(f"tables need pyarrow: {to_install('data')}") from None
    columns: dict[str, list[Any]] = {}
    for name in fields_dict(cls):
        columns[name] = [getattr(result, name) for result in results]
    columns["spans"] = [spans and list(map(asdict, spans)) for spans in columns["spans"]]
    has_metadata = any(columns["metadata"])  # Parquet does not support a struct without fields
    columns["metadata"] = [dict(item) if has_metadata else None for item in columns["metadata"]]
    try:
        pyarrow.array(columns["metadata"])
    except (pyarrow.ArrowException, OverflowError, TypeError, ValueError):
        columns["metadata"] = [json.dumps(item, default=str) for item in columns["metadata"]]
    arrays = {
        name: pyarrow.array(values, _ARROW_TYPES.get(name)) for name, values in columns.items()
    }
    return pyarrow.table(arrays).__arrow_c_stream__(requested_schema)
