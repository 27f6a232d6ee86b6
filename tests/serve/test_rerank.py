"""The paths of rerank: one search, two API formats, and errors in the format of the request."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serve.harness import JSON, KEY, KEYED, Server

PATHS = ("/rerank", "/v1/rerank", "/v2/rerank")
DOCUMENTS = {"query": "red fruit", "documents": ["blue sky", "red fruit"]}
TEXTS = {"query": "red fruit", "texts": ["blue sky", "red fruit"]}


def peer_error(body: Any) -> dict[str, Any]:
    """Return the error that OpenAI's clients read, having checked that Cohere's and Jina's read the same."""
    assert list(body) == ["error", "message", "detail"]
    error: dict[str, Any] = body["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert error["message"] == body["message"] == body["detail"]
    return error


@pytest.mark.parametrize("path", PATHS)
def test_rerank_body_selects_the_api_format(server: Server, path: str) -> None:
    """On every path ``documents`` get Cohere's answer and ``texts`` TEI's, with a key in either header."""
    for headers in (KEYED, {**JSON, "Authorization": f"Bearer {KEY}"}):
        answer = server.call("POST", path, DOCUMENTS, headers)
        assert answer.status == 200
        assert [result["index"] for result in answer.json["results"]] == [1, 0]
        assert server.call("POST", path, TEXTS, headers).json == [
            {"index": 1, "score": 1.0},
            {"index": 0, "score": 0.0},
        ]


@pytest.mark.parametrize("path", PATHS)
def test_rerank_errors_have_the_api_format(server: Server, path: str) -> None:
    """An error in a body with ``texts`` has TEI's format, and other errors have the usual format."""
    error = peer_error(server.call("POST", path, {**DOCUMENTS, "top_n": 0}, KEYED).json)
    assert (error["type"], error["param"]) == ("invalid_request", "top_n")
    assert server.call("POST", path, {**TEXTS, "top_n": 0}, KEYED).json == {
        "error": "top_n must be an integer of at least 1, got 0",
        "error_type": "Validation",
    }
    for body in (b"{", b"[]", b"null", b"\xff", {"query": "x"}):
        answer = server.call("POST", path, body, KEYED)
        assert (answer.status, peer_error(answer.json)["type"]) == (400, "invalid_request")
    refused = server.call("POST", path, TEXTS, JSON)
    assert (refused.status, peer_error(refused.json)["type"]) == (401, "unauthorized")
    assert peer_error(server.call("PUT", path, TEXTS, KEYED).json)["type"] == "method_not_allowed"
    assert peer_error(server.call("POST", path, b"x", {**KEYED, "Content-Type": "text/plain"}).json)


def test_rerank_internal_error_hides_internals(server: Server) -> None:
    """Errors during the search also have the API format, and do not reveal internals."""
    answers = [
        server.call("POST", "/rerank", {**body, "query": "crash"}, KEYED)
        for body in (DOCUMENTS, TEXTS)
    ]
    assert [answer.status for answer in answers] == [500, 500]
    assert peer_error(answers[0].json)["type"] == "internal"
    assert answers[1].json["error_type"] == "Backend"
    assert not any(b"secret" in answer.body for answer in answers)


def test_rerank_is_rate_limited_and_counted() -> None:
    """A rerank counts for its key's rate and under its own endpoint, and too many documents are refused."""
    with Server("--rate-limit", "2/hour", "--max-chunks", "2", "--model", "none") as server:
        answer = server.call("POST", "/v2/rerank", DOCUMENTS, KEYED)
        assert (answer.status, answer.headers["RateLimit-Remaining"]) == (200, "1")
        many = server.call("POST", "/rerank", {"query": "x", "texts": ["x"] * 3}, KEYED)
        assert (many.status, many.json["error_type"]) == (413, "Validation")
        refused = server.call("POST", "/v1/rerank", DOCUMENTS, KEYED)
        assert (refused.status, peer_error(refused.json)["type"]) == (429, "rate_limited")
        assert int(refused.headers["Retry-After"]) >= 1
        assert server.metric('http_requests_total{endpoint="rerank",status="200"}') == 1
        assert server.metric('http_requests_total{endpoint="rerank",status="429"}') == 1


def test_rerank_from_cached_index_is_equal(real: Server) -> None:
    """From an index that was kept, blank documents included, the answer is the same."""
    body = {
        "query": "What do cats do?",
        "documents": ["Dogs bark.", "", "Cats purr.", "  "],
        "return_documents": True,
    }
    answers = [real.call("POST", "/v2/rerank", body, KEYED).json["results"] for _ in range(4)]
    assert answers[1:] == answers[:1] * 3
    assert [result["index"] for result in answers[0]] == [2, 0, 1, 3]


def test_rerank_answers_open_webui(real: Server) -> None:
    """The recipe of docs/agents.md: the request of Open WebUI's external reranker, and the fields that it reads."""
    texts = ["Cats purr.", "Dogs bark."]
    sent = {
        "model": "relevance_gen",
        "query": "Who barks?",
        "documents": texts,
        "top_n": len(texts),
    }
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEYED['X-API-Key']}"}
    results = real.call("POST", "/v1/rerank", sent, headers).json["results"]
    scores = {texts[result["index"]]: result["relevance_score"] for result in results}
    assert scores["Dogs bark."] > scores.get("Cats purr.", 0.0)
