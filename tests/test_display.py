"""Responses in people's hands: sequences that print on a screen, show in a notebook and make a data frame."""

from __future__ import annotations

import copy
import dataclasses
import html
import io
import json
import pickle
import re

import pandas as pd
import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import (
    Answer,
    ChunkIndex,
    Completion,
    GenerationResponse,
    SearchMetadata,
    SearchResponse,
    SearchResult,
    Source,
    Span,
    generate,
    search,
    wire,
)
from tests import strategies

CHUNKS = [
    "Dogs bark.",
    {"text": "Cats purr & <sleep>.", "metadata": {"page": 2}},
    "A cat.",
    "Birds sing.",
]


@pytest.fixture
def response() -> SearchResponse:
    return search("What do cats do?", CHUNKS, spans=True)


def test_a_response_is_a_sequence_of_its_results(response: SearchResponse) -> None:
    """Length, iteration, places, slices, membership and truth are those of the results."""
    assert len(response) == 2
    assert list(response) == list(response.results)
    assert response[0] is response.results[0]
    assert response[-1] is response.results[-1]
    assert response[:1] == response.results[:1]
    assert response.results[1] in response
    assert not search("zebra", CHUNKS)


@given(strategies.queries, strategies.chunk_lists, st.booleans())
def test_best_is_best_first_whatever_the_order(
    query: str, chunks: list[str], true_order: bool
) -> None:
    """`best` gives the results in the order that they have without `true_order`, and as they are."""
    response = search(query, chunks, true_order=true_order)
    expected = search(query, chunks, true_order=False)
    assert [result.original_index for result in response.best] == [
        result.original_index for result in expected
    ]
    assert set(map(id, response.best)) == set(map(id, response.results))
    assert response.by_score() == expected


def test_a_dictionary_is_what_the_server_writes(response: SearchResponse) -> None:
    """`to_dict` gives the documented fields, to the letter, with spans only where they were asked for."""
    plain = search("What do cats do?", CHUNKS).to_dict()
    assert list(plain) == ["results", "metadata"]
    assert plain["metadata"] == {
        "num_query_tokens": 5,
        "num_context_tokens": response.metadata.num_context_tokens,
    }
    assert [list(result) for result in plain["results"]] == [
        ["chunk_id", "chunk_txt", "chunk_score", "metadata", "original_index"]
    ] * 2
    spans = response.to_dict()["results"][1]["spans"]
    assert [list(span) for span in spans] == [["start", "end", "score"]] * 2
    assert spans == [{"start": 2, "end": 5, "score": 1.0}] * 2
    assert json.loads(wire.serialize(response)) == response.to_dict()


def test_confidence_is_written_where_it_was_asked_for() -> None:
    """The metadata has a confidence on the wire only if there is one."""
    response = SearchResponse((), SearchMetadata(1, 2), 0.5)
    assert wire.unstructure(response)["metadata"] == {
        "num_query_tokens": 1,
        "num_context_tokens": 2,
    }
    asked = SearchResponse((), SearchMetadata(1, 2, confidence=0.5), 0.5)
    assert wire.unstructure(asked)["metadata"]["confidence"] == 0.5


def test_it_prints_in_a_few_lines() -> None:
    """However much was found, ten lines are shown, each of a text's beginning, and how many there are."""
    response = search("cat", ["A cat\n\x1b[2Jin\ta hat. " * 200] * 25, 25)
    lines = repr(response).splitlines()
    assert re.fullmatch(
        r"<SearchResponse: 25 results, best first, confidence [01]\.\d\d>", lines[0]
    )
    assert re.fullmatch(r"  [01]\.\d{3}  \[0\]  A cat .\[2Jin a hat\. A cat .*…", lines[1])
    assert lines[-1] == "  … and 15 more"
    assert len(lines) == 12
    assert all(len(line) < 120 and line.isprintable() for line in lines)
    assert repr(search("zebra", ["a cat"])) == "<SearchResponse: 0 results, confidence 0.00>"


