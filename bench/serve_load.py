"""Measure the server: ``python -m bench.serve_load``. Seeded; the load comes from processes of their own.

Three bars, each a ratio within one run:

large one search of 20,000 chunks, 2 million tokens, over HTTP against the same call in process many
64 clients with bodies of 100 chunks: requests a second against one thread in process, and p99
against p50 generate 16 generations at once over HTTP against the same in process

A peer in the same run where it is installed: a FastAPI service around scikit-learn. Other servers
of models are measured by `bench.peers`. The server's cache of indexes is off: every request is
worked on in full.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import random
import re
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from pydoc_data.topics import topics

from attrs import frozen

from bench import generation
from bench.recording import Record, add_quick
from relevance_gen import Runner, search
from relevance_gen.machine import usable_cores, usable_cpus
from relevance_gen.types import GenerationRequest

SEED = 20_240_601
QUERY = "how are attributes of a class looked up"
KEY = "bench"
BARS = {"large", "many", "generate"}
HEADERS = {"Content-Type": "application/json", "X-API-Key": KEY}


# ── What is sent ──────────────────────────────────────────────────────────────────────────────────


def make_chunks(n_chunks: int, n_words: int, seed: int) -> list[str]:
    """Make chunks of words drawn from English prose that is on every machine: Python's own reference."""
    chance = random.Random(seed)
    words = " ".join(topics.values()).split()
    return [" ".join(chance.choices(words, k=n_words)) for _ in range(n_chunks)]


def body_of(chunks: list[str]) -> bytes:
    return json.dumps({"query": QUERY, "chunk_txts": chunks}).encode()


# ── Servers ───────────────────────────────────────────────────────────────────────────────────────


_pids: dict[int, int] = {}
"""The process that listens on each port."""


def processor_s(port: int) -> float:
    """Processor time that the server on `port` and its workers have had."""
    pid = _pids[port]
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    fields = [
        Path(f"/proc/{one}/stat").read_text().rsplit(")", 1)[1].split()
        for one in (str(pid), *children)
    ]
    return sum(int(ticks) for stat in fields for ticks in stat[11:13]) / os.sysconf("SC_CLK_TCK")


@contextmanager
def serving(*command: str, ready: str, path: str = "/health", **environ: str) -> Iterator[int]:
    """Run a server until the context ends; yield its port once `path` answers with a status of `ready`."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = [part.replace("{port}", str(port)) for part in command]
    process = subprocess.Popen(  # noqa: S603
        arguments,
        env={**os.environ, "PORT": str(port), **environ},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        for _ in range(1200):
            try:
                if str(request(port, "GET", path)[0]) in ready.split():
                    break
            except OSError:
                if process.poll() is not None:
                    raise RuntimeError(
                        f"{command} ended with status {process.returncode}"
                    ) from None
            time.sleep(0.1)
        _pids[port] = process.pid
        yield port
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


@contextmanager
def ours(*flags: str, model: str = "none") -> Iterator[int]:
    base = [
        sys.executable,
        "-m",
        "relevance_gen.serve",
        "--port",
        "{port}",
        "--model",
        model,
        "--rate-limit",
        "off",
    ]
    options = ["--access-log", "off", "--index-cache-bytes", "0", *flags]
    ready = "200 503" if model == "none" else "200"
    with serving(*base, *options, ready=ready, RELEVANCE_GEN_API_KEYS=KEY) as port:
        time.sleep(1.0)  # for imports and tables, which the first client need not wait for
        yield port


PEER = """
import os
import numpy as np, uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sklearn.feature_extraction.text import TfidfVectorizer

class Body(BaseModel):
    query: str
    chunk_txts: list[str]
    top_n: int = 10

app = FastAPI()

@app.get("/health")
def health(): return {}

