"""Several processes on one port."""

from __future__ import annotations

import gzip
import json
import os
import re
import select
import signal
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import SimpleNamespace

import pytest

from relevance_gen.serve.processes.process import ProcessSpec
from relevance_gen.serve.processes.supervisor import Supervisor, _end_of, bind
from relevance_gen.serve.settings import Settings
from tests.serve.harness import (
    JSON,
    KEYED,
    Held,
    Server,
    eventually,
    processor_seconds,
    read_all,
    request_bytes,
)
from tests.serve.test_streams import events_of

BODY = {"query": "x", "chunk_txts": ["x"]}


@pytest.fixture(scope="module")
def loading() -> Iterator[Held]:
    """What keeps a model from being loaded, once it is held."""
    with Held() as loading:
        loading.let_go()
        yield loading


@pytest.fixture(scope="module")
def several(loading: Held, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Two workers and the process that holds the model, whose temporary folder is emptied and removed."""
    folder = tmp_path_factory.mktemp("temporary")
    flags = ("--workers", "2", "--rate-limit", "off", "--model", loading.words)
    with Server(*flags, TMPDIR=str(folder)) as server:
        assert eventually(server.is_healthy)
        # A killed supervisor left its folder; without the folder dead workers could not be
        # replaced.
        folder.rmdir()
        yield server


def pids(server: Server, role: str) -> list[int]:
    """Return the ids of the processes of `role`, the newest last."""
    return [
        int(pid) for pid in re.findall(rf'"message":"{role} process (\d+) started"', server.log)
    ]


def test_every_worker_searches_and_generates(several: Server) -> None:
    """Every worker gives the same results for search, generation, streams, health and stats."""
    for _ in range(12):
        assert several.search(BODY).status == 200
        assert (
            several.generate({"text": "x", "max_tokens": 2}).json["responses"][0]["text"]
            == "word0 word1 "
        )
        *texts, (name, last) = events_of(several, {"text": "x", "max_tokens": 2})[1]
        assert (len(texts), name, last["prompt"]) == (2, "response", "x")
        asked = {"question": "x", "chunk_txts": ["x y"]}
        assert (
            several.call("POST", "/prompt", asked, KEYED)
            .json["request"]["text"]
            .startswith("Context: x y\n")
        )
        assert several.call("GET", "/health").status == 200
        assert eventually(lambda: several.stats() == {"backlog": 0, "num_total_runners": 1})


def test_refusals_pass_through(several: Server) -> None:
    """An error of the model process looks like an error of the worker."""
    answer = several.generate({"text": "x", "max_tokens": 0}, {**JSON, "X-Request-ID": "through"})
    assert (answer.status, answer.error["field"], answer.headers["X-Request-ID"]) == (
        400,
        "max_tokens",
        "through",
    )
    answer = several.generate({"text": "x", "num_samples": 100})
    assert (answer.status, answer.headers["Retry-After"]) == (429, "3")
    assert several.generate(b"{}", {"Content-Type": "text/plain"}).body == b""


def test_forwarded_response_is_encoded_only_on_request(several: Server) -> None:
    """Without Accept-Encoding the response is not encoded, also through two processes."""
    body = json.dumps({"text": "x " * 2000, "max_tokens": 1}).encode()
    plain = several.exchange(
        request_bytes("POST", "/generate", body, {**JSON, "Connection": "close"})
    )
    assert b"Content-Encoding" not in plain
    assert json.loads(plain.split(b"\r\n\r\n", 1)[1])["prompt"] == "x " * 2000
    asked = several.generate(body, {**JSON, "Accept-Encoding": "gzip"})
    assert json.loads(gzip.decompress(asked.body))["prompt"] == "x " * 2000


@pytest.mark.parametrize(
    ("key", "lane"), [("a-test-key", "generation"), ("wrong", "anonymous_generation")]
)
def test_model_process_receives_the_key_id(several: Server, key: str, lane: str) -> None:
    """A generation takes the lane of its key in the worker and in the process that holds the model, and no other."""
    lanes = ("search", "generation", "anonymous_generation")
    body = json.dumps({"text": "x" * 50_000, "max_tokens": 100_000}).encode()
    headers = {**JSON, "X-API-Key": key, "X-Relevance-Gen-Key-ID": "forged"}
    with several.raw() as sock:
        sock.sendall(request_bytes("POST", "/generate", body, headers))
        assert eventually(
            lambda: several.metric(f'request_body_bytes_held{{lane="{lane}"}}') > 100_000
        )
        held = [several.metric(f'request_body_bytes_held{{lane="{one}"}}') for one in lanes]
        assert [n_bytes > 0 for n_bytes in held] == [one == lane for one in lanes]
    assert eventually(lambda: several.metric(f'request_body_bytes_held{{lane="{lane}"}}') == 0)


def test_prompt_search_is_counted(several: Server) -> None:
    """The model process searches for prompts, and the workers report its metrics."""
    counts = (
        "search_seconds_count",
        "search_chunks_total",
        'http_requests_total{endpoint="prompt",status="200"}',
    )
    before = [several.metric(name) for name in counts]
    assert (
        several.call("POST", "/prompt", {"question": "x", "chunk_txts": ["x y", "z"]}, KEYED).status
        == 200
    )
    assert eventually(lambda: several.metric(counts[2]) == before[2] + 1)
    assert [several.metric(name) for name in counts[:2]] == [before[0] + 1, before[1] + 2]


def test_metrics_are_of_all_processes(several: Server) -> None:
    """Whichever worker is asked, /metrics counts what all of them did, and each request once."""
    searches, generations, states = (
        f'http_requests_total{{endpoint="{name}",status="200"}}'
        for name in ("search", "generate", "stats")
    )
    counted = (
        searches,
        generations,
        states,
        "generated_tokens_total",
        "http_request_body_bytes_total",
    )
    before = [several.metric(name) for name in counted]
    for _ in range(10):
        several.search(BODY)
    several.generate({"text": "x", "max_tokens": 4})
    several.call("GET", "/health")
    n_bytes = 10 * len(json.dumps(BODY)) + len(json.dumps({"text": "x", "max_tokens": 4}))

    def grown() -> list[float]:
        return [several.metric(name) - old for name, old in zip(counted, before, strict=True)]

    # A worker counts an answer once it is sent; the other one may be asked for the metrics before
    # that.
    assert eventually(lambda: grown() == [10, 1, 0, 4, n_bytes]), grown()
    assert eventually(lambda: several.metric("runners") == 1)


def test_disconnected_client_frees_slots_of_model_process(several: Server) -> None:
    """An abandoned stream also ends in the model process."""
    _, events = events_of(several, {"text": "x", "max_tokens": 100_000, "num_samples": 8})
    next(events)
    assert eventually(lambda: several.stats()["backlog"] == 4)
    events.close()
    assert eventually(lambda: several.stats()["backlog"] == 0)


def test_killed_worker_is_replaced_without_refused_connections(several: Server) -> None:
    """After SIGKILL of one worker the others serve, new connections are all answered, and counters do not fall."""
    before = several.metric('http_requests_total{endpoint="search",status="200"}')
    victim = pids(several, "front")[0]
    os.kill(victim, signal.SIGKILL)
    with ThreadPoolExecutor(4) as pool:
        assert [
            answer.status for answer in pool.map(lambda _: several.search(BODY), range(40))
        ] == [200] * 40
    assert eventually(lambda: len(pids(several, "front")) == 3)
    assert eventually(
        lambda: several.metric('http_requests_total{endpoint="search",status="200"}') >= before + 40
    )


def test_killed_model_process_is_replaced_during_searches(several: Server, loading: Held) -> None:
    """After SIGKILL of the model process, health is 503 and search is served; new generations wait for its replacement."""
    loading.hold()
    os.kill(pids(several, "model")[-1], signal.SIGKILL)
    assert eventually(lambda: several.call("GET", "/health").status == 503)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(several.generate, {"text": "x", "max_tokens": 1})
        assert several.search(BODY).status == 200
        assert not waiting.done()
        loading.let_go()
        assert waiting.result().status == 200
    assert eventually(several.is_healthy)
    assert several.generate({"text": "x", "max_tokens": 1}).status == 200


def test_stream_ends_when_model_process_is_killed(several: Server) -> None:
    """When the process with the model dies in mid-stream, the client sees a cut and no second answer."""
    body = json.dumps({"text": "x", "max_tokens": 100_000}).encode()
    with several.raw() as sock:
        sock.sendall(request_bytes("POST", "/generate_stream", body, JSON))
        received = b""
        while b"event: text" not in received:
            received += sock.recv(1 << 16)
        os.kill(pids(several, "model")[-1], signal.SIGKILL)
        received += read_all(sock)
    assert received.count(b"HTTP/1.1 ") == 1
    assert not received.endswith(b"0\r\n\r\n")
    assert eventually(several.is_healthy)


class Process:
    """A process that ends on request."""

    pid = 1

    def __init__(self, **_: object) -> None:
        self.exitcode: int | None = None

    def start(self) -> None:
        """Start it."""

    def close(self) -> None:
        """Ignore it."""


def test_failing_worker_restarts_with_growing_delay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that dies again and again is started at once, then after delays that double, unless one lived."""
    now_s = 0.0
    clock = SimpleNamespace(monotonic=lambda: now_s)
    monkeypatch.setattr("relevance_gen.serve.processes.supervisor.time", clock)
    (listener,) = bind("127.0.0.1", 0, 1)
    with listener:
        supervisor = Supervisor(
            [ProcessSpec(Settings(), (), "model", listener)], id, drain_timeout_s=0
        )
        supervisor._context = SimpleNamespace(Process=Process)  # type: ignore[assignment]
        (child,) = supervisor._children
        waited_s = []
        for lived_s in (*[1.0] * 12, 10.0, 1.0):
            supervisor._update(child)
            assert child.process is not None
            child.process.exitcode = 1
            now_s += lived_s
            ended_s = now_s
            supervisor._update(child)
            if child.process is None:
                now_s = child.start_at_s
            waited_s.append(round(now_s - ended_s, 6))
    assert waited_s == [0, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30, 30, 0, 0]


@pytest.mark.parametrize("n_workers", [1, 3])
def test_bind_resets_no_connection(monkeypatch: pytest.MonkeyPatch, n_workers: int) -> None:
    """A socket that listened is not closed, because closing it resets the connections that wait in it."""
    listening: list[socket.socket] = []

    class Recorded(socket.socket):
        def listen(self, backlog: int = 128) -> None:
            listening.append(self)
            super().listen(backlog)

    monkeypatch.setattr("relevance_gen.serve.processes.supervisor.socket.socket", Recorded)
    listeners = bind("127.0.0.1", 0, n_workers)
    with ExitStack() as stack:
        for listener in listeners:
            stack.enter_context(listener)
        assert listening == listeners
        assert len({listener.getsockname() for listener in listeners}) == 1


def test_port_of_listening_server_is_refused() -> None:
    """Several workers do not share the port of another server that also shares its port."""
    others = bind("127.0.0.1", 0, 2)
    with others[0], others[1], pytest.raises(OSError, match="in use"):
        bind("127.0.0.1", others[0].getsockname()[1], 2)


def test_socket_of_delayed_worker_is_shut_down() -> None:
    """The socket of a worker that died soon after its start is shut down until it starts again: other workers get its connections."""

    class Dead:
        exitcode, pid = -signal.SIGBUS, 1
        close = staticmethod(lambda: None)

    living, dead = listeners = bind("127.0.0.1", 0, 2)
    with living, dead, ExitStack() as stack:
        specs = [ProcessSpec(Settings(), (), "front", listener) for listener in listeners]
        supervisor = Supervisor(specs, id, drain_timeout_s=0)
        child = supervisor._children[1]
        child.process, child.delay_s, child.started_s = Dead(), 1000.0, time.monotonic()  # type: ignore[assignment]
        supervisor._update(child)
        for _ in range(30):
            stack.enter_context(socket.create_connection(living.getsockname(), 60))
        living.settimeout(60)
        for _ in range(30):
            stack.enter_context(living.accept()[0])
        child.start_at_s = 0.0
        supervisor._update(child)
        assert child.process is not None
        dead.setblocking(False)

        def meets_it() -> bool:
            stack.enter_context(socket.create_connection(living.getsockname(), 60))
            return select.select([dead], [], [], 0)[0] != []

        assert eventually(meets_it)
        child.process.join()


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (1, "ended with status 1"),
        (-9, "was ended by signal 9, Killed"),
        (-signal.SIGBUS, "Bus error: a file that it had mapped"),
        (-40, "signal 40"),
    ],
)
def test_log_names_exit_status_or_signal(status: int, said: str) -> None:
    """The log names the status or the signal, and the truncation of a mapped file as a cause."""
    assert said in _end_of(status)


