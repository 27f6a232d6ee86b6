"""Rate limits: counted here, counted in Redis, and what happens when Redis is lost."""

from __future__ import annotations

import asyncio
import math
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from limits import WindowStats
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from limits.errors import ConfigurationError

from relevance_gen.serve.http.access import rate_limit as rate_module
from relevance_gen.serve.http.access.rate_limit import RateLimit
from relevance_gen.serve.http.http_errors import RateLimitedError, problem_of
from relevance_gen.serve.metrics import Metrics
from tests.serve.harness import JSON, KEYED, Server, eventually

BODY = {"query": "x", "chunk_txts": ["x"]}


@given(limit=st.integers(1, 20), calls=st.lists(st.sampled_from("abc"), max_size=60))
def test_each_key_is_admitted_up_to_its_limit(limit: int, calls: list[str]) -> None:
    """Within a window every key is admitted exactly up to the limit, independent of other keys."""

    async def admitted() -> dict[str, int]:
        rate = RateLimit(f"{limit}/day", "memory://", Metrics.for_one_process())
        counts = dict.fromkeys("abc", 0)
        for key in calls:
            try:
                headers = await rate.admit(key)
            except RateLimitedError as error:
                assert problem_of(error).status == 429
                assert int(error.headers["Retry-After"]) >= 1
                continue
            counts[key] += 1
            assert headers["RateLimit-Remaining"] == str(limit - counts[key])
        return counts

    assert asyncio.run(admitted()) == {key: min(limit, calls.count(key)) for key in "abc"}


def test_key_is_admitted_after_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the window has passed, a key is admitted again."""
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s)

    async def run() -> None:
        nonlocal now_s
        rate = RateLimit("2/second", "memory://", Metrics.for_one_process())
        for _ in range(2):
            await rate.admit("a")
        with pytest.raises(RateLimitedError):
            await rate.admit("a")
        now_s += 2.01
        await rate.admit("a")

    asyncio.run(run())


def test_clock_set_back_does_not_lock_out_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """No key is locked out for longer than a window, and the headers stay plausible."""
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s)

    async def run() -> None:
        nonlocal now_s
        rate = RateLimit("2/minute", "memory://", Metrics.for_one_process())
        for change_s in (0.0, -1.0, -3600.0, -86400.0, 7 * 86400.0):
            now_s += change_s
            for _ in range(3):
                try:
                    headers = await rate.admit("a")
                except RateLimitedError as error:
                    headers = error.headers
                assert 1 <= int(headers["RateLimit-Reset"]) <= 120
                assert 0 <= int(headers["RateLimit-Remaining"]) <= 2
            now_s += 121.0
            await rate.admit("a")
            now_s += 121.0

    asyncio.run(run())


class Odd(SlidingWindowCounterRateLimiter):
    """Counts like a foreign storage: admits every request, and returns the configured window."""

    def __init__(self, reset_time: Any, remaining: Any) -> None:
        super().__init__(MemoryStorage())
        self._told = WindowStats(reset_time, remaining)

    async def get_window_stats(self, *_: Any) -> WindowStats:
        """Return the window."""
        return self._told


@pytest.mark.parametrize(
    ("reset_time", "remaining"),
    [(None, 1), ("soon", 1), (math.inf, 1), (math.nan, 1), (1e9, None), (1e9, b"?")],
)
def test_storage_with_invalid_reset_time_counts_as_lost(reset_time: Any, remaining: Any) -> None:
    """If the storage returns a reset time that is not a finite number, this process counts alone."""

    async def run() -> None:
        metrics = Metrics.for_one_process()
        rate = RateLimit("5/minute", "memory://", metrics)
        rate._shared_limiter = Odd(reset_time, remaining)
        headers = await rate.admit("a")
        assert (headers["RateLimit-Remaining"], 1 <= int(headers["RateLimit-Reset"]) <= 60) == (
            "4",
            True,
        )
        assert rate._is_storage_lost

    asyncio.run(run())


def test_disabled_limit_admits_every_request() -> None:
    """Without a limit every request is admitted, without RateLimit headers."""
    rate = RateLimit("off", "memory://", Metrics.for_one_process())
    assert [asyncio.run(rate.admit("a")) for _ in range(100)] == [{}] * 100


@pytest.mark.parametrize(
    "address", ["foo://u:pw@h", "redis://u:pw@h:abc", "redis://u:p/w@h", "redis://[u:pw@h"]
)
def test_error_omits_storage_address(address: str) -> None:
    """The error for a bad storage address does not repeat it: it can contain a password."""
    with pytest.raises(ConfigurationError) as caught:
        RateLimit("1/day", address, Metrics.for_one_process())
    assert not any(part in str(caught.value) for part in ("u:", "pw", "@", "abc"))


def test_rate_limited_response_has_retry_after() -> None:
    """A key that made too many requests gets a 429 with Retry-After and RateLimit headers; a wrong one still a 401."""
    with Server("--rate-limit", "3/minute", RELEVANCE_GEN_API_KEYS="a-test-key, another") as server:
        answers = [server.search(BODY) for _ in range(4)]
        assert [answer.status for answer in answers] == [200, 200, 200, 429]
        assert [answer.headers["RateLimit-Remaining"] for answer in answers] == ["2", "1", "0", "0"]
        assert answers[3].error["type"] == "rate_limited"
        assert 1 <= int(answers[3].headers["Retry-After"]) <= 60
        assert answers[3].headers["RateLimit-Limit"] == "3"
        assert server.search(BODY, {**KEYED, "X-API-Key": "another"}).status == 200
        assert server.search(BODY, JSON).status == 401
        assert server.generate({"text": "x", "max_tokens": 1}).status in (200, 503)
        assert server.metric("rate_limit_rejections_total") == 1


@pytest.fixture
def redis() -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """A private Redis server and its socket, if Redis is installed."""
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("redis-server is not installed")
    # A socket with a short name instead of a port, which another process could use.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "redis"
        flags = ["--port", "0", "--unixsocket", str(path), "--save", "", "--dir", folder]
        with subprocess.Popen([binary, *flags], stdout=subprocess.DEVNULL) as process:
            assert eventually(path.exists)
            yield process, path
            process.terminate()


@asynccontextmanager
async def shared(limit: str, storage: str, metrics: Metrics) -> AsyncIterator[RateLimit]:
    """Count in `storage`; close its connections at the end."""
    rate = RateLimit(limit, storage, metrics)
    try:
        yield rate
    finally:
        assert rate._shared_limiter is not None
        await rate._shared_limiter.storage.bridge.get_connection().aclose()  # type: ignore[attr-defined]


async def statuses(*limits: RateLimit) -> list[int]:
    """Send a request with each of `limits` for the same key, and return the outcomes."""
    answers = []
    for limit in limits:
        try:
            await limit.admit("a")
        except RateLimitedError as error:
            answers.append(problem_of(error).status)
        else:
            answers.append(200)
    return answers


def n_failures(metrics: Metrics) -> float:
    """Return how often the storage could not be reached."""
    return float(metrics.table[0, metrics.layout.columns["rate_limit_storage_failures_total", ()]])


def test_redis_count_is_shared_and_its_loss_is_tolerated(
    redis: tuple[subprocess.Popen[bytes], Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Two processes count together in Redis; when Redis is lost they go on at once, each counting for itself."""
    monkeypatch.setattr(
        rate_module, "_STORAGE_TIMEOUT_S", 60
    )  # on a busy machine Redis may take its time
    process, path = redis

    async def run() -> None:
        metrics, storage = Metrics.for_one_process(), f"redis+unix://{path}"
        async with (
            shared("6/day", storage, metrics) as one,
            shared("6/day", storage, metrics) as two,
        ):
            assert await statuses(*(one, two) * 4) == [200] * 6 + [429] * 2
            assert n_failures(metrics) == 0
            process.terminate()
            process.wait()
            assert await statuses(*(one, two) * 2) == [200] * 4
        assert n_failures(metrics) == 2
        assert caplog.text.count("storage is lost") == 2

    asyncio.run(run())