@app.post("/search")
def search(body: Body):
    vectorizer = TfidfVectorizer(sublinear_tf=True)
    matrix = vectorizer.fit_transform(body.chunk_txts)
    scores = (matrix @ vectorizer.transform([body.query]).T).toarray().ravel()
    best = sorted(np.argsort(-scores, kind="stable")[: body.top_n].tolist())
    return {"results": [
        {"chunk_id": n, "chunk_txt": body.chunk_txts[i], "chunk_score": float(scores[i]), "original_index": i}
        for n, i in enumerate(best)
    ]}

if __name__ == "__main__":
    uvicorn.run("peer:app", host="127.0.0.1", port=int(os.environ["PORT"]), log_level="error",
                workers=int(os.environ["WORKERS"]), app_dir=os.path.dirname(os.path.abspath(__file__)))
"""


# ── Clients ───────────────────────────────────────────────────────────────────────────────────────


def request(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request(method, path, body, HEADERS)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


@frozen
class Load:
    """The result of a load test."""

    seconds: float
    latencies_s: list[float]
    lost: int

    @property
    def rate(self) -> float:
        """Answers a second."""
        return len(self.latencies_s) / self.seconds

    def quantile(self, share: float) -> float:
        """The latency that a `share` of the answers stayed below, in seconds."""
        return sorted(self.latencies_s)[
            min(len(self.latencies_s) - 1, int(share * len(self.latencies_s)))
        ]


def load(port: int, n_clients: int, seconds: float, bodies: list[bytes]) -> Load:
    """Let `n_clients` repeat a request for `seconds`, in a separate process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_load, (port, n_clients, seconds, bodies))


def _load(port: int, n_clients: int, seconds: float, bodies: list[bytes]) -> Load:
    # Plain sockets and ready-made bytes: the load takes its processor time from the server it
    # measures.
    head = "POST /search HTTP/1.1\r\nHost: localhost\r\n" + "".join(
        f"{name}: {value}\r\n" for name, value in HEADERS.items()
    )
    ready = [f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body for body in bodies]
    selector = selectors.DefaultSelector()
    clients = [_Client(port, ready, place) for place in range(n_clients)]
    started_s = time.perf_counter()
    for client in clients:
        selector.register(client.sock, selectors.EVENT_READ, client)
        client.send()
    latencies_s: list[float] = []
    lost = 0
    active = n_clients
    while active:
        for key, _ in selector.select(timeout=60):
            answered = key.data.receive()
            if answered is None:
                continue
            lost += answered < 0
            if answered >= 0:
                latencies_s.append(answered)
            if answered < 0 or time.perf_counter() - started_s > seconds:
                selector.unregister(key.data.sock)
                key.data.sock.close()
                active -= 1
            else:
                key.data.send()
    return Load(time.perf_counter() - started_s, latencies_s, lost)


class _Client:
    """One connection that asks, waits, and asks again."""

    def __init__(self, port: int, ready: list[bytes], place: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=60)
        self._ready = ready
        self._next = place
        self._sent_s = 0.0
        self._received = b""

    def send(self) -> None:
        """Ask the next question."""
        self._sent_s = time.perf_counter()
        self.sock.sendall(self._ready[self._next % len(self._ready)])
        self._next += 7

    def receive(self) -> float | None:
        """Return the seconds until an answer, -1 for a wrong answer, None while it is incomplete."""
        piece = self.sock.recv(1 << 20)
        if not piece:
            return -1
        self._received += piece
        head, found, body = self._received.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head.lower())
        if not found or not length or len(body) < int(length[1]):
            return None
        self._received = b""
        return time.perf_counter() - self._sent_s if head.startswith(b"HTTP/1.1 200") else -1


# ── Bars ──────────────────────────────────────────────────────────────────────────────────────────


