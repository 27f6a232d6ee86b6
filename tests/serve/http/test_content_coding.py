"""Content codings, without HTTP."""

from __future__ import annotations

import gzip

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.errors import BusyError, TooLargeError
from relevance_gen.serve.http.bodies import content_coding as codings

COMPRESS = {"gzip": gzip.compress, "zstd": zstandard.compress}


@given(body=st.binary(max_size=3000), coding=st.sampled_from(["identity", *codings.CODINGS]))
def test_decoding_undoes_encoding(body: bytes, coding: str) -> None:
    """Decoding restores any encoded body; the size of every decoded piece is acquired."""
    encoded, headers = codings.encode(body, coding)
    given_coding = headers.get("Content-Encoding", "identity")
    taken: list[int] = []
    assert (
        codings.decode(encoded, given_coding, limit_bytes=len(body), acquire=taken.append) == body
    )
    assert sum(taken) == (0 if given_coding == "identity" else len(body))


@pytest.mark.parametrize("coding", codings.CODINGS)
def test_decode_bomb_stops_at_the_limit(coding: str) -> None:
    """Of 256 MiB of zeros no more is kept than allowed, and no more than there is room for."""
    bomb = COMPRESS[coding](bytes(256 << 20))
    taken: list[int] = []
    with pytest.raises(TooLargeError):
        codings.decode(bomb, coding, limit_bytes=40 << 20, acquire=taken.append)
    assert sum(taken) <= 40 << 20

    def refuse(_: int) -> None:
        raise BusyError("no room")

    with pytest.raises(BusyError):
        codings.decode(bomb, coding, limit_bytes=1 << 30, acquire=refuse)
