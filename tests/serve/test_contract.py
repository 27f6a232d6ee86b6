"""The documented interface, path by path."""

from __future__ import annotations

import base64
import gzip
import json
from typing import Any

import pytest
import zstandard

from relevance_gen import cite, compress
from relevance_gen.wire import unstructure
from tests.cli.documents import pdf
from tests.serve.harness import JSON, KEY, KEYED, Server, request_bytes

SEARCH = {
    "query": "machine learning",
    "chunk_txts": [
        "the weather is sunny",
        {"text": "machine learning is fun", "metadata": {"source": "book", "page": 3}},
        "learning a machine learning trade",
        {"text": "learning to swim", "metadata": {}, "original_index": 77},
    ],
}


def test_search_answers_as_documented(server: Server) -> None:
    """POST /search returns results in input order with text, score, metadata and real position, and token counts."""
    answer = server.search(SEARCH)
    assert answer.status == 200
    assert answer.headers["Content-Type"] == "application/json"
    assert list(answer.json) == ["results", "metadata"]
    assert [list(result) for result in answer.json["results"]] == [
        ["chunk_id", "chunk_txt", "chunk_score", "metadata", "original_index"]
    ] * 3
    assert [result["original_index"] for result in answer.json["results"]] == [1, 2, 3]
    assert [result["chunk_id"] for result in answer.json["results"]] == [0, 1, 2]
    assert [result["metadata"] for result in answer.json["results"]] == [
        {"source": "book", "page": 3},
        {},
        {},
    ]
    assert set(answer.json["metadata"]) == {"num_query_tokens", "num_context_tokens"}


def test_distributor_search_is_the_same(server: Server) -> None:
    """POST /distributor/search answers exactly what POST /search answers."""
    assert (
        server.call("POST", "/distributor/search", SEARCH, KEYED).json == server.search(SEARCH).json
    )


def test_search_applies_options(server: Server) -> None:
    """top_n bounds the results, and true_order false puts the best first."""
    answer = server.search({**SEARCH, "top_n": 2, "true_order": False}).json
    assert [result["original_index"] for result in answer["results"]] == [1, 2]
    assert answer["results"][0]["chunk_score"] >= answer["results"][1]["chunk_score"]


def test_explain_adds_up_to_the_score(real: Server) -> None:
    """POST /explain returns the contributions to the score of /search, which add up to it."""
    (found, *_) = real.search({**SEARCH, "true_order": False}).json["results"]
    position = found["original_index"]
    asked = {
        "query": SEARCH["query"],
        "chunk_txts": SEARCH["chunk_txts"],
        "original_index": position,
    }
    explained = real.call("POST", "/explain", asked, KEYED).json
    parts = (
        "bigrams",
        "coverage",
        "lead",
        "phrase",
        "char_ngrams",
        "top_similarity",
        "semantic",
    )
    assert list(explained) == ["score", "terms", *parts, "passage"]
    assert list(explained["passage"]) == ["start", "end", "cosine"]
    assert list(explained["terms"][0]) == ["term", "matches", "tf", "df", "idf", "contribution"]
    assert explained["score"] == pytest.approx(found["chunk_score"], abs=1e-9)
    total = sum(term["contribution"] for term in explained["terms"]) + sum(
        explained[part] for part in parts
    )
    assert total == pytest.approx(explained["score"], abs=1e-9)


def test_explain_with_neighbors_has_the_score_of_the_search(real: Server) -> None:
    """With ``neighbors`` the score is that of POST /search with the option, and a part of it is the neighbors'."""
    chunks = ["The harbour has a ferry.", "It leaves at seven.", "Bees dance."]
    body = {"query": "When does the ferry leave?", "chunk_txts": chunks, "neighbors": 1}
    found = real.search({**body, "true_order": False}).json["results"][1]
    asked = {**body, "original_index": found["original_index"]}
    explained = real.call("POST", "/explain", asked, KEYED).json
    assert explained["score"] == pytest.approx(found["chunk_score"], abs=1e-9)
    assert explained["neighbors"] > 0


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"neighbors": 3}, "neighbors"),
        ({"neighbors": True}, "neighbors"),
        ({"query": " "}, "query"),
        ({"original_index": 4}, "original_index"),
        ({"original_index": -1}, "original_index"),
        ({"original_index": 1.0}, "original_index"),
        ({"chunk_txts": []}, "chunk_txts"),
        ({"chunk_txts": ["a", " "]}, "chunk_txts[1].text"),
        ({"top_n": 3}, "top_n"),
    ],
)
def test_explain_invalid_field_is_400(server: Server, change: dict[str, Any], field: str) -> None:
    """An explanation that is not allowed is a 400 whose error names the field."""
    asked = {"query": SEARCH["query"], "chunk_txts": SEARCH["chunk_txts"], "original_index": 0}
    answer = server.call("POST", "/explain", {**asked, **change}, KEYED)
    assert (answer.status, answer.error["field"]) == (400, field)


