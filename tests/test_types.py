"""Tests of the validation of public types."""

from __future__ import annotations

import copy
import inspect
import json
import math
import pickle
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import Answer, ChunkIndex, search, wire
from relevance_gen.checks import is_blank
from relevance_gen.errors import InvalidRequestError, TooLargeError, describe
from relevance_gen.serve.adapters.own import SearchRequest
from relevance_gen.types import (
    MAX_SAMPLES,
    Chunk,
    GenerationRequest,
    SearchMetadata,
    SearchResponse,
    SearchResult,
)


def test_generation_request_has_documented_defaults() -> None:
    """A request with only the required field has the documented defaults."""
    assert attrs.asdict(GenerationRequest("x")) == {
        "text": "x",
        "max_tokens": 512,
        "min_tokens": 0,
        "eos_token_ids": (),
        "max_input_tokens": 0,
        "num_samples": 1,
        "stop": (),
        "temperature": 1.0,
        "top_k": 50,
        "top_p": 1.0,
        "min_p": 0.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "repetition_penalty": 1.0,
        "logit_bias": {},
        "allowed_token_ids": (),
        "json_schema": None,
        "regex": None,
        "grammar": None,
        "choice": None,
        "logprobs": False,
        "top_logprobs": 0,
        "prompt_logprobs": False,
        "return_tokens": False,
        "seed": None,
    }
    assert attrs.asdict(SearchRequest("x", [])) == {
        "query": "x",
        "chunk_txts": [],
        "top_n": 10,
        "true_order": True,
        "where": None,
        "spans": False,
        "confidence": False,
        "min_relative_score": 0.0,
        "distinct": None,
        "fill": False,
        "neighbors": 0,
        "syntax": "plain",
        "correct_spelling": True,
        "rerank_top_n": 0,
        "cache_index": False,
    }
    assert attrs.asdict(Chunk("x")) == {
        "text": "x",
        "metadata": {},
        "original_index": None,
        "title": "",
    }


BOUNDS: dict[str, tuple[float, float | None]] = {
    "temperature": (0, None),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "presence_penalty": (-2, 2),
    "frequency_penalty": (-2, 2),
}


@given(name=st.sampled_from(sorted(BOUNDS)), value=st.floats() | st.integers())
def test_number_outside_interval_raises(name: str, value: float) -> None:
    """A finite number in the interval becomes a float; any other value raises."""
    low, high = BOUNDS[name]
    allowed = low <= value <= (high if high is not None else 1.7976931348623157e308)
    if allowed:
        kept = getattr(GenerationRequest("x", **{name: value}), name)
        assert isinstance(kept, float)
        assert kept == value or math.isclose(kept, value)
    else:
        with pytest.raises(InvalidRequestError) as caught:
            GenerationRequest("x", **{name: value})
        assert caught.value.field == name


@given(
    name=st.sampled_from(["max_tokens", "num_samples", "max_input_tokens", "top_k", "seed"]),
    value=st.integers() | st.floats() | st.booleans() | st.text(max_size=2) | st.none(),
)
def test_integer_field_rejects_other_types(name: str, value: Any) -> None:
    """Booleans, floats, strings and None raise; only the seed may be None."""
    low = {"max_tokens": 1, "num_samples": 1}.get(name, 0)
    high = MAX_SAMPLES if name == "num_samples" else math.inf
    allowed = (type(value) is int and low <= value <= high) or (name == "seed" and value is None)
    try:
        assert getattr(GenerationRequest("x", **{name: value}), name) == value
        assert allowed
    except InvalidRequestError:
        assert not allowed


@pytest.mark.parametrize(
    "value", [0, -1, 0.0, float("nan"), float("inf"), 10**400, True, "1", None]
)
def test_repetition_penalty_must_be_positive(value: Any) -> None:
    """The value is a divisor, so it must be a finite number above 0."""
    with pytest.raises(
        InvalidRequestError, match="repetition_penalty must be a finite number above 0"
    ):
        GenerationRequest("x", repetition_penalty=value)
    assert GenerationRequest("x", repetition_penalty=2).repetition_penalty == 2.0


def test_logit_bias_accepts_json_keys() -> None:
    """Keys are integers or digit strings; the request has an independent copy."""
    bias: dict[Any, Any] = {"7": 1, 8: -100, "0": 0.5}
    request = GenerationRequest("x", logit_bias=bias)
    bias["9"] = 1
    assert request.logit_bias == {7: 1.0, 8: -100.0, 0: 0.5}
    assert all(type(bias) is float for bias in request.logit_bias.values())


