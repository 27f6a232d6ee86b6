"""A server with a reranker: it reads documents in every dialect, searches on request, and says where it did not."""

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
    """/rerank has all its documents read, in each dialect; /search, /explain and /prompt what they ask for."""
    with Reranker(RERANKER) as reranker:
        scores = reranker.score(ASKED["query"], CHUNKS).tolist()
        expected = search(ASKED["query"], CHUNKS, reranker=reranker, reranked=2).to_dict()
    order = sorted(range(len(CHUNKS)), key=lambda place: (-scores[place], place))
    words = search(ASKED["query"], CHUNKS).to_dict()
    with Server("--reranker", str(RERANKER), "--workers", "2", program=REAL) as server:
        assert eventually(lambda: server.call("GET", "/health").status == 200)
        asked = {**ASKED, "reranked": 2}
        # Both workers have loaded it when none of many searches goes without.
        assert eventually(lambda: not any("X-Reranker-Skipped" in server.search(asked).headers for _ in range(20)))
        for path in ("/rerank", "/v1/rerank", "/v2/rerank"):
            told = server.call("POST", path, DOCUMENTS, KEYED).json["results"]
            assert [(one["index"], one["relevance_score"]) for one in told] == [(at, scores[at]) for at in order]
            told = server.call("POST", path, {**TEXTS, "top_n": 2}, KEYED).json
            assert told == [{"index": at, "score": scores[at]} for at in order[:2]]
        assert server.search(ASKED).json == words
        answer = server.search({**ASKED, "reranked": 2})
        assert (answer.json, answer.headers.get("X-Reranker-Skipped")) == (expected, None)
        explained = server.call("POST", "/explain", {**ASKED, "original_index": 2, "reranked": None}, KEYED).json
        assert explained["score"] == explained["relevance"] == explained["reranking"] == scores[2]
        plain = server.call("POST", "/explain", {**ASKED, "original_index": 0}, KEYED).json
        assert "relevance" not in plain
        refused = server.search({**ASKED, "reranked": -1})
        assert (refused.status, refused.json["error"]["field"]) == (400, "reranked")
        asked = {"question": ASKED["query"], "chunk_txts": CHUNKS, "reranked": 2}
        prompted = server.call("POST", "/prompt", asked, KEYED)
        assert (prompted.status, prompted.headers["X-Reranker-Skipped"]) == (200, "unavailable")
        assert server.metric("reranked_texts_total") > 0


def test_a_reranker_that_cannot_be_loaded_leaves_the_order_of_words() -> None:
    """A server whose reranker cannot be loaded ranks documents by their words, and says so in every dialect."""
    found = search(ASKED["query"], CHUNKS, len(CHUNKS), False)
    with Server("--reranker", str(TINY), "--model", "none", "--n-ctx", "64", program=REAL) as server:

        def says_so() -> bool:
            answer = server.call("POST", "/rerank", DOCUMENTS, KEYED)
            best = answer.json["results"][0]
            assert (best["index"], best["relevance_score"]) == (found[0].original_index, found[0].chunk_score)
            return answer.headers["X-Reranker-Skipped"] == "unavailable"

        assert eventually(says_so)
        assert server.call("POST", "/rerank", TEXTS, KEYED).headers["X-Reranker-Skipped"] == "unavailable"
        assert server.metric("searches_without_reranker_total") >= 2