def test_what_is_printed_says_its_order_and_whence_each_result_is() -> None:
    """The head tells how the results stand, and each has its metadata, in a few words whatever they are."""
    page = {"page": 2, "path": "a\n.txt" * 20, "items": [1] * 9, "n": 10**5000, "more": None}
    response = search("cats purr", ["Cats.", {"text": "Cats purr.", "metadata": page}, "A cat"])
    assert "3 results, in the chunks' order, " in repr(response)
    assert "3 results, best first, " in repr(response.by_score())
    assert re.search(
        r"  \[1\]  \(page: 2, path: a \.txta .*…\)  Cats purr\.$", repr(response), re.MULTILINE
    )
    assert re.search(r"  \[0\]  Cats\.$", repr(response), re.MULTILINE)
    assert "<td>page: 2, path: a .txta" in response._repr_html_()
    assert "1 result, " in repr(search("cats", ["Cats."]))


def test_an_explanation_prints_what_gave_something() -> None:
    """An explanation is a line for its score and one for each share that is not 0, which add up to it."""
    explanation = ChunkIndex(["A cat purrs.", "Dogs bark."]).explain("do cats purr", 0)
    first, *shares = repr(explanation).split("\n")
    assert first == f"<Explanation: score {explanation.score:.3f}>"
    assert [line.split("  ")[2] for line in shares] == [
        "'cats', 1 here, in 1 chunk",
        "'purr', 1 here, in 1 chunk",
        "bigrams",
        "coverage",
        "lead",
        "phrase",
        "top_similarity",
    ]
    assert sum(float(line.split()[0]) for line in shares) == pytest.approx(
        explanation.score, abs=0.005
    )


def test_a_long_text_is_shown_where_the_answer_stands() -> None:
    """With spans the part that is shown is the one with the passage."""
    text = f"{'Nothing here. ' * 100}The zebra sleeps. {'Nothing there. ' * 100}"
    response = search("zebra", [text, "x"], spans=True)
    assert "zebra" in repr(response)
    assert "<mark>zebra</mark>" in response._repr_html_()
    assert "zebra" not in repr(search("zebra", [text, "x"]))


def test_a_notebook_shows_a_table(response: SearchResponse) -> None:
    """A table has a row for each result, its text escaped and the words found marked."""
    table = response._repr_html_()
    assert table.count("<tr>") == 3
    assert "<mark>Cats</mark> purr &amp; &lt;sleep&gt;." in table
    assert "<mark>" not in search("What do cats do?", CHUNKS)._repr_html_()


