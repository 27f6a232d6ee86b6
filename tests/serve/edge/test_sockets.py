"""Clients that are slow, broken, or mean, on plain sockets."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import resource
import socket
import struct
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest
import zstandard

from relevance_gen.serve.edge.accepting import Acceptor
from tests.serve.harness import JSON, KEYED, Server, eventually, read_all, request_bytes

SEARCH = json.dumps({"query": "x", "chunk_txts": ["x"]}).encode()
ZSTD = {**KEYED, "Content-Encoding": "zstd"}
GZIP = {**KEYED, "Content-Encoding": "gzip"}


@pytest.fixture(scope="module")
def strict() -> Iterator[Server]:
    """A server with short times and small limits."""
    with Server(
        *("--body-timeout-s", "0.5", "--idle-timeout-s", "0.6", "--rate-limit", "off"),
        *("--max-body-bytes", "1MiB", "--max-chunks", "1000", "--max-depth", "10", "--max-buffered-bytes", "14MiB"),
    ) as server:
        yield server


def status_of(received: bytes) -> int:
    """Return the status of the first response."""
    return int(received.split(b" ", 2)[1]) if received else 0


def test_a_body_that_does_not_come_is_a_408(strict: Server) -> None:
    """A client that sends half a body and waits gets a 408 when the time is over, and its connection is closed."""
    head = request_bytes("POST", "/search", headers={**KEYED, "Content-Length": "100"})
    received = strict.exchange(head + b'{"query"')
    assert status_of(received) == 408
    assert b'"type":"timeout"' in received


def test_a_dripping_body_is_a_408(strict: Server) -> None:
    """A client that sends a byte now and then is cut off all the same."""
    with strict.raw() as sock:
        sock.sendall(request_bytes("POST", "/search", headers={**KEYED, "Content-Length": "100"}))
        started_s = time.monotonic()
        for _ in range(8):
            time.sleep(0.05)
            sock.sendall(b" ")
        assert status_of(read_all(sock)) == 408
        assert time.monotonic() - started_s < 5


def test_a_head_that_does_not_end_is_closed(strict: Server) -> None:
    """A connection that never completes a request head is closed after the idle time."""
    for sent in (b"", b"POST /search HT", b"POST /search HTTP/1.1\r\nX-API"):
        started_s = time.monotonic()
        strict.exchange(sent)
        assert time.monotonic() - started_s < 5


def test_a_body_cut_short_by_leaving_harms_nobody(strict: Server) -> None:
    """A client that leaves in the middle of its body is forgotten."""
    for half_close in (True, False):
        with strict.raw() as sock:
            sock.sendall(request_bytes("POST", "/search", headers={**KEYED, "Content-Length": "100"}) + b"{")
            if half_close:
                sock.shutdown(socket.SHUT_WR)
                read_all(sock)
    assert strict.search({"query": "x", "chunk_txts": ["x"]}).status == 200


def test_resets_harm_nobody(strict: Server) -> None:
    """A connection reset, before or while the answer comes, is forgotten."""
    for sent in (b"GET /stats HTTP/1.1\r\nHost: x\r\n\r\n", request_bytes("POST", "/search", SEARCH, KEYED), b"PO"):
        with strict.raw() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.sendall(sent)
    assert strict.call("GET", "/stats").status == 200


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
def test_what_is_no_http_is_a_400_in_json(strict: Server, sent: bytes) -> None:
    """Bytes that are no HTTP request get a 400 with a JSON error, and the connection is closed; it is in the log."""
    received = strict.exchange(sent)
    assert status_of(received) == 400
    head, body = received.split(b"\r\n\r\n", 1)
    assert json.loads(body)["error"]["type"] == "invalid_request"
    given = re.search(rb"X-Request-ID: (\w+)", head)
    assert given is not None
    line = next(line for line in strict.log_lines if line.get("request_id") == given[1].decode())
    assert (line["status"], line["path"]) == (400, "/")


def test_bad_chunked_bodies_are_refused(strict: Server) -> None:
    """A chunked body whose framing is broken is a 400, and no hang."""
    head = b"POST /search HTTP/1.1\r\nHost: x\r\nX-API-Key: a-test-key\r\nContent-Type: application/json\r\n"
    received = strict.exchange(head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\nhello\r\n")
    assert status_of(received) == 400


def test_good_chunked_bodies_are_read(strict: Server) -> None:
    """A chunked body in many small pieces is one body."""
    pieces = b"".join(b"1\r\n%c\r\n" % byte for byte in SEARCH) + b"0\r\n\r\n"
    head = request_bytes("GET", "/search", headers={**KEYED, "Transfer-Encoding": "chunked", "Connection": "close"})
    assert status_of(strict.exchange(head.replace(b"GET", b"POST", 1) + pieces)) == 200


def test_pipelined_requests_are_answered_in_order(strict: Server) -> None:
    """Many requests in one write get their answers in the order of the requests."""
    sent = b"".join(request_bytes("GET", "/stats", headers={"X-Request-ID": f"id-{i}"}) for i in range(40))
    received = strict.exchange(sent + request_bytes("POST", "/search", SEARCH, {**KEYED, "Connection": "close"}))
    assert received.count(b"HTTP/1.1 200 OK") == 41
    places = [received.index(b"id-%d\r\n" % i) for i in range(40)]
    assert places == sorted(places)


def test_a_body_longer_than_said_ends_the_connection(strict: Server) -> None:
    """Bytes after the body's end are no HTTP: the last answer is a 400, and the connection is closed."""
    body = SEARCH + b"rubbish"
    received = strict.exchange(request_bytes("POST", "/search", body, {**KEYED, "Content-Length": str(len(SEARCH))}))
    assert b"400 Bad Request" in received


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (GZIP, b"not gzip"),
        (GZIP, b""),
        (GZIP, gzip.compress(SEARCH)[:-4]),
        (GZIP, gzip.compress(SEARCH)[:-4] + b"\0\0\0\0"),
        (GZIP, gzip.compress(SEARCH) + b"more"),
        (GZIP, gzip.compress(SEARCH) + gzip.compress(b" ")),
        (GZIP, zlib.compress(SEARCH)),
        (ZSTD, b"not zstd"),
        (ZSTD, b""),
        (ZSTD, zstandard.compress(SEARCH)[:-4]),
        (ZSTD, zstandard.compress(SEARCH) + b"more"),
        (ZSTD, zstandard.compress(SEARCH) * 2),
        (ZSTD, gzip.compress(SEARCH)),
        (ZSTD, b"\x28\xb5\x2f\xfd\x00\xf8" + b"\0" * 20),  # asks for a window of terabytes
    ],
)
def test_bad_compression_is_a_400(strict: Server, headers: dict[str, str], body: bytes) -> None:
    """A body that is not what its content coding says is a 400."""
    answer = strict.search(body, headers)
    assert (answer.status, answer.error["type"]) == (400, "invalid_request")


