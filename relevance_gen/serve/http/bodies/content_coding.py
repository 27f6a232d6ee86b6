"""Content codings: decode gzip and zstd request bodies within limits, encode response bodies."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable
from typing import Any

import zstandard
from attrs import frozen

from relevance_gen.errors import InvalidRequestError, TooLargeError

CODINGS = ("zstd", "gzip")
"""Supported content codings, in order of preference."""

_MIN_COMPRESSED_BYTES = 1024
"""Smaller responses are not compressed: they fit into one packet anyway."""

_ZSTD_WINDOW_BYTES = 8 << 20
"""RFC 9659: the largest window that zstd as a content coding may require of a decoder."""


@frozen
class _Decompressor:
    """A function that makes a decompressor, and the number of compressed bytes per step.

    The limits are checked after each step. One byte of gzip decodes to at most about a thousand
    bytes, so that a step of 8,192 bytes decodes to at most about 8 MiB. Four bytes of zstd decode
    to at most 128 KiB, so that a step of 512 bytes decodes to at most 16 MiB.
    """

    step_bytes: int
    make: Callable[[], Any]


_DECODERS = {
    "gzip": _Decompressor(8192, lambda: zlib.decompressobj(wbits=16 + zlib.MAX_WBITS)),
    "zstd": _Decompressor(
        512,
        lambda: zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES).decompressobj(),
    ),
}


def decode(
    body: bytes,
    coding: str,
    *,
    limit_bytes: int,
    acquire: Callable[[int], None],
) -> bytes:
    """Decode a request body by its content coding. Too slow for the event loop.

    A body with the coding "identity" is returned unchanged, without any check.

    Args:
        body: the encoded bytes.
        coding: "identity", "gzip" or "zstd".
        limit_bytes: maximum size of the decoded body.
        acquire: called with the size of each decoded piece before it is stored; may raise.

    Raises:
        TooLargeError: the decoded body is larger than `limit_bytes`.
        InvalidRequestError: `body` is damaged or truncated, or has trailing data.
    """
    if coding == "identity":
        return body
    step_bytes = _DECODERS[coding].step_bytes
    decompressor = _DECODERS[coding].make()
    decoded = io.BytesIO()
    try:
        for start in range(0, len(body), step_bytes):
            if decompressor.eof:
                raise InvalidRequestError(f"the body has data after the end of its {coding} stream")
            piece = decompressor.decompress(body[start : start + step_bytes])
            if decoded.tell() + len(piece) > limit_bytes:
                raise too_large(limit_bytes)
            acquire(len(piece))
            decoded.write(piece)
    except (zlib.error, zstandard.ZstdError):
        raise InvalidRequestError(f"the body is not valid {coding}") from None
    if not decompressor.eof:
        raise InvalidRequestError(f"the {coding} stream of the body is truncated")
    if decompressor.unused_data:
        raise InvalidRequestError(f"the body has data after the end of its {coding} stream")
    return decoded.getvalue()


def too_large(limit_bytes: int) -> TooLargeError:
    """Return the error for a body of more than `limit_bytes`."""
    return TooLargeError(f"the body must be at most {limit_bytes} bytes after decompression")


def preferred_coding(accept: str) -> str:
    """Return the best coding for an ``Accept-Encoding`` header: "zstd", "gzip" or "identity"."""
    qualities: dict[str, float] = {}
    for item in accept.lower().split(","):
        name, _, parameter = item.partition(";")
        weight = parameter.partition("=")[2].strip() or "1"
        is_number = weight.replace(".", "", 1).isdecimal()
        qualities[name.strip()] = float(weight) if is_number else 0.0
    default = qualities.get("*", 0.0)
    best = max(CODINGS, key=lambda coding: qualities.get(coding, default))
    return best if qualities.get(best, default) > 0 else "identity"


def encode(body: bytes, coding: str) -> tuple[bytes, dict[str, str]]:
    """Return the body of a response in a content coding, and the headers that depend on the coding.

    These are ``Vary`` and, if the body was encoded, ``Content-Encoding``. A body of less than
    `_MIN_COMPRESSED_BYTES`, or with the coding "identity", is returned unchanged.
    """
    headers = {"Vary": "Accept-Encoding"}
    if coding == "identity" or len(body) < _MIN_COMPRESSED_BYTES:
        return body, headers
    if coding == "gzip":
        encoded = gzip.compress(body, 5, mtime=0)
    else:
        encoded = zstandard.ZstdCompressor(level=3).compress(body)
    return encoded, {**headers, "Content-Encoding": coding}
