"""The search service, without HTTP and API formats."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from relevance_gen import ChunkIndex, search
from relevance_gen.errors import InvalidRequestError, TooLargeError, UnknownIndexError
from relevance_gen.request_scope import budget_scope
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.serve.adapters import own
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.services.indexes.index_registry import IndexRef
from relevance_gen.serve.services.search import (
    CompressionTask,
    ExplanationTask,
    Searcher,
    SearchReport,
    SearchTask,
)
from relevance_gen.serve.settings import Settings

CHUNKS: list[Any] = ["Cats purr.", {"text": "A cat sleeps.", "metadata": {"page": 2}}, "Dogs bark."]


def searcher(**settings: Any) -> Searcher:
    """Make a searcher on the library's own search."""
    made = Settings(**settings)
    return Searcher(made, Metrics.for_one_process())


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_response_equals_library(cache_bytes: int) -> None:
    """Once, again, and from a kept index, with and without a cache, the response is that of `search`."""
    tried = searcher(index_cache_bytes=cache_bytes)
    for true_order in (True, False):
        for _ in range(4):
            task = SearchTask(SearchParams("What does a cat do?", 2, true_order), CHUNKS)
            assert tried.search(task, "a-key") == search(task.params.query, CHUNKS, 2, true_order)


def test_cached_index_returns_metadata_of_the_request() -> None:
    """A kept index gives each request the metadata that came with that request."""
    tried = searcher()
    for page in range(5):
        chunks = [{"text": "Cats purr.", "metadata": {"page": page}}]
        (found,) = tried.search(SearchTask(SearchParams("cats", 1), chunks), "a-key").results
        assert found.metadata == {"page": page}


def test_errors_name_the_chunk() -> None:
    """A chunk that is not allowed is named by its place; too many are too large a request, named as the client does."""
    with pytest.raises(InvalidRequestError) as caught:
        searcher().search(SearchTask(SearchParams("x"), ["a", {"text": " "}]), "a-key")
    assert caught.value.field == "chunk_txts[1].text"
    with pytest.raises(TooLargeError) as large:
        searcher(max_chunks=2).search(
            SearchTask(SearchParams("x"), ["a"] * 3, path="documents"), "a-key"
        )
    assert (large.value.field, str(large.value)) == (
        "documents",
        "documents must have at most 2 items, got 3",
    )


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_explanation_equals_library(cache_bytes: int) -> None:
    """Once, again, and from a kept index, with and without a cache, the explanation is that of `ChunkIndex`."""
    tried = searcher(index_cache_bytes=cache_bytes)
    index = ChunkIndex(CHUNKS)
    for position in (0, 1, 2, 1):
        task = ExplanationTask(SearchParams("What does a cat do?"), CHUNKS, position)
        assert tried.explain(task, "a-key") == index.explain(task.params.query, position)


def test_explain_position_out_of_range_raises() -> None:
    """A position beyond the chunks, and a request without chunks, are refused as the client named them."""
    for chunks, field in ((CHUNKS, "original_index"), ([], "chunk_txts")):
        with pytest.raises(InvalidRequestError) as caught:
            searcher().explain(ExplanationTask(SearchParams("x"), chunks, 3), "a-key")
        assert caught.value.field == field


IMPORTED_LATER = r"""
import sys
from tests.serve.services.test_search import ExplanationTask, SearchParams, SearchTask, searcher

tried = searcher(index_cache_bytes=1 << 20)
tried.warm_up()
before = set(sys.modules)
for text in ("a cat sleeps ", "猫が寝る", "a \U0001f600 cat \ud800"):
    chunks = [{"text": text * 100, "metadata": {"page": 1}, "title": text}, "Dogs bark.", text]
    for where in (None, {"page": 1}, {"page": 2}):
        for _ in range(3):
            question = SearchParams(text, 2, where=where, spans=True, min_relative_score=0.1, distinct="page")
            found = tried.search(SearchTask(question, chunks), "a-key")
            found.confidence
    tried.explain(ExplanationTask(SearchParams(text), chunks, 0), "a-key")
print(*set(sys.modules) - before)
"""


def test_warm_search_imports_no_module() -> None:
    """Once it is warm, no search imports a module: an import fails where no file can be opened."""
    program = [sys.executable, "-X", "utf8", "-c", IMPORTED_LATER]
    assert subprocess.run(program, capture_output=True, text=True, check=True).stdout.split() == []


def test_distinct_and_titles_with_and_without_cached_index() -> None:
    """Metadata comes from the request, also with a cached index; chunks with different titles are different."""
    settings = Settings()
    searcher = Searcher(settings, Metrics.for_one_process())
    for title in ("Red", "Blue"):
        for value in (1, 1, 1, 2):
            chunks = [
                {"text": "apples", "metadata": {"a": value}, "title": title},
                {"text": "red", "metadata": {"a": 1}},
            ]
            task, _ = own.read_search(
                {"query": "red apples", "chunk_txts": chunks, "distinct": "a"}
            )
            expected = search("red apples", chunks, distinct="a")
            assert searcher.search(task, "key") == expected
            assert [result.num_collapsed for result in expected] == ([1] if value == 1 else [0, 0])
    task, _ = own.read_search({"query": "red apples", "chunk_txts": chunks, "distinct": "b"})
    with pytest.raises(InvalidRequestError, match="distinct must name keys that chunks have"):
        searcher.search(task, "key")