def test_extract_returns_the_text(server: Server) -> None:
    """POST /extract returns the parts of a document with their locations; an unreadable document is a 400; a key is required."""
    content = base64.b64encode(pdf("Apples are red")).decode()
    answer = server.call("POST", "/extract", {"name": "a.pdf", "content": content}, KEYED)
    assert answer.json == {
        "parts": [{"place": {"page": 1}, "text": "Apples are red"}],
        "warning": None,
    }
    for body, field in (
        ({"content": "AAAA"}, "content"),
        ({}, "content"),
        ({"content": content, "nome": ""}, "nome"),
    ):
        answer = server.call("POST", "/extract", body, KEYED)
        assert (answer.status, answer.error["field"]) == (400, field)
    assert server.call("POST", "/extract", {"content": content}, JSON).status == 401


def test_extract_returns_rows_of_csv(server: Server) -> None:
    """POST /extract returns the records of a CSV file as rows with column names."""
    content = base64.b64encode(b"city;limit\nRome;130\n").decode()
    answer = server.call("POST", "/extract", {"name": "a.csv", "content": content}, KEYED)
    rows = "| city | limit |\n| city: Rome | limit: 130 |"
    assert answer.json == {"parts": [{"place": {}, "text": rows}], "warning": None}


def test_compress_keeps_sentences(real: Server) -> None:
    """POST /compress answers like the library, and errors use the client's field names."""
    question, chunks = (
        "Who was fun?",
        ["It rained. Machine learning was fun. It snowed.", {"text": "So it goes."}],
    )
    asked = {"question": question, "chunk_txts": chunks, "max_tokens": 7}
    answer = real.call("POST", "/compress", asked, KEYED)
    assert answer.json == compress(question, chunks, max_tokens=7).to_dict()
    assert answer.json["sentences"] == [
        {
            "original_index": 0,
            "start": 11,
            "end": 36,
            "text": "Machine learning was fun.",
            "num_omitted_before": 1,
        }
    ]
    for change, field in (
        ({"question": " "}, "question"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_token": 1}, "max_token"),
        ({"chunk_txts": ["a", " "]}, "chunk_txts[1].text"),
    ):
        refused = real.call("POST", "/compress", asked | change, KEYED)
        assert (refused.status, refused.error["field"]) == (400, field)
    assert real.call("POST", "/compress", asked, JSON).status == 401
    assert real.call("POST", "/compress", asked | {"chunk_txts": []}, KEYED).json["text"] == ""


def test_cite_returns_supporting_spans(real: Server) -> None:
    """POST /cite answers like the library, and errors use the client's field names."""
    text, chunks = "Cats purr. Cows moo loudly.", ["It rained.", {"text": "Dogs bark. Cats purr."}]
    asked = {"text": text, "chunk_txts": chunks}
    answer = real.call("POST", "/cite", asked, KEYED)
    assert answer.json == {"citations": unstructure(cite(text, chunks))}
    place = {"start": 11, "end": 21, "score": 1.0, "source": 1}
    assert answer.json["citations"] == [
        {"start": 0, "end": 10, "spans": [place]},
        {"start": 11, "end": 27, "spans": []},
    ]
    for change, field in (
        ({"text": None}, "text"),
        ({"texts": "x"}, "texts"),
        ({"chunk_txts": "x"}, "chunk_txts"),
        ({"chunk_txts": ["a", " "]}, "chunk_txts[1].text"),
    ):
        refused = real.call("POST", "/cite", asked | change, KEYED)
        assert (refused.status, refused.error["field"]) == (400, field)
    assert real.call("POST", "/cite", asked, JSON).status == 401
    assert real.call("POST", "/cite", asked | {"text": "\ud800 –"}, KEYED).json == {"citations": []}


def test_prompt_returns_sources_and_request(real: Server) -> None:
    """POST /prompt returns the sources of the prompt, and a request that can be posted unchanged."""
    question, chunks = (
        "Who was fun?",
        ["It rained. Machine learning was fun.", "The weather is sunny.", "Learning is fun."],
    )
    answer = real.call(
        "POST", "/prompt", {"question": question, "chunk_txts": chunks, "top_n": 1}, KEYED
    )
    assert answer.status == 200, answer.body
    assert list(answer.json) == ["sources", "path", "request", "found"]
    (source,) = answer.json["sources"]
    assert list(source) == ["original_index", "start", "end"]
    shown = chunks[source["original_index"]][source["start"] : source["end"]]
    assert answer.json["request"]["text"] == f"Context: {shown}\nQuestion: {question}\nAnswer:"
    assert answer.json["path"] == "/generate"
    assert real.generate(answer.json["request"]).status == 200


def test_prompt_with_fill_adds_chunks_without_words_of_the_question(real: Server) -> None:
    """With ``fill`` sources without a word of the question follow the others; without it there are none."""
    chunks = ["The harbour has a ferry.", "Bees dance.", "The ferry is blue."]

    def sources(**fields: object) -> list[int]:
        body = {"question": "Where is the ferry?", "chunk_txts": chunks, "copy": False, **fields}
        answer = real.call("POST", "/prompt", {**body, "min_confidence": 0}, KEYED)
        assert answer.status == 200, answer.body
        return [source["original_index"] for source in answer.json["sources"]]

    assert 1 not in sources()
    assert 1 not in sources(fill=None)
    assert sources(fill=True)[-1] == 1
    assert 1 not in sources(fill=True, top_n=2)
    assert 1 in sources(neighbors=1)


def test_prompt_takes_signs_and_leaves_words_as_they_are(real: Server) -> None:
    """POST /prompt supports operators and disables spelling correction on request, like POST /search."""
    chunks = ["It rained on the machines.", "Learning is fun for machines."]

    def prompt(**fields: object) -> Any:
        answer = real.call("POST", "/prompt", {"chunk_txts": chunks, **fields}, KEYED)
        assert answer.status == 200, answer.body
        return answer.json

    def sources(response: Any) -> list[int]:
        return [source["original_index"] for source in response["sources"]]

    assert sources(prompt(question="machines -rained", syntax="operators")) == [1]
    corrected = prompt(question="What is laerning?")
    assert sources(corrected)[0] == 1
    assert corrected["found"]
    assert not prompt(question="laerning", correct_spelling=False)["found"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"question": " "}, "question"),
        ({"syntax": "google"}, "syntax"),
        ({"correct_spelling": 1}, "correct_spelling"),
        ({"query": "x"}, "query"),
        ({"top_n": 0}, "top_n"),
        ({"chunk_txts": ["a", " "]}, "chunk_txts[1].text"),
    ],
)
def test_prompt_invalid_field_is_400(server: Server, change: dict[str, Any], field: str) -> None:
    """A prompt that is not allowed is a 400 whose error names the field; without a key it is a 401."""
    asked = {"question": "machine learning", "chunk_txts": SEARCH["chunk_txts"], **change}
    answer = server.call("POST", "/prompt", asked, KEYED)
    assert (answer.status, answer.error["field"]) == (400, field)
    assert server.call("POST", "/prompt", asked, JSON).status == 401


