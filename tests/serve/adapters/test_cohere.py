"""Tests of the rerank adapter for Cohere and Jina, without HTTP."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import search
from relevance_gen.errors import InvalidRequestError
from relevance_gen.index.records.validation import read_chunks
from relevance_gen.serve.adapters import cohere
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.services.search import Searcher
from relevance_gen.serve.settings import Settings

CATS = [
    "Dogs bark at night.",
    "",
    {"text": "Cats purr, and cats sleep.", "title": "x"},
    "The weather.",
]


def rerank(**body: Any) -> Any:
    """Answer a request as the server does."""
    settings = Settings()
    task, present = cohere.read_rerank(body)
    return present(Searcher(settings, Metrics.for_one_process()).search(task, "key"))


def test_rerank_returns_all_documents_best_first() -> None:
    """Blank and unrelated documents have score 0 and keep their order at the end."""
    answer = rerank(query="What do cats do?", documents=CATS, model="rerank-v4", top_n=None)
    assert [result["index"] for result in answer["results"]] == [2, 0, 1, 3]
    assert [result["relevance_score"] for result in answer["results"][1:]] == [0.0] * 3
    assert list(answer) == ["id", "model", "results", "usage", "meta"]
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 0
    assert all(list(result) == ["index", "relevance_score"] for result in answer["results"])


@given(
    st.lists(
        st.sampled_from(
            ["cats", "cats purr", "dogs bark", "", " ", "the weather", "cats and dogs"]
        ),
        max_size=8,
    ),
    st.none() | st.integers(1, 9),
)
def test_rerank_scores_equal_search(documents: list[str], top_n: int | None) -> None:
    """The scores equal the scores of `search`, in [0, 1], for `top_n` documents."""
    results = rerank(query="cats and dogs", documents=documents, top_n=top_n)["results"]
    response = search("cats and dogs", documents, len(documents) or 1, blank="skip")
    scores = {result.original_index: result.chunk_score for result in response}
    places = sorted(range(len(documents)), key=lambda place: (-scores.get(place, 0.0), place))[
        :top_n
    ]
    assert [(result["index"], result["relevance_score"]) for result in results] == [
        (place, scores.get(place, 0.0)) for place in places
    ]


def test_rerank_without_text_returns_zero_scores() -> None:
    """An empty list, or a list of blank documents, raises no error."""
    assert rerank(query="cats", documents=[])["results"] == []
    assert rerank(query="cats", documents=["", " "])["results"] == [
        {"index": 0, "relevance_score": 0.0},
        {"index": 1, "relevance_score": 0.0},
    ]


def test_documents_are_returned_on_request() -> None:
    """``return_documents`` gives each result its text, also that of a document that came as an object."""
    results = rerank(query="cats", documents=CATS, return_documents=True)["results"]
    assert [result["document"] for result in results] == [
        {"text": "Cats purr, and cats sleep."},
        {"text": "Dogs bark at night."},
        {"text": ""},
        {"text": "The weather."},
    ]


def test_rerank_reads_titles_of_objects_and_yaml() -> None:
    """An object's title and the first YAML field are titles, and spans refer to the text."""
    yaml = "title: 'All about\n  cats'\ntext: They purr, as cats do.\n"
    documents = [{"title": "All about cats", "text": "They purr."}, yaml, "They purr."]
    body: dict[str, Any] = {
        "query": "cats",
        "documents": documents,
        "return_documents": True,
        "relevant_spans": SPANS,
    }
    results = {result["index"]: result for result in rerank(**body)["results"]}
    assert results[0]["relevance_score"] > results[2]["relevance_score"] == 0.0
    assert results[1]["document"] == {"text": yaml}
    assert {yaml[span["start"] : span["end"]] for span in results[1]["relevant_spans"]} == {"cats"}
    assert "relevant_spans" not in results[0]


@pytest.mark.parametrize(
    "plain", ["title: cats", "title: cats\n \n", "title:\ncats", "A title: cats\nand dogs"]
)
def test_rerank_treats_incomplete_yaml_as_text(plain: str) -> None:
    """A string without text after its first field, or with another beginning, is all text."""
    task, _ = cohere.read_rerank({"query": "cats", "documents": [plain]})
    assert task.chunks == [plain]


