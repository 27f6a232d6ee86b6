"""What a body that names an index may say, and what is told of it without a cluster."""

from __future__ import annotations

from typing import Any

import pytest

from relevance_gen.errors import InvalidRequestError
from relevance_gen.serve.dialects import own
from relevance_gen.serve.work.named import Named
from tests.serve.harness import KEYED, Server

ASKED = {"query": "cats", "index": "pets"}


def test_a_name_is_read() -> None:
    """A body that names an index asks that index, with all other fields as ever."""
    task, _ = own.read_search({**ASKED, "allow_partial": True, "top_n": 3, "where": {"page": 1}})
    assert (task.named, list(task.chunks)) == (Named("pets", True), [])
    assert (task.question.top_n, task.question.where) == (3, {"page": 1})
    explained, _ = own.read_explanation({**ASKED, "original_index": 4})
    assert (explained.named, explained.position) == (Named("pets"), 4)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"chunk_txts": ["a"]}, "chunk_txts"),
        ({"chunk_txts": None}, "chunk_txts"),
        ({"index": None}, "index"),
        ({"index": 3}, "index"),
        ({"index": ""}, "index"),
        ({"index": "x" * 257}, "index"),
        ({"index": "a\x00"}, "index"),
        ({"allow_partial": 1}, "allow_partial"),
        ({"query": " "}, "query"),
        ({"top_n": 0}, "top_n"),
        ({"indices": ["a"]}, "indices"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], field: str) -> None:
    """What is not allowed beside the name of an index, or as one, is named."""
    with pytest.raises(InvalidRequestError) as caught:
        own.read_search({**ASKED, **change})
    assert caught.value.field == field


@pytest.mark.parametrize("body", [{"query": "a", "chunk_txts": ["a"], "allow_partial": True}, {"query": "a"}])
def test_without_a_name_the_contract_stays(body: dict[str, Any]) -> None:
    """Chunks stay required without a name, and what goes with a name only is no known field."""
    with pytest.raises(InvalidRequestError, match=r"chunk_txts is required|allow_partial is not a known field"):
        own.read_search(body)


def test_without_a_cluster_the_field_is_refused(real: Server) -> None:
    """A server without a cluster says by name what it cannot do, and what to do."""
    for path, body in (("/search", ASKED), ("/explain", {**ASKED, "original_index": 0})):
        answer = real.call("POST", path, body, KEYED)
        assert (answer.status, answer.error["field"]) == (400, "index")
        assert "start it with --cluster" in answer.error["message"]
