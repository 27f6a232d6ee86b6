"""Start, drain, end."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.serve.harness import KEYED, Held, Server, eventually, refused_start, request_bytes

BODY = {"query": "x", "chunk_txts": ["x"]}


def test_search_is_served_while_the_model_loads() -> None:
    """The start does not wait for the model: until it is loaded /health is 503, generations wait, search is served."""
    with (
        ThreadPoolExecutor(1) as pool,
        Held() as loading,
        Server("--model", loading.words) as server,
    ):
        assert server.call("GET", "/health").status == 503
        assert server.stats() == {"backlog": 0, "num_total_runners": 0}
        waiting = pool.submit(server.generate, {"text": "x", "max_tokens": 1})
        assert server.search(BODY).status == 200
        assert not waiting.done()
        loading.let_go()
        assert waiting.result().status == 200
        assert server.call("GET", "/health").status == 200


def test_generation_times_out_while_model_loads() -> None:
    """A generation that waits too long for its model gets a 503 with the reason; SIGTERM ends such a server."""
    with (
        Held() as loading,
        Server("--model", loading.words, "--generation-timeout-s", "0.2") as server,
    ):
        answer = server.generate({"text": "x"})
        assert (answer.status, answer.error["type"]) == (503, "timeout")
        assert answer.error["message"] == "the model was not loaded within 0.2 seconds"
        assert int(answer.headers["Retry-After"]) >= 1
        assert server.end()
        assert server.process.returncode == 0


def test_searches_are_served_during_hanging_load() -> None:
    """Current and later requests get the reason; searches are served, and the model answers once it is loaded."""
    with (
        Held() as loading,
        Server("--model", loading.words, "--model-load-timeout-s", "0.2") as server,
    ):
        for _ in range(2):
            answer = server.generate({"text": "x"})
            assert (answer.status, answer.error["type"]) == (503, "no_runner")
            assert answer.error["message"] == "the model has been loading for more than 0.2 seconds"
        assert server.search(BODY).status == 200
        loading.let_go()
        assert eventually(lambda: server.generate({"text": "x", "max_tokens": 1}).status == 200)
        assert server.end()


def test_sigterm_lets_running_work_finish() -> None:
    """After SIGTERM /health is 503 and new work refused, what runs is finished and answered, and the status is 0."""
    with (
        ThreadPoolExecutor(2) as pool,
        Server() as server,
        Held() as searching,
        Held() as generating,
    ):
        assert eventually(server.is_healthy)
        search = pool.submit(server.search, searching.search)
        generation = pool.submit(server.generate, {"text": generating.words, "max_tokens": 100})
        assert eventually(lambda: searching.has_begun() and generating.has_begun())
        server.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: server.call("GET", "/health").status == 503)
        refused = server.search(BODY)
        assert (refused.status, refused.error["type"], refused.headers["Connection"]) == (
            503,
            "draining",
            "close",
        )
        searching.let_go()
        generating.let_go()
        assert search.result().status == 200
        assert generation.result().json["responses"][0]["generated_tokens"] == 100
        assert server.process.wait(60) == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_closed_terminal_ends_server_gracefully(workers: str) -> None:
    """SIGHUP goes to every process, as from a terminal; what runs is finished and answered, and the status is 0."""
    with ThreadPoolExecutor(1) as pool, Server("--workers", workers) as server, Held() as searching:
        assert eventually(server.is_healthy)
        search = pool.submit(server.search, searching.search)
        assert eventually(searching.has_begun)
        spawned = (
            pid
            for pid in server.has_children()
            if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
        )
        for pid in (*spawned, server.process.pid):
            os.kill(pid, signal.SIGHUP)
        searching.let_go()
        assert search.result().status == 200
        assert server.process.wait(60) == 0


def test_nohup_keeps_the_server_up_when_its_terminal_is_closed() -> None:
    """If SIGHUP is ignored at the start, it stays ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        server = Server(is_forked=False)
    finally:
        signal.signal(signal.SIGHUP, before)
    with server:
        server.process.send_signal(signal.SIGHUP)
        assert server.search(BODY).status == 200
        assert server.end()


