"""Content codings, gzip and zstd: of request bodies, undone within limits, and of response bodies."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable
from typing import Any

import zstandard

from relevance_gen.errors import InvalidRequestError, TooLargeError

CODINGS = ("zstd", "gzip")
"""Content codings known, the preferred one first."""

_COMPRESS_FROM_BYTES = 1024
"""Smaller responses fit one packet anyway."""

_ZSTD_WINDOW_BYTES = 8 << 20
"""RFC 9659: the largest window that zstd as a content coding may ask a receiver for."""

_INFLATERS: dict[str, tuple[int, Callable[[], Any]]] = {
    "gzip": (8192, lambda: zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)),
    "zstd": (
        512,
        lambda: zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).decompressobj(),
    ),
}
"""For each coding, how many bytes are undone at once, and what undoes them.

A byte of gzip may become a thousand, and 4 bytes of zstd may become 128 KiB: so at most 8 MiB and 16 MiB come out
between two looks at the limits.
"""


def decode(body: bytes, coding: str, *, limit_bytes: int, take: Callable[[int], None]) -> bytes:
    """Undo the content coding of `body`: "identity", "gzip" or "zstd". Takes time: call it off the event loop.

    `take` is called with the size of each piece that comes out before it is kept; it raises where there is no room.

    Raises:
        TooLargeError: more than `limit_bytes` come out.
        InvalidRequestError: `body` is damaged, cut short, or followed by something else.
    """
    if coding == "identity":
        return body
    step, make = _INFLATERS[coding]
    inflater = make()
    plain = io.BytesIO()
    try:
        for start in range(0, len(body), step):
            if inflater.eof:
                raise InvalidRequestError(f"the body goes on after the end of its {coding}")
            piece = inflater.decompress(body[start : start + step])
            if plain.tell() + len(piece) > limit_bytes:
                raise too_large(limit_bytes)
            take(len(piece))
            plain.write(piece)
    except (zlib.error, zstandard.ZstdError):
        raise InvalidRequestError(f"the body is not valid {coding}") from None
    if not inflater.eof:
        raise InvalidRequestError(f"the body's {coding} is cut short")
    if inflater.unused_data:
        raise InvalidRequestError(f"the body goes on after the end of its {coding}")
    return plain.getvalue()


def too_large(limit_bytes: int) -> TooLargeError:
    """Return the error that refuses a body of more than `limit_bytes`."""
    return TooLargeError(f"the body must be at most {limit_bytes} bytes after decompression")


def wanted(accept: str) -> str:
    """Return the coding that suits a client with this ``Accept-Encoding`` best: "zstd", "gzip" or "identity"."""
    quality: dict[str, float] = {}
    for part in accept.lower().split(","):
        name, _, parameter = part.partition(";")
        weight = parameter.partition("=")[2].strip() or "1"
        quality[name.strip()] = float(weight) if weight.replace(".", "", 1).isdecimal() else 0.0
    known = {name: quality.get(name, quality.get("*", 0.0)) for name in CODINGS}
    best = max(CODINGS, key=lambda name: known[name])
    return best if known[best] > 0 else "identity"


def encode(body: bytes, coding: str) -> tuple[bytes, dict[str, str]]:
    """Apply `coding` where the body is large enough to gain by it, and return the headers that say so."""
    vary = {"Vary": "Accept-Encoding"}
    if coding == "identity" or len(body) < _COMPRESS_FROM_BYTES:
        return body, vary
    deflated = (
        gzip.compress(body, 5)
        if coding == "gzip"
        else zstandard.ZstdCompressor(level=3).compress(body)
    )
    return deflated, {**vary, "Content-Encoding": coding}
