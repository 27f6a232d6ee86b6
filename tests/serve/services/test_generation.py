"""Streams without HTTP: text that waits for a slow client holds memory until it is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

import pytest

from relevance_gen.errors import BusyError, RequestCancelledError
from relevance_gen.generation.queue.pending_request import OnText
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.services.generation import GenerationTask, Generator
from relevance_gen.serve.services.model_registry import ModelRegistry
from relevance_gen.serve.settings import Settings
from relevance_gen.types import GenerationRequest, GenerationResponse

PIECE = "some text "
N_PIECES = 1000


class Talkative:
    """A model that generates all text at once, and is cancelled afterwards."""

    def submit(
        self, request: GenerationRequest, *, on_text: OnText, **_: Any
    ) -> Future[GenerationResponse]:
        """Generate it."""
        del request
        for _ in range(N_PIECES):
            on_text(0, PIECE)
        future: Future[GenerationResponse] = Future()
        future.cancel()
        return future


async def read(hold: Callable[[int], None]) -> list[str]:
    """Return the items of a stream before its cancellation."""
    settings, metrics = Settings(), Metrics.for_one_process()
    generator = Generator(ModelRegistry(settings, {}, metrics), settings, metrics)
    found = []
    with suppress(RequestCancelledError):
        async for pieces in generator.stream(
            GenerationTask((GenerationRequest("x"),), backend=Talkative()), hold
        ):
            assert isinstance(pieces, list)
            found += [text for _, text in pieces]
    return found


def test_stream_pieces_hold_memory_until_sent() -> None:
    """A thousand pieces that wait are held together, with more than their characters, and given back when read."""
    held = [0]

    def hold(n_bytes: int) -> None:
        held.append(held[-1] + n_bytes)

    assert asyncio.run(read(hold)) == [PIECE] * N_PIECES
    assert max(held) > len(PIECE) * N_PIECES
    assert held[-1] == 0


def test_stream_without_memory_ends() -> None:
    """Without memory for waiting text, the stream ends with that error, and acquires no more."""
    held = [0]

    def hold(n_bytes: int) -> None:
        if held[0] + n_bytes > 10_000:
            raise BusyError("too much")
        held[0] += n_bytes

    with pytest.raises(BusyError, match="too much"):
        asyncio.run(read(hold))
    assert 0 < held[0] <= 10_000  # whose account it is gives it back
