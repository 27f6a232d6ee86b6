"""The server on the real halves: real search, real llama.cpp with a tiny model."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import zstandard

from relevance_gen import Encoder, search, wire
from small_models import ENCODER, TINY
from tests.serve.harness import KEYED, REAL, SMALL_MODEL, Server, eventually, refused_start
from tests.serve.test_streams import events_of

GREEDY = {"text": "hello", "max_tokens": 8, "temperature": 0, "return_tokens": True}


def test_stream_pieces_equal_response(real: Server) -> None:
    """Pieces of each sample, joined, are its text, and the last event is the response."""
    *texts, (name, last) = events_of(
        real, {"text": "hello", "max_tokens": 20, "num_samples": 3, "seed": 1}
    )[1]
    assert name == "response"
    for sample, completion in enumerate(last["responses"]):
        assert (
            "".join(piece["text"] for _, piece in texts if piece["sample"] == sample)
            == completion["text"]
        )


def test_equal_seed_gives_equal_samples(real: Server) -> None:
    """The same seed gives the same samples, streamed or not."""
    request = {"text": "hello", "max_tokens": 12, "num_samples": 2, "seed": 7}
    once, again = (real.generate(request).json["responses"] for _ in range(2))
    *_, (_, streamed) = events_of(real, request)[1]
    assert [one["text"] for one in once] == [one["text"] for one in again]
    assert [one["text"] for one in once] == [response["text"] for response in streamed["responses"]]


def test_concurrent_generations_equal_single_ones(real: Server) -> None:
    """Greedy requests that run together give the same results as alone."""
    requests = [{**GREEDY, "text": f"hello {n}"} for n in range(8)]
    alone = [real.generate(request).json["responses"][0]["tokens"] for request in requests]
    with ThreadPoolExecutor(8) as pool:
        together = [
            answer.json["responses"][0]["tokens"] for answer in pool.map(real.generate, requests)
        ]
    assert together == alone


def test_generate_real_model_returns_requested_fields(real: Server) -> None:
    """Alternatives and the prompt's log probabilities are in the answer where asked for; a bias has strings as keys."""
    plain, full = (
        real.generate({**GREEDY, **fields}).json
        for fields in (
            {},
            {
                "top_logprobs": 3,
                "prompt_logprobs": True,
                "logit_bias": {"70": 100},
                "min_tokens": 2,
            },
        )
    )
    assert not {"prompt_logprobs"} & set(plain)
    assert not {"top_logprobs", "logprobs"} & set(plain["responses"][0])
    assert full["prompt_logprobs"][0] is None
    assert len(full["prompt_logprobs"]) == full["prompt_tokens"]
    (sample,) = full["responses"]
    assert sample["tokens"] == [70] * 8
    assert [[set(one) for one in place] for place in sample["top_logprobs"]] == [
        [{"token", "logprob"}] * 3
    ] * 8


def test_generate_json_schema_constrains_text(real: Server) -> None:
    """Generated text matches the schema, in the response and in the stream; an invalid schema is a 400."""
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    schema["additionalProperties"] = False
    request = {"text": "hello", "json_schema": schema, "max_tokens": 100, "seed": 3}
    (sample,) = real.generate(request).json["responses"]
    assert sample["finish_reason"] == "eos"
    assert set(json.loads(sample["text"])) == {"n"}
    *_, (_, streamed) = events_of(real, request)[1]
    assert streamed["responses"][0]["text"] == sample["text"]
    for wrong in (
        {"json_schema": {"type": "array", "uniqueItems": True}},
        {"regex": "("},
        {"grammar": "start: x"},
    ):
        for path in ("/generate", "/generate_stream"):
            answer = real.call(
                "POST", path, {"text": "hello"} | wrong, {"Content-Type": "application/json"}
            )
            assert (answer.status, answer.error["field"]) == (400, *wrong)


def test_prompt_larger_than_context_is_400(real: Server) -> None:
    """An error that only the model can detect is a 400, also in a stream."""
    for path in ("/generate", "/generate_stream"):
        answer = real.call(
            "POST", path, {"text": "hello " * 2000}, {"Content-Type": "application/json"}
        )
        assert (answer.status, answer.error["field"]) == (400, "text")


def test_disconnect_frees_model_slots(real: Server) -> None:
    """Abandoned streams free their slots at once."""
    for _ in range(6):
        _, events = events_of(real, {"text": "hello", "max_tokens": 200, "num_samples": 4})
        next(events)
        events.close()
    assert eventually(lambda: real.stats()["backlog"] == 0)
    assert real.generate(GREEDY).status == 200


