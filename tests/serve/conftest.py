"""Servers that the tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.serve.harness import REAL, SMALL_MODEL, Server, eventually


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A scripted server with default settings, but for a rate limit that no test meets by accident."""
    with Server("--rate-limit", "off") as started:
        assert eventually(lambda: started.call("GET", "/health").status == 200)
        yield started


@pytest.fixture(scope="session")
def real() -> Iterator[Server]:
    """The real server with real search and a tiny model."""
    with Server(*SMALL_MODEL, "--rate-limit", "off", program=REAL) as started:
        assert eventually(lambda: started.call("GET", "/health").status == 200, 60), started.log
        yield started