def test_unresponsive_redis_does_not_delay_search(monkeypatch: pytest.MonkeyPatch) -> None:
    """A storage that takes connections and never answers costs one short wait, and then none for a while."""
    monkeypatch.setattr(rate_module, "_STORAGE_PAUSE_S", 600)

    async def run(port: int) -> None:
        metrics = Metrics.for_one_process()
        async with shared("100/day", f"redis://127.0.0.1:{port}", metrics) as rate:
            assert await statuses(*[rate] * 5) == [200] * 5
        assert n_failures(metrics) == 1

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asyncio.run(run(silent.getsockname()[1]))


@contextmanager
def answering(reply: bytes) -> Iterator[str]:
    """Accept connections and answer everything with `reply`; yield the address of this storage."""

    def answer() -> None:
        while True:
            try:
                sock, _ = strange.accept()
            except OSError:
                return
            with sock, suppress(OSError):
                while sock.recv(65536):
                    sock.sendall(reply * 8)

    with socket.create_server(("127.0.0.1", 0)) as strange:
        threading.Thread(target=answer, daemon=True).start()
        yield f"redis://127.0.0.1:{strange.getsockname()[1]}"
        strange.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize(
    "reply",
    [
        b"*1\r\n*0\r\n",
        b"+OK\r\n",
        b":1\r\n",
        b"$-1\r\n",
        b"$3\r\nabc\r\n",
        b"*2\r\n$1\r\nx\r\n$1\r\ny\r\n",
        b"\xff\r\n",
        b"~1\r\n:1\r\n",
    ],
)
def test_faulty_redis_does_not_stop_search(reply: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """With any server at the storage's address, searches continue; the loss is logged once."""

    async def run(storage: str) -> list[int]:
        async with shared("100/day", storage, Metrics.for_one_process()) as rate:
            return await statuses(*[rate] * 5)

    with answering(reply) as storage:
        assert asyncio.run(run(storage)) == [200] * 5
    assert caplog.text.count("storage is lost") <= 1


def test_search_works_without_redis_at_the_address() -> None:
    """A failure of the storage does not fail a request."""
    with answering(b"+OK\r\n") as storage, Server("--rate-limit-storage", storage) as server:
        assert [server.search(BODY).status for _ in range(5)] == [200] * 5
        assert server.log.count("storage is lost") == 1