def test_drain_has_a_limit() -> None:
    """Work that outlasts the limit ends with a 503, a stream that has begun with an error event; the status is 0."""
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(3))
        server = stack.enter_context(Server("--drain-timeout-s", "0.3"))
        assert eventually(server.is_healthy)
        searching, generating, streaming = held = [stack.enter_context(Held()) for _ in range(3)]
        stuck = pool.submit(outcome, server, "/search", searching.search)
        endless = pool.submit(
            outcome, server, "/generate", {"text": generating.words, "max_tokens": 100}
        )
        body = {"text": streaming.words, "max_tokens": 100}
        streamed = pool.submit(server.call, "POST", "/generate_stream", body, KEYED)
        assert eventually(lambda: all(one.has_begun() for one in held))
        assert server.end()
        assert server.process.returncode == 0
        assert (stuck.result(), endless.result(), streamed.result().status) == (503, 503, 200)
        last_event = streamed.result().body.rstrip().rpartition(b"\n\n")[2]
        assert b"draining" in last_event
        logged = [line["status"] for line in server.log_lines if line.get("method") == "POST"]
        assert sorted(logged) == [200, 503, 503]


def outcome(server: Server, path: str, body: object) -> int:
    """Return the status of a request, 0 if its connection was cut."""
    try:
        return server.call("POST", path, body, KEYED).status
    except (OSError, http.client.IncompleteRead):
        return 0


def test_second_signal_ends_immediately() -> None:
    """A second signal, SIGTERM or SIGINT after either, does not wait for anything."""
    with (
        ThreadPoolExecutor(1) as pool,
        Server("--drain-timeout-s", "600") as server,
        Held() as searching,
    ):
        pool.submit(outcome, server, "/search", searching.search)
        assert eventually(searching.has_begun)
        server.process.send_signal(signal.SIGTERM)
        assert eventually(lambda: server.call("GET", "/health").status == 503)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(60) == 128 + signal.SIGINT


