"""Tests of the rerank adapter for TEI, without HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from relevance_gen import search
from relevance_gen.errors import InvalidRequestError
from relevance_gen.serve.adapters import tei
from relevance_gen.serve.adapters.shared import Problem
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.services.search import Searcher
from relevance_gen.serve.settings import Settings

TEXTS = ["Dogs bark.", "", "Cats purr.", "The weather."]


def rerank(**body: Any) -> Any:
    """Answer a request as the server does."""
    settings = Settings()
    task, present = tei.read_rerank(body)
    return present(Searcher(settings, Metrics.for_one_process()).search(task, "key"))


def test_rerank_returns_list_of_all_texts() -> None:
    """All texts are returned, best first, with the scores of search; raw scores are equal."""
    (best,) = search("What do cats do?", TEXTS, blank="skip")
    for further in (
        {},
        {"raw_scores": True, "truncate": True, "truncation_direction": "Right", "model": "m"},
    ):
        assert rerank(query="What do cats do?", texts=TEXTS, **further) == [
            {"index": 2, "score": best.chunk_score},
            {"index": 0, "score": 0.0},
            {"index": 1, "score": 0.0},
            {"index": 3, "score": 0.0},
        ]


def test_texts_are_returned_on_request() -> None:
    """``return_text`` gives each result its text, and ``top_n`` bounds them."""
    results = rerank(query="cats", texts=TEXTS, return_text=True, top_n=2)
    assert [result["text"] for result in results] == ["Cats purr.", "Dogs bark."]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"query": ""}, "query"),
        ({"texts": None}, "texts"),
        ({"texts": "x"}, "texts"),
        ({"texts": ["x", {"text": "x"}]}, "texts[1]"),
        ({"texts": ["x", None]}, "texts[1]"),
        ({"top_n": 0}, "top_n"),
        ({"return_text": 1}, "return_text"),
    ],
)
def test_rerank_with_invalid_field_raises_with_path(change: dict[str, Any], field: str) -> None:
    """The error has the path of the invalid field."""
    with pytest.raises(InvalidRequestError) as caught:
        rerank(**{"query": "cats", "texts": ["cats"], **change})
    assert caught.value.field == field


def test_error_has_tei_error_type() -> None:
    """An error has a message and the corresponding TEI error type."""
    assert tei.error(Problem("invalid_request", "top_n must be", "top_n")) == {
        "error": "top_n must be",
        "error_type": "Validation",
    }
    assert tei.error(Problem("overloaded", "later", None))["error_type"] == "Overloaded"
    assert tei.error(Problem("internal", "bug", None))["error_type"] == "Backend"
