"""`ChunkIndex`: the same answers as `search`, kept."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relevance_gen import Chunk, ChunkIndex, InvalidRequestError, search
from relevance_gen.index.chunks import copy_metadata
from relevance_gen.index.lexicon import Lexicon
from relevance_gen.retrieval import base_index
from relevance_gen.text import blocks as portions
from relevance_gen.types import WeightingName
from tests import corpus, strategies
from tests.profiles import costly
from tests.retrieval.asking import WEIGHTINGS

weightings = st.sampled_from(WEIGHTINGS)


@settings(costly, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    strategies.queries,
    strategies.chunk_lists,
    st.integers(1, 9),
    st.booleans(),
    weightings,
    st.integers(1, 50),
)
def test_an_index_answers_as_search_does(
    monkeypatch: pytest.MonkeyPatch,
    query: str,
    chunks: list[str],
    top_n: int,
    true_order: bool,
    weighting: WeightingName,
    block_chars: int,
) -> None:
    """An index returns the same bits as `search`, for new and repeated queries and any block size."""
    expected = search(query, chunks, top_n, true_order, weighting=weighting)
    with monkeypatch.context() as small:
        small.setattr(portions, "BLOCK_CHARS", block_chars)
        index = ChunkIndex(chunks, weighting=weighting)
    assert index.search(query, top_n, true_order) == expected
    assert index.search(query, top_n, true_order) == expected


@given(st.lists(strategies.queries, max_size=5), strategies.chunk_lists, weightings)
def test_list_of_queries_equals_single_queries(
    queries: list[str], chunks: list[str], weighting: WeightingName
) -> None:
    """A list of queries gets the list of their answers."""
    index = ChunkIndex(chunks, weighting=weighting)
    assert index.search(queries, 3, False) == [index.search(query, 3, False) for query in queries]
    assert index.search(tuple(queries)) == [index.search(query) for query in queries]


@pytest.mark.parametrize(
    ("queries", "top_n", "field"),
    [
        (["cat", "dog", "cats", " "], 10, "query[3]"),
        (("cat", None), 10, "query[1]"),
        ([["cat"]], 10, "query[0]"),
        (["cat", "dog"], 0, "top_n"),
    ],
)
def test_error_names_index_of_invalid_query(queries: list[str], top_n: int, field: str) -> None:
    """The error about an invalid query in a list names its index, and other errors name the argument."""
    with pytest.raises(InvalidRequestError) as caught:
        ChunkIndex(["a cat"]).search(queries, top_n)
    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field} must be ")


def test_missing_query_of_data_frame_raises() -> None:
    """A scalar of numpy's is one query: a text is asked, and a number, as pandas has it for nothing, is refused."""
    index = ChunkIndex(["a cat"])
    assert index.search(np.array("cat")) == index.search(np.str_("cat")) == index.search("cat")  # type: ignore[call-overload]
    with pytest.raises(
        InvalidRequestError, match="query must be a string that is not blank, got nan"
    ):
        index.search(np.float64("nan"))  # type: ignore[call-overload]


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_threads_get_the_same_answers(weighting: WeightingName) -> None:
    """Eight threads that ask one index at once get the answers that one thread gets."""
    chunks = corpus.prose(300, 30)
    queries = [" ".join(chunk.split()[:4]) + " Größe столица 猫" for chunk in chunks[:80]]
    expected = [search(query, chunks, weighting=weighting) for query in queries[:5]]
    index = ChunkIndex(chunks, weighting=weighting)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: index.search(queries), range(8)))
    assert all(answer == answers[0] for answer in answers)
    assert answers[0][:5] == expected


def test_remembered_answers_are_not_mixed_up() -> None:
    """Repeating more queries than are cached returns the response of each query."""
    chunks = [f"w{number} common" for number in range(300)]
    index = ChunkIndex(chunks)
    for _ in range(2):
        for number in range(300):
            found = index.search(f"w{number}", 1).results
            assert [result.original_index for result in found] == [number]
    assert len(index.search("common", 5).results) == 5
    assert len(index.search("common", 7).results) == 7


