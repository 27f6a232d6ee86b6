"""Request bodies: received within limits of bytes and time, and parsed within a budget of memory."""

from __future__ import annotations

import asyncio

from aiohttp import HttpVersion11, web
from attrs import define

from relevance_gen import wire
from relevance_gen.errors import InvalidRequestError, TooLargeError
from relevance_gen.serve.http.bodies import content_coding as codings
from relevance_gen.serve.http.bodies.json_stats import shape_of
from relevance_gen.serve.http.http_errors import ExactMediaTypeError, MediaTypeError, SlowBodyError
from relevance_gen.serve.http.resources.resource_pools import MemoryReservation, ResourcePool
from relevance_gen.serve.http.service import HELD, LANE, Service

_READ_AHEAD_BYTES = 1 << 20
"""A large body otherwise stops and starts every 16 KiB."""
_PARSE_ON_LOOP_BYTES = 64 << 10
_PARSE_ON_LOOP_VALUES = 1 << 12
"""A body of at most so many bytes and values is parsed within a millisecond, so on the event loop."""


@define
class Body:
    """A received body.

    Attributes:
        pieces: its bytes, as they came. Joining many takes too long for the event loop.
        held: what the request holds of its lane's memory.
    """

    pieces: list[bytes]
    coding: str
    held: MemoryReservation
    lane: ResourcePool
    _max_depth: int

    @property
    def is_small(self) -> bool:
        """Whether `parse` is quick enough for the event loop."""
        if self.coding != "identity" or sum(map(len, self.pieces)) > _PARSE_ON_LOOP_BYTES:
            return False
        return (
            shape_of(b"".join(self.pieces), _PARSE_ON_LOOP_VALUES).n_values <= _PARSE_ON_LOOP_VALUES
        )

    def parse(self, *, work_factor: int = 0, patience_s: float = 0.0) -> object:
        """Return the JSON in the body, once. Memory is taken before it is used; this thread may wait for it so long.

        Of what is taken, `work_factor` bytes for each byte of the body go on being held, for the work on it.

        Raises:
            TooLargeError: the body is too large, or needs too much memory.
            BusyError: there is not enough memory now.
            InvalidRequestError: it is not what its coding says, or not strict JSON.
        """
        raw, most_values = b"".join(self.pieces), self.lane.most_values
        self.pieces = []
        plain = codings.decode(
            raw, self.coding, limit_bytes=self.lane.most_bytes, take=self.held.take
        )
        shape = shape_of(plain, most_values)
        if shape.n_values > most_values:
            raise TooLargeError(f"the body must hold at most {most_values} JSON values")
        n_bytes = shape.kept_bytes + work_factor * len(plain)
        self.held.take(max(n_bytes, shape.peak_bytes), patience_s)
        value = wire.parse(plain, max_depth=self._max_depth)
        self.held.replace(n_bytes)
        return value


async def receive(service: Service, request: web.BaseRequest) -> Body:
    """Receive the body of an admitted request. Its memory is held until the client has its answer.

    Raises:
        MediaTypeError: the content coding is not known.
        TooLargeError: the body is too large.
        SlowBodyError: it did not arrive in time.
        BusyError: all bodies together are too many bytes now.
        InvalidRequestError: it ended too early.
    """
    settings, lane = service.settings, request[LANE]
    coding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if coding not in ("identity", *codings.CODINGS):
        known = {"Accept-Encoding": ", ".join(codings.CODINGS)}
        raise MediaTypeError("Content-Encoding must be gzip, zstd or identity", known)
    held = request[HELD].enter_context(MemoryReservation(lane.memory))
    pieces = await _read(request, held, lane.most_bytes, settings.body_timeout_s)
    service.http_metrics.add("http_request_body_bytes_total", sum(map(len, pieces)))
    return Body(pieces, coding, held, lane, settings.max_depth)


def require_json(request: web.BaseRequest, *, is_exact: bool) -> None:
    """Refuse any media type but application/json; parameters are allowed unless it must be so to the letter."""
    given = request.headers.getall("Content-Type", [])
    if is_exact:
        if given != ["application/json"]:
            raise ExactMediaTypeError("Content-Type must be exactly application/json")
    elif not given or given[0].partition(";")[0].strip().lower() != "application/json":
        raise MediaTypeError("Content-Type must be application/json")


async def _read(
    request: web.BaseRequest, held: MemoryReservation, limit_bytes: int, timeout_s: float
) -> list[bytes]:
    if (request.content_length or 0) > limit_bytes:
        raise codings.too_large(limit_bytes)
    pieces: list[bytes] = []
    n_bytes = 0
    # Up to twice as much is received ahead of what is read here.
    ahead_bytes = 2 * min(
        _READ_AHEAD_BYTES, limit_bytes if request.content_length is None else request.content_length
    )
    held.take(ahead_bytes)
    request.content.set_read_chunk_size(_READ_AHEAD_BYTES)
    # A client that waits to be asked for its body is asked: its key, rate and type are right by now.
    if (
        request.version >= HttpVersion11
        and request.headers.get("Expect", "").lower() == "100-continue"
    ):
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = (
            0  # else aiohttp, and this package, would believe that the answer has begun
        )
    try:
        async with asyncio.timeout(timeout_s):
            while piece := await request.content.readany():
                n_bytes += len(piece)
                if n_bytes > limit_bytes:
                    raise codings.too_large(limit_bytes)
                held.take(len(piece))
                pieces.append(piece)
        held.take(-ahead_bytes)
    except TimeoutError:
        message = f"the body did not arrive within {timeout_s:g} seconds"
        raise SlowBodyError(message, {"Connection": "close"}) from None
    except web.RequestPayloadError:
        raise InvalidRequestError("the body does not end where its headers say") from None
    return pieces
