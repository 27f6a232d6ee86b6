"""Generations: what is done on the event loop, and what is not."""

from __future__ import annotations

import asyncio
import threading

import pytest

from relevance_gen.serve.edge.generations import made_of
from relevance_gen.types import Completion, GenerationResponse


@pytest.mark.parametrize(("n_prompt", "n_tokens", "on_loop"), [(1000, 1, True), (100_000, 1, False), (1, 9000, False)])
def test_only_small_responses_are_written_on_the_loop(n_prompt: int, n_tokens: int, on_loop: bool) -> None:
    """A response whose prompt or samples are large is written in a thread, so that nobody else waits for it."""
    response = GenerationResponse(0.0, 0.0, 1, "x" * n_prompt, 1, (Completion("x", n_tokens, 0.0, "length"),))
    writer = asyncio.run(made_of((response,), lambda _: threading.current_thread()))
    assert (writer is threading.main_thread()) == on_loop
