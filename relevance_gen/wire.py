"""Conversion between JSON and `relevance_gen.types`. Only this module imports cattrs."""

from __future__ import annotations

import gc
import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from json.encoder import c_make_encoder, encode_basestring_ascii  # type: ignore[attr-defined]
from typing import Any, NoReturn, TypeAlias, TypeVar

import attrs
import cattrs
from cattrs.gen import make_dict_unstructure_fn, override

from relevance_gen import forks
from relevance_gen.errors import InvalidRequestError, describe, nearest, shorten
from relevance_gen.types import Completion, Explanation, GenerationResponse, SearchResponse

T = TypeVar("T")

JsonObject: TypeAlias = dict[str, Any]

MAX_DEPTH = 64
"""Maximum nesting depth of JSON, far below Python's recursion limit."""

_converter = cattrs.Converter()
_nested_converter = cattrs.Converter(detailed_validation=False)
# Metadata belongs to the caller and is written unchanged.
_converter.register_unstructure_hook(dict, lambda mapping: mapping)
_converter.register_unstructure_hook(SearchResponse, SearchResponse.to_dict)
_converter.register_unstructure_hook(Completion, Completion.to_dict)
_converter.register_unstructure_hook(GenerationResponse, GenerationResponse.to_dict)
_OMITTED_IF_DEFAULT = (
    "title",
    "neighbors",
    "semantic",
    "other_chunks",
    "file_name",
    "defined_names",
    "exact_identifiers",
    "reranker",
    "passage",
    "relevance",
    "violated_operators",
    "corrections",
)
"""Fields of `Explanation` that are omitted if they have their default values."""
_OMISSIONS: Any = dict.fromkeys(_OMITTED_IF_DEFAULT, override(omit_if_default=True))
_converter.register_unstructure_hook(
    Explanation,
    make_dict_unstructure_fn(Explanation, _converter, _cattrs_omit_if_default=False, **_OMISSIONS),
)