def test_several_processes_serve_the_real_halves() -> None:
    """With --workers, search and generation are the same from whatever worker a connection meets.

    The process with the model, which searches for a prompt, has an encoder too.
    """
    with Server("--workers", "2", *SMALL_MODEL, "--encoder", str(ENCODER), program=REAL) as server:
        assert eventually(server.is_healthy), server.log
        assert eventually(lambda: server.metric("encoders") == 3), server.log
        found = [
            server.search({"query": "fruit", "chunk_txts": ["red fruit", "sky"]}).json
            for _ in range(6)
        ]
        made = [server.generate(GREEDY).json["responses"][0]["tokens"] for _ in range(6)]
        assert all(one == found[0] for one in found)
        assert all(one == made[0] for one in made)
        prompt = server.call(
            "POST", "/prompt", {"question": "fruit", "chunk_txts": ["red fruit", "sky"]}, KEYED
        )
        assert (prompt.status, "X-Encoder-Skipped" in prompt.headers) == (200, False)
        assert server.end()
        assert server.process.returncode == 0


@pytest.mark.parametrize("setting", ["--model", "--encoder"])
def test_invalid_model_path_stops_server(
    tmp_path: Path, setting: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """A model path that is missing, a folder or another file type ends the server with status 2."""
    other = tmp_path / "other.gguf"
    other.write_text("not a model")
    for path, says in (
        (tmp_path / "none.gguf", "does not exist"),
        (tmp_path, "folder"),
        (other, "is not a GGUF file"),
    ):
        assert refused_start(setting, str(path)) == 2
        printed = capfd.readouterr()
        (line,) = printed.err.splitlines()
        assert printed.out == ""
        assert str(path) in line
        assert says in line


def test_server_with_damaged_model_searches(tmp_path: Path) -> None:
    """A model that cannot be loaded is one line in the log; /health stays 503 and search is served."""
    damaged = tmp_path / "damaged.gguf"
    damaged.write_bytes(TINY.read_bytes()[:1000])
    with Server("--model", str(damaged), program=REAL) as server:
        assert eventually(lambda: "could not be loaded" in server.log)
        assert server.call("GET", "/health").status == 503
        assert server.generate(GREEDY).status == 503
        assert server.search({"query": "fruit", "chunk_txts": ["red fruit"]}).status == 200


def test_prompt_without_model_is_503(by_words: Server) -> None:
    """And what to start the server with."""
    answer = by_words.call(
        "POST", "/prompt", {"question": "cats", "chunk_txts": ["Cats purr."]}, KEYED
    )
    assert (answer.status, answer.error["type"]) == (503, "no_runner")
    assert answer.error["message"] == "this server has no model; start it with --model"


def test_search_over_http_is_search(real: Server, by_words: Server) -> None:
    """POST /search answers exactly what `search` returns, with and without an encoder, from the cache, in any order."""
    chunks = [
        "Machine learning is a subset of artificial intelligence.",
        {"text": "The weather is sunny today.", "metadata": {"source": "diary", "page": 3}},
        "Deep learning uses neural networks with many layers.",
        "機械学習は人工知能の一分野です。",
        {"text": "Learning to swim takes time — naïve beginners sink.", "metadata": {}},
    ]
    with Encoder(ENCODER) as encoder:
        for query in ("What is machine learning?", "swim", "機械学習", "...", "zebra"):
            for true_order in (True, False):
                asked = {"query": query, "chunk_txts": chunks, "top_n": 3, "true_order": true_order}
                for server, beside in ((by_words, None), (real, encoder)):
                    expected = search(query, chunks, 3, true_order, encoder=beside).to_dict()
                    for _ in range(3):
                        assert server.search(asked).json == expected


def test_search_of_two_million_tokens(by_words: Server) -> None:
    """20,000 chunks of 10 MB, compressed in transit, are searched in bounded time."""
    chance = random.Random(5)  # noqa: S311
    words = ["".join(chance.choices("etaoinshrdlu", k=chance.randint(2, 9))) for _ in range(5000)]
    chunks = [" ".join(chance.choices(words, k=75)) for _ in range(20_000)]
    query = " ".join(words[:3])
    body = json.dumps({"query": query, "chunk_txts": chunks}).encode()
    assert len(body) > 9_000_000
    answer = by_words.search(
        zstandard.compress(body), {**KEYED, "Content-Encoding": "zstd"}, timeout_s=60
    )
    assert answer.json == json.loads(wire.serialize(search(query, chunks)))
    assert answer.json["metadata"]["num_context_tokens"] > 2_000_000
