"""Servers that the tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serve.harness import Server, eventually


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A scripted server with default settings, but for a rate limit that no test meets by accident."""
    with Server("--rate-limit", "off") as started:
        assert eventually(lambda: started.call("GET", "/health").status == 200)
        yield started
