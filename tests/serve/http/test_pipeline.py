"""The pipeline: every request is packed, counted and accounted for in the same way."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from relevance_gen.errors import TooLargeError
from relevance_gen.quota import Quota
from relevance_gen.serve.adapters.own import GenerationEvents
from relevance_gen.serve.handlers.generation import write_event
from relevance_gen.serve.http.call import LOOP_LIMIT_BYTES, run_off_loop
from relevance_gen.serve.http.resources.costs import GENERATION
from relevance_gen.serve.http.resources.resource_pools import MemoryReservation
from relevance_gen.serve.services.generation import GenerationTask, Responses
from relevance_gen.types import (
    Completion,
    GenerationRequest,
    GenerationResponse,
    TokenLogprob,
    TokenTexts,
)
from tests.serve.harness import HALF_SCRIPTED, KEYED, Server, eventually, request_bytes

GZIP = {**KEYED, "Accept-Encoding": "gzip"}
HELD = 'request_body_bytes_held{lane="generation"}'
TASK = GenerationTask((GenerationRequest("x"),))
SEARCHED = ("search_seconds_count", "search_chunks_total")


@pytest.mark.parametrize(
    ("n_prompt", "n_tokens", "on_loop"), [(1000, 1, True), (100_000, 1, False), (1, 9000, False)]
)
def test_large_responses_are_written_in_a_thread(
    n_prompt: int, n_tokens: int, on_loop: bool
) -> None:
    """A response with a large prompt or large samples is written in a thread, so that the event loop stays free."""
    response = GenerationResponse(
        0.0, 0.0, 1, "x" * n_prompt, 1, (Completion("x", n_tokens, 0.0, "length"),)
    )
    writer = asyncio.run(
        run_off_loop(threading.current_thread, GENERATION.of_responses((response,), TASK))
    )
    assert (writer is threading.main_thread()) == on_loop


@pytest.mark.parametrize(
    ("n_samples", "echoes", "on_loop"), [(1, True, True), (16, False, True), (16, True, False)]
)
@pytest.mark.parametrize("n_alternatives", [0, 10])
def test_echoed_prompt_counts_for_each_sample(
    n_samples: int, echoes: bool, on_loop: bool, n_alternatives: int
) -> None:
    """A prompt of tokens that each sample repeats, with or without log probabilities, makes a response large."""
    n_prompt, likeliest = (
        (9, (TokenLogprob(7, -1.0),) * n_alternatives) if n_alternatives else (8000, ())
    )
    token_texts = TokenTexts(
        (7,) * n_prompt, {7: b"word"}, frozenset(), (likeliest,) * (n_prompt - 1)
    )
    logprobs = (None, *(-1.0,) * (n_prompt - 1)) if n_alternatives else None
    samples = (Completion("x", 1, 0.0, "length"),) * n_samples
    response = GenerationResponse(0.0, 0.0, n_samples, "", n_prompt, samples, logprobs, token_texts)
    task = GenerationTask((GenerationRequest("", num_samples=n_samples),), echoes=echoes)
    assert (GENERATION.of_responses((response,), task) <= LOOP_LIMIT_BYTES) == on_loop


def test_last_event_is_reserved_before_it_is_written() -> None:
    """Memory is held while the last event is written; without memory it is not written."""
    task = GenerationTask((GenerationRequest("x"),))
    responses = (GenerationResponse(0.0, 0.0, 1, "x", 1, (Completion("x", 1000, 0.0, "length"),)),)
    n_bytes = GENERATION.of_responses(responses, task)
    found: list[float] = []

    class Watched(GenerationEvents):
        def end(self, responses: Responses) -> bytes:
            found.append(memory.held)
            return super().end(responses)

    for room in (n_bytes, n_bytes - 1):
        memory = Quota(room)
        with MemoryReservation(memory) as held, suppress(TooLargeError):
            assert asyncio.run(
                write_event(held, GENERATION, task, responses, Watched())
            ) == GenerationEvents().end(responses)
            assert memory.held == 0
    assert found == [n_bytes]


def test_prompt_is_compressed_and_its_search_counted(server: Server) -> None:
    """POST /prompt answers with the coding that is accepted, and its search counts like any other."""
    before = [server.metric(name) for name in SEARCHED]
    answer = server.call(
        "POST",
        "/prompt",
        {"question": "cats " * 300, "chunk_txts": ["cats purr", "dogs bark"]},
        GZIP,
    )
    assert (answer.status, answer.headers["Content-Encoding"]) == (200, "gzip")
    written = json.loads(gzip.decompress(answer.body))
    assert [source["original_index"] for source in written["sources"]] == [0]
    assert [server.metric(name) for name in SEARCHED] == [before[0] + 1, before[1] + 2]


def test_prompt_spans_count_as_memory() -> None:
    """A short word found a hundred thousand times in a small body is refused for a prompt, as it is for a search."""
    with Server("--max-buffered-bytes", "48MiB", program=HALF_SCRIPTED) as server:
        assert eventually(server.is_healthy)
        for n_words, status in ((1000, 200), (100_000, 413)):
            asked = {"question": "cat", "chunk_txts": ["cat " * n_words]}
            assert server.call("POST", "/prompt", asked, KEYED).status == status
        assert eventually(lambda: server.metric('request_body_bytes_held{lane="generation"}') == 0)


@pytest.fixture(scope="module")
def impatient() -> Iterator[Server]:
    """A server that waits for 2 seconds until an answer is read."""
    with Server("--write-timeout-s", "2", "--rate-limit", "off") as started:
        assert eventually(started.is_healthy)
        yield started


def unread(server: Server, stack: ExitStack) -> None:
    """Ask for a stream whose first event is larger than the kernel takes, and read none of it."""
    asked = {"prompt": "\1" * (1 << 20), "echo": True, "stream": True, "max_tokens": 1}
    sock = stack.enter_context(socket.socket())
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(60)
    sock.connect(("127.0.0.1", server.port))
    sock.sendall(request_bytes("POST", "/v1/completions", json.dumps(asked).encode(), KEYED))


def test_first_stream_event_counts_as_memory(server: Server) -> None:
    """Unread bytes are held like any other memory; after a disconnect zero bytes are held."""
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
    received_bytes = server.metric("http_request_body_bytes_total")
    with ExitStack() as stack:
        unread(server, stack)
        assert eventually(
            lambda: server.metric("http_request_body_bytes_total") > received_bytes + (6 << 20)
        )
        # The chat is read in the same thread; afterwards the body of the stream is parsed, which
        # takes the same time.
        assert server.call("POST", "/v1/chat/completions", chat, KEYED).status == 200
        assert eventually(lambda: server.metric(HELD) > 6 << 20)
    assert eventually(lambda: server.metric(HELD) == 0)


def test_unread_first_stream_event_times_out(impatient: Server) -> None:
    """A client that reads nothing of it is cut when its time is over."""
    with ExitStack() as stack:
        unread(impatient, stack)
        assert eventually(lambda: any(line.get("status") == 499 for line in impatient.log_lines))
        assert eventually(lambda: impatient.metric(HELD) == 0)