def test_idle_server_ends_immediately() -> None:
    """Open connections without a request do not hold the end up."""
    with (
        Server("--drain-timeout-s", "600", "--idle-timeout-s", "600") as server,
        server.raw() as sock,
    ):
        sock.sendall(b"GET /stats HTTP/1.1\r\nHost: x\r\n\r\n")
        assert sock.recv(1000)
        assert server.end()
        assert server.process.returncode == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_port_in_use_is_reported(workers: str, capfd: pytest.CaptureFixture[str]) -> None:
    """A port that cannot be had is one line on standard error and status 1, also where its owner would share it."""
    with socket.create_server(("127.0.0.1", 0), reuse_port=True) as taken:
        port = taken.getsockname()[1]
        assert refused_start("--port", str(port), "--workers", workers) == 1
    reported = f"127.0.0.1 port {port}: Address already in use; --port 0 takes a free one"
    # No key is made for a server that does not run.
    assert capfd.readouterr() == ("", f"relevance-gen serve: cannot listen on {reported}\n")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--api-keys-file", "/no/such/file"],
            "--api-keys-file: /no/such/file: No such file or directory",
        ),
        (
            ["--rate-limit-storage", "foo://x"],
            "--rate-limit-storage must be memory:// or an address such as redis://",
        ),
    ],
)
def test_start_error_names_the_flag(
    flags: list[str], message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """Problems that depend on files and packages are reported before the server listens, in one line, with status 2."""
    assert refused_start(*flags) == 2
    printed = capfd.readouterr()
    (line,) = printed.err.splitlines()
    assert (printed.out, line.startswith(f"relevance-gen serve: {message}")) == ("", True)


@pytest.fixture(scope="module")
def unusual() -> Iterator[Server]:
    """A server with settings that do not touch each other."""
    origins = ("--cors-origins", "http://one.example, http://two.example")
    flags = (
        *origins,
        "--search-threads",
        "1",
        "--search-queue",
        "2",
        "--log-format",
        "text",
        "--rate-limit",
        "off",
    )
    with Server(*flags, RELEVANCE_GEN_API_KEYS="a-test-key,other") as server:
        yield server


def test_pages_of_allowed_origins_may_call(unusual: Server) -> None:
    """With cors_origins set, those origins and no others get leave, preflight and answer alike, errors too."""
    for method, path in (("OPTIONS", "/search"), ("GET", "/stats"), ("POST", "/search")):
        here = unusual.call(method, path, headers={"Origin": "http://two.example"})
        assert here.headers["Access-Control-Allow-Origin"] == "http://two.example"
        assert here.headers["Vary"] == "Accept, Accept-Encoding, Origin"
        for name in ("X-API-Key", "Authorization"):
            assert name in here.headers["Access-Control-Allow-Headers"]
        assert "RateLimit-Reset" in here.headers["Access-Control-Expose-Headers"]
        there = unusual.call(method, path, headers={"Origin": "http://three.example"})
        assert "Access-Control-Allow-Origin" not in there.headers


def test_full_queue_returns_429(unusual: Server) -> None:
    """Beyond the maximum number of waiting searches, further searches are rejected with Retry-After."""
    with ThreadPoolExecutor(3) as pool, Held() as searching:
        first = pool.submit(unusual.search, searching.search)
        assert eventually(searching.has_begun)
        others = [pool.submit(unusual.search, BODY) for _ in range(2)]
        assert eventually(lambda: unusual.metric('requests_waiting{lane="search"}') == 2)
        answers = [unusual.search(BODY) for _ in range(2)]
        assert [answer.status for answer in answers] == [429, 429]
        assert all(int(answer.headers["Retry-After"]) >= 1 for answer in answers)
        searching.let_go()
        assert [future.result().status for future in (first, *others)] == [200] * 3
        assert unusual.metric('requests_rejected_total{lane="search"}') == 2


def test_too_long_a_wait_is_a_503() -> None:
    """A search that exceeds its waiting time is rejected with Retry-After."""
    flags = ("--search-threads", "1", "--queue-timeout-s", "1")
    with ThreadPoolExecutor(1) as pool, Server(*flags) as server, Held() as searching:
        assert eventually(lambda: server.search(BODY).status == 200)
        rejected = 'requests_rejected_total{lane="search"}'
        before = server.metric(rejected)
        first = pool.submit(server.search, searching.search)
        assert eventually(searching.has_begun)
        late = server.search(BODY)
        assert (late.status, late.error["type"]) == (503, "overloaded")
        assert int(late.headers["Retry-After"]) >= 1
        searching.let_go()
        assert first.result().status == 200
        assert server.metric(rejected) == before + 1


def test_text_logs_are_one_line_for_each_request(unusual: Server) -> None:
    """The text form of the log cannot be broken into lines by a client."""
    unusual.call("GET", "/a%0Ainjected")
    unusual.call("GET", "/b", headers={"X-Request-ID": "visible"})
    assert eventually(lambda: "visible" in unusual.log)
    assert not any(line.startswith("injected") for line in unusual.log.splitlines())


def test_repeated_chunks_are_found_in_the_cache(unusual: Server) -> None:
    """Chunks that come again and again are indexed no more, for this key, with this request's own metadata."""
    n_before = unusual.metric("search_index_cache_hits_total")
    for page in range(5):
        chunks = [{"text": "x y z", "metadata": {"page": page}}]
        answer = unusual.search({"query": "x", "chunk_txts": chunks})
        assert json.loads(answer.body)["results"][0]["metadata"] == {"page": page}
    assert unusual.metric("search_index_cache_hits_total") == n_before + 3
    assert unusual.metric("search_index_cache_bytes") > 0
    unusual.search({"query": "x", "chunk_txts": ["x y z"]}, {**KEYED, "X-API-Key": "other"})
    assert unusual.metric("search_index_cache_hits_total") == n_before + 3


def test_shutdown_answers_connections_in_the_backlog() -> None:
    """Connections that were begun before SIGTERM, and not accepted yet, have their requests answered or refused."""
    with Server() as server, ExitStack() as stack:
        assert eventually(server.is_healthy)
        idle = stack.enter_context(server.raw())
        idle.sendall(request_bytes("GET", "/docs"))
        while not idle.recv(1 << 20).endswith(b"</html>\n"):
            pass
        server.process.send_signal(signal.SIGSTOP)
        socks = [idle, *(stack.enter_context(server.raw()) for _ in range(300))]
        for sock in socks:
            sock.sendall(request_bytes("GET", "/stats"))
        server.process.send_signal(signal.SIGTERM)
        server.process.send_signal(signal.SIGCONT)
        for sock in socks:
            assert sock.recv(1 << 16).startswith(b"HTTP/1.1 ")
        assert server.process.wait(60) == 0
