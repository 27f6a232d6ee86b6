"""A server with an encoder: searches use it when it is loaded, and report when they do not."""

from __future__ import annotations

from relevance_gen import Encoder, search
from small_models import ENCODER, TINY
from tests.serve.harness import KEYED, REAL, Server, eventually

CHUNKS = ["Cats purr.", "A cat sleeps.", "Dogs bark at the cat."]
ASKED = {"query": "What does a cat do?", "chunk_txts": CHUNKS}


def test_searches_have_the_encoder_once_it_is_loaded() -> None:
    """Scores equal those of `search(encoder=)`; before the encoder is loaded they are lexical, with a header."""
    with Encoder(ENCODER) as encoder:
        expected = search(ASKED["query"], CHUNKS, encoder=encoder).to_dict()
    words = search(ASKED["query"], CHUNKS).to_dict()
    with Server("--encoder", str(ENCODER), "--model", "none", program=REAL) as server:
        answer = server.search(ASKED)
        if "X-Encoder-Skipped" in answer.headers:
            assert (answer.headers["X-Encoder-Skipped"], answer.json) == ("loading", words)
        assert eventually(lambda: server.metric("encoders") == 1)
        for _ in range(4):
            answer = server.search(ASKED)
            assert "X-Encoder-Skipped" not in answer.headers
            assert answer.json == expected
        reported = server.call("POST", "/explain", {**ASKED, "original_index": 2}, KEYED).json
        assert reported["semantic"] > 0.0
        assert reported["passage"]["end"] == len(CHUNKS[2])


def test_server_with_broken_encoder_searches_lexically() -> None:
    """A server whose encoder cannot be loaded serves searches, and reports why the encoder is not used."""
    with Server("--encoder", str(TINY), program=REAL) as server:

        def reports_failure() -> bool:
            answer = server.search(ASKED)
            assert answer.json == search(ASKED["query"], CHUNKS).to_dict()
            return answer.headers["X-Encoder-Skipped"] == "unavailable"

        assert eventually(reports_failure)
        assert eventually(server.is_healthy)
        asked = {"question": ASKED["query"], "chunk_txts": CHUNKS}

        def prompt_reports_failure() -> bool:
            prompted = server.call("POST", "/prompt", asked, KEYED)
            assert prompted.status == 200
            return prompted.headers["X-Encoder-Skipped"] == "unavailable"

        assert eventually(prompt_reports_failure)
        assert server.metric("searches_without_encoder_total") >= 1
        assert "tiny.gguf holds a model that generates text: pass it to Runner" in server.log
