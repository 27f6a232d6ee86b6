"""Searches in the server, apart from HTTP and from any dialect."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from relevance_gen import ChunkIndex, search
from relevance_gen.errors import InvalidRequestError, TooLargeError
from relevance_gen.retrieval.question.query import Question
from relevance_gen.serve.dialects import own
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.settings import Settings
from relevance_gen.serve.work.searching import ExplanationTask, LibraryRetrieval, Searcher, SearchTask

CHUNKS: list[Any] = ["Cats purr.", {"text": "A cat sleeps.", "metadata": {"page": 2}}, "Dogs bark."]


def searcher(**settings: Any) -> Searcher:
    """Make a searcher on the library's own search."""
    made = Settings(**settings)
    return Searcher(made, LibraryRetrieval(made), Metrics.alone())


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_it_answers_as_the_library_does(cache_bytes: int) -> None:
    """Once, again, and from a kept index, with and without a cache, the response is that of `search`."""
    tried = searcher(index_cache_bytes=cache_bytes)
    for true_order in (True, False):
        for _ in range(4):
            task = SearchTask(Question("What does a cat do?", 2, true_order), CHUNKS)
            assert tried.search(task, "a-key") == search(task.question.query, CHUNKS, 2, true_order)


def test_kept_indexes_know_no_metadata() -> None:
    """A kept index gives each request the metadata that came with that request."""
    tried = searcher()
    for page in range(5):
        chunks = [{"text": "Cats purr.", "metadata": {"page": page}}]
        (found,) = tried.search(SearchTask(Question("cats", 1), chunks), "a-key").results
        assert found.metadata == {"page": page}


def test_errors_name_the_chunk() -> None:
    """A chunk that is not allowed is named by its place; too many are too large a request, named as the client does."""
    with pytest.raises(InvalidRequestError) as caught:
        searcher().search(SearchTask(Question("x"), ["a", {"text": " "}]), "a-key")
    assert caught.value.field == "chunk_txts[1].text"
    with pytest.raises(TooLargeError) as large:
        searcher(max_chunks=2).search(SearchTask(Question("x"), ["a"] * 3, path="documents"), "a-key")
    assert (large.value.field, str(large.value)) == ("documents", "documents must have at most 2 items, got 3")


@pytest.mark.parametrize("cache_bytes", [0, 1 << 20])
def test_it_explains_as_the_library_does(cache_bytes: int) -> None:
    """Once, again, and from a kept index, with and without a cache, the explanation is that of `ChunkIndex`."""
    tried = searcher(index_cache_bytes=cache_bytes)
    index = ChunkIndex(CHUNKS)
    for position in (0, 1, 2, 1):
        task = ExplanationTask(Question("What does a cat do?"), CHUNKS, position)
        assert tried.explain(task, "a-key") == index.explain(task.question.query, position)


def test_there_must_be_a_chunk_to_explain() -> None:
    """A position beyond the chunks, and a request without chunks, are refused as the client named them."""
    for chunks, field in ((CHUNKS, "original_index"), ([], "chunk_txts")):
        with pytest.raises(InvalidRequestError) as caught:
            searcher().explain(ExplanationTask(Question("x"), chunks, 3), "a-key")
        assert caught.value.field == field


IMPORTED_LATER = r"""
import sys
from tests.serve.work.test_searching import ExplanationTask, Question, SearchTask, searcher

tried = searcher(index_cache_bytes=1 << 20)
tried.warm_up()
before = set(sys.modules)
for text in ("a cat sleeps ", "猫が寝る", "a \U0001f600 cat \ud800"):
    chunks = [{"text": text * 100, "metadata": {"page": 1}, "title": text}, "Dogs bark.", text]
    for where in (None, {"page": 1}, {"page": 2}):
        for _ in range(3):
            question = Question(text, 2, where=where, spans=True, min_share=0.1, distinct="page")
            found = tried.search(SearchTask(question, chunks), "a-key")
            found.confidence
    tried.explain(ExplanationTask(Question(text), chunks, 0), "a-key")
print(*set(sys.modules) - before)
"""


def test_no_search_imports_anything() -> None:
    """Once it is warm, no search imports a module: an import fails where no file can be opened."""
    program = [sys.executable, "-X", "utf8", "-c", IMPORTED_LATER]
    assert subprocess.run(program, capture_output=True, text=True, check=True).stdout.split() == []


def test_one_of_each_and_titles_whether_an_index_is_kept_or_not() -> None:
    """Metadata is that of the request, whoever's index is asked; chunks that differ by titles alone are others."""
    settings = Settings()
    searcher = Searcher(settings, LibraryRetrieval(settings), Metrics.alone())
    for title in ("Red", "Blue"):
        for value in (1, 1, 1, 2):
            chunks = [
                {"text": "apples", "metadata": {"a": value}, "title": title},
                {"text": "red", "metadata": {"a": 1}},
            ]
            task, _ = own.read_search({"query": "red apples", "chunk_txts": chunks, "distinct": "a"})
            expected = search("red apples", chunks, distinct="a")
            assert searcher.search(task, "key") == expected
            assert [result.num_similar for result in expected] == ([1] if value == 1 else [0, 0])
    task, _ = own.read_search({"query": "red apples", "chunk_txts": chunks, "distinct": "b"})
    with pytest.raises(InvalidRequestError, match="distinct must name keys that chunks have"):
        searcher.search(task, "key")