def test_search_without_chunks_returns_no_results(server: Server) -> None:
    """An empty chunk_txts is valid."""
    assert server.search({"query": "x", "chunk_txts": []}).json["results"] == []


def test_metadata_comes_back_unchanged(server: Server) -> None:
    """Any JSON metadata survives: nested, large integers, floats, unicode, lone surrogates."""
    metadata = {
        "a": [1, {"b": None}],
        "n": 2**200,
        "f": 0.1,
        "u": "ü😀\ud800",
        "": True,
        "e": 1e-300,
    }
    answer = server.search({"query": "one", "chunk_txts": [{"text": "one", "metadata": metadata}]})
    assert answer.json["results"][0]["metadata"] == metadata


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"query": "  "}, "query"),
        ({"query": 3}, "query"),
        ({"query": None}, "query"),
        ({"chunk_txts": "text"}, "chunk_txts"),
        ({"chunk_txts": {"text": "x"}}, "chunk_txts"),
        ({"chunk_txts": ["a", ""]}, "chunk_txts[1].text"),
        ({"chunk_txts": ["a", {"text": " \n"}]}, "chunk_txts[1].text"),
        ({"chunk_txts": [{"metadata": {}}]}, "chunk_txts[0].text"),
        ({"chunk_txts": [{"text": "a", "metadata": 3}]}, "chunk_txts[0].metadata"),
        ({"chunk_txts": [{"text": "a", "metadata": None}]}, "chunk_txts[0].metadata"),
        ({"chunk_txts": [{"text": "a", "original_index": True}]}, "chunk_txts[0].original_index"),
        ({"chunk_txts": [{"text": "a", "meta": {}}]}, "chunk_txts[0].meta"),
        ({"chunk_txts": [7]}, "chunk_txts[0]"),
        ({"top_n": 0}, "top_n"),
        ({"top_n": 10.0}, "top_n"),
        ({"top_n": "10"}, "top_n"),
        ({"top_n": True}, "top_n"),
        ({"true_order": 1}, "true_order"),
        ({"topn": 3}, "topn"),
    ],
)
def test_search_invalid_field_is_400(server: Server, change: dict[str, Any], field: str) -> None:
    """A search that is not allowed is a 400 whose error names the field by its path."""
    answer = server.search({**SEARCH, **change})
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request"
    assert answer.error["field"] == field
    assert answer.error["message"].startswith(field)


