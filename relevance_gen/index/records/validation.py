"""Check chunks and convert records to chunks, for the library, the command line and the server."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Final, Literal, TypeAlias, get_args

from relevance_gen import checks
from relevance_gen.errors import InvalidRequestError, did_you_mean, shorten, to_install
from relevance_gen.index.chunks import Chunks
from relevance_gen.types import Chunk, Metadata

Blank: TypeAlias = Literal["error", "skip"]
"""How to handle a chunk of only white space, and None or NaN, which data frames use for a missing
text: raise an error, or leave the chunk out without changing the positions of the other chunks."""

_MAX_LISTED_FIELDS: Final = 20
_BATCH_ROWS: Final = 256
"""Number of rows of a table that are converted to Python objects at once."""
_PANDAS_INDEX_PREFIX: Final = "__index_level_"
_CHUNK_FIELDS: Final = {"text", "metadata", "title"}


def read_chunks(
    values: Iterable[object],
    *,
    path: str = "chunks",
    kinds: str = "a string, a mapping or a Chunk",
    blank: Blank | None = None,
    text: str | None = None,
) -> Chunks:
    """Check strings, mappings and `Chunk` objects, which can be mixed, and return them as `Chunks`.

    If `values` is a `Chunks` object, it is returned unchanged. Strings and mappings with only the
    documented fields are checked in a loop that makes no `Chunk`.

    Args:
        values: a list or another iterable of chunks, or a table.
        path: name of `values` in error messages.
        kinds: allowed kinds of chunks, for error messages.
        blank: "error" refuses blank chunks; "skip" returns an empty text for each of them. None
            refuses blank chunks with errors that do not suggest Python code: for callers that are
            not Python code.
        text: the field of mappings, or the column of a table, that contains the text; the other
            fields are handled as by `record_chunk`. If it is None, mappings must have the
            documented fields, and a table must have the column ``text``.

    Raises:
        InvalidRequestError: `values` is not iterable, or a chunk is blank or of another kind; the
            error names the first such chunk by its path, as in ``chunks[3].text``.
    """
    if isinstance(values, Chunks):
        return values
    if blank not in (None, *get_args(Blank)):
        raise InvalidRequestError.must_be("blank", '"error" or "skip"', blank)
    texts: list[str] = []
    metadata: dict[int, Metadata] = {}
    titles: dict[int, str] = {}
    chunk_text: Any
    chunk_metadata: Metadata | None
    title: Any
    is_python = blank is not None
    for position, value in enumerate(_iterable_of(values, path, text, is_python=is_python)):
        chunk_metadata, title = None, ""
        if type(value) is str:
            chunk_text = value
        elif _has_documented_fields(value):
            chunk_text = value.get("text")
            chunk_metadata = value.get("metadata")
            title = value.get("title", "")
        else:
            chunk_text = None
        is_valid = type(chunk_text) is str and chunk_text and not chunk_text.isspace()
        if not is_valid or type(title) is not str:
            chunk = _read_chunk(value, f"{path}[{position}]", kinds, blank)
            chunk_text, chunk_metadata, title = "", None, ""
            if chunk is not None:
                chunk_text, chunk_metadata, title = chunk.text, chunk.metadata, chunk.title
        texts.append(chunk_text)
        if chunk_metadata:
            metadata[position] = chunk_metadata
        if title and chunk_text and not title.isspace():
            titles[position] = title
    return Chunks(texts, metadata, titles)


def read_records(
    records: Sequence[tuple[str, Any]],
    text: str,
    title: str,
    blank: Blank,
) -> Chunks:
    """Check records, and return them as chunks, converted as `record_chunk` does.

    Args:
        records: location and record, as in ``("a.jsonl line 3", {"text": "…"})``.
        text: the field that has the text of a record.
        title: the field that has its title.
        blank: how to handle blank chunks, as for `read_chunks`.

    Raises:
        InvalidRequestError: a record is not a chunk; the error has the record's location and its
            field names.
    """
    values = [record_chunk(record, text, location, title=title) for location, record in records]
    try:
        return read_chunks(values, blank=blank)
    except InvalidRequestError as error:
        index, _, name = str(error.field).removeprefix("chunks[").partition("]")
        location = records[int(index)][0]
        name = name.removeprefix(".")
        if name:
            location = f"{location}: { {'text': text, 'title': title}.get(name, name) }"
        raise error.with_field(location) from None


def record_chunk(
    record: Any,
    text: str,
    location: str,
    *,
    title: str = "title",
) -> Any:
    """Return a record as a mapping that is a chunk; other fields than text and title are metadata.

    The fields of a nested mapping ``metadata`` become metadata, too. A title or a metadata field
    that is None counts as absent. A text that is None is returned as None; `read_chunks` handles it
    as blank. A record that is not a mapping is returned unchanged.

    Raises:
        InvalidRequestError: the record lacks the field `text`; the error has the location.
    """
    if not isinstance(record, Mapping):
        return record
    if text not in record:
        raise missing_field_error(record, text, "text", location)
    fields = {name: value for name, value in record.items() if value is not None}
    title_value = fields.get(title, "")
    for name in (text, title):
        fields.pop(name, None)
    nested = fields.get("metadata")
    if isinstance(nested, Mapping):
        del fields["metadata"]
        fields |= nested
    return {"text": record[text], "title": title_value, "metadata": fields}


def missing_field_error(
    record: Mapping[Any, Any],
    name: str,
    argument: str,
    location: str,
) -> InvalidRequestError:
    """Return the error for a record that lacks a field that the caller named.

    Args:
        record: the record.
        name: the name of the missing field.
        argument: the argument by which the caller named the field, such as "text".
        location: the record's location.
    """
    fields = [str(field) for field in record]
    listed = ", ".join(map(shorten, fields[:_MAX_LISTED_FIELDS]))
    remedy = did_you_mean(name, fields, f"its fields are {listed}")
    rule = f"must have the field {name!a}, which {argument}= names"
    return InvalidRequestError(rule, location, remedy=remedy)


def _iterable_of(
    values: Any,
    path: str,
    text: str | None,
    *,
    is_python: bool,
) -> Iterable[Any]:
    """Return an iterable of the chunks in `values`; arguments are as for `read_chunks`.

    `is_python` is whether errors may suggest Python code.

    Raises:
        InvalidRequestError: `values` has no chunks; the error suggests an alternative.
    """
    if not isinstance(text, str | None):
        raise InvalidRequestError.must_be("text", "the name of a field, or None", text)
    if is_table(values):
        values = rows_of(values)
        text = text or "text"
    values = checks.as_list(values)
    remedy = None
    if isinstance(values, str | bytes | Mapping):
        remedy = "put a single text in a list"
        if is_python and isinstance(values, str):
            remedy += ", or pass FolderIndex(path) for a folder"
    elif isinstance(values, PathLike):
        remedy = "pass FolderIndex(path) for a folder, or read_documents([path]) for a file"
    elif isinstance(values, Iterable):
        if text is None:
            return values
        return (
            record_chunk(value, text, f"{path}[{position}]")
            for position, value in enumerate(values)
        )
    raise InvalidRequestError.must_be(
        path, "a list of strings, mappings or Chunk objects", values, remedy=remedy
    )


def _has_documented_fields(value: Any) -> bool:
    """Return whether a value is a dict with only a chunk's fields, and metadata that is a dict."""
    if type(value) is not dict or not value.keys() <= _CHUNK_FIELDS:
        return False
    return type(value.get("metadata", {})) is dict


