"""Server, browser and visit that the tests of the page share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from relevance_gen import ChunkIndex
from tests.serve.harness import HALF_SCRIPTED, Server, eventually
from tests.serve.page.visit import Visit

CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server with real search and a folder of its own, that writes 48 words, one every 5 ms."""
    folder = tmp_path_factory.mktemp("harbour")
    (folder / "fees.md").write_text(
        "The fee for a boat is three crowns a night.\n\nShips pay by their length."
    )
    records = tmp_path_factory.mktemp("records") / "boats.index"
    ChunkIndex(
        [{"text": "Boats are painted in spring.", "title": "Paint"}, "Sails are mended in winter."]
    ).save(records)
    offered = ("--index", f"harbour={folder}", "--index", f"boats={records}")
    flags = ("--rate-limit", "off", "--model", "brief", *offered)
    with Server(*flags, program=HALF_SCRIPTED) as started:
        assert eventually(started.is_healthy)
        yield started


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for all tests of a file."""
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    playwright: Any = pytest.importorskip("playwright.sync_api")
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield started
        started.close()


@pytest.fixture
def visit(browser: Any, server: Server) -> Iterator[Visit]:
    """A visit with a key."""
    made = Visit(browser, server.url)
    yield made
    made.close()


@pytest.fixture(scope="module")
def scripts(browser: Any, server: Server) -> Iterator[Visit]:
    """A visit for tests that only call functions of the page's scripts."""
    made = Visit(browser, server.url)
    yield made
    made.close()


@pytest.fixture(scope="module")
def slow() -> Iterator[Server]:
    """A server that writes a word every 50 ms, so that there is time to do something meanwhile."""
    with Server("--rate-limit", "off", "--model", "slow", program=HALF_SCRIPTED) as started:
        assert eventually(started.is_healthy)
        yield started