def test_unknown_fields_suggest_the_nearest(server: Server) -> None:
    """A misspelt field is refused with the name that was probably meant."""
    assert "top_n" in server.search({**SEARCH, "top_m": 3}).error["message"]


def test_search_needs_a_key(server: Server) -> None:
    """A missing or a wrong key is a 401 with WWW-Authenticate, before anything else is looked at."""
    for headers in (
        JSON,
        {**JSON, "X-API-Key": ""},
        {**JSON, "X-API-Key": KEY + "x"},
        {**JSON, "X-API-Key": "\xff"},
    ):
        answer = server.search(b"not even JSON", headers)
        assert answer.status == 401
        assert "X-API-Key" in answer.headers["WWW-Authenticate"]
        assert answer.error["type"] == "unauthorized"


@pytest.mark.parametrize(
    "content_type", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonx"]
)
def test_other_media_type_returns_415(server: Server, content_type: str | None) -> None:
    """Another media type is a 415 with a JSON error."""
    headers = {"X-API-Key": KEY} | ({"Content-Type": content_type} if content_type else {})
    answer = server.search(SEARCH, headers)
    assert answer.status == 415
    assert answer.error["type"] == "unsupported_media_type"


def test_search_allows_media_type_parameters(server: Server) -> None:
    """A charset parameter, which clients add by default, is accepted for a search."""
    assert (
        server.search(SEARCH, {**KEYED, "Content-Type": "application/json; charset=utf-8"}).status
        == 200
    )


GENERATE = {"text": "say something", "max_tokens": 3}


def test_generate_answers_as_documented(server: Server) -> None:
    """POST /generate returns times, counts, the prompt as sent, and one response for each sample."""
    answer = server.generate({**GENERATE, "num_samples": 2})
    assert answer.status == 200
    assert list(answer.json) == [
        "created",
        "finished",
        "num_samples",
        "prompt",
        "prompt_tokens",
        "responses",
    ]
    assert answer.json["prompt"] == "say something"
    assert answer.json["created"] <= answer.json["finished"]
    assert [list(response) for response in answer.json["responses"]] == [
        ["text", "generated_tokens", "finished", "finish_reason"]
    ] * 2


def test_generate_returns_requested_fields(server: Server) -> None:
    """Tokens and logprobs are there with their flags, and line up with generated_tokens."""
    response = server.generate({**GENERATE, "return_tokens": True, "logprobs": True}).json[
        "responses"
    ][0]
    assert len(response["tokens"]) == len(response["logprobs"]) == response["generated_tokens"] == 3


