"""What people hand over: arrays, columns, generators, blank cells, bars, and event loops."""

from __future__ import annotations

import asyncio
import builtins
import io
import math
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import ChunkIndex, InvalidRequestError, SearchResponse, search
from relevance_gen.index import parallel_build
from relevance_gen.types import Chunk
from tests import corpus, strategies
from tests.profiles import costly

PETS = ["Dogs bark.", "Cats purr.", "A cat and a dog."]


@pytest.mark.parametrize(
    "chunks",
    [
        tuple(PETS),
        iter(PETS),
        (text for text in PETS),
        dict.fromkeys(PETS).keys(),
        np.array(PETS),
        np.array(PETS, object),
        pd.Series(PETS, index=[7, 8, 9]),
        pd.Series(PETS, dtype="category"),
        pd.Index(PETS),
        map(np.str_, PETS),
        pd.DataFrame({"text": PETS}).to_dict("records"),
        pd.DataFrame({"text": PETS}, index=[7, 8, 9]),
        pyarrow.table({"text": PETS}),
        pyarrow.table({"text": PETS}).to_batches()[0],
    ],
    ids=lambda chunks: type(chunks).__name__,
)
def test_any_iterable_of_texts_is_chunks(chunks: Any) -> None:
    """Tuples, generators, arrays and columns are accepted; results have plain strings."""
    response = search("cats", chunks)
    assert response == search("cats", PETS)
    assert {type(result.chunk_txt) for result in response} == {str}


@pytest.mark.parametrize("make", [pyarrow.Table.from_pylist, pd.DataFrame])
def test_each_table_row_is_a_chunk(make: Callable[..., Any]) -> None:
    """The column named by `text` is the text, `title` the title, and other columns except null values are metadata."""
    rows = [
        {"body": "Cats purr.", "title": "Pets", "page": 1},
        {"body": "Dogs bark.", "title": None, "page": None},
    ]
    expected = [Chunk("Cats purr.", {"page": 1}, 0, "Pets"), Chunk("Dogs bark.", {}, 1)]
    assert list(ChunkIndex(make(rows), text="body")) == expected
    assert list(ChunkIndex(rows, text="body")) == expected
    for chunks in (make(rows), rows):
        assert search("cats", chunks, text="body") == search("cats", expected)


def test_numpy_scalars_are_plain_values() -> None:
    """Integers, strings, floats and booleans of numpy are accepted in place of Python's."""
    expected = search("cats", PETS, 1, False, min_relative_score=0.5)
    index = ChunkIndex(PETS, n_jobs=np.int8(1))
    arguments = np.str_("cats"), np.int64(1), np.bool_(False)
    assert (
        search(arguments[0], PETS, *arguments[1:], min_relative_score=np.float32(0.5)) == expected
    )
    assert index.search(*arguments, min_relative_score=np.float64(0.5)) == expected
    assert index.search("cats", where=[np.int64(1)]) == index.search("cats", where=[1])
    assert index.explain("cats", np.uint8(1)) == index.explain("cats", 1)
    index.remove(np.array([1]))
    assert len(index) == 2


@pytest.mark.parametrize(
    "queries", [pd.Series(["cats", "dogs"]), np.array(["cats", "dogs"]), iter(["cats", "dogs"])]
)
def test_queries_may_be_a_column(queries: Any) -> None:
    """Several queries may come as an array, a column or a generator."""
    index = ChunkIndex(PETS)
    assert index.search(queries) == index.search(["cats", "dogs"])


@pytest.mark.parametrize(
    "mask", [pd.Series([True, False, True]), pd.array([True, False, True]), np.array([0, 2])]
)
def test_filter_can_be_a_column(mask: Any) -> None:
    """A mask or positions may come as a column of a data frame."""
    assert search("cats dogs", PETS, where=mask) == search("cats dogs", PETS, where=[0, 2])