def test_rank_fields_select_fields() -> None:
    """The named fields are joined in their order; a title alone is the text."""
    book = {"title": "Dogs", "author": "Ann Katz", "text": "Cats purr.", "year": 1999, "note": None}
    for fields, text, title in (
        (["text", "author", "note"], "Cats purr.\nAnn Katz", ""),
        (["title", "author"], "Ann Katz", "Dogs"),
        (["title"], "Dogs", ""),
        ([], "Cats purr.", "Dogs"),
    ):
        task, _ = cohere.read_rerank({"query": "cats", "documents": [book], "rank_fields": fields})
        (chunk,) = read_chunks(task.chunks)
        assert (chunk.text, chunk.title) == (text, title)
    for fields, named in (
        (["year"], r"documents\[0\]"),
        (["none"], r"documents\[0\]"),
        ("text", "rank_fields"),
    ):
        with pytest.raises(InvalidRequestError, match=named):
            rerank(query="cats", documents=[book], rank_fields=fields)


SPANS = {"mode": "enabled", "threshold": 0.1}
LONG = (
    "Nothing here. " * 30
    + "😀 Photosynthesis turns light into sugar. "
    + "Nothing here. " * 30
    + "Light is fast."
)


def test_relevant_spans_are_code_point_offsets() -> None:
    """Spans are code point ranges, best first, above the threshold, limited and disjoint."""

    def spans(**wanted: Any) -> list[Any]:
        asked = {"mode": "enabled", **wanted}
        results = rerank(query="photosynthesis light", documents=["x", LONG], relevant_spans=asked)[
            "results"
        ]
        assert "relevant_spans" not in results[1]
        return list(results[0].get("relevant_spans", []))

    every = spans(threshold=0)
    assert len(every) >= 2
    best = every[0]
    assert "Photosynthesis turns light" in LONG[best["start"] : best["end"]]
    assert [span["score"] for span in every] == sorted(
        (span["score"] for span in every), reverse=True
    )
    by_start = sorted(every, key=lambda span: span["start"])
    assert all(one["end"] <= other["start"] for one, other in itertools.pairwise(by_start))
    assert spans(max_spans=1) == every[:1]
    least = every[1]["score"] + 1e-6
    assert spans(threshold=least) == [span for span in every if span["score"] >= least]
    assert spans(mode="disabled") == []


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"query": None}, "query"),
        ({"query": " "}, "query"),
        ({"query": ["x"]}, "query"),
        ({"documents": None}, "documents"),
        ({"documents": "x"}, "documents"),
        ({"documents": ["x", 3]}, "documents[1]"),
        ({"documents": [{"title": "x"}]}, "documents[0]"),
        ({"documents": [{"text": None}]}, "documents[0]"),
        ({"top_n": 0}, "top_n"),
        ({"top_n": 1.0}, "top_n"),
        ({"top_n": True}, "top_n"),
        ({"model": 3}, "model"),
        ({"return_documents": "yes"}, "return_documents"),
        ({"relevant_spans": "enabled"}, "relevant_spans"),
        ({"relevant_spans": {}}, "relevant_spans.mode"),
        ({"relevant_spans": {"mode": "on"}}, "relevant_spans.mode"),
        ({"relevant_spans": {"mode": ["enabled"]}}, "relevant_spans.mode"),
        ({"relevant_spans": {"mode": "enabled", "threshold": 2}}, "relevant_spans.threshold"),
        ({"relevant_spans": {"mode": "enabled", "max_spans": 0}}, "relevant_spans.max_spans"),
    ],
)
def test_rerank_with_invalid_field_raises_with_path(change: dict[str, Any], field: str) -> None:
    """The error has the path of the invalid field."""
    with pytest.raises(InvalidRequestError) as caught:
        rerank(**{"query": "cats", "documents": ["cats"], **change})
    assert caught.value.field == field
    assert str(caught.value).startswith(field)


def test_rerank_ignores_fields_without_effect() -> None:
    """Unknown fields and limits of other servers are ignored, and null selects the default."""
    plain = rerank(query="cats", documents=CATS)["results"]
    ignored = {
        "rank_fields": ["title", "text"],
        "max_tokens_per_doc": 9,
        "priority": 3,
        "truncate": "END",
        "user": "u",
        "x": 1,
    }
    nulls = dict.fromkeys(
        ["top_n", "model", "return_documents", "relevant_spans", "max_tokens_per_doc"]
    )
    assert rerank(query="cats", documents=CATS, **ignored)["results"] == plain
    assert rerank(query="cats", documents=CATS, **nulls)["results"] == plain