@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "application/json; charset=utf-8",
        "application/json;",
        "text/plain",
        "Application/JSON",
    ],
)
def test_generate_wants_exactly_json(server: Server, content_type: str | None) -> None:
    """Any Content-Type but application/json to the letter is a 415 with an empty text/plain body."""
    for path in ("/generate", "/generate_stream"):
        answer = server.call(
            "POST", path, GENERATE, {"Content-Type": content_type} if content_type else {}
        )
        assert (answer.status, answer.body, answer.headers["Content-Type"]) == (
            415,
            b"",
            "text/plain",
        )


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"text": None}, "text"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.0}, "max_tokens"),
        ({"eos_token_ids": 3}, "eos_token_ids"),
        ({"eos_token_ids": [1, "2"]}, "eos_token_ids[1]"),
        ({"eos_token_ids": [2**61 - 1]}, "eos_token_ids[0]"),
        ({"max_input_tokens": -1}, "max_input_tokens"),
        ({"num_samples": 0}, "num_samples"),
        ({"num_samples": 257}, "num_samples"),
        ({"stop": 3}, "stop"),
        ({"stop": [""]}, "stop[0]"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": -0.1}, "min_p"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"logprobs": 1}, "logprobs"),
        ({"return_tokens": "true"}, "return_tokens"),
        ({"seed": -1}, "seed"),
        ({"prompt": "x"}, "prompt"),
    ],
)
def test_generate_invalid_field_is_400(server: Server, change: dict[str, Any], field: str) -> None:
    """A generation that is not allowed is a 400 whose error names the field."""
    for path in ("/generate", "/generate_stream"):
        answer = server.call("POST", path, {**GENERATE, **change}, JSON)
        assert answer.status == 400
        assert answer.error["field"] == field


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b'{"text": "x", "temperature": NaN}',
        b'{"text": "x", "temperature": Infinity}',
        b'{"text": "x", "temperature": 1e999}',
        b'{"text": "x", "seed": ' + b"9" * 10_000 + b"}",
        b'{"text": "\xff"}',
        b'{"text": "\xed\xa0\x80"}',
        b"[" * 100_000,
        b'{"text": ' + b"[" * 300 + b"]" * 300 + b"}",
        b'\xef\xbb\xbf{"text": "x"}',
        '{"text": "x"}'.encode("utf-16"),
    ],
)
def test_malformed_json_is_a_400(server: Server, body: bytes) -> None:
    """A body that is not strict JSON, or not an object, is a 400 on every path with a body."""
    for path in ("/search", "/generate", "/generate_stream"):
        answer = server.call("POST", path, body, KEYED)
        assert answer.status == 400
        assert answer.error["type"] == "invalid_request"


def test_duplicate_json_key_last_value_counts(server: Server) -> None:
    """Duplicate keys are valid."""
    answer = server.search(b'{"query": "", "query": "x", "chunk_txts": ["x"]}')
    assert answer.status == 200
    assert answer.json["metadata"]["num_query_tokens"] == 1


def test_health_is_empty_text(server: Server) -> None:
    """GET /health has an empty text/plain body."""
    answer = server.call("GET", "/health")
    assert (answer.status, answer.body, answer.headers["Content-Type"]) == (200, b"", "text/plain")


def test_stats_returns_backlog_and_runners(server: Server) -> None:
    """GET /stats is JSON with the two documented numbers."""
    answer = server.call("GET", "/stats")
    assert answer.headers["Content-Type"] == "application/json"
    assert answer.json == {"backlog": 0, "num_total_runners": 1}


