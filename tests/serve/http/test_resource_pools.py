"""Resource pools: anonymous clients do not block authenticated clients, and generation does not block search."""

from __future__ import annotations

import base64
import gzip
import json
import math
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from relevance_gen.serve.http.resources.resource_pools import make_resource_pools
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.settings import Settings
from tests.serve.harness import (
    HALF_SCRIPTED,
    JSON,
    KEYED,
    REAL,
    Held,
    Server,
    eventually,
    request_bytes,
)
from tests.serve.http.test_sockets import peak_kb

SEARCH = {"query": "x", "chunk_txts": ["x"]}


@pytest.fixture(scope="module")
def small() -> Iterator[Server]:
    """A server with little memory for bodies."""
    limits = ("--max-body-bytes", "8MiB", "--max-buffered-bytes", "32MiB", "--search-threads", "1")
    with Server(*limits, "--rate-limit", "off") as server:
        assert eventually(server.is_healthy)
        yield server


def unfinished(server: Server, stack: ExitStack, headers: dict[str, str], n_bodies: int) -> None:
    """Begin generations whose bodies of 8 MiB do not end."""
    head = request_bytes("POST", "/generate", headers={**headers, "Content-Length": str(8 << 20)})
    for _ in range(n_bodies):
        sock = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
        sock.sendall(head + b" " * ((8 << 20) - 9))


def test_bodies_without_a_key_leave_room_for_those_with_one(small: Server) -> None:
    """While anonymous bodies fill their pool, authenticated searches and generations are accepted."""
    generation = {"text": "x", "max_tokens": 1}
    with ExitStack() as stack:
        unfinished(small, stack, JSON, 5)
        assert eventually(
            lambda: small.metric('request_body_bytes_held{lane="anonymous_generation"}') > 24 << 20
        )
        assert small.generate({**generation, "text": "x" * (4 << 20)}, JSON).status == 503
        assert small.generate(generation, KEYED).status == 200
        assert small.search({**SEARCH, "chunk_txts": ["x" * (2 << 20)]}).status == 200
        assert small.metric('request_body_bytes_held{lane="search"}') == 0
    assert eventually(
        lambda: small.metric('request_body_bytes_held{lane="anonymous_generation"}') == 0
    )


def test_generations_with_a_key_leave_room_for_searches(small: Server) -> None:
    """Bodies of generations with a key take nothing of the searches' budget."""
    with ExitStack() as stack:
        unfinished(small, stack, KEYED, 5)
        assert eventually(
            lambda: small.metric('request_body_bytes_held{lane="generation"}') > 24 << 20
        )
        assert small.search({**SEARCH, "chunk_txts": ["x" * (2 << 20)]}).status == 200


def test_bodies_of_generations_without_a_key_are_smaller(server: Server) -> None:
    """A body that takes the parser too long is rejected from anonymous clients, compressed or not, and accepted with a key."""
    body = b'["' + b"x" * (17 << 20) + b'"]'
    for sent, coding in ((body, {}), (gzip.compress(body, 1), {"Content-Encoding": "gzip"})):
        refused = server.generate(sent, {**JSON, **coding})
        assert (refused.status, "at most 16777216 bytes" in refused.error["message"]) == (413, True)
        assert server.generate(sent, {**KEYED, **coding}).status == 400


def test_wrong_key_uses_anonymous_pool(small: Server) -> None:
    """A wrong key does not give access to the pool of authenticated clients."""
    with ExitStack() as stack:
        unfinished(small, stack, {**JSON, "X-API-Key": "wrong"}, 2)
        assert eventually(
            lambda: small.metric('request_body_bytes_held{lane="anonymous_generation"}') > 15 << 20
        )
        assert small.metric('request_body_bytes_held{lane="generation"}') == 0


def test_bombs_without_a_key_do_not_stop_search(small: Server) -> None:
    """Small bodies that would decode to millions of lists are rejected without parsing; searches continue."""
    bomb = gzip.compress(b'{"text": [' + b"[]," * (5 << 19) + b"0]}", 9)
    headers = {**JSON, "Content-Encoding": "gzip"}
    assert len(bomb) < 20_000
    before_kb = peak_kb(small)
    with ThreadPoolExecutor(16) as pool:
        bombs = [pool.submit(small.generate, bomb, headers) for _ in range(16)]
        while not all(future.done() for future in bombs):
            assert small.search(SEARCH).status == 200
        assert {future.result().status for future in bombs} == {413}
    assert peak_kb(small) - before_kb < 150_000


