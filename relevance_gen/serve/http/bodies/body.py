"""Request bodies: received within limits on size and time, and parsed within a memory limit."""

from __future__ import annotations

import asyncio

from aiohttp import HttpVersion11, web
from attrs import define

from relevance_gen import wire
from relevance_gen.errors import InvalidRequestError, TooLargeError
from relevance_gen.serve.http.bodies import content_coding
from relevance_gen.serve.http.bodies.json_stats import measure_json
from relevance_gen.serve.http.http_errors import ExactMediaTypeError, MediaTypeError, SlowBodyError
from relevance_gen.serve.http.resources.resource_pools import MemoryReservation, ResourcePool
from relevance_gen.serve.http.service import KEY_ID, POOL, RESERVATIONS, Service

_READ_AHEAD_BYTES = 1 << 20
"""Bytes of a body that aiohttp buffers before it stops receiving; by default, only 16 KiB."""
_SMALL_BYTES = 64 << 10
"""A body of at most this size and a few thousand values is parsed within one millisecond."""


@define
class Body:
    """The received body of a request.

    Attributes:
        pieces: the bytes as they arrived. Joining many pieces takes too long for the event loop.
        coding: the content coding: "identity", "gzip" or "zstd".
        memory: the bytes that the request holds in its pool.
        pool: the resource pool of the request.
    """

    pieces: list[bytes]
    coding: str
    memory: MemoryReservation
    pool: ResourcePool
    _max_depth: int

    @property
    def is_small(self) -> bool:
        """Whether the body is so small that the event loop can parse it and the adapter read it."""
        if self.coding != "identity" or sum(map(len, self.pieces)) > _SMALL_BYTES:
            return False
        max_values = self.pool.max_loop_values
        return measure_json(b"".join(self.pieces), max_values).n_values <= max_values

    def parse(self, *, work_factor: int = 0, timeout_s: float = 0.0) -> object:
        """Return the parsed JSON. Must be called only once: it discards the pieces.

        Memory is acquired before it is used. After parsing, the request holds memory for the parsed
        values and, for the work on them, `work_factor` bytes for each byte of the body.

        Args:
            work_factor: bytes for each byte of the body after decompression.
            timeout_s: how long the calling thread waits for the memory for parsing, if other
                requests hold it. It does not wait for the memory for decompression.

        Raises:
            TooLargeError: the body is too large or has too many values, or needs more memory than
                the request may hold.
            BusyError: the memory did not become available in time.
            InvalidRequestError: the body is not valid in its content coding, or not strict JSON.
        """
        raw = b"".join(self.pieces)
        self.pieces = []
        text = content_coding.decode(
            raw,
            self.coding,
            limit_bytes=self.pool.max_body_bytes,
            acquire=self.memory.acquire,
        )
        max_values = self.pool.max_values
        stats = measure_json(text, max_values)
        if stats.n_values > max_values:
            raise TooLargeError(f"the body must hold at most {max_values} JSON values")
        n_bytes = stats.parsed_bytes + work_factor * len(text)
        self.memory.acquire(max(n_bytes, stats.peak_bytes), timeout_s)
        value = wire.parse(text, max_depth=self._max_depth)
        self.memory.resize(n_bytes)
        return value


async def receive(service: Service, request: web.BaseRequest) -> Body:
    """Receive the body of an admitted request; its memory is held until the response is sent.

    Raises:
        MediaTypeError: the content coding of the body is not supported.
        TooLargeError: the body is too large for the pool.
        SlowBodyError: the body did not arrive completely in time.
        BusyError: the requests of the pool hold too much memory now.
        InvalidRequestError: the body ended too early.
    """
    settings = service.settings
    pool = request[POOL]
    coding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if coding not in ("identity", *content_coding.CODINGS):
        accepted = {"Accept-Encoding": ", ".join(content_coding.CODINGS)}
        raise MediaTypeError("Content-Encoding must be gzip, zstd or identity", accepted)
    memory = request[RESERVATIONS].enter_context(
        MemoryReservation(pool.memory, request.get(KEY_ID, ""))
    )
    pieces = await _read(request, memory, pool.max_body_bytes, settings.body_timeout_s)
    n_bytes = sum(map(len, pieces))
    service.http_metrics.add("http_request_body_bytes_total", n_bytes)
    return Body(pieces, coding, memory, pool, settings.max_depth)


def check_query(body: object, max_bytes: int) -> None:
    """Check the length of the fields `query` and `question` of a parsed body.

    The arguments of an agent's tool call, at ``params.arguments``, are checked too.

    Raises:
        TooLargeError: one of these fields has more than `max_bytes` bytes in UTF-8.
    """
    if not isinstance(body, dict):
        return
    for name in ("params", "arguments"):
        check_query(body.get(name), max_bytes)
    for name in ("query", "question"):
        query = body.get(name)
        if isinstance(query, str) and len(query.encode("utf-8", "surrogatepass")) > max_bytes:
            remedy = "shorten it, or start the server with a larger --max-query-bytes"
            raise TooLargeError(f"must have at most {max_bytes:,} bytes", name, remedy=remedy)


def require_json(request: web.BaseRequest, *, is_exact: bool) -> None:
    """Check that the media type is application/json; if `is_exact`, without parameters.

    Raises:
        ExactMediaTypeError: the media type is different, and `is_exact`.
        MediaTypeError: the media type is different.
    """
    media_types = request.headers.getall("Content-Type", [])
    if is_exact:
        if media_types != ["application/json"]:
            raise ExactMediaTypeError("Content-Type must be exactly application/json")
        return
    media_type = media_types[0] if media_types else ""
    if media_type.partition(";")[0].strip().lower() != "application/json":
        raise MediaTypeError("Content-Type must be application/json")


async def _read(
    request: web.BaseRequest, memory: MemoryReservation, limit_bytes: int, timeout_s: float
) -> list[bytes]:
    """Receive the pieces of a body, and acquire their size in `memory`; see `receive`."""
    content_length = request.content_length
    if (content_length or 0) > limit_bytes:
        raise content_coding.too_large(limit_bytes)
    pieces: list[bytes] = []
    n_bytes = 0
    # aiohttp buffers up to twice the chunk size.
    max_bytes = limit_bytes if content_length is None else content_length
    buffer_bytes = 2 * min(_READ_AHEAD_BYTES, max_bytes)
    memory.acquire(buffer_bytes)
    request.content.set_read_chunk_size(_READ_AHEAD_BYTES)
    await _send_continue(request)
    try:
        async with asyncio.timeout(timeout_s):
            while piece := await request.content.readany():
                n_bytes += len(piece)
                if n_bytes > limit_bytes:
                    raise content_coding.too_large(limit_bytes)
                memory.acquire(len(piece))
                pieces.append(piece)
        memory.acquire(-buffer_bytes)
    except TimeoutError:
        message = f"the body did not arrive within {timeout_s:g} seconds"
        raise SlowBodyError(message, {"Connection": "close"}) from None
    except web.RequestPayloadError:
        raise InvalidRequestError("the body does not end where its headers say") from None
    return pieces


async def _send_continue(request: web.BaseRequest) -> None:
    """Send "100 Continue" if the client waits for it before it sends the body.

    This is called only after the key, the rate limit and the media type of the request were
    checked, so that the body of a rejected request is not sent.
    """
    expected = request.headers.get("Expect", "").lower()
    if request.version < HttpVersion11 or expected != "100-continue":
        return
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    # A nonzero size would mean, for aiohttp and for `middleware`, that the response has begun.
    request.writer.output_size = 0
