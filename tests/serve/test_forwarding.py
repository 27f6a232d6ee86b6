"""The way to the process that holds the model, when that process does not answer."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request

from relevance_gen.serve.app import REQUEST_ID
from relevance_gen.serve.forwarding import Forwarder
from relevance_gen.serve.problems import HTTPError
from relevance_gen.types import Stats


def test_a_stopped_model_process_is_a_503(tmp_path: Path) -> None:
    """A model process that takes connections and answers none has no runners, and a generation ends with a 503."""
    request = make_mocked_request("POST", "/generate")
    request[REQUEST_ID] = "r"

    async def run() -> HTTPError:
        forwarder = Forwarder(tmp_path / "socket", 0.1)
        try:
            assert await forwarder.state() == Stats(backlog=0, num_total_runners=0)
            with pytest.raises(HTTPError) as caught:
                await forwarder.post(request, b"{}")
            return caught.value
        finally:
            await forwarder.close()

    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(tmp_path / "socket"))
        stopped.listen()
        error = asyncio.run(run())
    assert (error.status, error.kind) == (503, "timeout")
