"""Request bodies in and response bodies out: bounded in bytes and in time, gzip and zstd both ways."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import zstandard
from aiohttp import HttpVersion11, web

from relevance_gen.errors import InvalidRequestError
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.problems import EmptyHTTPError, HTTPError

ENCODINGS = ("zstd", "gzip")
"""Content codings known, the preferred one first."""

_COMPRESS_FROM_BYTES = 1024
"""Smaller responses fit one packet anyway."""

_ZSTD_WINDOW_BYTES = 8 << 20
"""RFC 9659: the largest window that zstd as a content coding may ask a receiver for."""

_ZSTD_PIECE_BYTES = 512
"""128 KiB may hide in 4 bytes of zstd, so at most 16 MiB come out before the limit is looked at again."""


class Budget:
    """The bytes of request bodies, and of what was made of them, that one process holds at once."""

    def __init__(self, limit_bytes: int, metrics: Metrics) -> None:
        self._limit_bytes = limit_bytes
        self._metrics = metrics
        self._held_bytes = 0

    @contextmanager
    def account(self) -> Iterator[Account]:
        """Open an account for one request; what it took is given back at the end."""
        account = Account(self)
        try:
            yield account
        finally:
            self._hold(-account.taken_bytes)

    def take(self, n_bytes: int) -> None:
        """Take `n_bytes`, or raise the 503 that says there is no room now."""
        if self._held_bytes + n_bytes > self._limit_bytes:
            raise HTTPError(503, "overloaded", "too many large requests at once", headers={"Retry-After": "1"})
        self._hold(n_bytes)

    def _hold(self, n_bytes: int) -> None:
        self._held_bytes += n_bytes
        self._metrics.put("request_body_bytes_held", self._held_bytes)


class Account:
    """What one request has taken of a `Budget`."""

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.taken_bytes = 0

    def take(self, n_bytes: int) -> None:
        """Take `n_bytes` more for this request."""
        self._budget.take(n_bytes)
        self.taken_bytes += n_bytes

    def replace(self, n_bytes: int) -> None:
        """Take `n_bytes` in place of all that was taken: the body has become what is made of it."""
        self.take(n_bytes - self.taken_bytes)


def require_json(request: web.BaseRequest) -> None:
    """Demand the media type application/json; parameters are allowed.

    Raises:
        HTTPError: 415.
    """
    given = request.headers.get("Content-Type", "")
    if given.partition(";")[0].strip().lower() != "application/json":
        raise HTTPError(415, "unsupported_media_type", "Content-Type must be application/json")


def require_exactly_json(request: web.BaseRequest) -> None:
    """Demand ``Content-Type: application/json``, to the letter, as the contract does for /generate.

    Raises:
        EmptyHTTPError: 415.
    """
    if request.headers.getall("Content-Type", []) != ["application/json"]:
        raise EmptyHTTPError(415, "unsupported_media_type", "Content-Type must be exactly application/json")


def encoding_of(request: web.BaseRequest) -> str:
    """Return the body's content coding: "identity", "gzip" or "zstd".

    Raises:
        HTTPError: 415, a coding not known, or several.
    """
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", *ENCODINGS):
        raise HTTPError(
            415,
            "unsupported_media_type",
            "Content-Encoding must be gzip, zstd or identity",
            headers={"Accept-Encoding": ", ".join(ENCODINGS)},
        )
    return encoding


async def read(request: web.BaseRequest, account: Account, *, limit_bytes: int, timeout_s: float) -> bytes:
    """Receive the body as it was sent, at most `limit_bytes` of it, in at most `timeout_s`.

    Raises:
        HTTPError: 408, 413, or 503 when all bodies together are too many bytes.
        InvalidRequestError: the body ended before its end.
    """
    if (request.content_length or 0) > limit_bytes:
        raise _too_large(limit_bytes)
    pieces: list[bytes] = []
    n_bytes = 0
    await _continue(request)
    try:
        async with asyncio.timeout(timeout_s):
            while piece := await request.content.readany():
                n_bytes += len(piece)
                if n_bytes > limit_bytes:
                    raise _too_large(limit_bytes)
                account.take(len(piece))
                pieces.append(piece)
    except TimeoutError:
        raise HTTPError(
            408, "timeout", f"the body did not arrive within {timeout_s:g} seconds", headers={"Connection": "close"}
        ) from None
    except web.RequestPayloadError:
        raise InvalidRequestError("the body does not end where its headers say") from None
    return b"".join(pieces)


async def _continue(request: web.BaseRequest) -> None:
    """Ask for the body only now, when key, rate and type are known to be right."""
    if request.version >= HttpVersion11 and request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        # Otherwise this counts as a response that was begun, here and in aiohttp.
        request.writer.output_size = 0


def decoded(body: bytes, encoding: str, *, limit_bytes: int) -> bytes:
    """Undo the content coding of `body`. Takes time: call it off the event loop.

    Raises:
        HTTPError: 413, more than `limit_bytes` come out.
        InvalidRequestError: damaged, cut short, or followed by something else.
    """
    if encoding == "identity":
        return body
    inflate = _gunzip if encoding == "gzip" else _unzstd
    try:
        return inflate(body, limit_bytes)
    except (zlib.error, zstandard.ZstdError):
        raise InvalidRequestError(f"the body is not valid {encoding}") from None


def _gunzip(body: bytes, limit_bytes: int) -> bytes:
    inflater = zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)
    out = inflater.decompress(body, limit_bytes + 1)
    if len(out) > limit_bytes:
        raise _too_large(limit_bytes)
    _require_end(inflater.eof, inflater.unused_data, "gzip")
    return out


def _unzstd(body: bytes, limit_bytes: int) -> bytes:
    inflater = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).decompressobj()
    out: list[bytes] = []
    n_bytes = 0
    for start in range(0, len(body), _ZSTD_PIECE_BYTES):
        if inflater.eof:
            raise InvalidRequestError("the body goes on after the end of its zstd frame")
        out.append(inflater.decompress(body[start : start + _ZSTD_PIECE_BYTES]))
        n_bytes += len(out[-1])
        if n_bytes > limit_bytes:
            raise _too_large(limit_bytes)
    _require_end(inflater.eof, inflater.unused_data, "zstd")
    return b"".join(out)


def _require_end(ended: bool, rest: bytes, encoding: str) -> None:
    if not ended:
        raise InvalidRequestError(f"the body's {encoding} is cut short")
    if rest:
        raise InvalidRequestError(f"the body goes on after the end of its {encoding}")


def _too_large(limit_bytes: int) -> HTTPError:
    return HTTPError(413, "too_large", f"the body must be at most {limit_bytes} bytes after decompression")


def wanted_encoding(request: web.BaseRequest) -> str:
    """Return the content coding that suits the client best: "zstd", "gzip" or "identity"."""
    quality: dict[str, float] = {}
    for part in request.headers.get("Accept-Encoding", "").lower().split(","):
        name, _, parameter = part.partition(";")
        weight = parameter.partition("=")[2].strip() or "1"
        quality[name.strip()] = float(weight) if weight.replace(".", "", 1).isdecimal() else 0.0
    known = {name: quality.get(name, quality.get("*", 0.0)) for name in ENCODINGS}
    best = max(ENCODINGS, key=lambda name: known[name])
    return best if known[best] > 0 else "identity"


def encoded(body: bytes, encoding: str) -> tuple[bytes, dict[str, str]]:
    """Apply `encoding` where it is worth it, and return the headers that say so."""
    vary = {"Vary": "Accept-Encoding"}
    if encoding == "identity" or len(body) < _COMPRESS_FROM_BYTES:
        return body, vary
    deflated = gzip.compress(body, 5) if encoding == "gzip" else zstandard.ZstdCompressor(level=3).compress(body)
    return deflated, {**vary, "Content-Encoding": encoding}
