"""JSON bytes to and from the types: strict in, exact out. The only importer of cattrs."""

from __future__ import annotations

import gc
import json
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from json.encoder import c_make_encoder, encode_basestring_ascii  # type: ignore[attr-defined]
from typing import Any, NoReturn, TypeVar

import attrs
import cattrs
from cattrs.gen import make_dict_unstructure_fn, override

from relevance_gen.errors import InvalidRequestError, describe, nearest, shorten
from relevance_gen.types import Completion, Explanation, GenerationResponse, SearchResponse

T = TypeVar("T")

MAX_DEPTH = 64
"""How deep a document may nest: far from where Python's own recursion ends, reading or writing."""

_converter = cattrs.Converter()
# Metadata is the caller's: it leaves exactly as it came, whatever it holds.
_converter.register_unstructure_hook(dict, lambda mapping: mapping)
_converter.register_unstructure_hook(SearchResponse, SearchResponse.to_dict)
_converter.register_unstructure_hook(Completion, Completion.to_dict)
_converter.register_unstructure_hook(GenerationResponse, GenerationResponse.to_dict)
_OMITTED_IF_DEFAULT = (
    "title",
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
    """Parse strict JSON.

    Lone surrogates are accepted, as the contract says; NaN, Infinity and numbers that a float cannot hold are not.
    Of a key given twice the last value counts, as everywhere in Python.

    Raises:
        InvalidRequestError: not UTF-8, not JSON, nested too deeply, or a number too large to convert.
    """
    try:
        with _collector_paused():
            text = body.decode("utf-8")
            value = json.loads(
                text, parse_constant=_refuse_constant, parse_float=_finite, parse_int=_integer
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


_pausing = threading.Lock()
_n_pauses = 0
_was_enabled = False


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Keep the garbage collector from looking through what is being parsed, which has no cycles.

    Of a million lists it would look at each about six times, and take seven eighths of the time.
    """
    global _n_pauses, _was_enabled
    with _pausing:
        if not _n_pauses:
            _was_enabled = gc.isenabled()
            gc.disable()
        _n_pauses += 1
    try:
        yield
    finally:
        with _pausing:
            _n_pauses -= 1
            if _was_enabled and not _n_pauses:
                gc.enable()


def _is_deeper(value: object, max_depth: int) -> bool:
    """Tell whether `value` nests more than `max_depth` containers in one another."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(max_depth):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) is dict or type(inner) is list
        ]
        if not level:
            return False
    return bool(level)


def _too_deep(max_depth: int) -> InvalidRequestError:
    return InvalidRequestError(f"the body must be JSON that nests at most {max_depth} deep")


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise InvalidRequestError(
            f"the body must be JSON whose numbers a float can hold: {digits[:20]} is too large"
        )
    return number


def _integer(digits: str) -> int:
    """Convert an integer by a function of Python's: between its calls other threads get the interpreter's lock."""
    return int(digits)


def _refuse_constant(name: str) -> NoReturn:
    raise InvalidRequestError(f"the body must be JSON: {name} is not")


def structure(
    cls: type[T],
    value: object,
    *,
    path: str = "",
    is_lenient: bool = False,
    beside: Sequence[str] = (),
) -> T:
    """Make a `cls`, which checks the values itself, from a mapping of its fields.

    Args:
        cls: an attrs class.
        value: what must be a mapping.
        path: where `value` stands, to prefix the field names in errors, e.g. ``"chunk_txts[3]"``.
        is_lenient: ignore unknown fields, and take ``null`` for a field that was not given.
        beside: fields that the caller reads itself, and has taken out: errors name them among the known ones.

    Raises:
        InvalidRequestError: not a mapping; an unknown field (the nearest known one is suggested); a missing field; or
            a value that the class refuses.
    """
    if not isinstance(value, Mapping):
        rule = "must be an object" if path else "the body must be an object"
        raise InvalidRequestError(rule, path or None, describe(value))
    prefix = f"{path}." if path else ""
    fields = {a.name: a for a in attrs.fields(cls)}  # type: ignore[arg-type]
    if is_lenient:
        value = {
            name: given for name, given in value.items() if name in fields and given is not None
        }
    for name in value:
        if name not in fields:
            remedy = _fields_to_choose(prefix, shorten(name), [*fields, *beside])
            raise InvalidRequestError(
                "is not a known field", f"{prefix}{shorten(name)}", remedy=remedy
            )
    for name, attribute in fields.items():
        if attribute.default is attrs.NOTHING and name not in value:
            raise InvalidRequestError("is required", f"{prefix}{name}")
    try:
        return cls(**value)
    except InvalidRequestError as error:
        raise error.with_field(f"{prefix}{error.field}") from None


def _fields_to_choose(prefix: str, name: str, known: list[str]) -> str:
    """Say which field may have been meant by one that is not known."""
    if meant := nearest(name, known):
        return f"did you mean {prefix}{meant}?"
    further = "; what else there is to keep goes into metadata" if "metadata" in known else ""
    return f"the fields are {', '.join(known)}{further}"


def unstructure(value: object) -> Any:
    """Turn a type into plain dicts and lists; fields that were not asked for are absent."""
    return _converter.unstructure(value)


def serialize(value: object) -> bytes:
    """Write a type, or plain dicts and lists, as JSON bytes: ASCII, so that lone surrogates leave as they came."""
    return "".join(_encode(unstructure(value), 0)).encode("ascii")


def event(value: object, name: str = "") -> bytes:
    """Write a type as a server-sent event; one without a name is a message."""
    return (f"event: {name}\n" if name else "").encode() + b"data: " + serialize(value) + b"\n\n"


_LONG_TEXT = 1 << 18


def _quoted(text: str) -> str:
    """Write one string.

    `json` by itself would hold the interpreter's lock until all is written, a second for 30 MiB. Where it calls a
    function of Python's, other threads get it.
    """
    if len(text) <= _LONG_TEXT:
        return encode_basestring_ascii(text)
    parts = (text[start : start + _LONG_TEXT] for start in range(0, len(text), _LONG_TEXT))
    return f'"{"".join(encode_basestring_ascii(part)[1:-1] for part in parts)}"'


def _no_json(value: object) -> NoReturn:
    raise TypeError(f"{type(value).__name__} is nothing that JSON has")


# The encoder that `json.dumps` makes for separators=(",", ":") and allow_nan=False, with `_quoted` for the strings.
_encode = c_make_encoder(None, _no_json, _quoted, None, ":", ",", False, False, False)