@pytest.mark.parametrize(
    ("chunks", "field", "remedy"),
    [
        (
            pd.DataFrame({"txt": PETS}),
            "chunks[0]",
            "must have the field 'text', which text= names; did you mean txt?",
        ),
        (
            [{"text": "a", "page": 1}],
            "chunks[0].page",
            "put further data into metadata",
        ),
        (None, "chunks", "must be a list of strings, mappings or Chunk objects, got None"),
        (Path("notes.txt"), "chunks", "pass FolderIndex(path) for a folder, or read_documents("),
        ("a text", "chunks", "put a single text in a list, or pass FolderIndex(path)"),
        (np.str_("a text"), "chunks", "put a single text in a list"),
        (b"a text", "chunks", "put a single text in a list"),
        (["a", None], "chunks[1]", "leave it out"),
        (pd.Series(["a", None], dtype=object), "chunks[1]", "leave it out"),
        (["a", "b", b"c"], "chunks[2]", "decode it, as in value.decode()"),
        (["a", "b", " "], "chunks[2].text", 'leave it out, or pass blank="skip"'),
        ([{"text": ""}], "chunks[0].text", 'leave it out, or pass blank="skip"'),
        (["a", 3.5], "chunks[1]", "must be a string, a mapping or a Chunk, got 3.5"),
        (np.zeros((2, 2)), "chunks[0]", "got a list of 2 items"),
    ],
)
def test_invalid_chunks_raise_with_remedy(chunks: Any, field: str, remedy: str) -> None:
    """The error names the invalid value and a remedy."""
    for ask in (
        lambda: search("cat", chunks),
        lambda: ChunkIndex(chunks),
        lambda: ChunkIndex([]).add(chunks),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            ask()
        assert caught.value.field == field
        assert remedy in str(caught.value)


# ── Blank chunks ──────────────────────────────────────────────────────────────────────────────────


def as_if_blank(response: SearchResponse, positions: list[int]) -> SearchResponse:
    results = (
        evolve(result, original_index=positions[result.original_index]) for result in response
    )
    return evolve(response, results=tuple(results))


blanks = st.sampled_from(
    [
        "",
        " ",
        "\n\t",
        {"text": " "},
        {"text": "", "metadata": {"page": 1}},
        None,
        math.nan,
        pd.NA,
        {"text": None},
    ]
)


@costly
@given(strategies.queries, st.lists(strategies.chunk_texts | blanks, max_size=8))
def test_skipped_chunks_are_as_if_not_there(query: str, chunks: list[Any]) -> None:
    """Without the blank ones all is the same, but that every chunk keeps its position."""
    positions = [place for place, one in enumerate(chunks) if isinstance(one, str) and one.strip()]
    expected = as_if_blank(search(query, [chunks[place] for place in positions]), positions)
    assert search(query, chunks, blank="skip") == expected
    index = ChunkIndex(chunks, blank="skip")
    assert index.search(query) == expected
    assert len(index) == len(positions)
    grown = ChunkIndex(chunks[:3], blank="skip")
    assert grown.add(chunks[3:], blank="skip") == range(min(3, len(chunks)), len(chunks))
    assert grown.search(query) == expected


def test_missing_texts_of_a_column_are_skipped() -> None:
    """What pandas has for a missing text, of any type of column, is left out, and the others keep their positions."""
    for dtype in (object, "string"):
        column = pd.Series(["a cat", None, "a dog"], dtype=dtype)
        assert [found.original_index for found in search("cat dog", column, blank="skip")] == [0, 2]


def test_skipping_keeps_positions_in_every_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions are kept where processes build the index, and in filters."""
    monkeypatch.setattr(parallel_build, "_MIN_CHARS_PER_FORK", 1)
    chunks = ["", *corpus.prose(6, 20), " ", *corpus.prose(6, 20)]
    index = ChunkIndex(chunks, blank="skip", n_jobs=2)
    assert index.search(chunks[3]) == ChunkIndex(chunks, blank="skip").search(chunks[3])
    assert index.search(chunks[3], where=[3, 7, 10]).results[0].original_index == 3


@pytest.mark.parametrize(
    ("chunks", "blank", "field"),
    [
        (["a"], "drop", "blank"),
        (["a"], True, "blank"),
        ([{"text": " ", "txt": 1}], "skip", "chunks[0].txt"),
    ],
)
def test_skipping_forgives_nothing_else(chunks: list[Any], blank: Any, field: str) -> None:
    """An unknown value of `blank` is refused, and so is an invalid chunk."""
    with pytest.raises(InvalidRequestError) as caught:
        search("a", chunks, blank=blank)
    assert caught.value.field == field


# ── Progress ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def without_tqdm(monkeypatch: pytest.MonkeyPatch) -> None:
    imported = builtins.__import__

    def refuse(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("tqdm"):
            raise ImportError(name)
        return imported(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.mark.usefixtures("without_tqdm")
@pytest.mark.parametrize(
    "ask", [lambda **how: search("cats", PETS, **how), lambda **how: ChunkIndex(PETS, **how)]
)
def test_progress_bar_is_drawn_to_its_end(
    ask: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    """`progress=True` draws a line on the standard error that ends when the work does; False and None draw none."""
    ask(progress=True)
    printed = capfd.readouterr()
    assert printed.err.startswith("\r")
    assert printed.err.endswith("100% ██████████████████████████████ 3 of 3 chunks\n")
    assert printed.out == ""
    ask(progress=False)
    ask(progress=None)
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("without_tqdm")
def test_progress_bar_ends_before_an_error(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """If the work fails, the line of the bar ends before the error is raised."""
    from relevance_gen.retrieval import api

    def fail(*_: Any, progress: Callable[[int, int], None], **__: Any) -> None:
        progress(3, 3)
        raise KeyboardInterrupt

    monkeypatch.setattr(api, "build", fail)
    with pytest.raises(KeyboardInterrupt):
        search("cats", PETS, progress=True)
    assert capfd.readouterr().err.endswith("3 of 3 chunks\n")


def test_tqdm_draws_the_progress(monkeypatch: pytest.MonkeyPatch) -> None:
    """If tqdm is installed, its bar is shown, complete at the end, and closed."""
    reported, n_threads = io.StringIO(), threading.active_count()
    monkeypatch.setattr(sys, "stderr", reported)
    search("cats", PETS, progress=True)
    assert "3.00/3.00" in reported.getvalue()
    assert reported.getvalue().endswith("\n")
    assert threading.active_count() == n_threads  # so that processes can be forked


def test_progress_is_a_function_or_a_flag() -> None:
    """A function is called with the number of chunks done and of all chunks; any other value is refused."""
    seen = []
    search("cats", PETS, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(3, 3)]
    with pytest.raises(
        InvalidRequestError, match="progress must be True, False, None or a function"
    ):
        search("cats", PETS, progress="bar")  # type: ignore[arg-type]


# ── Event loops ───────────────────────────────────────────────────────────────────────────────────


def test_search_in_thread_does_not_block_event_loop() -> None:
    """`asyncio.to_thread` gives the same answers, many at once, while the loop does other things."""
    chunks = corpus.prose(2000, 60)
    index = ChunkIndex(chunks)
    queries = [chunk[:30] for chunk in chunks[:20]]

    async def ask() -> tuple[list[SearchResponse], SearchResponse, int]:
        asked = asyncio.gather(*(asyncio.to_thread(index.search, query) for query in queries))
        once = asyncio.ensure_future(asyncio.to_thread(search, queries[0], chunks))
        n_turns = 0
        while not once.done():
            await asyncio.sleep(0)
            n_turns += 1
        return await asked, await once, n_turns

    answers, once, n_turns = asyncio.run(ask())
    assert answers == [index.search(query) for query in queries]
    assert once == answers[0]
    assert n_turns > 1