@pytest.mark.parametrize(
    ("bias", "field"),
    [
        ([], "logit_bias"),
        ("7", "logit_bias"),
        (None, "logit_bias"),
        ({"-1": 1}, "logit_bias"),
        ({"07": 1}, "logit_bias"),
        ({"٧": 1}, "logit_bias"),
        ({"7.0": 1}, "logit_bias"),
        ({7.0: 1}, "logit_bias"),
        ({True: 1}, "logit_bias"),
        ({2**31: 1}, "logit_bias"),
        ({str(2**31): 1}, "logit_bias"),
        ({"9" * 5000: 1}, "logit_bias"),
        (dict.fromkeys(range(4097), 1), "logit_bias"),
        ({"7": 100.5}, "logit_bias[7]"),
        ({"7": "1"}, "logit_bias[7]"),
        ({"7": math.nan}, "logit_bias[7]"),
        ({"7": 10**400}, "logit_bias[7]"),
    ],
    ids=str,
)
def test_invalid_logit_bias_raises(bias: Any, field: str) -> None:
    """Invalid types, token ids, sizes and values outside [-100, 100] raise with the field name."""
    with pytest.raises(InvalidRequestError) as caught:
        GenerationRequest("x", logit_bias=bias)
    assert caught.value.field == field
    assert len(str(caught.value)) < 300


def test_min_tokens_above_max_tokens_raises() -> None:
    """`min_tokens` above `max_tokens` raises an error."""
    assert GenerationRequest("x", max_tokens=5, min_tokens=5).min_tokens == 5
    with pytest.raises(
        InvalidRequestError, match=r"min_tokens must be at most max_tokens \(5\), got 6"
    ):
        GenerationRequest("x", max_tokens=5, min_tokens=6)


@pytest.mark.parametrize("value", ["", " ", "\n\t", "\u3000", None, 3, ["x"], b"x"])
def test_blank_text_raises(value: Any) -> None:
    """A blank chunk or query, or a value that is not a string, raises with its field name."""
    for make, field in ((Chunk, "text"), (lambda v: SearchRequest(v, []), "query")):
        with pytest.raises(InvalidRequestError) as caught:
            make(value)
        assert caught.value.field == field


@given(st.text())
def test_blank_is_white_space_only(text: str) -> None:
    """Blank means that stripping leaves nothing."""
    assert is_blank(text) == (not text.strip())


def test_signatures_show_types_and_defaults() -> None:
    """`inspect.signature` shows the types and defaults of all fields."""
    assert (
        str(inspect.signature(Chunk))
        == "(text: 'str', metadata: 'Metadata' = {}, original_index: 'int | None' = None, title: 'str' = '')"
    )
    for cls in (
        Chunk,
        GenerationRequest,
    ):
        for parameter in inspect.signature(cls).parameters.values():
            assert parameter.annotation != "Any"
            assert parameter.default is not attrs.NOTHING
    assert inspect.signature(GenerationRequest).parameters["logit_bias"].default == {}
    assert inspect.signature(ChunkIndex).parameters["n_jobs"].default == 1


def test_errors_survive_pickling() -> None:
    """An error that crosses a process keeps its parts, and with them its sentence."""
    error = InvalidRequestError.must_be("a.b", "nice", "nasty", remedy="be nice")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (twin.field, twin.rule, twin.got, twin.remedy) == (
            "a.b",
            "must be nice",
            "'nasty'",
            "be nice",
        )
        assert str(twin) == "a.b must be nice, got 'nasty'; be nice"


def test_error_uses_names_of_interface() -> None:
    """The error has the interface's names for its fields and null for None."""
    error = TooLargeError.must_be("top_n[3]", "at most max_tokens", None, remedy="lower max_tokens")
    assert str(error.with_field("n")) == "n must be at most max_tokens, got None; lower max_tokens"
    assert (
        str(error.with_field_names({"top_n": "-n", "max_tokens": "-m"}))
        == "-n[3] must be at most -m, got None; lower -m"
    )
    assert (
        error.to_json_message() == "top_n[3] must be at most max_tokens, got null; lower max_tokens"
    )
    assert all(
        isinstance(one, TooLargeError)
        for one in (error.with_field("n"), error.with_field_names({}))
    )
    assert (
        str(InvalidRequestError("it is over"))
        == InvalidRequestError("it is over").to_json_message()
        == "it is over"
    )