def test_cached_index_replaces_chunks_in_requests() -> None:
    """A cached index is searched and explained by its name, with the same results except metadata."""
    tried = searcher(index_cache_bytes=1 << 20)
    asked = SearchParams("What does a cat do?", spans=True)
    first = SearchTask(asked, CHUNKS, cache_index=True)
    report = SearchReport()
    response = tried.search(first, "a-key", report)
    name = report.index_name
    named, _ = own.read_search({"query": asked.query, "index": name, "spans": True})
    assert [result.to_dict() | {"metadata": {}} for result in response.results] == [
        result.to_dict() for result in tried.search(named, "a-key").results
    ]
    explained, _ = own.read_explanation({"query": asked.query, "index": name, "original_index": 1})
    assert tried.explain(explained, "a-key") == ChunkIndex(CHUNKS).explain(asked.query, 1)
    for fill, positions in ((False, [1, 0]), (None, [1, 0, 2])):
        written, _ = own.read_prompt({"question": asked.query, "index": name, "fill": fill})
        found = tried.search(written, "a-key").results
        assert [result.original_index for result in found] == positions
    beyond, _ = own.read_explanation({"query": "cats", "index": name, "original_index": 3})
    with pytest.raises(InvalidRequestError, match="original_index must be an integer in"):
        tried.explain(beyond, "a-key")
    filtered, _ = own.read_search({"query": "cats", "index": name, "where": {"page": 2}})
    with pytest.raises(InvalidRequestError, match="where"):
        tried.search(filtered, "a-key")


def test_cached_index_counts_blank_chunks_in_positions() -> None:
    """Blank chunks, which other API formats allow, count for positions, and cannot be explained."""
    tried, question = searcher(), SearchParams("cats", where=[True] * 4)
    first = SearchTask(
        question, ["", "Cats purr.", " ", "Dogs bark. Cats sleep."], blank="skip", cache_index=True
    )
    report = SearchReport()
    response = tried.search(first, "a-key", report)
    named = IndexRef(report.index_name or "")
    again = tried.search(SearchTask(question, (), index=named), "a-key")
    assert (
        [result.original_index for result in again]
        == [result.original_index for result in response]
        == [1, 3]
    )
    scores = [
        tried.explain(ExplanationTask(question, (), place, index=named), "a-key").score
        for place in (1, 3)
    ]
    assert scores == [result.chunk_score for result in response]
    kept = tried.compress(CompressionTask(question, (), index=named, max_tokens=20), "a-key")
    assert [result.original_index for result in kept.sentences] == [1, 3, 3]
    for place, says in (
        (0, "the position of a chunk"),
        (2, "the position of a chunk"),
        (4, "an integer in"),
    ):
        with pytest.raises(InvalidRequestError, match=f"original_index must be {says}"):
            tried.explain(ExplanationTask(question, (), place, index=named), "a-key")


def test_cached_index_compression_uses_titles_and_reserves_texts() -> None:
    """Compressing a cached index equals compressing its chunks, and its texts are reserved."""
    titled = [
        {"text": "They weigh four kilos.", "title": "Cats"},
        {"text": "They weigh about ten whole kilos each.", "title": "Dogs"},
    ]
    tried, question = searcher(), SearchParams("how much do dogs weigh")
    first = SearchTask(question, titled, cache_index=True)
    report = SearchReport()
    tried.search(first, "a-key", report)
    named = IndexRef(report.index_name or "")
    brought = tried.compress(CompressionTask(question, titled, max_tokens=12), "a-key")
    announced: list[tuple[str, int]] = []
    with budget_scope(lambda *units: announced.append(units)):
        assert (
            tried.compress(CompressionTask(question, (), index=named, max_tokens=12), "a-key")
            == brought
        )
        response = tried.search(SearchTask(question, (), index=named), "a-key")
    n_chars = [
        sum(len(one["text"]) for one in titled),
        sum(len(result.chunk_txt) for result in response),
    ]
    assert [number for unit, number in announced if unit == "result_char"] == n_chars


def test_cached_index_is_private_and_can_be_evicted() -> None:
    """Another key cannot use a cached index; an evicted index, and an index that was too large, have no name."""
    tried = searcher(index_cache_bytes=40_000)
    task = SearchTask(SearchParams("cats"), CHUNKS, cache_index=True)
    report = SearchReport()
    tried.search(task, "a-key", report)
    named, _ = own.read_search({"query": "cats", "index": report.index_name})
    assert tried.search(named, "a-key").results
    with pytest.raises(UnknownIndexError, match="send its chunks again"):
        tried.search(named, "another-key")
    too_large = SearchTask(SearchParams("cats"), ["cats " * 200_000], cache_index=True)
    report = SearchReport()
    assert tried.search(too_large, "a-key", report).results
    assert report.index_name is None
    for number in range(40):
        tried.search(
            SearchTask(SearchParams("cats"), [f"cats {number}"], cache_index=True), "a-key"
        )
    for at in (tried, searcher(index_cache_bytes=0)):
        with pytest.raises(UnknownIndexError):
            at.search(named, "a-key")
