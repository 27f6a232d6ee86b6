"""Tests of the adapter for the documented interface, without HTTP."""

from __future__ import annotations

import json
from typing import Any

import pytest

from relevance_gen import ChunkIndex, search, wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.serve.adapters import own
from relevance_gen.serve.adapters.shared import Problem
from relevance_gen.serve.services.generation import GenerationTask
from relevance_gen.types import Completion, GenerationRequest, GenerationResponse

RESPONSE = GenerationResponse(1.0, 2.0, 1, "x", 1, (Completion("y", 1, 2.0, "length"),))


def test_search_body_is_read_and_response_serialized() -> None:
    """The body fields become the task, and the response has the documented fields."""
    task, present = own.read_search(
        {"query": "cats", "chunk_txts": ["Cats purr."], "top_n": 3, "true_order": False}
    )
    assert (task.params, list(task.chunks)) == (
        SearchParams("cats", 3, False, rerank_top_n=0),
        ["Cats purr."],
    )
    assert task.path == "chunk_txts"
    response = search("cats", ["Cats purr."])
    assert wire.serialize(present(response)) == wire.serialize(response)


def test_generation_body_is_read_and_response_serialized() -> None:
    """The body fields become the request, and the response serializes like its type."""
    task, present = own.read_generation({"text": "x", "max_tokens": 2})
    assert task == GenerationTask((GenerationRequest("x", max_tokens=2),))
    assert wire.serialize(present((RESPONSE,))) == wire.serialize(RESPONSE)


@pytest.mark.parametrize("read", [own.read_search, own.read_generation, own.read_stream])
def test_body_that_is_not_an_object_raises(read: object) -> None:
    """A body that is not an object is rejected."""
    assert callable(read)
    with pytest.raises(InvalidRequestError, match="the body must be an object"):
        read([])


def test_events_are_server_sent_events() -> None:
    """Each event has a name and one line of JSON, and ends with an empty line."""
    _, events = own.read_stream({"text": "x"})
    for name, event in {
        "text": events.text(1, "a\nb"),
        "response": events.end((RESPONSE,)),
        "error": events.error(Problem("timeout", "late", None)),
    }.items():
        first, second, *rest = event.decode().split("\n")
        assert (first, rest) == (f"event: {name}", ["", ""])
        assert isinstance(json.loads(second.removeprefix("data: ")), dict)


def test_error_without_field_omits_field() -> None:
    """``field`` is absent rather than null."""
    late = Problem("timeout", "late", None)
    assert own.error(late) == {"error": {"type": "timeout", "message": "late"}}
    other = Problem("x", "y", "top_n")
    assert own.error(other)["error"] == {"type": "x", "message": "y", "field": "top_n"}


def test_syntax_selects_operators() -> None:
    """`syntax` applies to search and explanation, whose response lists the operators."""
    body: dict[str, Any] = {"query": "cats -dogs", "chunk_txts": ["Cats and dogs."]}
    assert own.read_search(body)[0].params.syntax == "plain"
    assert own.read_search(body)[0].params.correct_spelling
    assert not own.read_search({**body, "correct_spelling": False})[0].params.correct_spelling
    assert not own.read_explanation({**body, "original_index": 0, "correct_spelling": False})[
        0
    ].params.correct_spelling
    assert own.read_search({**body, "syntax": "operators"})[0].params.syntax == "operators"
    task, present = own.read_explanation({**body, "original_index": 0, "syntax": "operators"})
    assert task.params.syntax == "operators"
    index = ChunkIndex(body["chunk_txts"])
    assert b'"violated_operators":["-dogs"]' in wire.serialize(
        present(index.explain_one(task.params, 0))
    )
    assert b"violated_operators" not in wire.serialize(present(index.explain(body["query"], 0)))