def test_sigterm_drains_every_process() -> None:
    """SIGTERM to the supervisor ends all processes once their work is done, with status 0."""
    with ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(3))
        server = stack.enter_context(
            Server("--workers", "2", "--search-threads", "2", "--drain-timeout-s", "600")
        )
        assert eventually(server.is_healthy)
        children = server.has_children()
        *searching, generating = held = [stack.enter_context(Held()) for _ in range(3)]
        searches = [pool.submit(server.search, one.search) for one in searching]
        generation = pool.submit(server.generate, {"text": generating.words, "max_tokens": 100})
        assert eventually(lambda: all(one.has_begun() for one in held))
        server.process.send_signal(signal.SIGTERM)
        for one in held:
            one.let_go()
        assert [search.result().status for search in searches] == [200, 200]
        assert generation.result().status == 200
        assert server.process.wait(60) == 0
        assert eventually(lambda: not any(is_running(pid) for pid in children))


def test_drain_of_all_processes_has_a_limit() -> None:
    """Requests that exceed the time limit end with a 503, also through a worker; all processes end with status 0."""
    with (
        ThreadPoolExecutor(1) as pool,
        Server("--workers", "2", "--drain-timeout-s", "0.3") as server,
        Held() as generating,
    ):
        assert eventually(server.is_healthy)
        children = server.has_children()
        cut = pool.submit(server.generate, {"text": generating.words, "max_tokens": 100})
        assert eventually(generating.has_begun)
        server.process.send_signal(signal.SIGTERM)
        assert (cut.result().status, cut.result().error["type"]) == (503, "draining")
        assert server.process.wait(60) == 0
        assert eventually(lambda: not any(is_running(pid) for pid in children))


def test_workers_do_not_outlive_their_supervisor() -> None:
    """When the supervisor is killed outright, its processes finish their work, without turning in circles, and end."""
    with (
        ThreadPoolExecutor(1) as pool,
        Server("--workers", "2", "--drain-timeout-s", "600") as server,
        Held() as searching,
    ):
        assert eventually(server.is_healthy)
        children = pids(server, "front") + pids(server, "model")
        search = pool.submit(server.search, searching.search)
        assert eventually(searching.has_begun)
        server.process.kill()
        server.process.wait()
        assert eventually(lambda: is_quiet(children))
        searching.let_go()
        assert search.result().status == 200
        assert eventually(lambda: not any(is_running(pid) for pid in children))


def is_quiet(pids: list[int]) -> bool:
    """Return whether processes use almost no CPU for a while; they may still have been starting."""
    before_s = sum(map(processor_seconds, pids))
    time.sleep(0.4)
    return sum(map(processor_seconds, pids)) - before_s < 0.1


def is_running(pid: int) -> bool:
    """Return whether a process runs; a zombie does not count."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(") ", 1)[1][0] != "Z"
    except FileNotFoundError:
        return False