def test_bombs_are_a_413(strict: Server) -> None:
    """A small body that would expand beyond the limit is a 413, without being expanded."""
    for headers, bomb in ((GZIP, gzip.compress(bytes(200 << 20), 9)), (ZSTD, zstandard.compress(bytes(1 << 30)))):
        assert len(bomb) < 1 << 20
        before_kb = peak_kb(strict)
        answer = strict.search(bomb, headers)
        assert (answer.status, answer.error["type"]) == (413, "too_large")
        assert peak_kb(strict) - before_kb < 100_000


def peak_kb(server: Server) -> int:
    """Return the most memory that the server's process has had."""
    with open(f"/proc/{server.process.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))


def test_large_bodies_are_a_413(strict: Server) -> None:
    """A body above the limit is a 413, whether its length is said first or not."""
    body = b" " * ((1 << 20) + 1)
    assert strict.search(body).status == 413
    head = request_bytes("GET", "/search", headers={**KEYED, "Transfer-Encoding": "chunked"}).replace(
        b"GET", b"POST", 1
    )
    assert status_of(strict.exchange(head + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))) == 413
    at_the_limit = SEARCH + b" " * ((1 << 20) - len(SEARCH))
    assert strict.search(at_the_limit).status == 200


def test_many_chunks_are_a_413(strict: Server) -> None:
    """More chunks than allowed is a 413 that names the field and the limit."""
    answer = strict.search({"query": "x", "chunk_txts": ["x"] * 1001})
    assert (answer.status, answer.error["field"]) == (413, "chunk_txts")
    assert "1000" in answer.error["message"]
    assert strict.search({"query": "x", "chunk_txts": ["x"] * 1000}).status == 200


def test_deep_nesting_is_a_400(strict: Server) -> None:
    """JSON deeper than allowed is a 400, at the limit it is not."""

    def nested(depth: int) -> object:
        value: object = 1
        for _ in range(depth - 3):  # body, chunk_txts, chunk
            value = {"a": value}
        return {"query": "x", "chunk_txts": [{"text": "x", "metadata": value}]}

    assert strict.search(nested(10)).status == 200
    assert strict.search(nested(11)).status == 400


def test_all_bodies_together_are_bounded(strict: Server) -> None:
    """When the bodies being received are too many bytes together, a further one is a 503 with Retry-After."""
    head = request_bytes("POST", "/search", headers={**KEYED, "Content-Length": "1000000"})
    socks = [socket.create_connection(("127.0.0.1", strict.port), timeout=10) for _ in range(20)]
    try:
        for sock in socks:
            sock.sendall(head + b" " * 900_000)
        statuses = [status_of(read_all(sock)) for sock in socks]
    finally:
        for sock in socks:
            sock.close()
    assert statuses.count(503) >= 4
    assert statuses.count(408) >= 4
    assert strict.metric('request_body_bytes_held{lane="search"}') == 0


