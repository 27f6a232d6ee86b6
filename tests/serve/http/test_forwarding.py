"""The way to the process that holds the model, when that process does not answer."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request

from relevance_gen.errors import TimedOutError
from relevance_gen.serve.http.bodies.body import Body
from relevance_gen.serve.http.forwarding import Forwarder
from relevance_gen.serve.http.http_errors import problem_of
from relevance_gen.serve.http.resources.resource_pools import MemoryReservation, make_resource_pools
from relevance_gen.serve.http.service import REQUEST_ID
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.settings import Settings
from relevance_gen.types import Stats


def test_stopped_model_process_returns_503(tmp_path: Path) -> None:
    """A model process that accepts connections without answering counts as zero runners; a generation ends with a 503."""
    request = make_mocked_request("POST", "/generate")
    request[REQUEST_ID] = "r"

    async def run() -> TimedOutError:
        settings = Settings()
        pools = make_resource_pools(settings, Metrics.for_one_process())
        body = Body(
            [b"{}"],
            "identity",
            MemoryReservation(pools["generation"].memory),
            pools["generation"],
            64,
        )
        forwarder = Forwarder(tmp_path / "socket", 0.1)
        try:
            assert await forwarder.stats() == Stats(backlog=0, num_total_runners=0)
            with pytest.raises(TimedOutError) as caught:
                await forwarder.forward(settings, request, body)
            return caught.value
        finally:
            await forwarder.close()

    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(tmp_path / "socket"))
        stopped.listen()
        error = asyncio.run(run())
    assert (problem_of(error).status, problem_of(error).kind) == (503, "timeout")


def test_forwarder_stats_with_error_response_is_zero_runners(tmp_path: Path) -> None:
    """An error in place of the state is the model process's, and not the client's who asked for the server's health."""

    async def fail(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(
            b'HTTP/1.1 500 Internal Server Error\r\nContent-Length: 13\r\n\r\n{"error": {}}'
        )
        writer.close()

    async def run() -> Stats:
        forwarder = Forwarder(tmp_path / "socket", 1)
        async with await asyncio.start_unix_server(fail, tmp_path / "socket"):
            try:
                return await forwarder.stats()
            finally:
                await forwarder.close()

    assert asyncio.run(run()) == Stats(backlog=0, num_total_runners=0)