def timed(call: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    call()
    return time.perf_counter() - started_s


def large(record: Record, rounds: int, n_chunks: int) -> None:
    chunks = make_chunks(n_chunks, 69, SEED)
    body = body_of(chunks)
    n_tokens = search(QUERY, chunks).metadata.num_context_tokens
    group = f"One search of {n_chunks:,} chunks, {len(body) / 1e6:.1f} MB, {n_tokens:,} tokens"
    with ours() as port:
        for _ in range(8):  # until the allocator of every thread has grown, as it has here by now
            request(port, "POST", "/search", body)
            search(QUERY, chunks)
        pairs = []
        for _ in range(rounds):
            here_s = timed(lambda: search(QUERY, chunks))
            there_s = timed(lambda: request(port, "POST", "/search", body))
            pairs.append((here_s, there_s))
        add_pairs(record, group, pairs, bar=1.6)
    with ours("--index-cache-bytes", "1GiB") as port:
        for _ in range(3):
            request(port, "POST", "/search", body)
        cached_s = statistics.median(
            timed(lambda: request(port, "POST", "/search", body)) for _ in range(rounds)
        )
        record.add(group, "over HTTP, from the cache of indexes", cached_s, "s", places=3)


def add_pairs(record: Record, group: str, pairs: list[tuple[float, float]], *, bar: float) -> None:
    """Record the same work in process and over HTTP."""
    here_s, there_s = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(second / first for first, second in pairs)
    record.add(group, "in process", here_s, "s", places=3)
    record.add(group, "over HTTP", there_s, "s", places=3)
    record.add(group, "over HTTP / in process", ratio, "×", at_most=bar)


def many(record: Record, seconds: float, rounds: int) -> None:
    bodies_of_chunks = [make_chunks(100, 160, SEED + number) for number in range(64)]
    bodies = [body_of(chunks) for chunks in bodies_of_chunks]
    group = (
        f"64 clients, 100 chunks and {len(bodies[0]) / 1e3:.0f} kB each, {usable_cpus()} workers"
    )
    shares, ratios, rates, costs_s, lost = [], [], [], [], 0
    with ours("--workers", str(usable_cpus())) as port:
        load(port, 64, 2, bodies)
        for _ in range(rounds):  # in turns, so that noise that lasts hits both alike
            before = one_thread_rate(bodies_of_chunks, seconds / 2)
            processor_before_s = processor_s(port)
            found = load(port, 64, seconds, bodies)
            costs_s.append((processor_s(port) - processor_before_s) / len(found.latencies_s))
            alone = statistics.mean((before, one_thread_rate(bodies_of_chunks, seconds / 2)))
            shares.append(found.rate / usable_cpus() / alone)
            ratios.append(found.quantile(0.99) / found.quantile(0.5))
            rates.append((alone, found.rate, found.quantile(0.5), found.quantile(0.99)))
            lost += found.lost
    alone, rate, p50_s, p99_s = (statistics.median(column) for column in zip(*rates, strict=True))
    record.add(group, "one thread in process", alone, "a second", places=0)
    record.add(group, "over HTTP", rate, "a second", places=0)
    record.add(group, "over HTTP, p50", p50_s * 1e3, "ms", places=0)
    record.add(group, "over HTTP, p99", p99_s * 1e3, "ms", places=0)
    record.add(
        group, "over HTTP / (cores × one thread)", statistics.median(shares), "×", at_least=0.7
    )
    # A busy machine blurs rates more than processor time: while HTTP costs at most 1 / 0.7, the bar
    # is within reach.
    started_s = time.process_time()
    for chunks in bodies_of_chunks:
        search(QUERY, chunks)
    here_s = (time.process_time() - started_s) / len(bodies_of_chunks)
    record.add(group, "processor time of a search in process", here_s * 1e3, "ms", places=1)
    record.add(
        group,
        "processor time of a request over HTTP",
        statistics.median(costs_s) * 1e3,
        "ms",
        places=1,
    )
    record.add(group, "p99 / p50", statistics.median(ratios), "×", at_most=5)
    record.add(group, "lost", lost, "requests", at_most=0, places=0)
    peer_many(record, group, seconds, bodies)


def one_thread_rate(bodies: list[list[str]], seconds: float) -> float:
    """Searches a second in this process, held to one core."""
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        count, started_s = 0, time.perf_counter()
        while time.perf_counter() - started_s < seconds:
            search(QUERY, bodies[count % len(bodies)])
            count += 1
        return count / (time.perf_counter() - started_s)
    finally:
        os.sched_setaffinity(0, allowed)


def peer_many(record: Record, group: str, seconds: float, bodies: list[bytes]) -> None:
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        print("  peer: FastAPI and uvicorn are not installed")
        return
    folder = Path("build")
    folder.mkdir(exist_ok=True)
    (folder / "peer.py").write_text(PEER)
    with serving(
        sys.executable, str(folder / "peer.py"), ready="200", WORKERS=str(usable_cpus())
    ) as port:
        load(port, 64, 2, bodies)
        found = load(port, 64, seconds, bodies)
    record.add(group, "FastAPI + scikit-learn", found.rate, "a second", places=0)
    record.add(group, "FastAPI + scikit-learn, p50", found.quantile(0.5) * 1e3, "ms", places=0)
    record.add(group, "FastAPI + scikit-learn, p99", found.quantile(0.99) * 1e3, "ms", places=0)


def generate(record: Record, model: Path, rounds: int, n_threads: int, n_times: int) -> None:
    prompts = [" ".join(make_chunks(1, 40, SEED + number)) for number in range(16)]
    requests = [
        GenerationRequest(prompt, max_tokens=64, temperature=0.8, seed=1) for prompt in prompts
    ]
    bodies = [
        json.dumps({"text": p, "max_tokens": 64, "temperature": 0.8, "seed": 1}).encode()
        for p in prompts
    ]
    options = {"n_ctx": 512, "n_slots": 16, "n_threads": n_threads, "prefix_cache_bytes": 0}
    flags = [
        part
        for name, value in options.items()
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    group = f"16 generations at once, 64 tokens each, {model.name}"
    in_process_s, http_s = [], []
    for _ in range(rounds):  # not both at once: two models in memory would fight for the cores
        with Runner(model, **options) as runner:
            in_process_s += [
                timed(lambda: [f.result() for f in [runner.submit(r) for r in requests]])
                for _ in range(n_times)
            ][1:]
        with ours(*flags, model=str(model)) as port:
            http_s += [timed(lambda: at_once(port, "/generate", bodies)) for _ in range(n_times)][
                1:
            ]
    add_pairs(record, group, list(zip(in_process_s, http_s, strict=True)), bar=1.1)


def at_once(port: int, path: str, bodies: list[bytes]) -> None:
    """Send all requests at once, in one thread each, and wait for all answers."""
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(len(bodies)) as pool:
        statuses = [
            status for status, _ in pool.map(lambda body: request(port, "POST", path, body), bodies)
        ]
    if set(statuses) != {200}:
        raise RuntimeError(f"statuses {statuses}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bars", nargs="*", default=sorted(BARS), help=", ".join(sorted(BARS)))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument(
        "--threads", type=int, default=usable_cores(), help="CPU threads that decode"
    )
    parser.add_argument(
        "--model", type=Path, default=generation.MODEL, help="GGUF file; made if not there"
    )
    add_quick(parser)
    given = parser.parse_args()
    if given.quick:
        given.rounds, given.seconds = 2, 1.0
    with Record("serve_load", given, is_whole=set(given.bars) >= BARS) as record:
        if "large" in given.bars:
            large(record, given.rounds, 5_000 if given.quick else 20_000)
        if "many" in given.bars:
            many(record, given.seconds, max(1, given.rounds // 2))
        if "generate" in given.bars:
            generation.make_model()
            generate(
                record,
                given.model,
                max(1, given.rounds // 2),
                given.threads,
                2 if given.quick else 3,
            )


if __name__ == "__main__":
    main()