def test_error_escapes_field_name() -> None:
    """Line breaks and unprintable characters in a field name are escaped."""
    assert str(InvalidRequestError("is odd", "a\n\ud800\u202e")) == "a\\n\\ud800\\u202e is odd"


@given(
    st.none()
    | st.integers()
    | st.floats()
    | st.text()
    | st.binary()
    | st.lists(st.none())
    | st.dictionaries(st.text(), st.none())
)
def test_describe_is_short_and_printable(value: Any) -> None:
    """The description of any value is short, printable and has one line."""
    assert len(describe(value)) < 1000
    assert describe(value).isprintable()


def test_describe_uses_singular_and_plural() -> None:
    """A count of 1 uses the singular."""
    assert [describe(value) for value in ([], [1], {"a": 1})] == [
        "a list of 0 items",
        "a list of 1 item",
        "an object of 1 field",
    ]


def test_huge_integers_can_be_shown() -> None:
    """An integer too long to print is described by its size."""
    assert describe(10**10_000) == "an integer of 33220 bits"


def test_lists_become_tuples() -> None:
    """A request does not change when the caller's list does."""
    ids = [1, 2]
    request = GenerationRequest("x", eos_token_ids=ids)  # type: ignore[arg-type]
    ids.append(3)
    assert request.eos_token_ids == (1, 2)


READERS: list[Callable[[SearchMetadata], object]] = [
    *(
        repr,
        hash,
        str,
        pickle.dumps,
        copy.copy,
        copy.deepcopy,
        attrs.asdict,
        SearchMetadata.to_dict,
        wire.serialize,
    ),
    lambda metadata: metadata == SearchMetadata(3, 7),
    lambda metadata: attrs.evolve(metadata, confidence=0.5),
    lambda metadata: metadata.num_context_tokens,
]


@pytest.mark.parametrize("read", READERS)
def test_counts_are_computed_lazily_once(read: Callable[[SearchMetadata], object]) -> None:
    """Token counts are computed once, when they are first read, and equal given counts."""
    calls: list[int] = []

    def count() -> int:
        calls.append(7)
        return 7

    metadata = SearchMetadata.lazy(num_query_tokens=(3).__int__, num_context_tokens=count)
    assert metadata.num_query_tokens == 3
    assert not calls
    assert read(metadata) == read(SearchMetadata(3, 7))
    assert (metadata.num_context_tokens, calls) == (7, [7])
    assert (
        pickle.loads(pickle.dumps(metadata))
        == copy.deepcopy(metadata)
        == metadata
        == SearchMetadata(3, 7)
    )
    with pytest.raises(
        AttributeError, match="'SearchMetadata' object has no attribute 'num_chunks'"
    ):
        metadata.num_chunks  # type: ignore[attr-defined]  # noqa: B018


def test_pydantic_serializes_like_to_dict() -> None:
    """Responses, results and answers are pydantic fields; other values are rejected."""
    pydantic = pytest.importorskip("pydantic")
    response = search(
        "Do cats purr?", [{"text": "Cats purr.", "metadata": {"page": 1}}], spans=True
    )
    for cls, one in (
        (SearchResponse, response),
        (SearchResult, response[0]),
        (Answer, Answer("", (), "", 0.5, None)),
    ):
        adapter = pydantic.TypeAdapter(cls)
        assert adapter.validate_python(one) is one
        assert adapter.dump_python(one, mode="json") == json.loads(json.dumps(one.to_dict()))
        assert adapter.json_schema(mode="serialization") == {}
        with pytest.raises(pydantic.ValidationError):
            adapter.validate_python({})


def test_fastapi_recipe_equals_server(tmp_path: Path) -> None:
    """The documented app gives the server's answers, error statuses and fields."""
    pytest.importorskip("fastapi")
    testclient = pytest.importorskip("fastapi.testclient")
    recipe = (
        Path(__file__, "../../docs/first-hour.md")
        .resolve()
        .read_text()
        .partition("## Use it with FastAPI")[2]
    )
    (tmp_path / "recipe.py").write_text(recipe.partition("```python")[2].partition("```")[0])
    names = runpy.run_path(str(tmp_path / "recipe.py"))
    client = testclient.TestClient(names["app"])
    assert (
        client.get("/search", params={"query": "cats"}).json()
        == names["index"].search("cats").to_dict()
    )
    refused = client.get("/search", params={"query": " "})
    assert (refused.status_code, refused.json()["field"]) == (400, "query")
    assert client.get("/openapi.json").status_code == 200
