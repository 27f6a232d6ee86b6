"""A server with a reranker: documents in every API format, searches on request, and reports when it is not used."""

from __future__ import annotations

from typing import Any

from relevance_gen import Reranker, search
from small_models import RERANKER, TINY
from tests.serve.harness import KEYED, REAL, Server, eventually

CHUNKS = ["Cats purr.", "A cat sleeps.", "zebra", "Dogs bark at the cat."]
ASKED: dict[str, Any] = {"query": "What does a small cat do?", "chunk_txts": CHUNKS}
DOCUMENTS: dict[str, Any] = {"query": ASKED["query"], "documents": CHUNKS}
TEXTS: dict[str, Any] = {"query": ASKED["query"], "texts": CHUNKS}


def test_documents_are_read_and_searches_on_request() -> None:
    """/rerank reranks all documents, in each API format; /search, /explain and /prompt the requested number."""
    with Reranker(RERANKER) as reranker:
        scores = reranker.score(ASKED["query"], CHUNKS).tolist()
        expected = search(ASKED["query"], CHUNKS, reranker=reranker, rerank_top_n=2).to_dict()
    order = sorted(range(len(CHUNKS)), key=lambda place: (-scores[place], place))
    words = search(ASKED["query"], CHUNKS).to_dict()
    with Server("--reranker", str(RERANKER), "--workers", "2", program=REAL) as server:
        assert eventually(server.is_healthy)
        asked = {**ASKED, "rerank_top_n": 2}
        # Both workers have loaded it when none of many searches goes without.
        assert eventually(
            lambda: not any("X-Reranker-Skipped" in server.search(asked).headers for _ in range(20))
        )
        for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
            reported = server.call("POST", path, DOCUMENTS, KEYED).json["results"]
            assert [(one["index"], one["relevance_score"]) for one in reported] == [
                (at, scores[at]) for at in order
            ]
            reported = server.call("POST", path, {**TEXTS, "top_n": 2}, KEYED).json
            assert reported == [{"index": at, "score": scores[at]} for at in order[:2]]
        assert server.search(ASKED).json == words
        answer = server.search({**ASKED, "rerank_top_n": 2})
        assert (answer.json, answer.headers.get("X-Reranker-Skipped")) == (expected, None)
        explained = server.call(
            "POST", "/explain", {**ASKED, "original_index": 2, "rerank_top_n": None}, KEYED
        ).json
        assert explained["score"] == explained["relevance"] == explained["reranker"] == scores[2]
        plain = server.call("POST", "/explain", {**ASKED, "original_index": 0}, KEYED).json
        assert "relevance" not in plain
        refused = server.search({**ASKED, "rerank_top_n": -1})
        assert (refused.status, refused.json["error"]["field"]) == (400, "rerank_top_n")
        asked = {"question": ASKED["query"], "chunk_txts": CHUNKS, "rerank_top_n": 2}
        # The process with the model, which searches for it, has a reranker too.
        assert eventually(
            lambda: "X-Reranker-Skipped" not in server.call("POST", "/prompt", asked, KEYED).headers
        )
        assert server.metric("reranked_texts_total") > 0


def test_reranker_is_selected_by_name() -> None:
    """In each API format the named reranker is used, or the reason is reported; an unknown name is rejected."""
    words = search(ASKED["query"], CHUNKS, len(CHUNKS), False)
    with Reranker(RERANKER) as reranker:
        best = int(reranker.score(ASKED["query"], CHUNKS).argmax())
    several = ("--reranker", f"small={RERANKER}", "--reranker", f"broken={TINY}")
    with Server(*several, "--model", "none", program=REAL) as server:

        def ask(body: dict[str, Any], **name: str) -> tuple[int, str | None]:
            answer = server.call("POST", "/rerank", {**body, **name}, KEYED)
            reported = answer.json["results"] if "documents" in body else answer.json
            return reported[0]["index"], answer.headers.get("X-Reranker-Skipped")

        for body in (DOCUMENTS, TEXTS):
            for name in ({}, {"model": "relevance_gen"}, {"model": "small"}):
                assert eventually(lambda body=body, name=name: ask(body, **name) == (best, None))
            by_words = (words[0].original_index, "unavailable")
            assert eventually(
                lambda body=body, by_words=by_words: ask(body, model="broken") == by_words
            )
        says = "model must be a model that this server has, got 'smal'; did you mean small?"
        refused = server.call("POST", "/rerank", {**DOCUMENTS, "model": "smal"}, KEYED)
        assert (refused.status, refused.json["error"]["code"]) == (404, "model_not_found")
        assert refused.json["message"] == says
        refused = server.call("POST", "/rerank", {**TEXTS, "model": "smal"}, KEYED)
        assert (refused.status, refused.json) == (404, {"error": says, "error_type": "Validation"})
        listed = server.call("GET", "/v1/models").json["data"]
        assert [(one["id"], one["task"]) for one in listed] == [
            ("small", "rerank"),
            ("broken", "rerank"),
        ]


def test_server_with_broken_reranker_ranks_lexically() -> None:
    """A server whose reranker cannot be loaded ranks documents by lexical score, and reports that in every API format."""
    response = search(ASKED["query"], CHUNKS, len(CHUNKS), False)
    with Server(
        "--reranker", str(TINY), "--model", "none", "--n-ctx", "64", program=REAL
    ) as server:

        def reports_failure() -> bool:
            answer = server.call("POST", "/rerank", DOCUMENTS, KEYED)
            best = answer.json["results"][0]
            assert (best["index"], best["relevance_score"]) == (
                response[0].original_index,
                response[0].chunk_score,
            )
            return answer.headers["X-Reranker-Skipped"] == "unavailable"

        assert eventually(reports_failure)
        assert (
            server.call("POST", "/rerank", TEXTS, KEYED).headers["X-Reranker-Skipped"]
            == "unavailable"
        )
        assert server.metric("searches_without_reranker_total") >= 2