def test_parsing_generations_takes_no_thread_of_search(small: Server) -> None:
    """While searches hold every thread of theirs, generations whose bodies need a thread are answered."""
    large = json.dumps({"text": "x" * 300_000, "max_tokens": 1}).encode()
    with ThreadPoolExecutor(1) as pool, Held() as searching:
        search = pool.submit(small.search, searching.search)
        assert eventually(searching.has_begun)
        assert small.generate(large).status == small.generate(large, KEYED).status == 200
        assert not search.done()
        searching.let_go()
        assert search.result().status == 200


def test_long_prompt_search_does_not_block_chats(server: Server) -> None:
    """The search of a prompt uses a thread of the search pool; the thread that renders conversations stays free."""
    with ThreadPoolExecutor(1) as pool, Held() as searching:
        asked = {"question": searching.words, "chunk_txts": ["hold"]}
        prompt = pool.submit(server.call, "POST", "/prompt", asked, KEYED)
        assert eventually(searching.has_begun)
        chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
        assert server.call("POST", "/v1/chat/completions", chat, KEYED).status == 200
        assert not prompt.done()
        searching.let_go()
        assert prompt.result().status == 200


def test_very_many_spans_count_as_memory() -> None:
    """A short word found a hundred thousand times in a small body has an answer that its budget must hold."""
    with Server("--model", "none", "--max-buffered-bytes", "48MiB", program=REAL) as server:
        found = {"query": "cat", "chunk_txts": ["cat " * 100_000]}
        assert server.search(found).status == 200
        answer = server.search({**found, "spans": True})
        assert (answer.status, answer.error["type"]) == (413, "too_large")
        assert (
            server.search({**found, "chunk_txts": ["cat " * 10_000], "spans": True}).status == 200
        )
        assert eventually(lambda: server.metric('request_body_bytes_held{lane="search"}') == 0)


@pytest.mark.parametrize("path", ["/search", "/prompt"])
def test_spans_take_no_more_than_any_search(path: str) -> None:
    """With spans, a chunk that repeats two words takes 12 times the body plus at most 48 MiB."""
    text = "dog bird " * 300_000
    asked = {"chunk_txts": [text]} | (
        {"question": "dog bird"} if path == "/prompt" else {"query": "dog", "spans": True}
    )
    body = gzip.compress(json.dumps(asked).encode())
    with Server(
        "--rate-limit", "off", "--max-buffered-bytes", "128MiB", program=HALF_SCRIPTED
    ) as server:
        assert eventually(server.is_healthy)
        before_kb = peak_kb(server)
        answer = server.call(
            "POST", path, body, {**KEYED, "Content-Encoding": "gzip"}, timeout_s=300
        )
        assert (answer.status, answer.error["type"]) == (413, "too_large")
        assert peak_kb(server) - before_kb < (12 * len(text) + (48 << 20)) / 1024


def read_children(server: Server) -> list[str]:
    """Return the ids of the processes that any thread of the server has started."""
    tasks = Path(f"/proc/{server.process.pid}/task").glob("*/children")
    return " ".join(task.read_text() for task in tasks).split()


def test_slow_document_delays_only_its_own_key() -> None:
    """While the process that reads a document of one key hangs, a document of another key is read by a different process."""
    document = {"name": "a.txt", "content": base64.b64encode(b"Apples").decode()}
    other = {**KEYED, "X-API-Key": "another"}
    with (
        Server("--model", "none", RELEVANCE_GEN_API_KEYS="a-test-key,another") as server,
        ThreadPoolExecutor(2) as pool,
    ):
        assert server.call("POST", "/extract", document, KEYED).status == 200
        (reader,) = map(int, read_children(server))
        os.kill(reader, signal.SIGSTOP)
        mine = [pool.submit(server.call, "POST", "/extract", document, KEYED) for _ in range(2)]
        assert eventually(lambda: server.metric('requests_waiting{lane="extraction"}') == 1)
        assert server.call("POST", "/extract", document, other).status == 200
        assert not any(future.done() for future in mine)
        os.kill(reader, signal.SIGCONT)
        assert [future.result().status for future in mine] == [200, 200]


