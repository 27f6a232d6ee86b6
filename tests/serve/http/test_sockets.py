"""Clients that are slow, broken, or mean, on plain sockets."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import resource
import selectors
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
import zstandard

from relevance_gen.serve.http.connections.acceptor import Acceptor
from relevance_gen.serve.settings import Settings
from tests.serve.harness import JSON, KEYED, Held, Server, eventually, read_all, request_bytes

SEARCH = json.dumps({"query": "x", "chunk_txts": ["x"]}).encode()
ZSTD = {**KEYED, "Content-Encoding": "zstd"}
GZIPPED = gzip.compress(SEARCH, mtime=0)
GZIP = {**KEYED, "Content-Encoding": "gzip"}


@pytest.fixture(scope="module")
def impatient() -> Iterator[Server]:
    """A server with short times."""
    with Server(
        "--body-timeout-s", "0.5", "--idle-timeout-s", "0.6", "--rate-limit", "off"
    ) as server:
        yield server


@pytest.fixture(scope="module")
def small() -> Iterator[Server]:
    """A server with small limits."""
    limits = (
        "--max-body-bytes",
        "1MiB",
        "--max-chunks",
        "1000",
        "--max-depth",
        "10",
        "--max-buffered-bytes",
        "14MiB",
    )
    with Server(*limits, "--rate-limit", "off") as server:
        yield server


def status_of(received: bytes) -> int:
    """Return the status of the first response."""
    return int(received.split(b" ", 2)[1]) if received else 0


def test_missing_body_is_408(impatient: Server) -> None:
    """A client that sends half a body and waits gets a 408 when the time is over, and its connection is closed."""
    head = request_bytes("POST", "/search", headers={**KEYED, "Content-Length": "100"})
    received = impatient.exchange(head + b'{"query"')
    assert status_of(received) == 408
    assert b'"type":"timeout"' in received


def test_slow_body_returns_408(impatient: Server) -> None:
    """A client that sends single bytes slowly is disconnected."""
    with impatient.raw() as sock:
        sock.sendall(request_bytes("POST", "/search", headers={**KEYED, "Content-Length": "100"}))
        for _ in range(600):
            sock.settimeout(0.1)
            with suppress(TimeoutError):
                received = sock.recv(65536)
                break
            sock.sendall(b" ")
        assert status_of(received) == 408


def test_incomplete_head_is_closed(impatient: Server) -> None:
    """A connection that never completes a request head is closed after the idle time."""
    for sent in (b"", b"POST /search HT", b"POST /search HTTP/1.1\r\nX-API"):
        started_s = time.monotonic()
        impatient.exchange(sent)
        assert time.monotonic() - started_s < 30


def test_disconnect_during_body_releases_resources(small: Server) -> None:
    """A disconnect during the body releases all resources."""
    for half_close in (True, False):
        with small.raw() as sock:
            sock.sendall(
                request_bytes("POST", "/search", headers={**KEYED, "Content-Length": "100"}) + b"{"
            )
            if half_close:
                sock.shutdown(socket.SHUT_WR)
                read_all(sock)
    assert small.search({"query": "x", "chunk_txts": ["x"]}).status == 200


def test_connection_resets_release_resources(small: Server) -> None:
    """A connection reset, before or during the response, releases all resources."""
    for sent in (
        b"GET /stats HTTP/1.1\r\nHost: x\r\n\r\n",
        request_bytes("POST", "/search", SEARCH, KEYED),
        b"PO",
    ):
        with small.raw() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.sendall(sent)
    assert small.call("GET", "/stats").status == 200


@pytest.mark.parametrize(
    "sent",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 100,
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"GET / HTTP/1.1\r\nX: a\x00b\r\n\r\n",
        b"POST /search HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /search HTTP/1.1\r\nHost: x\r\nContent-Length: 1e3\r\n\r\n",
        b"POST /search HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n{}",
        b"POST /search HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n{}",
        b"GET / HTTP/1.1\r\nX-Long: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: a\r\n" % i for i in range(10_000)) + b"\r\n",
    ],
)
def test_invalid_http_is_400_in_json(small: Server, sent: bytes) -> None:
    """Bytes that are not an HTTP request get a 400 with a JSON error; the connection is closed, and the log has a line."""
    received = small.exchange(sent)
    assert status_of(received) == 400
    head, body = received.split(b"\r\n\r\n", 1)
    assert json.loads(body)["error"]["type"] == "invalid_request"
    given = re.search(rb"X-Request-ID: (\w+)", head)
    assert given is not None
    line = small.logged(given[1].decode())
    assert (line["status"], line["path"]) == (400, "/")


def test_bad_chunked_bodies_are_refused(small: Server) -> None:
    """A chunked body whose framing is broken is a 400, and no hang."""
    head = b"POST /search HTTP/1.1\r\nHost: x\r\nX-API-Key: a-test-key\r\nContent-Type: application/json\r\n"
    received = small.exchange(head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n")
    assert status_of(received) == 400


def test_good_chunked_bodies_are_read(small: Server) -> None:
    """A chunked body in many small pieces is one body."""
    pieces = b"".join(b"1\r\n%c\r\n" % byte for byte in SEARCH) + b"0\r\n\r\n"
    head = request_bytes(
        "GET", "/search", headers={**KEYED, "Transfer-Encoding": "chunked", "Connection": "close"}
    )
    assert status_of(small.exchange(head.replace(b"GET", b"POST", 1) + pieces)) == 200


def test_pipelined_requests_are_answered_in_order(small: Server) -> None:
    """Many requests in one write get their answers in the order of the requests."""
    sent = b"".join(
        request_bytes("GET", "/stats", headers={"X-Request-ID": f"id-{i}"}) for i in range(40)
    )
    received = small.exchange(
        sent + request_bytes("POST", "/search", SEARCH, {**KEYED, "Connection": "close"})
    )
    assert received.count(b"HTTP/1.1 200 OK") == 41
    places = [received.index(b"id-%d\r\n" % i) for i in range(40)]
    assert places == sorted(places)


def test_bytes_after_body_end_the_connection(small: Server) -> None:
    """Bytes after the end of the body that are not HTTP get a 400, and the connection is closed."""
    body = SEARCH + b"rubbish"
    received = small.exchange(
        request_bytes("POST", "/search", body, {**KEYED, "Content-Length": str(len(SEARCH))})
    )
    assert b"400 Bad Request" in received


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (GZIP, b"not gzip"),
        (GZIP, b""),
        (GZIP, GZIPPED[:-4]),
        (GZIP, GZIPPED[:-4] + b"\0\0\0\0"),
        (GZIP, GZIPPED + b"more"),
        (GZIP, GZIPPED + gzip.compress(b" ", mtime=0)),
        (GZIP, zlib.compress(SEARCH)),
        (ZSTD, b"not zstd"),
        (ZSTD, b""),
        (ZSTD, zstandard.compress(SEARCH)[:-4]),
        (ZSTD, zstandard.compress(SEARCH) + b"more"),
        (ZSTD, zstandard.compress(SEARCH) * 2),
        (ZSTD, GZIPPED),
        (ZSTD, b"\x28\xb5\x2f\xfd\x00\xf8" + b"\0" * 20),  # asks for a window of terabytes
    ],
)
def test_bad_compression_is_a_400(small: Server, headers: dict[str, str], body: bytes) -> None:
    """A body that is invalid in its content coding is a 400."""
    answer = small.search(body, headers)
    assert (answer.status, answer.error["type"]) == (400, "invalid_request")


def test_bombs_are_a_413(small: Server) -> None:
    """A small body that would expand beyond the limit is a 413, without being expanded."""
    for headers, bomb in (
        (GZIP, gzip.compress(bytes(200 << 20), 9)),
        (ZSTD, zstandard.compress(bytes(1 << 30))),
    ):
        assert len(bomb) < 1 << 20
        before_kb = peak_kb(small)
        answer = small.search(bomb, headers)
        assert (answer.status, answer.error["type"]) == (413, "too_large")
        assert peak_kb(small) - before_kb < 100_000


def peak_kb(server: Server) -> int:
    """Return the most memory that the server's process has had."""
    with open(f"/proc/{server.process.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def test_large_bodies_are_a_413(small: Server) -> None:
    """A body above the limit is a 413, with or without Content-Length."""
    body = b" " * ((1 << 20) + 1)
    assert small.search(body).status == 413
    head = request_bytes(
        "GET", "/search", headers={**KEYED, "Transfer-Encoding": "chunked"}
    ).replace(b"GET", b"POST", 1)
    with small.raw() as sock:
        sock.sendall(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        assert status_of(sock.recv(65536)) == 413
    at_the_limit = SEARCH + b" " * ((1 << 20) - len(SEARCH))
    assert small.search(at_the_limit).status == 200


def test_too_many_chunks_return_413(small: Server) -> None:
    """More chunks than allowed is a 413 that names the field and the limit."""
    answer = small.search({"query": "x", "chunk_txts": ["x"] * 1001})
    assert (answer.status, answer.error["field"]) == (413, "chunk_txts")
    assert "1000" in answer.error["message"]
    assert small.search({"query": "x", "chunk_txts": ["x"] * 1000}).status == 200


def test_deep_nesting_is_a_400(small: Server) -> None:
    """JSON deeper than allowed is a 400, at the limit it is not."""

    def nested(depth: int) -> object:
        value: object = 1
        for _ in range(depth - 3):  # body, chunk_txts, chunk
            value = {"a": value}
        return {"query": "x", "chunk_txts": [{"text": "x", "metadata": value}]}

    assert small.search(nested(10)).status == 200
    assert small.search(nested(11)).status == 400


def test_total_size_of_bodies_is_bounded(small: Server) -> None:
    """When the bodies that are being received are too large together, further bodies are a 503 until clients disconnect."""
    head = request_bytes("POST", "/search", headers={**KEYED, "Content-Length": "1000000"})
    held = 'request_body_bytes_held{lane="search"}'
    with ExitStack() as stack:
        for _ in range(14):
            stack.enter_context(small.raw()).sendall(head + b" " * 900_000)
        assert eventually(lambda: small.metric(held) > 12_000_000)
        for _ in range(4):
            refused = stack.enter_context(small.raw())
            refused.sendall(head + b" " * 900_000)
            received = refused.recv(65536)
            assert status_of(received) == 503
            assert b"Retry-After" in received
    assert eventually(lambda: small.metric(held) == 0)
    assert small.search({"query": "x", "chunk_txts": ["x"]}).status == 200


def test_requests_that_run_or_wait_hold_their_memory(small: Server) -> None:
    """A small body that becomes a large text counts as that text until its answer is there."""

    def body(n_samples: int) -> bytes:
        asked = {
            "text": "\U0001f600" + "a" * 1_000_000,
            "max_tokens": 10**6,
            "num_samples": n_samples,
        }
        return gzip.compress(json.dumps(asked).encode())

    headers = {**GZIP, "Content-Type": "application/json"}
    with small.raw() as first, small.raw() as second:
        # In sequence: parsing takes more memory than the text. There are four slots; further
        # samples wait.
        for sock, n_samples, n_waiting in ((first, 8, 4), (second, 4, 8)):
            sock.sendall(request_bytes("POST", "/generate", body(n_samples), headers))
            assert eventually(lambda n=n_waiting: small.stats()["backlog"] == n)
        assert small.metric('request_body_bytes_held{lane="generation"}') > 8_000_000
        refused = small.generate(body(1), headers)
        assert (refused.status, refused.error["type"]) == (503, "overloaded")
    assert eventually(lambda: small.metric('request_body_bytes_held{lane="generation"}') == 0)


def test_idle_connections_do_not_block_requests(server: Server) -> None:
    """With 1,000 idle connections open, a search is answered as ever."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    socks: list[socket.socket] = []
    try:
        socks.extend(
            socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(1000)
        )
        started_s = time.monotonic()
        assert server.search({"query": "x", "chunk_txts": ["x"]}).status == 200
        assert time.monotonic() - started_s < 20
    finally:
        for sock in socks:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_disconnected_client_is_logged_as_499(server: Server) -> None:
    """A search whose client left before the answer is counted and logged as such."""
    with Held() as searching:
        body = json.dumps(searching.search).encode()
        with server.raw() as sock:
            sock.sendall(
                request_bytes("POST", "/search", body, {**KEYED, "X-Request-ID": "left-early"})
            )
            assert eventually(searching.has_begun)
        assert server.logged("left-early")["status"] == 499


def test_searches_do_not_block_event_loop(server: Server) -> None:
    """While searches take all threads, other paths are answered at once."""
    n_threads = Settings().n_search_threads
    with ExitStack() as stack:
        held = [stack.enter_context(Held()) for _ in range(n_threads)]
        socks = [stack.enter_context(server.raw()) for _ in held]
        for sock, searching in zip(socks, held, strict=True):
            body = json.dumps(searching.search).encode()
            sock.sendall(request_bytes("POST", "/search", body, {**KEYED, "Connection": "close"}))
        assert eventually(lambda: all(searching.has_begun() for searching in held))
        assert server.call("GET", "/health").status == 200
        for searching in held:
            searching.let_go()
        assert [status_of(read_all(sock)) for sock in socks] == [200] * n_threads


def test_pipelined_bytes_take_little_memory(small: Server) -> None:
    """Eighty clients that pipeline a megabyte each after a slow request take some kilobytes each."""
    slow = request_bytes(
        "POST", "/generate", json.dumps({"text": "x", "max_tokens": 10**6}).encode(), JSON
    )
    behind = request_bytes("POST", "/search", headers={**KEYED, "Content-Length": str(1 << 20)})
    with ExitStack() as stack:
        before_kb = peak_kb(small)
        for _ in range(80):
            sock = stack.enter_context(small.raw())
            sock.sendall(slow + behind)
            sock.settimeout(0.05)
            with suppress(TimeoutError):
                sock.sendall(b" " * (1 << 20))
        assert peak_kb(small) - before_kb < 30_000
    assert eventually(lambda: small.stats()["backlog"] == 0)


def test_more_connections_than_there_is_memory_for_wait() -> None:
    """At the connection limit a connection is not accepted and a log line reports that; it is served when another closes."""

    async def check() -> list[bool]:
        n_free, begun = 0, asyncio.Event()

        class Protocol(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                begun.set()
                transport.close()

        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname()),
        ):
            listener.setblocking(False)
            acceptor = Acceptor(listener, Protocol, lambda: n_free)
            acceptor.start()
            await asyncio.sleep(0.2)
            states = [begun.is_set()]
            n_free = 1
            async with asyncio.timeout(5):
                await begun.wait()
            await acceptor.finish()
            await asyncio.sleep(0)
            return states

    assert asyncio.run(check()) == [False]


@pytest.fixture
def many_files() -> Iterator[None]:
    """Thousands of sockets for this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8192, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_files")
def test_idle_anonymous_connections_are_closed_for_authenticated_client() -> None:
    """When anonymous clients use all connections, an authenticated client is answered and keeps its connection."""
    with (
        Server("--max-buffered-bytes", "128MiB", "--idle-timeout-s", "600") as server,
        ExitStack() as stack,
    ):
        keyed = stack.enter_context(server.raw())
        for n in range(2):
            if n:
                for _ in range(1500):  # more than may be open
                    stack.enter_context(server.raw())
            answer = server.search({"query": "x", "chunk_txts": ["x"]})
            assert answer.status == 200
            keyed.sendall(request_bytes("POST", "/search", SEARCH, KEYED))
            assert status_of(keyed.recv(65536)) == 200


@pytest.mark.usefixtures("many_files")
def test_active_anonymous_requests_leave_connections_for_authenticated_client() -> None:
    """The number of concurrent anonymous requests leaves connections for authenticated clients."""
    head = request_bytes("POST", "/generate", headers={**JSON, "Content-Length": "100"})
    with (
        Server("--max-buffered-bytes", "128MiB", "--body-timeout-s", "600") as server,
        ExitStack() as stack,
        selectors.DefaultSelector() as selector,
    ):
        for _ in range(900):
            sock = stack.enter_context(server.raw())
            sock.sendall(head)
            selector.register(sock, selectors.EVENT_READ)

        # A request that the server has read is answered with 503; the connection of a request that
        # it has not read yet is reset.
        (ended, _), *_ = selector.select(300)
        with suppress(ConnectionResetError):
            assert status_of(ended.fileobj.recv(65536)) in (503, 0)  # type: ignore[union-attr]
        assert server.search({"query": "x", "chunk_txts": ["x"]}).status == 200