def test_changing_what_was_handed_over_changes_nothing() -> None:
    """An index does not change if the list that it was built from changes."""
    chunks = ["a cat", "a dog"]
    index = ChunkIndex(chunks)
    chunks.clear()
    assert [result.chunk_txt for result in index.search("dog").results] == ["a dog"]


@pytest.mark.parametrize("is_saved", [False, True])
def test_changing_returned_metadata_does_not_change_the_index(
    tmp_path: Path, is_saved: bool
) -> None:
    """Results, chunks by position and iterated chunks have copies, also of lists and dicts."""
    metadata = {"year": 1, "tags": ["a", {"b": [2]}]}
    index = ChunkIndex([{"text": "red", "metadata": metadata}])
    if is_saved:
        index.save(tmp_path / "index")
        index = ChunkIndex.load(tmp_path / "index")
    for get in (lambda: index.search("red")[0], lambda: index[0], lambda: next(iter(index))):
        changed: Any = get().metadata
        changed["year"] = 99
        changed["tags"][1]["b"].append(3)
        changed["tags"].clear()
        assert get().metadata == {"year": 1, "tags": ["a", {"b": [2]}]}


def test_copied_metadata_keeps_shared_and_circular_references() -> None:
    """A list that contains itself is copied once, as are two references to one list."""
    circular: list[Any] = []
    circular.append(circular)
    copied = copy_metadata({"a": circular, "b": circular})
    assert copied["a"] is copied["b"] is copied["a"][0]
    assert copied["a"] is not circular