def test_unknown_paths_are_404(server: Server) -> None:
    """An unknown path is a 404 with a JSON error, for any method."""
    for method in ("GET", "POST", "DELETE", "OPTIONS", "PATCH"):
        for path in ("/x", "/searchx", "/search/", "/%00", "//search", "/..%2fsearch"):
            answer = server.call(method, path)
            assert (answer.status, answer.error["type"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("path", "remedy"),
    [
        ("/chat/completions", "did you mean /v1/chat/completions?"),
        ("/v1/v1/chat/completions", "did you mean /v1/chat/completions?"),
        ("/v1/search", "did you mean /search?"),
        ("/v1/embedding", "did you mean /v1/embeddings?"),
        ("/" + "x" * 5000, "GET /openapi.json describes all paths"),
    ],
)
def test_unknown_path_names_the_nearest_path(server: Server, path: str, remedy: str) -> None:
    """A path without its prefix, or with a typing error, is answered with the path that is meant."""
    answer = server.call("POST", path, {})
    assert (answer.status, answer.error["type"]) == (404, "not_found")
    assert answer.error["message"] == f"there is nothing at this path; {remedy}"


def test_wrong_methods_are_405(server: Server) -> None:
    """A method that a path does not take is a 405 with Allow."""
    for method, path, allow in [
        ("GET", "/search", "OPTIONS, POST"),
        ("HEAD", "/generate", "OPTIONS, POST"),
        ("POST", "/health", "GET, HEAD, OPTIONS"),
        ("DELETE", "/stats", "GET, HEAD, OPTIONS"),
    ]:
        answer = server.call(method, path)
        assert (answer.status, answer.headers["Allow"]) == (405, allow)
        assert method == "HEAD" or answer.error["type"] == "method_not_allowed"


def test_head_is_get_without_the_body(server: Server) -> None:
    """HEAD gives GET's status and headers and no body."""
    for path in ("/health", "/stats", "/metrics", "/openapi.json", "/docs"):
        head, get = server.call("HEAD", path), server.call("GET", path)
        assert (head.status, head.body) == (get.status, b"")
        assert head.headers["Content-Type"] == get.headers["Content-Type"]


def test_options_returns_methods(server: Server) -> None:
    """OPTIONS is a 204 with Allow, without a key."""
    answer = server.call("OPTIONS", "/search")
    assert (answer.status, answer.headers["Allow"], answer.body) == (204, "OPTIONS, POST", b"")


def test_unexpected_exception_is_500_without_details(server: Server) -> None:
    """An unexpected exception gives a plain 500; the log, not the client, gets the details."""
    answer = server.search(
        {"query": "crash", "chunk_txts": ["x"]}, {**KEYED, "X-Request-ID": "the-crash"}
    )
    assert answer.status == 500
    assert answer.error["type"] == "internal"
    assert b"secret" not in answer.body
    assert b"Zero" not in answer.body
    line = next(
        line
        for line in server.log_lines
        if "exception" in line and line.get("request_id") == "the-crash"
    )
    assert "ZeroDivisionError" in line["exception"]


def test_request_ids_go_in_and_out(server: Server) -> None:
    """X-Request-ID is returned; if it is missing or not fit for a header or a log line, an id is generated."""
    assert (
        server.call("GET", "/stats", headers={"X-Request-ID": "abc-1"}).headers["X-Request-ID"]
        == "abc-1"
    )
    made = {
        server.call("GET", "/stats", headers=h).headers["X-Request-ID"]
        for h in ({}, {"X-Request-ID": "a b" * 99})
    }
    assert len(made) == 2
    assert all(len(request_id) == 32 for request_id in made)


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "identity"])
def test_request_bodies_may_be_compressed(server: Server, encoding: str) -> None:
    """Gzip and zstd bodies are decoded on every path."""
    squeeze = {"gzip": gzip.compress, "zstd": zstandard.compress, "identity": bytes}[encoding]
    encoded = {**KEYED, "Content-Encoding": encoding}
    assert (
        server.search(squeeze(json.dumps(SEARCH).encode()), encoded).json
        == server.search(SEARCH).json
    )
    assert server.generate(squeeze(json.dumps(GENERATE).encode()), encoded).status == 200


def test_unknown_content_coding_is_415(server: Server) -> None:
    """An unknown content coding is a 415 that lists the supported codings."""
    for encoding in ("br", "deflate", "gzip, gzip", "x"):
        answer = server.search(SEARCH, {**KEYED, "Content-Encoding": encoding})
        assert (answer.status, answer.headers["Accept-Encoding"]) == (415, "zstd, gzip")


@pytest.mark.parametrize(
    ("accepts", "given"),
    [
        ("gzip", "gzip"),
        ("zstd;q=0.5, gzip", "gzip"),
        ("gzip, zstd", "zstd"),
        ("*", "zstd"),
        ("br", None),
        ("gzip;q=0", None),
    ],
)
def test_responses_are_compressed_on_request(
    server: Server, accepts: str, given: str | None
) -> None:
    """The response has the content coding that the client likes best."""
    body = {"query": "x", "chunk_txts": ["x " * 1000]}
    answer = server.search(body, {**KEYED, "Accept-Encoding": accepts})
    assert answer.headers.get("Content-Encoding") == given
    expand = {
        "gzip": gzip.decompress,
        "zstd": lambda b: zstandard.ZstdDecompressor().decompressobj().decompress(b),
        None: bytes,
    }
    assert json.loads(expand[given](answer.body))["results"][0]["chunk_txt"] == "x " * 1000