@pytest.mark.parametrize("n_threads", ["1", "2"])
def test_heavy_searches_of_one_key_leave_searches_of_another_key_answered(n_threads: str) -> None:
    """Before the queued searches of eight connections of one key, a search of another key is answered."""
    other = {**KEYED, "X-API-Key": "another"}
    with (
        Server(
            "--search-threads",
            n_threads,
            "--rate-limit",
            "off",
            RELEVANCE_GEN_API_KEYS="a-test-key,another",
        ) as server,
        ThreadPoolExecutor(9) as pool,
        ExitStack() as stack,
    ):
        works = [stack.enter_context(Held()) for _ in range(8)]
        first = pool.submit(server.search, works[0].search)
        assert eventually(works[0].has_begun)
        queued = [pool.submit(server.search, work.search) for work in works[1:]]
        assert eventually(lambda: server.metric('requests_waiting{lane="search"}') == 7)
        answer = pool.submit(server.search, SEARCH, other)
        if n_threads == "1":
            # The running search occupies the only thread; of the queued ones, the other key's is
            # next.
            assert eventually(lambda: server.metric('requests_waiting{lane="search"}') == 8)
            works[0].let_go()
        assert answer.result().status == 200
        assert not any(future.done() for future in queued)
        for work in works[n_threads == "1" :]:
            work.let_go()
        assert [future.result().status for future in (first, *queued)] == [200] * 8


def test_agents_pool_limits_threads_of_each_key() -> None:
    """Every pool with several threads keeps one of them free of each key; extraction allows one thread to each."""
    settings = Settings(search_threads=4)
    pools = make_resource_pools(settings, Metrics.for_one_process(), limits_keys=True)
    limits = {name: pool.executor._threads.client_limit for name, pool in pools.items()}
    assert limits == {
        "search": 3,
        "generation": 1,
        "anonymous_generation": math.inf,
        "extraction": 1,
        "agents": 3,
    }
    for pool in pools.values():
        pool.executor.close()


LONG = "x" * 65_537
CHUNKS = {"chunk_txts": ["x"]}


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/search", {"query": LONG, **CHUNKS}, "query"),
        ("/search", {"query": LONG, "syntax": "operators", **CHUNKS}, "query"),
        ("/search", {"query": "é" * 33_000, **CHUNKS}, "query"),
        ("/explain", {"query": LONG, "original_index": 0, **CHUNKS}, "query"),
        ("/compress", {"question": LONG, "max_tokens": 9, **CHUNKS}, "question"),
        ("/prompt", {"question": LONG, **CHUNKS}, "question"),
        ("/rerank", {"query": LONG, "documents": ["x"]}, "query"),
        ("/rerank", {"query": LONG, "texts": ["x"]}, "query"),
    ],
    ids=["search", "operators", "bytes", "explain", "compress", "prompt", "rerank", "rerank-texts"],
)
def test_query_above_limit_returns_413(
    small: Server, path: str, body: dict[str, object], field: str
) -> None:
    """Every route that searches refuses a longer query, and names the limit and the remedy."""
    answer = small.call("POST", path, body, KEYED)
    text = answer.body.decode()
    assert answer.status == 413, text
    assert f"{field} must have at most 65,536 bytes; shorten it" in text
    assert "--max-query-bytes" in text


def test_query_at_limit_is_answered(small: Server) -> None:
    """The longest allowed query is searched."""
    assert small.search({"query": "x" * 65_536, "chunk_txts": ["x"]}).status == 200


def test_query_limit_is_configurable() -> None:
    """The limit is a setting; agents' questions count, too."""
    flags = ("--model", "none", "--max-query-bytes", "9", "--folder", str(Path(__file__).parent))
    headers = {**KEYED, "Accept": "application/json, text/event-stream"}
    with Server(*flags, program=REAL) as server:
        assert server.search({"query": "x" * 9, "chunk_txts": ["x"]}).status == 200
        assert server.search({"query": "x" * 10, "chunk_txts": ["x"]}).status == 413
        params = {"name": "search", "arguments": {"question": "x" * 10}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        answer = server.call("POST", "/mcp", message, headers)
        assert answer.status == 413
        error = answer.json["error"]["message"]
        assert error.startswith("question must have at most 9 bytes; shorten it")


@pytest.mark.parametrize("end", [". ", "!\n", "。"])
def test_compress_with_too_many_sentences_is_a_413(end: str) -> None:
    """Ends of sentences count as chunks, and are counted before the sentences are split."""
    text = f"The cat{end}"
    with Server("--model", "none", "--max-chunks", "3", program=REAL) as server:
        body = {"question": "cat", "max_tokens": 9}
        answer = server.call("POST", "/compress", {**body, "chunk_txts": [text * 2] * 2}, KEYED)
        assert (answer.status, answer.error["field"]) == (413, "chunk_txts")
        expected = "must have at most 3 ends of sentences and lines together; send only"
        assert expected in answer.error["message"]
        answer = server.call("POST", "/compress", {**body, "chunk_txts": [text]}, KEYED)
        assert answer.status == 200
