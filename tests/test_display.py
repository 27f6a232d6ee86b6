"""Tests of responses in interactive use: repr, HTML, data frames, pickling."""

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


def test_response_is_sequence_of_results(response: SearchResponse) -> None:
    """Length, iteration, indexing, slices, membership and truth equal the results."""
    assert len(response) == 2
    assert list(response) == list(response.results)
    assert response[0] is response.results[0]
    assert response[-1] is response.results[-1]
    assert response[:1] == response.results[:1]
    assert response.results[1] in response
    assert not search("zebra", CHUNKS)


@given(strategies.queries, strategies.chunk_lists, st.booleans())
def test_best_is_sorted_by_score(query: str, chunks: list[str], true_order: bool) -> None:
    """`best` has the unchanged results in the order of `true_order=False`."""
    response = search(query, chunks, true_order=true_order)
    expected = search(query, chunks, true_order=False)
    assert [result.original_index for result in response.best] == [
        result.original_index for result in expected
    ]
    assert set(map(id, response.best)) == set(map(id, response.results))
    assert response.by_score() == expected


def test_response_to_dict_equals_server_response(response: SearchResponse) -> None:
    """`to_dict` has the documented fields, with spans only if they were requested."""
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


def test_confidence_is_serialized_if_present() -> None:
    """The serialized metadata has a confidence only if the response has a value."""
    response = SearchResponse((), SearchMetadata(1, 2), 0.5)
    assert wire.unstructure(response)["metadata"] == {
        "num_query_tokens": 1,
        "num_context_tokens": 2,
    }
    asked = SearchResponse((), SearchMetadata(1, 2, confidence=0.5), 0.5)
    assert wire.unstructure(asked)["metadata"]["confidence"] == 0.5


def test_response_repr_is_short() -> None:
    """At most ten results are shown, with the beginning of their texts and the total number."""
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


def test_response_repr_has_order_and_metadata() -> None:
    """The heading has the order of the results, and each result has short metadata."""
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


def test_explanation_repr_lists_nonzero_parts() -> None:
    """The repr has the score and one line per nonzero part; the parts sum to the score."""
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


def test_response_repr_of_long_text_shows_passage() -> None:
    """With spans the excerpt of a long text contains the passage."""
    text = f"{'Nothing here. ' * 100}The zebra sleeps. {'Nothing there. ' * 100}"
    response = search("zebra", [text, "x"], spans=True)
    assert "zebra" in repr(response)
    assert "<mark>zebra</mark>" in response._repr_html_()
    assert "zebra" not in repr(search("zebra", [text, "x"]))


def test_response_html_is_table(response: SearchResponse) -> None:
    """The table has one row per result, with escaped text and marked matches."""
    table = response._repr_html_()
    assert table.count("<tr>") == 3
    assert "<mark>Cats</mark> purr &amp; &lt;sleep&gt;." in table
    assert "<mark>" not in search("What do cats do?", CHUNKS)._repr_html_()


@given(strategies.queries, strategies.chunk_lists)
def test_response_repr_and_html_of_any_text(query: str, chunks: list[str]) -> None:
    """The repr is printable, and the HTML has the marked texts in valid UTF-8."""
    response = search(query, chunks, spans=True)
    assert all(line.isprintable() for line in repr(response).split("\n"))
    cells = re.findall(r"pre-wrap\">(.*?)</td>", response._repr_html_(), re.DOTALL)
    response._repr_html_().encode()
    shown = [html.unescape(re.sub("</?mark>", "", cell)) for cell in cells]
    texts = (result.chunk_txt for result in response)
    wanted = [
        html.unescape(
            html.escape(text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace"))
        )
        for text in texts
    ]
    assert shown == wanted[:10]


def test_generation_repr_and_html() -> None:
    """The repr has one printable line for each of ten samples; the table has escaped texts."""
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


def test_answer_repr_and_html(response: SearchResponse) -> None:
    """Both show the answer, then each source with its number in the prompt."""
    sources = tuple(Source.whole(result) for result in response)
    answer = Answer("They <purr>.", sources, "prompt", 0.5, None, found=False)
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


def test_generation_to_dict_equals_server_response() -> None:
    """`to_dict` has exactly the requested fields, in plain lists."""
    asked = {"logprobs": True, "top_logprobs": 2, "prompt_logprobs": True, "return_tokens": True}
    for options in ({}, asked):
        response = generate("Once", max_tokens=3, seed=1, num_samples=2, **options)
        plain = response.to_dict()
        assert json.loads(json.dumps(plain)) == plain == json.loads(wire.serialize(response))
        assert {"prompt_logprobs"} & plain.keys() == {"prompt_logprobs"} & options.keys()
        written = {"text", "generated_tokens", "finished", "finish_reason"}
        full = written | {"tokens", "logprobs", "top_logprobs"}
        assert [set(sample) for sample in plain["responses"]] == [full if options else written] * 2


def test_response_converts_to_data_frame(response: SearchResponse) -> None:
    """The pandas data frame has one row per result and one column per field."""
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


def test_response_converts_to_arrow_table(response: SearchResponse) -> None:
    """The Arrow table has the columns of the data frame, mixed metadata as JSON."""
    table = pyarrow.table(response)
    assert table.column_names == list(pd.DataFrame(response))
    assert table["chunk_txt"].to_pylist() == [result.chunk_txt for result in response]
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


def test_response_survives_pickle_and_copy(response: SearchResponse) -> None:
    """A pickled or deep-copied response equals the original."""
    for twin in (pickle.loads(pickle.dumps(response)), copy.deepcopy(response)):
        assert twin == response
        assert twin.best == response.best
        assert hash(twin[0].passage) == hash(response[0].passage)
    assert SearchResult(0, "a", 1.0, {}, 0) == SearchResult(0, "a", 1.0, {}, 0, None)
    assert Span(0, 1, 0.5) != Span(0, 1, 1.0)