def _is_missing(value: Any) -> bool:
    """Return whether a value represents a missing text: None, NaN, or pandas' NA and NaT."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return value is None or is_nan or type(value).__name__ in {"NAType", "NaTType"}


def _read_chunk(
    value: Any,
    path: str,
    kinds: str,
    blank: Blank | None,
) -> Chunk | None:
    """Check one value of any kind, and return its chunk; None for a blank chunk to leave out.

    Arguments are as for `read_chunks`; `path` is the path of the value.

    Raises:
        InvalidRequestError: the value is not a valid chunk.
    """
    if isinstance(value, Chunk):
        return value
    from relevance_gen import wire  # imports cattrs, which takes 15 ms and is rarely needed

    if not isinstance(value, str | Mapping):
        is_missing = _is_missing(value)
        if is_missing and blank == "skip":
            return None
        remedy = None
        if blank and is_missing:
            remedy = 'leave it out, or pass blank="skip"'
        elif blank and isinstance(value, bytes):
            remedy = "decode it, as in value.decode()"
        raise InvalidRequestError.must_be(path, kinds, value, remedy=remedy)
    fields = {"text": value} if isinstance(value, str) else dict(value)
    text = fields.get("text")
    if blank == "skip" and "text" in fields and _is_missing(text):
        text = ""
    if not blank or not isinstance(text, str) or not checks.is_blank(text):
        return wire.structure(Chunk, fields, path=path)
    if blank == "error":
        raise InvalidRequestError.must_be(
            f"{path}.text",
            "a string that is not blank",
            text,
            remedy='leave it out, or pass blank="skip"',
        )
    wire.structure(Chunk, {**fields, "text": "-"}, path=path)  # raises for an error in other fields
    return None


# ── Tables: data frames and Arrow tables ──────────────────────────────────────────────────────────


def is_table(values: object) -> bool:
    """Return whether a value is a table by Arrow's interface, as data frames are.

    A single column is not a table.
    """
    has_columns = hasattr(values, "columns") or hasattr(values, "schema")
    return hasattr(values, "__arrow_c_stream__") and has_columns


def rows_of(table: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table as mappings from column names to Python values.

    Raises:
        InvalidRequestError: pyarrow is not installed, or a row has a value that Python cannot
            represent.
    """
    try:
        import pyarrow
    except ImportError:
        raise InvalidRequestError(f"tables need pyarrow: {to_install('data')}") from None
    n_rows = 0
    try:
        for batch in pyarrow.RecordBatchReader.from_stream(table):
            for first_row in range(0, batch.num_rows, _BATCH_ROWS):
                for row in batch.slice(first_row, _BATCH_ROWS).to_pylist():
                    yield {
                        name: value
                        for name, value in row.items()
                        if not name.startswith(_PANDAS_INDEX_PREFIX)
                    }
                    n_rows += 1
    except (pyarrow.ArrowException, OverflowError, ValueError) as error:
        raise InvalidRequestError(
            f"a table must be readable, but row {n_rows} or a row soon after it is not: {error}"
        ) from None
