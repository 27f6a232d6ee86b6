"""Rate limits per API key: a sliding window, counted in this process or in Redis."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import Any, cast

from attrs import frozen
from limits import RateLimitItem, parse
from limits.aio.storage import MemoryStorage, Storage
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from limits.errors import ConfigurationError
from limits.storage import storage_from_string

from relevance_gen.errors import to_install
from relevance_gen.serve.http.http_errors import RateLimitedError
from relevance_gen.serve.metrics import Metrics

_log = logging.getLogger(__name__)

_STORAGE_TIMEOUT_S = 0.25
"""Seconds without an answer of the shared storage after which requests are counted in this process.

A slow storage must not delay every request.
"""

_STORAGE_PAUSE_S = 5.0
"""Seconds after a failure of the shared storage until it is used again."""


@frozen
class _Count:
    """The state of a key's window after one request.

    Attributes:
        is_admitted: whether the request is within the limit.
        remaining: the number of further requests that are within the limit now.
        reset_time: when the counted requests next begin to leave the window, so that further
            requests can be admitted; in seconds since the epoch.
    """

    is_admitted: bool
    remaining: int
    reset_time: float


class RateLimit:
    """Admits a limited number of requests per key and time.

    The window slides: the number of requests is the count of the current fixed window, plus the
    count of the previous fixed window, weighted by the fraction of it that the sliding window still
    covers. While the shared storage is unavailable, each process counts only its own requests.

    Args:
        limit: a count per time, such as ``"6000/minute"``; ``"off"`` admits every request.
        storage: ``"memory://"``, or ``"redis://HOST:PORT"`` (also rediss://, redis+sentinel://,
            redis+cluster://).
        metrics: counts rejected requests and failures of the storage.
    """

    def __init__(self, limit: str, storage: str, metrics: Metrics) -> None:
        self._item = None if limit == "off" else parse(limit)
        self._local = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._shared_limiter: SlidingWindowCounterRateLimiter | None = None
        if storage != "memory://":
            self._shared_limiter = SlidingWindowCounterRateLimiter(_shared_storage(storage))
        self._storage_retry_at_s = 0.0
        self._is_storage_lost = False
        self._metrics = metrics

    async def admit(self, key_id: str) -> dict[str, str]:
        """Count one request of `key_id`, and return the RateLimit headers; {} without a limit.

        Raises:
            RateLimitedError: the key made too many requests; the request is not counted.
        """
        if self._item is None:
            return {}
        count = await self._hit(self._item, key_id)
        reset_s = max(1, math.ceil(count.reset_time - time.time()))
        headers = {
            "RateLimit-Limit": str(self._item.amount),
            "RateLimit-Remaining": str(max(0, count.remaining)),
            "RateLimit-Reset": str(reset_s),
            "RateLimit-Policy": f"{self._item.amount};w={self._item.get_expiry()}",
        }
        if not count.is_admitted:
            self._metrics.add("rate_limit_rejections_total")
            headers["Retry-After"] = str(reset_s)
            rule = f"this key may make {_describe(self._item)}"
            raise RateLimitedError(f"{rule}; try again in {reset_s} s", headers)
        return headers

    async def _hit(self, item: RateLimitItem, key_id: str) -> _Count:
        """Count one request in the shared storage, or in this process while that is unavailable."""
        if self._shared_limiter is None or time.monotonic() < self._storage_retry_at_s:
            return await _hit_in(self._local, item, key_id)
        try:
            async with asyncio.timeout(_STORAGE_TIMEOUT_S):
                count = await _hit_in(self._shared_limiter, item, key_id)
        except Exception as error:  # a server that is not Redis can answer anything
            self._metrics.add("rate_limit_storage_failures_total")
            self._storage_retry_at_s = time.monotonic() + _STORAGE_PAUSE_S
            if not self._is_storage_lost:
                _log.warning(
                    "the rate limit's storage is lost (%s); counting in this process",
                    type(error).__name__,
                )
            self._is_storage_lost = True
            return await _hit_in(self._local, item, key_id)
        if self._is_storage_lost:
            _log.info("the rate limit's storage is back")
        self._is_storage_lost = False
        return count


def _describe(item: RateLimitItem) -> str:
    """Return a limit in words, such as "4 requests per minute"."""
    unit = item.GRANULARITY.name
    period = unit if item.multiples == 1 else f"{item.multiples} {unit}s"
    return f"{item.amount:,} requests per {period}"


async def _hit_in(
    limiter: SlidingWindowCounterRateLimiter, item: RateLimitItem, key_id: str
) -> _Count:
    is_admitted = await limiter.hit(item, key_id)
    window = await limiter.get_window_stats(item, key_id)
    # The storage may return anything: convert inside the caller's try block.
    reset_time = float(window.reset_time)
    if not math.isfinite(reset_time):
        raise ValueError("the storage's time is no time")
    return _Count(bool(is_admitted), int(window.remaining), reset_time)


def _shared_storage(url: str) -> Storage:
    """Open the storage at `url`, without connecting to it.

    Raises:
        ConfigurationError: the package for Redis is not installed, or `url` is not valid. The
            message does not repeat the URL, because it can contain a password.
    """
    try:
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
    except ImportError as error:
        raise ConfigurationError(
            f"a shared rate limit needs a package: {to_install('redis')}"
        ) from error
    try:
        opened = storage_from_string(
            f"async+{url}",
            implementation="redispy",
            wrap_exceptions=True,
            retry=cast("Any", Retry(NoBackoff(), 0)),
            socket_timeout=_STORAGE_TIMEOUT_S,
            socket_connect_timeout=_STORAGE_TIMEOUT_S,
        )
    except (ConfigurationError, ValueError):
        forms = "redis://HOST:PORT, redis+cluster://HOST:PORT or redis+sentinel://HOST:PORT/NAME"
        raise ConfigurationError(
            f"--rate-limit-storage must be memory:// or an address such as {forms}"
        ) from None
    return cast("Storage", opened)