def test_expect_100_continue_is_answered_before_the_body(server: Server) -> None:
    """A client that sends Expect gets 100 Continue unless the request is rejected: then it need not send the body."""
    body = json.dumps(SEARCH).encode()
    expecting = {**KEYED, "Expect": "100-continue", "Content-Length": str(len(body))}
    with server.raw() as sock:
        sock.sendall(request_bytes("POST", "/search", headers=expecting))
        assert sock.recv(1000).startswith(b"HTTP/1.1 100 Continue")
        sock.sendall(body)
        assert b"200 OK" in sock.recv(10_000)
    wrong = {**expecting, "X-API-Key": "wrong"}
    for path, headers, status in (
        ("/search", wrong, b"401"),
        ("/none", expecting, b"404"),
        ("/stats", expecting, b"405"),
    ):
        with server.raw() as sock:
            sock.sendall(request_bytes("POST", path, headers=headers))
            assert sock.recv(1000).startswith(b"HTTP/1.1 " + status)
    with server.raw() as sock:
        sock.sendall(
            request_bytes("POST", "/search", body, expecting).replace(b"HTTP/1.1", b"HTTP/1.0")
        )
        assert sock.recv(1000).startswith(b"HTTP/1.0 200")


def test_unknown_expectation_is_417(server: Server) -> None:
    """An Expect that is not known is a 417 with a JSON error."""
    assert server.search(SEARCH, {**KEYED, "Expect": "miracles"}).status == 417


def test_cors_is_off_unless_set(server: Server) -> None:
    """Pages of other origins are not let in by default."""
    answer = server.call("OPTIONS", "/search", headers={"Origin": "http://elsewhere.example"})
    assert "Access-Control-Allow-Origin" not in answer.headers


def test_search_where_filters_by_metadata(server: Server) -> None:
    """`where` returns only chunks that have the value, or a value in the list, for each key, also from a cached index."""
    chunks = [
        {"text": f"red apples {n}", "metadata": {"page": n, "tags": ["a", "b"][: n % 3]}}
        for n in range(5)
    ]
    for where, expected in (
        ({}, [0, 1, 2, 3, 4]),
        ({"page": 3}, [3]),
        ({"page": [0, 4, "3"]}, [0, 4]),
        ({"tags": "b"}, [2]),
        ({"tags": ["a"], "page": [1, 2]}, [1, 2]),
        (None, [0, 1, 2, 3, 4]),
    ):
        for _ in range(3):
            answer = server.search({"query": "apples", "chunk_txts": chunks, "where": where})
            assert [result["original_index"] for result in answer.json["results"]] == expected
    for where in (["page"], {"pge": 1}):
        refused = server.search({"query": "apples", "chunk_txts": chunks, "where": where})
        assert (refused.status, refused.json["error"]["field"]) == (400, "where")
    assert "did you mean page?" in refused.json["error"]["message"]
    many = [{"text": "apples", "metadata": {f"{n:05}" + "k" * 500: n}} for n in range(5000)]
    refused = server.search({"query": "apples", "chunk_txts": many, "where": {"k": 1}})
    assert refused.status == 400
    assert len(refused.body) < 4000
    assert (
        server.search({"query": "apples", "chunk_txts": [], "where": {"k": 1}}).json["results"]
        == []
    )


def test_extensions_are_absent_unless_requested(server: Server) -> None:
    """Spans and confidence are returned only on request, and `min_relative_score` drops weaker results."""
    body = {"query": "red apples", "chunk_txts": ["red apples here", "red", "blue"]}
    plain, full = (
        server.search(body).json,
        server.search({**body, "spans": True, "confidence": True}).json,
    )
    assert set(plain["metadata"]) == {"num_query_tokens", "num_context_tokens"}
    assert all("spans" not in result for result in plain["results"])
    assert 0 <= full["metadata"].pop("confidence") <= 1
    for result in full["results"]:
        for span in result.pop("spans"):
            assert set(span) == {"start", "end", "score"}
            assert 0 <= span["start"] < span["end"] <= len(result["chunk_txt"])
    assert full == plain
    assert len(server.search({**body, "min_relative_score": 0.9}).json["results"]) == 1
    for field, value in (
        ("spans", 1),
        ("confidence", None),
        ("min_relative_score", 1.5),
        ("min_relative_score", True),
        ("distinct", 1),
    ):
        refused = server.search({**body, field: value})
        assert (refused.status, refused.error["field"]) == (400, field)