def test_requests_that_run_or_wait_hold_their_memory(strict: Server) -> None:
    """A small body that becomes a large text counts as that text until its answer is there."""

    def body(n_samples: int) -> bytes:
        asked = {"text": "\U0001f600" + "a" * 1_000_000, "max_tokens": 10**6, "num_samples": n_samples}
        return gzip.compress(json.dumps(asked).encode())

    headers = {**GZIP, "Content-Type": "application/json"}
    with strict.raw() as first, strict.raw() as second:
        # One after the other: parsing takes more than the text does. There are four slots; other samples wait.
        for sock, n_samples, n_waiting in ((first, 8, 4), (second, 4, 8)):
            sock.sendall(request_bytes("POST", "/generate", body(n_samples), headers))
            assert eventually(lambda n=n_waiting: strict.stats()["backlog"] == n)
        assert strict.metric('request_body_bytes_held{lane="generation"}') > 8_000_000
        refused = strict.generate(body(1), headers)
        assert (refused.status, refused.error["type"]) == (503, "overloaded")
    assert eventually(lambda: strict.metric('request_body_bytes_held{lane="generation"}') == 0)


def test_idle_connections_harm_nobody(server: Server) -> None:
    """With 1,000 idle connections open, a search is answered as ever."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    socks: list[socket.socket] = []
    try:
        socks.extend(socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(1000))
        started_s = time.monotonic()
        assert server.search({"query": "x", "chunk_txts": ["x"]}).status == 200
        assert time.monotonic() - started_s < 2
    finally:
        for sock in socks:
            sock.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_client_that_leaves_is_logged_as_499(server: Server) -> None:
    """A search whose client left before the answer is counted and logged as such."""
    body = json.dumps({"query": "sleep 0.3", "chunk_txts": ["x"]}).encode()
    with server.raw() as sock:
        sock.sendall(request_bytes("POST", "/search", body, {**KEYED, "X-Request-ID": "left-early"}))
        time.sleep(0.1)
    assert eventually(lambda: any(li.get("request_id") == "left-early" for li in server.log_lines))
    line = next(line for line in server.log_lines if line.get("request_id") == "left-early")
    assert line["status"] == 499


def test_the_loop_never_waits_for_a_search(server: Server) -> None:
    """While searches take all threads, other paths are answered at once."""
    body = json.dumps({"query": "sleep 0.5", "chunk_txts": ["x"]}).encode()
    with server.raw() as first, server.raw() as second, server.raw() as third:
        for sock in (first, second, third):
            sock.sendall(request_bytes("POST", "/search", body, {**KEYED, "Connection": "close"}))
        time.sleep(0.1)
        started_s = time.monotonic()
        assert server.call("GET", "/health").status == 200
        assert time.monotonic() - started_s < 0.3
        assert [status_of(read_all(sock)) for sock in (first, second, third)] == [200] * 3


def test_what_is_pipelined_takes_little_memory(strict: Server) -> None:
    """Eighty clients that send a megabyte each behind a request that is answered slowly take some kilobytes each."""
    slow = request_bytes("POST", "/generate", json.dumps({"text": "x", "max_tokens": 10**6}).encode(), JSON)
    behind = request_bytes("POST", "/search", headers={**KEYED, "Content-Length": str(1 << 20)})
    with ExitStack() as stack:
        before_kb = peak_kb(strict)
        for _ in range(80):
            sock = stack.enter_context(strict.raw())
            sock.sendall(slow + behind)
            sock.settimeout(0.05)
            with suppress(TimeoutError):
                sock.sendall(b" " * (1 << 20))
        assert peak_kb(strict) - before_kb < 30_000
    assert eventually(lambda: strict.stats()["backlog"] == 0, 20)


def test_more_connections_than_there_is_memory_for_wait() -> None:
    """With no place free, a connection is not accepted, a line of log says so, and it is served once one is free."""

    async def check() -> list[bool]:
        n_free, begun = 0, asyncio.Event()

        class Protocol(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                begun.set()
                transport.close()

        with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()):
            listener.setblocking(False)
            acceptor = Acceptor(listener, Protocol, lambda: n_free)
            acceptor.start()
            await asyncio.sleep(0.2)
            states = [begun.is_set()]
            n_free = 1
            async with asyncio.timeout(5):
                await begun.wait()
            acceptor.stop()
            await asyncio.sleep(0)
            return states

    assert asyncio.run(check()) == [False]
