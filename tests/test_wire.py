"""Tests of JSON parsing and serialization: strict, exact, and fast for many chunks."""

from __future__ import annotations

import json
import sys
import threading
import time
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.serve.adapters.own import SearchRequest
from relevance_gen.types import (
    Chunk,
    Completion,
    GenerationRequest,
    GenerationResponse,
    SearchMetadata,
    SearchResponse,
    SearchResult,
    TokenLogprob,
)

texts = st.text(st.characters(exclude_categories=()), max_size=8)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_serialize_and_parse_round_trip(value: Any) -> None:
    """Any JSON value, with lone surrogates, is serialized like `json` and parsed back."""
    written = wire.serialize(value)
    assert wire.parse(written) == value
    assert written == json.dumps(value, separators=(",", ":")).encode()


def test_serialize_in_pieces_equals_json(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splitting a long text into pieces does not change its JSON, also inside escapes."""
    monkeypatch.setattr(wire, "_MAX_PIECE_CHARS", 3)
    for text in ("", "abc", "abcd", 'é"\\\n\x00', "ab😀c😀", "ab\ud83d\ude00", "abc" * 3):
        assert (
            wire.serialize({text: text}) == json.dumps({text: text}, separators=(",", ":")).encode()
        )


def test_serialize_rejects_values_outside_json() -> None:
    """NaN, infinities and arbitrary objects raise an error with the reason."""
    for value in (float("nan"), float("-inf")):
        with pytest.raises(ValueError, match="Out of range"):
            wire.serialize([value])
    with pytest.raises(TypeError, match="object is not a JSON type"):
        wire.serialize([object()])


def test_serialize_releases_other_threads() -> None:
    """Other threads run while some MiB of log probabilities or text are serialized."""
    rows = [[{"token": "ab", "logprob": -0.5}] * 20] * 5000
    n_turns, is_over = 0, threading.Event()

    def count() -> None:
        nonlocal n_turns
        while not is_over.is_set():
            n_turns += 1
            time.sleep(0)

    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    counting = threading.Thread(target=count)
    counting.start()
    try:
        for value in (rows, "é" * 20_000_000):
            seen = n_turns
            wire.serialize(value)
            assert n_turns > seen + 5
    finally:
        is_over.set()
        counting.join()
        sys.setswitchinterval(before_s)


@given(values)
def test_parse_accepts_utf8_and_white_space(value: Any) -> None:
    """A body in UTF-8 and with white space is parsed to the same value."""
    try:
        body = json.dumps(value, ensure_ascii=False, indent=1).encode()
    except UnicodeEncodeError:
        return
    assert wire.parse(body) == value


@given(st.binary(max_size=40))
def test_parse_of_any_bytes_returns_or_raises_request_error(body: bytes) -> None:
    """Any bytes give a value or `InvalidRequestError`."""
    try:
        wire.parse(body)
    except InvalidRequestError as error:
        assert str(error).startswith("the body must be ")


@pytest.mark.parametrize(
    "body",
    [
        b"NaN",
        b"-Infinity",
        b"[1e999]",
        b"[-1e999]",
        b"\xff",
        b"{",
        b"1" * 5000,
        b"",
        b"[" * 10**6,
        b"{'a': 1}",
        b"[1,]",
    ],
)
def test_parse_rejects_invalid_json(body: bytes) -> None:
    """NaN, infinities, excessive digits and nesting raise like other malformed bodies."""
    with pytest.raises(InvalidRequestError, match="the body must be"):
        wire.parse(body)


@given(
    depth=st.integers(0, 12), limit=st.integers(1, 10), kind=st.sampled_from(["[]", "{}", "mixed"])
)
def test_parse_depth_limit_is_exact(depth: int, limit: int, kind: str) -> None:
    """A value with `depth` nested containers passes exactly the limits of at least `depth`."""
    body = "1"
    for level in range(depth):
        body = (
            f"[{body}, 2]"
            if kind == "[]" or (kind == "mixed" and level % 2)
            else f'{{"b": 0, "a": {body}}}'
        )
    if depth <= limit:
        wire.parse(body.encode(), max_depth=limit)
    else:
        with pytest.raises(InvalidRequestError, match=f"at most {limit} deep"):
            wire.parse(body.encode(), max_depth=limit)


def test_unrequested_fields_are_absent() -> None:
    """Tokens and log probabilities are omitted if empty; all other fields are present."""
    plain = wire.unstructure(Completion("x", 1, 2.0, "eos"))
    assert plain == {"text": "x", "generated_tokens": 1, "finished": 2.0, "finish_reason": "eos"}
    full = wire.unstructure(Completion("x", 1, 2.0, "eos", (5,), (-0.5,)))
    assert (list(full["tokens"]), list(full["logprobs"])) == ([5], [-0.5])
    alternatives = wire.serialize(
        Completion("x", 1, 2.0, "eos", top_logprobs=((TokenLogprob(5, -0.5),),))
    )
    assert json.loads(alternatives)["top_logprobs"] == [[{"token": 5, "logprob": -0.5}]]
    bare = GenerationResponse(1.0, 2.0, 0, "p", 1, ())
    assert "prompt_logprobs" not in wire.unstructure(bare)
    assert json.loads(wire.serialize(attrs.evolve(bare, prompt_logprobs=(None, -1.0))))[
        "prompt_logprobs"
    ] == [None, -1]


def test_metadata_is_serialized_unchanged() -> None:
    """Metadata is unchanged, even if it resembles the library's own objects."""
    metadata = {
        "tokens": None,
        "text": "x",
        "nested": {"logprobs": None, "list": [{"metadata": {}}]},
    }
    response = SearchResponse((SearchResult(0, "x", 1.0, metadata, 0),), SearchMetadata(1, 1))
    assert json.loads(wire.serialize(response))["results"][0]["metadata"] == metadata


def test_structure_error_has_path() -> None:
    """A wrong, missing or unknown field raises with its path."""
    for value, field in (
        ({"text": ""}, "a[1].text"),
        ({}, "a[1].text"),
        ({"text": "x", "metadat": 1}, "a[1].metadat"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            wire.structure(Chunk, value, path="a[1]")
        assert caught.value.field == field
        assert str(caught.value).startswith(field)
    with pytest.raises(InvalidRequestError, match="did you mean max_tokens"):
        wire.structure(GenerationRequest, {"text": "x", "max_token": 3})
    with pytest.raises(
        InvalidRequestError, match="prompt is not a known field; the fields are text, "
    ):
        wire.structure(GenerationRequest, {"prompt": "x"})
    with pytest.raises(
        InvalidRequestError, match="the body must be an object, got a list"
    ) as caught:
        wire.structure(SearchRequest, [])
    assert caught.value.field is None


def test_error_of_unknown_field_is_limited() -> None:
    """The length of the field name and of the message is limited."""
    for name in ("x" * 100_000, "\ud800" * 100_000):
        with pytest.raises(InvalidRequestError) as caught:
            wire.structure(Chunk, {"text": "a", name: 1}, path="chunk_txts[3]")
        assert caught.value.field == f"chunk_txts[3].{name[:80]}…"
        assert len(str(caught.value)) < 800