@pytest.mark.parametrize("step", [1, 2, 1024])
def test_index_is_a_sequence_of_chunks(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """The chunks are a sequence in the order of their positions, and each can be had by its position."""
    monkeypatch.setattr(base_index, "_BATCH_CHUNKS", step)
    index = ChunkIndex(["a", {"text": "b", "metadata": {"page": 2}}, " ", "c"], blank="skip")
    before = index.chunks
    index.add(["d"])
    index.remove([0])
    listed = [Chunk("b", {"page": 2}, 1), Chunk("c", {}, 3), Chunk("d", {}, 4)]
    assert list(index.chunks) == list(index) == listed
    assert (index.chunks[-1], index.chunks[:2], len(index.chunks)) == (listed[2], listed[:2], 3)
    assert index[3] == listed[1]
    assert (index[-1], index[-2], index[np.int64(-4)]) == (listed[2], listed[1], listed[0])
    assert (index[:], index[::-1], index[2:4], index[-2:], index[9:]) == (
        listed,
        listed[::-1],
        [listed[1]],
        listed[1:],
        [],
    )
    assert [chunk.text for chunk in before] == ["a", "b", "c"]
    for gone in (0, 2, 5, -3, -5, -6, True, "1"):
        with pytest.raises(InvalidRequestError, match="position must be"):
            index[gone]
    with pytest.raises(IndexError):
        index.chunks[3]


def test_index_contains_texts_and_chunks() -> None:
    """`in` is true for the text of any chunk, and for a chunk with the same text and metadata."""
    index = ChunkIndex(["a", {"text": "b", "metadata": {"page": 2}}, "b", "c"])
    index.remove([3])
    held = ["a", "b", Chunk("a"), Chunk("b"), Chunk("b", {"page": 2}), *index]
    assert all(chunk in index for chunk in held)
    assert not any(
        chunk in index for chunk in ["c", "A", "", Chunk("a", {"page": 2}), Chunk("c"), None, 0]
    )


def test_length_and_representation() -> None:
    """The `repr` of an index has the number of chunks and the options of the index."""
    index = ChunkIndex(["a cat", "a dog"], weighting="cosine")
    assert len(index) == 2
    assert repr(index) == "<ChunkIndex of 2 chunks, 3 terms, cosine weighting, embedded tokens>"
    assert index.nbytes > 0


def test_using_an_index_loads_no_masked_arrays() -> None:
    """Nothing that an index does loads numpy.ma, which takes 30 ms."""
    code = """if True:
        import sys
        from relevance_gen import ChunkIndex
        index = ChunkIndex([{"text": "a cat", "metadata": {"page": 1}}, "a dog"])
        repr(index)
        index.search("cat", where={"page": 1})
        index.remove([0])
        index.add(["two cats"])
        print("numpy.ma" in sys.modules)
    """
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_explanations_show_what_was_matched() -> None:
    """An explanation has each term, the words that it matches, and their count in the chunk."""
    index = ChunkIndex(["The connections connect.", "Nothing here."])
    connected, the = index.explain("connected the zzz", 0).terms[:2]
    assert (connected.term, sorted(connected.matches), connected.tf, connected.df) == (
        "connected",
        ["connect", "connections"],
        2.0,
        1,
    )
    assert (the.term, the.df) == ("the", 1)
    assert 0.0 < the.contribution < connected.contribution
    assert connected.contribution > 0.0
    assert index.explain("connected", 1).score == 0.0


@pytest.mark.parametrize("chunk", [-1, 2, 10**30, True, 1.0, "1", None])
def test_explain_of_missing_position_raises(chunk: object) -> None:
    """The chunk to explain is named by its position."""
    with pytest.raises(InvalidRequestError, match=r"chunk must be an integer in \[0, 2\)"):
        ChunkIndex(["a cat", "a dog"]).explain("cat", chunk)  # type: ignore[arg-type]


@pytest.mark.parametrize("query", ["", " ", None, 3, [""], ["cat", None], {"cat"}])
def test_invalid_query_raises(query: object) -> None:
    """A blank query, or a query of another type than a string or a list of strings, is refused."""
    index = ChunkIndex(["a cat"])
    with pytest.raises(InvalidRequestError, match="query"):
        index.search(query)  # type: ignore[call-overload]
    with pytest.raises(InvalidRequestError, match="query"):
        index.explain(query, 0)  # type: ignore[arg-type]


def test_build_reports_progress() -> None:
    """The callback is called for every block, and its error ends the building."""
    reported: list[tuple[int, int]] = []
    ChunkIndex(["a cat", "ein Kätzchen"], progress=lambda *progress: reported.append(progress))
    assert reported == [(1, 2), (2, 2)]

    def stop(done: int, n_chunks: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ChunkIndex(["a cat"], progress=stop)


def test_chunks_are_removed_by_what_they_have() -> None:
    """`remove(where=…)` removes the chunks that pass the filter and returns their number; a wrong key removes nothing."""
    pages = [{"text": f"cat {page}", "metadata": {"page": page % 3}} for page in range(9)]
    index = ChunkIndex(pages)
    assert index.remove(where={"page": [1, 2]}) == 6
    assert [chunk.original_index for chunk in index.chunks] == [0, 3, 6]
    assert index.search("cat").metadata == ChunkIndex(pages[::3]).search("cat").metadata
    assert index.remove(where={"page": 7}) == 0
    for wrong, reported in (({"pge": 0}, "did you mean page"), ([1.5], "where")):
        with pytest.raises(InvalidRequestError, match=reported):
            index.remove(where=wrong)  # type: ignore[arg-type]
    for both in ({}, {"positions": [0], "where": {"page": 0}}):
        with pytest.raises(
            InvalidRequestError,
            match="positions must be None if where is given, and must be given otherwise",
        ):
            index.remove(**both)  # type: ignore[arg-type]
    assert index.remove([3, 3]) == 1
    assert index.remove(where=lambda metadata: metadata["page"] == 0) == 2
    assert (len(index), index.remove(where={"page": 0})) == (0, 0)


def test_stems_are_computed_during_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query to a new index does not stem the index's words, in any alphabet; results equal one-shot search."""
    chunks = ["Cats were purring.", "The connections of Zürich", "связи и кошки", "", "42 2nd"]
    index = ChunkIndex(chunks, blank="skip")
    expected = [
        search(query, chunks, blank="skip").results
        for query in ("purr connection", "связь", "cat", "zürich")
    ]
    monkeypatch.setattr(Lexicon, "_hash_stems", None)
    assert [
        index.search(query).results for query in ("purr connection", "связь", "cat", "zürich")
    ] == expected
    assert expected[0]
