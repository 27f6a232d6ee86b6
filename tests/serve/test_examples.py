"""The examples, run against a running server as a reader would run them."""

from __future__ import annotations

import configparser
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from relevance_gen.serve.flags import SETTINGS
from relevance_gen.serve.settings import Settings
from tests.serve.harness import KEY, ROOT, Server, eventually

EXAMPLES = ROOT / "examples"
PAGE_ORIGIN = "http://127.0.0.1:8080"


@pytest.fixture(scope="module")
def open_server() -> Iterator[Server]:
    """A server that lets the example page in."""
    with Server("--cors-origins", PAGE_ORIGIN, "--model", "fast") as server:
        assert eventually(server.is_healthy)
        yield server


def run(server: Server, *command: str | Path) -> str:
    """Run an example and return its output."""
    environ = {**os.environ, "SERVER_URL": server.url, "SERVER_KEY": KEY}
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_curl(open_server: Server) -> None:
    """examples/curl.sh calls the paths of the interface and prints the responses."""
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    printed = run(open_server, "bash", EXAMPLES / "curl.sh")
    assert '"chunk_txt":"Machine learning lets computers learn from data."' in printed
    assert "Apples" in printed
    assert "health: 200" in printed
    assert '"num_total_runners":1' in printed
    assert printed.count("event: text") == 16
    assert "event: response" in printed
    assert '"relevance_score":' in printed
    assert '"object":"chat.completion"' in printed


def test_requests(open_server: Server) -> None:
    """examples/requests_client.py searches, plainly and compressed, reads an error, and generates."""
    printed = run(open_server, sys.executable, EXAMPLES / "requests_client.py")
    assert "{'source': 'book', 'page': 12}" in printed
    assert "num_query_tokens" in printed
    assert "chunk_txts[1].text" in printed
    assert printed.count("length") == 2


def test_httpx(open_server: Server) -> None:
    """examples/httpx_client.py streams, and runs several generations at once."""
    printed = run(open_server, sys.executable, EXAMPLES / "httpx_client.py")
    first, *others = printed.splitlines()
    assert first.split() == [f"word{n}" for n in range(24)]
    assert [line.split("word0")[0] for line in others] == [
        "The sea was",
        "In the city",
        "A small dog",
    ]


def test_browser_example_searches_and_streams(open_server: Server, tmp_path: Path) -> None:
    """examples/browser.html's own functions search and stream, run by node with the browser's fetch."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    page = (EXAMPLES / "browser.html").read_text()
    client = page.split("// <client>")[1].split("// </client>")[0]
    script = tmp_path / "client.mjs"
    script.write_text(
        f"""{client}
        const found = await search("{open_server.url}", "{KEY}", "red fruit", ["red fruit", "sky"]);
        console.log(found[0].chunk_txt);
        let text = "";
        for await (const piece of stream("{open_server.url}", "hello")) text += piece;
        console.log(text.trim().split(" ").length);"""
    )
    assert run(open_server, "node", script).split("\n")[:2] == ["red fruit", "32"]


def test_browser_example_passes_preflight(open_server: Server) -> None:
    """The preflight that a browser sends for the page's calls is granted."""
    asked = {
        "Origin": PAGE_ORIGIN,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type,x-api-key",
    }
    for path in ("/search", "/generate_stream"):
        answer = open_server.call("OPTIONS", path, headers=asked)
        assert answer.status == 204
        assert answer.headers["Access-Control-Allow-Origin"] == PAGE_ORIGIN
        allowed = answer.headers["Access-Control-Allow-Headers"].lower()
        assert all(name in allowed for name in asked["Access-Control-Request-Headers"].split(","))


def test_deployment_files_use_existing_settings() -> None:
    """Every RELEVANCE_GEN_ variable in the Dockerfile and the systemd unit is a setting."""
    known = {setting.variable for setting in SETTINGS} | {"RELEVANCE_GEN_API_KEYS"}
    for file in (EXAMPLES / "deploy").iterdir():
        assert set(re.findall(r"RELEVANCE_GEN_[A-Z_]+", file.read_text())) <= known


def test_systemd_unit_is_valid() -> None:
    """The systemd unit parses, waits longer than the drain, and passes systemd's own check where that is installed."""
    file = EXAMPLES / "deploy" / "relevance_gen.service"
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(file.read_text())
    assert set(unit) == {"DEFAULT", "Unit", "Service", "Install"}
    assert float(unit["Service"]["TimeoutStopSec"]) > Settings().drain_timeout_s
    analyze = shutil.which("systemd-analyze")
    if analyze is not None:
        checked = subprocess.run(
            [analyze, "verify", file], capture_output=True, text=True, check=False
        )
        complaints = [
            line
            for line in checked.stderr.splitlines()
            if "relevance_gen" in line and "executable" not in line
        ]
        assert not complaints
