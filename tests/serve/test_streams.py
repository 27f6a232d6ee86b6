"""POST /generate_stream: text as it comes."""

from __future__ import annotations

import http.client
import json
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.serve.harness import JSON, Held, Server, eventually, request_bytes


def events_of(
    server: Server, body: object
) -> tuple[http.client.HTTPResponse, Generator[tuple[str, Any], None, None]]:
    """Start a stream and return its response and its events."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", "/generate_stream", json.dumps(body), JSON)
    response = connection.getresponse()

    def events() -> Generator[tuple[str, Any], None, None]:
        name = ""
        try:
            for line in response:
                if line.startswith(b"event: "):
                    name = line[7:].decode().strip()
                elif line.startswith(b"data: "):
                    yield name, json.loads(line[6:])
        finally:
            response.close()
            connection.close()

    return response, events()


def test_stream_pieces_equal_response(server: Server) -> None:
    """Pieces of each sample, joined, are its text, and the last event is what /generate would have answered."""
    response, events = events_of(
        server, {"text": "hello", "max_tokens": 5, "num_samples": 3, "return_tokens": True}
    )
    *texts, (last_name, last) = list(events)
    assert response.headers["Content-Type"] == "text/event-stream"
    assert {name for name, _ in texts} == {"text"}
    assert last_name == "response"
    assert list(last) == [
        "created",
        "finished",
        "num_samples",
        "prompt",
        "prompt_tokens",
        "responses",
    ]
    for sample, completion in enumerate(last["responses"]):
        assert (
            "".join(piece["text"] for _, piece in texts if piece["sample"] == sample)
            == completion["text"]
        )
        assert completion["tokens"] == [0, 1, 2, 3, 4]


def test_stream_sends_text_during_generation(server: Server) -> None:
    """The first piece arrives before the last is generated."""
    with Held() as generating:
        _, events = events_of(server, {"text": generating.words, "max_tokens": 5})
        first = next(events)
        generating.let_go()
        *texts, _ = (first, *events)
        assert [data["text"] for _, data in texts] == [f"word{n} " for n in range(5)]


def test_disconnect_frees_slots(server: Server) -> None:
    """A client that goes away in mid-stream, or while it waits for /generate, cancels its work at once."""
    for path in ("/generate_stream", "/generate"):
        cancelled = server.metric("generation_cancelled_total")
        body = json.dumps({"text": "hello", "max_tokens": 100_000, "num_samples": 8}).encode()
        with server.raw() as sock:
            sock.sendall(request_bytes("POST", path, body, JSON))
            assert eventually(lambda: server.stats()["backlog"] == 4)
        assert eventually(lambda: server.stats()["backlog"] == 0)
        assert server.metric("generation_cancelled_total") == cancelled + 1


def test_full_backlog_is_429(server: Server) -> None:
    """More samples than the backlog holds is a 429 with the runner's Retry-After, streamed or not."""
    for path in ("/generate", "/generate_stream"):
        answer = server.call("POST", path, {"text": "hello", "num_samples": 100}, JSON)
        assert (answer.status, answer.error["type"], answer.headers["Retry-After"]) == (
            429,
            "overloaded",
            "3",
        )


def test_many_streams_at_once_do_not_mix(server: Server) -> None:
    """Each of several streams gets its complete text."""
    with ThreadPoolExecutor(12) as pool:
        found = list(
            pool.map(
                lambda n: list(events_of(server, {"text": "x", "max_tokens": n})[1]), range(1, 13)
            )
        )
    for n, events in enumerate(found, 1):
        assert "".join(event["text"] for name, event in events if name == "text") == "".join(
            f"word{i} " for i in range(n)
        )


def test_generation_is_measured(server: Server) -> None:
    """Tokens, seconds, and the time to the first text are counted."""
    before = (
        server.metric("generated_tokens_total"),
        server.metric("time_to_first_token_seconds_count"),
    )
    server.generate({"text": "one two", "max_tokens": 7, "num_samples": 2})
    assert server.metric("generated_tokens_total") == before[0] + 14
    assert server.metric("time_to_first_token_seconds_count") == before[1] + 1


def test_too_slow_a_generation_is_a_503_or_an_error_event() -> None:
    """Beyond its time a generation is ended: with a 503, or in mid-stream with an error event."""
    with Server("--generation-timeout-s", "0.3") as server:
        assert eventually(server.is_healthy)
        answer = server.generate({"text": "hello", "max_tokens": 100_000})
        assert (answer.status, answer.error["type"]) == (503, "timeout")
        *_, (name, data) = events_of(server, {"text": "hello", "max_tokens": 100_000})[1]
        assert (name, data["error"]["type"]) == ("error", "timeout")
        assert eventually(lambda: server.stats()["backlog"] == 0)


def test_dead_model_fails_requests_and_health() -> None:
    """When the model's thread dies, waiting requests get a 503, streams an error event, /health a 503; search continues."""
    with Server() as server:
        assert eventually(server.is_healthy)
        _, events = events_of(server, {"text": "hello", "max_tokens": 100_000})
        next(events)
        assert server.generate({"text": "die"}).status == 503
        *_, (name, data) = events
        assert (name, data["error"]["type"]) == ("error", "no_runner")
        assert server.call("GET", "/health").status == 503
        assert server.stats() == {"backlog": 0, "num_total_runners": 0}
        assert server.search({"query": "x", "chunk_txts": ["x"]}).status == 200