def parse(body: bytes, *, max_depth: int = MAX_DEPTH) -> object:
    """Parse the JSON body of a request, and return its value.

    Lone surrogates are accepted, as the interface requires. NaN, Infinity and numbers beyond the
    range of a float are refused. If a key occurs twice, the last value is used, as in `json`.

    Raises:
        InvalidRequestError: the body is not UTF-8 or not JSON, nests more than `max_depth`
            containers, or has a number that is too large.
    """
    try:
        with _collector_paused():
            text = body.decode("utf-8")
            value = json.loads(
                text,
                parse_constant=_refuse_constant,
                parse_float=_finite_float,
                parse_int=_integer,
            )
    except UnicodeDecodeError as error:
        raise InvalidRequestError(f"the body must be UTF-8: byte {error.start} is not") from None
    except json.JSONDecodeError as error:
        raise InvalidRequestError(
            f"the body must be JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None
    except RecursionError:
        raise _too_deep(max_depth) from None
    except InvalidRequestError:
        raise
    except ValueError:  # int() refuses more digits than sys.get_int_max_str_digits()
        raise InvalidRequestError(
            "the body must be JSON whose integers have fewer digits"
        ) from None
    if _is_deeper(value, max_depth):
        raise _too_deep(max_depth)
    return value


_pause_lock = threading.Lock()
_n_pauses = 0
_was_collector_enabled = False


def _end_pauses() -> None:
    """Enable the garbage collector in a forked process, if threads of its parent had disabled it.

    A fork copies only the calling thread, so the threads in `_collector_paused` cannot enable it.
    """
    global _pause_lock, _n_pauses
    _pause_lock = threading.Lock()
    if _n_pauses and _was_collector_enabled:
        gc.enable()
    _n_pauses = 0


forks.call_in_child(_end_pauses)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Disable the garbage collector in this context, in which JSON is parsed.

    Parsed values have no reference cycles, and the collector would traverse each of a million lists
    about six times, which takes 7/8 of the time. It is enabled again, if it was enabled before,
    when the last thread has left the context.
    """
    global _n_pauses, _was_collector_enabled
    with _pause_lock:
        if not _n_pauses:
            _was_collector_enabled = gc.isenabled()
            gc.disable()
        _n_pauses += 1
    try:
        yield
    finally:
        with _pause_lock:
            _n_pauses -= 1
            if _was_collector_enabled and not _n_pauses:
                gc.enable()


def _is_deeper(value: object, max_depth: int) -> bool:
    """Return whether `value` nests more than `max_depth` containers in one another."""
    containers = [value] if isinstance(value, dict | list) else []
    for _ in range(max_depth):
        inner_containers = []
        for container in containers:
            items = container.values() if type(container) is dict else container
            for item in items:
                if type(item) is dict or type(item) is list:
                    inner_containers.append(item)
        if not inner_containers:
            return False
        containers = inner_containers
    return bool(containers)


def _too_deep(max_depth: int) -> InvalidRequestError:
    return InvalidRequestError(f"the body must be JSON that nests at most {max_depth} deep")


def _finite_float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise InvalidRequestError(
            f"the body must be JSON whose numbers a float can hold: {digits[:20]} is too large"
        )
    return number


def _integer(digits: str) -> int:
    """Return ``int(digits)``; the JSON parser calls this function instead of `int`.

    When it calls a Python function, other threads can acquire the GIL, unlike when it calls `int`.
    """
    return int(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidRequestError(f"the body must be JSON: {name} is not")


def structure(
    cls: type[T],
    value: object,
    *,
    path: str = "",
    is_lenient: bool = False,
    removed: Sequence[str] = (),
) -> T:
    """Return an instance of `cls` with the fields in a mapping.

    Args:
        cls: an attrs class, which checks the values.
        value: the mapping.
        path: path of `value`, a prefix of the field names in errors, e.g. ``"chunk_txts[3]"``.
        is_lenient: ignore unknown fields, and treat ``null`` as a missing field.
        removed: known fields that the caller has removed from `value`, for errors.

    Raises:
        InvalidRequestError: `value` is not a mapping, a field is unknown (the nearest known field
            is suggested) or missing, or the class refuses a value.
    """
    if not isinstance(value, Mapping):
        rule = "must be an object" if path else "the body must be an object"
        raise InvalidRequestError(rule, path or None, describe(value))
    prefix = f"{path}." if path else ""
    attributes = attrs.fields(cls)  # type: ignore[arg-type]
    fields = {attribute.name: attribute for attribute in attributes}
    if is_lenient:
        known = {name: item for name, item in value.items() if name in fields}
        value = {name: item for name, item in known.items() if item is not None}
    for name in value:
        if name not in fields:
            path = f"{prefix}{shorten(name)}"
            remedy = _suggest_field(prefix, shorten(name), [*fields, *removed])
            raise InvalidRequestError("is not a known field", path, remedy=remedy)
    for name, attribute in fields.items():
        if attribute.default is attrs.NOTHING and name not in value:
            raise InvalidRequestError("is required", f"{prefix}{name}")
    try:
        return cls(**value)
    except InvalidRequestError as error:
        raise error.with_field(f"{prefix}{error.field}") from None


def structure_nested(cls: type[T], value: object) -> T:
    """Return an instance of an attrs class whose fields can be attrs classes, too.

    Values are converted to the types of their fields, and unknown fields are ignored: a caller that
    accepts only exact values must compare the JSON of the result with the JSON of `value`.

    Args:
        cls: the class.
        value: the fields, as plain dicts and lists.

    Raises:
        Exception: a field is missing, or its value cannot be converted.
    """
    return _nested_converter.structure(value, cls)


def _suggest_field(prefix: str, name: str, known: list[str]) -> str:
    """Return the advice in the error for an unknown field.

    The advice is the known field with the most similar name; if none is similar, all known fields.

    Args:
        prefix: the path of the object that has the field, with a final dot; "" for the body.
        name: the name of the unknown field.
        known: the names of the known fields.
    """
    if similar := nearest(name, known):
        return f"did you mean {prefix}{similar}?"
    hint = "; put further data into metadata" if "metadata" in known else ""
    return f"the fields are {', '.join(known)}{hint}"


@attrs.frozen
class StreamFormat:
    """The format in which the items of an HTTP stream are sent.

    Attributes:
        content_type: the media type.
        heartbeat: bytes that keep the connection open, and that clients ignore.
    """

    content_type: str
    heartbeat: bytes


EVENT_STREAM = StreamFormat("text/event-stream", b": waiting\n\n")
"""Server-sent events; the heartbeat is a comment."""
JSON_LINES = StreamFormat("application/x-ndjson", b" ")
"""A JSON value on each line; the heartbeat is white space before the next value."""


def unstructure(value: object) -> Any:
    """Convert a value of `relevance_gen.types` to plain dicts and lists.

    Fields that the request did not ask for are left out.
    """
    return _converter.unstructure(value)


def serialize(value: object) -> bytes:
    """Return the JSON of a value of `relevance_gen.types`, or of plain dicts and lists.

    The JSON is ASCII, with other characters escaped, so that lone surrogates are preserved.
    """
    return "".join(_encode(unstructure(value), 0)).encode("ascii")


def event(value: object, name: str = "") -> bytes:
    """Return the bytes of a server-sent event, with the JSON of a value as data.

    Args:
        value: as for `serialize`.
        name: type of the event; "" leaves it out, so that clients receive a ``message`` event.
    """
    header = f"event: {name}\n" if name else ""
    return header.encode() + b"data: " + serialize(value) + b"\n\n"


def line(value: object) -> bytes:
    """Return the bytes of a line with the JSON of a value; `value` is as for `serialize`."""
    return serialize(value) + b"\n"


_MAX_PIECE_CHARS = 1 << 18


def _encode_string(text: str) -> str:
    """Return the ASCII JSON of a string, encoded in pieces.

    The encoder of `json` holds the GIL until it has written all strings, 1 s for 30 MiB. When it
    calls a Python function such as this one, other threads can acquire the GIL.
    """
    if len(text) <= _MAX_PIECE_CHARS:
        return encode_basestring_ascii(text)
    pieces = []
    for start in range(0, len(text), _MAX_PIECE_CHARS):
        piece = text[start : start + _MAX_PIECE_CHARS]
        pieces.append(encode_basestring_ascii(piece)[1:-1])
    return f'"{"".join(pieces)}"'


def _refuse_type(value: object) -> NoReturn:
    raise TypeError(f"{type(value).__name__} is not a JSON type")


# The encoder of `json.dumps` for separators=(",", ":") and allow_nan=False, with `_encode_string`.
_encode = c_make_encoder(None, _refuse_type, _encode_string, None, ":", ",", False, False, False)
