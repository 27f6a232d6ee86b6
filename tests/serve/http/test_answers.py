"""Answers that clients do not read: held within the lane's memory, and no longer than allowed."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.serve.harness import KEYED, Server, eventually, read_all, request_bytes

TEXT = "x " + "y" * (6 << 20)
"""More bytes than the kernel buffers for a client that does not read: at most 4 MiB
(`net.ipv4.tcp_wmem`)."""
SEARCH = json.dumps({"query": "x", "chunk_txts": [TEXT]}).encode()
HELD = 'request_body_bytes_held{lane="search"}'
SEARCHED = "search_seconds_count"
"""Increases when the response is made. The reserved bytes do not show that: a body is as large as
its response."""


@pytest.fixture(scope="module")
def impatient() -> Iterator[Server]:
    """A server that waits for 2 seconds until an answer is read."""
    limits = ("--max-buffered-bytes", "80MiB", "--write-timeout-s", "2")
    with Server(*limits, "--rate-limit", "off", "--search-threads", "1") as server:
        yield server


def unread(server: Server, stack: ExitStack) -> socket.socket:
    """Ask for an answer that holds `TEXT` and read none of it."""
    sock = stack.enter_context(socket.socket())
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.settimeout(60)
    sock.connect(("127.0.0.1", server.port))
    sock.sendall(request_bytes("POST", "/search", SEARCH, KEYED))
    return sock


def test_unread_answer_holds_memory_until_timeout(impatient: Server) -> None:
    """An unread answer counts as its lane's memory; when its time is over, its connection is cut and all given back."""
    with ExitStack() as stack:
        sock = unread(impatient, stack)
        assert eventually(lambda: impatient.metric(SEARCHED) == 1)
        assert len(TEXT) < impatient.metric(HELD) < len(TEXT) + 4096
        assert eventually(lambda: impatient.metric(HELD) == 0)
        assert len(read_all(sock)) < len(TEXT)

    def is_logged(line: dict[str, Any]) -> bool:
        return (line.get("status"), line.get("path")) == (499, "/search")

    assert eventually(lambda: any(map(is_logged, impatient.log_lines)))


def test_trickling_reader_times_out(impatient: Server) -> None:
    """Reading a little now and then does not win more time."""
    with ExitStack() as stack:
        sock = unread(impatient, stack)
        started_s = time.monotonic()
        assert eventually(lambda: impatient.metric(HELD) > len(TEXT))
        while impatient.metric(HELD) > len(TEXT):
            sock.recv(1024)
            time.sleep(0.05)
        assert time.monotonic() - started_s < 60


def test_unread_answers_are_bounded_together() -> None:
    """When unread answers fill the lane, further searches wait for room, and are refused with 503 if none comes."""
    limits = ("--max-buffered-bytes", "80MiB", "--queue-timeout-s", "2", "--search-threads", "1")
    with Server(*limits) as server, ExitStack() as stack:
        for n in (1, 2, 3):
            unread(server, stack)
            assert eventually(lambda n=n: server.metric(SEARCHED) == n)
            assert n * len(TEXT) < server.metric(HELD) < n * len(TEXT) + 4096
        refused = server.search(SEARCH)
        assert (refused.status, refused.error["message"]) == (
            503,
            "too many large requests at once",
        )
        assert server.search({"query": "x", "chunk_txts": ["x"]}).status == 200
        stack.close()
        assert eventually(lambda: server.metric(HELD) == 0)
        assert server.search(SEARCH).status == 200