@given(strategies.queries, strategies.chunk_lists)
def test_anything_can_be_shown(query: str, chunks: list[str]) -> None:
    """Whatever was found is printable, and its HTML is the texts with the words marked, in UTF-8."""
    response = search(query, chunks, spans=True)
    assert all(line.isprintable() for line in repr(response).split("\n"))
    cells = re.findall(r"pre-wrap\">(.*?)</td>", response._repr_html_(), re.DOTALL)
    response._repr_html_().encode()
    shown = [html.unescape(re.sub("</?mark>", "", cell)) for cell in cells]
    texts = (result.chunk_txt for result in response)
    wanted = [
        html.unescape(
            html.escape(one.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
        )
        for one in texts
    ]
    assert shown == wanted[:10]


def test_a_generation_prints_its_texts_and_is_a_table_in_a_notebook() -> None:
    """A line for each of ten samples, printable whatever they say; the table has all of a text, escaped."""
    samples = tuple(
        Completion(f"<b>{number}\n\x1b" + "x" * 500, 1, 2.0, "length") for number in range(12)
    )
    response = GenerationResponse(1.0, 2.0, 12, "p", 1, samples)
    lines = repr(response).split("\n")
    assert lines[0] == "<GenerationResponse: 12 samples of a prompt of 1 token>"
    assert lines[1].startswith("  1 token, length: <b>0 \ufffdxxx")
    assert (len(lines), lines[-1]) == (12, "  … and 2 more")
    assert all(line.isprintable() and len(line) < 450 for line in lines)
    table = response._repr_html_()
    assert table.count("<tr>") == 12
    assert html.escape(samples[9].text) in table
    assert (
        "\ud800"
        not in GenerationResponse(
            1.0, 2.0, 1, "", 1, (Completion("\ud800", 1, 2.0, "eos"),)
        )._repr_html_()
    )


def test_an_answer_shows_its_text_and_numbered_sources(response: SearchResponse) -> None:
    """As text and as HTML: the answer, then each source by the number that a model was given for it."""
    answer = Answer(
        "They <purr>.", tuple(Source.whole(result) for result in response), "prompt", 0.5, None
    )
    head, text, first, second = repr(answer).split("\n")
    assert (head, text) == ("<Answer: 2 sources, confidence 0.50>", "  They <purr>.")
    assert first.startswith("  [1] 0.")
    assert first.endswith("[1]  (page: 2)  Cats purr & <sleep>.")
    assert second.startswith("  [2] 0.")
    shown = answer._repr_html_()
    assert "They &lt;purr&gt;." in shown
    assert shown.count("<tr>") == 3
    assert "<mark>Cats</mark> purr &amp; &lt;sleep&gt;." in shown
    assert repr(Answer.none_found((), 0.0)).startswith(
        "<Answer: 0 sources, confidence 0.00>\n  Nothing was found"
    )


def test_a_generation_as_a_dictionary_is_what_the_server_writes() -> None:
    """`to_dict` has every field that was asked for, in plain lists, and no other."""
    asked = {"logprobs": True, "top_logprobs": 2, "prompt_logprobs": True, "return_tokens": True}
    for options in ({}, asked):
        response = generate("Once", max_tokens=3, seed=1, num_samples=2, **options)
        plain = response.to_dict()
        assert json.loads(json.dumps(plain)) == plain == json.loads(wire.serialize(response))
        assert {"prompt_logprobs"} & plain.keys() == {"prompt_logprobs"} & options.keys()
        written = {"text", "generated_tokens", "finished", "finish_reason"}
        full = written | {"tokens", "logprobs", "top_logprobs"}
        assert [set(sample) for sample in plain["responses"]] == [full if options else written] * 2


def test_a_data_frame_has_a_column_for_each_field(response: SearchResponse) -> None:
    """A data frame of pandas has a row for each result and a column for each field."""
    frame = pd.DataFrame(response)
    assert list(frame.columns) == [
        "chunk_id",
        "chunk_txt",
        "chunk_score",
        "metadata",
        "original_index",
        "spans",
        "title",
        "num_collapsed",
    ]
    assert list(frame["chunk_txt"]) == ["Cats purr & <sleep>.", "A cat."]
    assert list(frame["metadata"]) == [{"page": 2}, {}]
    assert frame["chunk_score"].dtype == float
    assert dataclasses.asdict(response[0])["original_index"] == 1
    assert list(pd.DataFrame(response.results)) == list(frame)


def test_a_table_of_arrow_has_the_same_columns(response: SearchResponse) -> None:
    """Arrow's table has the data frame's columns, metadata as JSON where no type holds it all, and can be searched."""
    table = pyarrow.table(response)
    assert table.column_names == list(pd.DataFrame(response))
    assert table["chunk_txt"].to_pylist() == [one.chunk_txt for one in response]
    assert table["metadata"].to_pylist() == [{"page": 2}, {"page": None}]
    spans = [span["start"] for span in table["spans"][0].as_py()] if response[0].spans else None
    assert spans == (response[0].spans and [span.start for span in response[0].spans])
    mixed = search(
        "cats",
        [{"text": "cats", "metadata": {"page": 2}}, {"text": "cats", "metadata": {"page": "x"}}],
    )
    assert pyarrow.table(mixed)["metadata"].to_pylist() == ['{"page": 2}', '{"page": "x"}']
    for odd in (2**70, "\ud800"):
        held = search("cats", [{"text": "cats", "metadata": {"odd": odd}}])
        assert json.loads(pyarrow.table(held)["metadata"][0].as_py()) == {"odd": odd}
    bare = pyarrow.table(search("cats", ["cats"]))
    pyarrow.parquet.write_table(bare, file := io.BytesIO())
    assert pyarrow.parquet.read_table(file)["metadata"].to_pylist() == [None]
    none = pyarrow.table(search("zebra", ["cats"]))
    assert (none.num_rows, none.schema.field("chunk_score").type) == (0, pyarrow.float64())
    assert ChunkIndex(table, text="chunk_txt").search("cats").results[0].metadata["page"] == 2


def test_responses_are_pickled_and_copied(response: SearchResponse) -> None:
    """A response is the same behind a pickle and as a deep copy."""
    for twin in (pickle.loads(pickle.dumps(response)), copy.deepcopy(response)):
        assert twin == response
        assert twin.best == response.best
        assert hash(twin[0].passage) == hash(response[0].passage)
    assert SearchResult(0, "a", 1.0, {}, 0) == SearchResult(0, "a", 1.0, {}, 0, None)
    assert Span(0, 1, 0.5) != Span(0, 1, 1.0)
