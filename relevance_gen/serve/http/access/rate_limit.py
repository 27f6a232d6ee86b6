"""How often one key may call: a sliding window, counted here or in Redis, by the `limits` library."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import Any, cast

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
"""A slow shared count must not slow search down: beyond this the count is kept here for a while."""

_STORAGE_PAUSE_S = 5.0
"""How long a lost storage is left alone before it is asked again."""


class RateLimit:
    """Admit at most `limit` requests of each key.

    The window slides: the last window's count, weighted by how much of it still overlaps, plus this window's count.
    If the shared storage is lost, each process counts for itself until it is back.

    Args:
        limit: such as ``"6000/minute"``; ``"off"`` admits everything.
        storage: ``"memory://"``, or ``"redis://HOST:PORT"`` (also rediss://, redis+sentinel://, redis+cluster://).
    """

    def __init__(self, limit: str, storage: str, metrics: Metrics) -> None:
        self._item = None if limit == "off" else parse(limit)
        self._local = SlidingWindowCounterRateLimiter(MemoryStorage())
        self._shared = (
            None
            if storage == "memory://"
            else SlidingWindowCounterRateLimiter(_shared_storage(storage))
        )
        self._shared_again_s = 0.0
        self._is_lost = False
        self._metrics = metrics

    async def admit(self, key_id: str) -> dict[str, str]:
        """Count one request of `key_id` and return the RateLimit headers; one too many is refused, and not counted."""
        if self._item is None:
            return {}
        admitted, remaining, reset_time = await self._hit(self._item, key_id)
        reset_s = max(1, math.ceil(reset_time - time.time()))
        headers = {
            "RateLimit-Limit": str(self._item.amount),
            "RateLimit-Remaining": str(max(0, remaining)),
            "RateLimit-Reset": str(reset_s),
            "RateLimit-Policy": f"{self._item.amount};w={self._item.get_expiry()}",
        }
        if not admitted:
            self._metrics.add("rate_limit_rejections_total")
            retry_after = {"Retry-After": str(reset_s)}
            raise RateLimitedError(
                f"this key may make {self._item} requests", {**headers, **retry_after}
            )
        return headers

    async def _hit(self, item: RateLimitItem, key_id: str) -> tuple[bool, int, float]:
        """Count in the shared storage; where it is lost, in this process."""
        if self._shared is not None and time.monotonic() >= self._shared_again_s:
            try:
                async with asyncio.timeout(_STORAGE_TIMEOUT_S):
                    pluralize = await _hit_in(self._shared, item, key_id)
            except Exception as error:  # what is at the address may answer anything
                self._metrics.add("rate_limit_storage_failures_total")
                self._shared_again_s = time.monotonic() + _STORAGE_PAUSE_S
                if not self._is_lost:
                    name = type(error).__name__
                    _log.warning(
                        "the rate limit's storage is lost (%s); counting in this process", name
                    )
                self._is_lost = True
            else:
                if self._is_lost:
                    _log.info("the rate limit's storage is back")
                self._is_lost = False
                return pluralize
        return await _hit_in(self._local, item, key_id)


async def _hit_in(
    limiter: SlidingWindowCounterRateLimiter, item: RateLimitItem, key_id: str
) -> tuple[bool, int, float]:
    """Return whether the request is admitted, how many more would be, and when the window's oldest part ends."""
    admitted = await limiter.hit(item, key_id)
    window = await limiter.get_window_stats(item, key_id)
    # A storage that answers with no numbers fails here, where that is expected.
    reset_time = float(window.reset_time)
    if not math.isfinite(reset_time):
        raise ValueError("the storage's time is no time")
    return bool(admitted), int(window.remaining), reset_time


def _shared_storage(url: str) -> Storage:
    """Open the storage at `url`; nothing is connected yet.

    Raises:
        ConfigurationError: it names no storage. The message does not repeat it: a password may stand in it.
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
