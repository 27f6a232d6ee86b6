"""Long runs of everything that has been tried against the server, by `make soak` only. Seeded."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from small_models import TINY
from tests.serve.harness import (
    JSON,
    KEYED,
    REAL,
    ROOT,
    SMALL_MODEL,
    Server,
    eventually,
    read_all,
    request_bytes,
)

pytestmark = pytest.mark.soak

SEARCH = {
    "query": "red apple",
    "chunk_txts": ["a red apple", {"text": "a green pear", "metadata": {"page": 1}}],
}
SEARCH_BYTES = request_bytes("POST", "/search", json.dumps(SEARCH).encode(), KEYED)
GENERATE_BYTES = request_bytes(
    "POST", "/generate", json.dumps({"text": "x", "max_tokens": 3}).encode(), JSON
)
DESCRIBED = {0, 200, 204, 400, 401, 403, 404, 405, 408, 411, 413, 415, 417, 429, 503}


@pytest.fixture
def many_files() -> Iterator[None]:
    """Allow this process thousands of sockets."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(16_384, hard), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def statuses_in(received: bytes) -> list[int]:
    """Return the statuses of all responses in the received bytes."""
    return [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]


def resident_kb(server: Server) -> int:
    """Return the memory that the server's process holds."""
    with open(f"/proc/{server.process.pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def is_healthy(server: Server) -> bool:
    """Return whether a search is answered."""
    return server.search(SEARCH).status == 200


def mutated(chance: random.Random, sent: bytes) -> bytes:
    """Change, drop, double or add some bytes."""
    kept = bytearray(sent)
    for _ in range(chance.randint(0, 4)):
        start = chance.randrange(len(kept) + 1)
        end = min(len(kept), start + chance.choice((0, 1, 1, 4, 40)))
        piece = bytes(kept[start:end])
        kept[start:end] = chance.choice(
            (b"", piece * 2, chance.randbytes(3), b"\r\n", b"\0", b": ", b'"', b"\\ud800")
        )
    return bytes(kept)


def test_mutated_requests_return_described_status(real: Server) -> None:
    """6,000 requests with changed bytes each get a described status or a closed connection, and memory stays."""
    chance = random.Random(1)  # noqa: S311 - no secret

    def attempt(sent: bytes) -> list[int]:
        with real.raw(timeout_s=0.2) as sock:
            with suppress(OSError):
                sock.sendall(sent)
            return statuses_in(read_all(sock))

    with ThreadPoolExecutor(8) as pool:
        sent = (mutated(chance, chance.choice((SEARCH_BYTES, GENERATE_BYTES))) for _ in range(6000))
        counts = Counter(status for statuses in pool.map(attempt, sent) for status in statuses)
    assert set(counts) <= DESCRIBED, counts
    assert counts[200] > 100
    assert counts[400] > 20
    assert is_healthy(real)
    assert resident_kb(real) < 600_000


@pytest.mark.usefixtures("many_files")
@pytest.mark.parametrize("sent", [b"", b"POST /search HTTP/1.1\r\n", SEARCH_BYTES[:-20]])
def test_idle_and_slow_clients(real: Server, sent: bytes) -> None:
    """2,000 clients that send nothing, half a head or half a body, a byte now and then, do not slow a search down."""
    socks: list[socket.socket] = []
    try:
        for _ in range(2000):
            socks.append(socket.create_connection(("127.0.0.1", real.port), timeout=60))
            socks[-1].sendall(sent)
        for _ in range(20):
            started_s = time.monotonic()
            assert is_healthy(real)
            assert time.monotonic() - started_s < 2
            for sock in socks[::10]:
                with suppress(OSError):
                    sock.sendall(b" ")
    finally:
        for sock in socks:
            sock.close()
    assert is_healthy(real)


def test_half_closes_and_resets_in_every_phase(real: Server) -> None:
    """2,000 clients leave, by half a close or by a reset, after any number of bytes; nothing stays held."""
    chance = random.Random(2)  # noqa: S311 - no secret

    def leave(_: int) -> None:
        sent = chance.choice((SEARCH_BYTES, GENERATE_BYTES))
        with suppress(OSError), real.raw(timeout_s=5) as sock:
            sock.sendall(sent[: chance.randrange(len(sent) + 1)])
            time.sleep(chance.choice((0, 0, 0.001, 0.01)))
            if chance.random() < 0.5:
                sock.shutdown(socket.SHUT_WR)
                read_all(sock)
            else:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(leave, range(2000)))
    assert eventually(lambda: real.stats()["backlog"] == 0)
    for lane in ("search", "generation", "anonymous_generation"):
        assert eventually(
            lambda lane=lane: real.metric(f'request_body_bytes_held{{lane="{lane}"}}') == 0
        )
    assert is_healthy(real)


def test_dropped_streams(real: Server) -> None:
    """After 1,000 streams are dropped in the middle, all slots are free."""
    body = json.dumps({"text": "x", "max_tokens": 200, "num_samples": 2}).encode()
    sent = request_bytes("POST", "/generate_stream", body, JSON)

    def drop(number: int) -> None:
        with real.raw() as sock:
            sock.sendall(sent)
            if number % 3:
                sock.recv(number % 500 + 1)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(drop, range(1000)))
    assert eventually(lambda: real.stats()["backlog"] == 0)
    assert real.generate({"text": "x", "max_tokens": 3}).status == 200


@contextmanager
def load(ask: Callable[[], int], n_clients: int = 4) -> Iterator[Counter[int]]:
    """Send requests from several threads until the context ends; count the statuses, lost connections as 0."""
    counts: Counter[int] = Counter()
    ended = threading.Event()

    def work() -> None:
        while not ended.is_set():
            try:
                status = ask()
            except (OSError, http.client.HTTPException):
                status = 0
            counts[status] += 1

    threads = [threading.Thread(target=work) for _ in range(n_clients)]
    for thread in threads:
        thread.start()
    try:
        yield counts
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def children(server: Server) -> list[int]:
    """Return the server's workers, the process with the model last."""
    spawned = (
        pid
        for pid in server.has_children()
        if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()
    )
    return sorted(spawned)


def test_killed_workers_and_models() -> None:
    """While a worker or the model is killed every second, few searches are lost, and none by the model's death."""
    with Server("--workers", "3", *SMALL_MODEL, "--rate-limit", "off", program=REAL) as server:
        assert eventually(server.is_healthy)
        model = children(server)[-1]
        with load(lambda: server.search(SEARCH).status) as counts:
            for _ in range(5):
                os.kill(model, signal.SIGKILL)
                assert eventually(server.is_healthy)
                model = children(server)[-1]
        assert set(counts) == {200}, counts
        with load(lambda: server.search(SEARCH).status) as counts:
            for _ in range(10):
                os.kill(children(server)[0], signal.SIGKILL)
                time.sleep(2)
        assert counts[0] < 40 < 100 < counts[200], counts
        assert set(counts) <= {0, 200}
        assert eventually(lambda: server.generate({"text": "x", "max_tokens": 2}).status == 200)


def test_key_file_changes_under_load(tmp_path: Path) -> None:
    """While the key file is replaced fifty times, a key that stays in it is never refused."""
    file, new = tmp_path / "keys", tmp_path / "new"
    file.write_text("a-test-key\n")
    flags = ("--api-keys-file", str(file), "--rate-limit", "off")
    with (
        Server(*flags, RELEVANCE_GEN_API_KEYS="") as server,
        load(lambda: server.search(SEARCH).status) as counts,
    ):
        for number in range(50):
            digest = hashlib.sha256(str(number).encode()).hexdigest()
            new.write_text(f"# {number}\nsha256:{digest}\na-test-key\n")
            os.replace(new, file)
            time.sleep(0.3)
    assert set(counts) == {200}
    assert counts[200] > 1000


def test_redis_loss_and_return() -> None:
    """While the rate limit's storage takes connections, drops, lies and is silent, every search is answered."""
    replies = (b"", b"+OK\r\n", b":x\r\n", b"*-1\r\n", b"\0" * 100, b"-ERR no\r\n")
    ended = threading.Event()
    chance = random.Random(3)  # noqa: S311 - no secret

    def send_invalid_replies(strange: socket.socket) -> None:
        while not ended.is_set():
            with suppress(OSError):
                sock, _ = strange.accept()
                sock.settimeout(0.5)
                with sock:
                    sock.recv(65536)
                    sock.sendall(chance.choice(replies))

    with socket.create_server(("127.0.0.1", 0)) as strange:
        strange.settimeout(0.2)
        liar = threading.Thread(target=send_invalid_replies, args=(strange,))
        liar.start()
        storage = f"redis://127.0.0.1:{strange.getsockname()[1]}"
        with Server("--rate-limit", "1000000/minute", "--rate-limit-storage", storage) as server:
            with load(lambda: server.search(SEARCH).status) as counts:
                time.sleep(30)
            assert set(counts) == {200}
            assert server.log.count("is lost") <= server.log.count("is back") + 1
        ended.set()
        liar.join()


FLIPS = """
import random, sys
from pathlib import Path
from relevance_gen import Runner
from relevance_gen.errors import RelevanceGenError
source, path, seed = Path(sys.argv[1]).read_bytes(), Path(sys.argv[2]), int(sys.argv[3])
chance = random.Random(seed)
for _ in range(25):
    content = bytearray(source)
    place = chance.randrange(chance.choice((200, 4000, len(content))))
    content[place] ^= 1 << chance.randrange(8)
    path.write_bytes(content)
    try:
        with Runner(path, n_slots=1, n_ctx=64, n_threads=1) as runner:
            runner.generate({"text": "a", "max_tokens": 3})
    except RelevanceGenError:
        pass
print("done")
"""


@pytest.mark.parametrize("seed", range(8))
def test_flipped_bits_in_a_model(tmp_path: Path, seed: int) -> None:
    """200 model files with one wrong bit each are loaded and used, or refused with our own error; no process dies."""
    done = subprocess.run(
        [sys.executable, "-c", FLIPS, str(TINY), str(tmp_path / "flipped.gguf"), str(seed)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stdout[-5:]) == (0, "done\n"), done.stderr[-2000:]
