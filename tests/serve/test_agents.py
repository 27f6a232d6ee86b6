"""Agents over HTTP: both eras by the official client, the edge's own admission, and what is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

pytest.importorskip("mcp", reason="the extra mcp is not installed")

from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from tests.serve.harness import KEY, KEYED, REAL, SMALL_MODEL, Server

TAKES = {**KEYED, "Accept": "application/json, text/event-stream"}
CALL = {"name": "search", "arguments": {"question": "Which fruit ripens in the dark?"}}
META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28", "io.modelcontextprotocol/clientCapabilities": {}}
OF_2026 = {**TAKES, "MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "search"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders, and a secret beside them."""
    top = tmp_path_factory.mktemp("served")
    for name, text in (("fruit", "Bananas ripen in the dark.\n"), ("animals", "Cats purr at night.\n")):
        (top / name).mkdir()
        (top / name / "facts.txt").write_text(text)
    (top / "secret.txt").write_text("swordfish")
    return top


@pytest.fixture(scope="module")
def offering(folders: Path) -> Iterator[Server]:
    """A real server that offers both."""
    flags = ("--folder", str(folders / "fruit"), "--folder", str(folders / "animals"))
    with Server(*SMALL_MODEL, *flags, program=REAL, RELEVANCE_GEN_CACHE="off") as started:
        yield started


def message(method: str = "tools/call", number: Any = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


@pytest.mark.parametrize("mode", ["auto", "legacy", "2026-07-28"])
def test_the_official_client_searches_over_http(offering: Server, mode: str) -> None:
    """In either era it lists three tools, finds in both folders, and is not told where they lie."""

    async def use() -> None:
        headers = {"Authorization": f"Bearer {KEY}"}
        async with (
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            Client(streamable_http_client(f"{offering.url}/mcp", http_client=http), mode=mode) as client,
        ):
            assert [tool.name for tool in (await client.list_tools()).tools] == ["search", "read", "files"]
            result = await client.call_tool("search", {"question": "Which fruit ripens in the dark?"})
            assert result.content[0].text.startswith("fruit/facts.txt:1-1  ")
            result = await client.call_tool("read", {"path": "fruit/../../secret.txt"})
            assert result.is_error
            assert "served" not in result.content[0].text + str(client.instructions)

    asyncio.run(use())


def test_a_message_of_either_era_is_answered(offering: Server) -> None:
    """Without a handshake before, and a notification without a body."""
    for headers, params in ((TAKES, CALL), (OF_2026, {**CALL, "_meta": META})):
        answer = offering.call("POST", "/mcp", message(**params), headers)
        assert answer.status == 200, answer.body
        assert answer.json["result"]["content"][0]["text"].startswith("fruit/facts.txt:1-1  ")
    answer = offering.call("POST", "/mcp", {"jsonrpc": "2.0", "method": "notifications/initialized"}, TAKES)
    assert (answer.status, answer.body) == (202, b"")


@pytest.mark.parametrize(
    ("body", "headers", "status", "part"),
    [
        (message(**CALL), {"X-API-Key": "wrong"}, 401, "is wrong"),
        (message(**CALL), {"Host": "evil.example"}, 403, "Host must be"),
        (message(**CALL), {"Origin": "https://evil.example"}, 403, "Origin must be"),
        (message(**CALL), {"Accept": "text/html"}, 406, "Not Acceptable"),
        (message(**CALL), {"Content-Type": "text/plain"}, 415, "Content-Type"),
        (message(**CALL), {"MCP-Protocol-Version": "1999-01-01"}, 400, "_meta"),
        (message(**CALL, _meta=META), {**OF_2026, "Mcp-Name": "read"}, 400, "mcp-name header does not match"),
        (message("no/method", _meta=META), {**OF_2026, "Mcp-Method": "no/method"}, 404, "Method not found"),
        ([message(**CALL)], {}, 400, "-32"),
        (5, {}, 400, "-32"),
        (message(name="\ud800"), {}, 400, "-32"),
        ({"jsonrpc": "2.0", "id": {}, "method": "tools/list"}, OF_2026, 400, "-32"),
    ],
)
def test_what_is_wrong_is_refused(
    offering: Server, body: object, headers: dict[str, str], status: int, part: str
) -> None:
    """By the edge, whose errors are JSON-RPC's here, or by the protocol."""
    answer = offering.call("POST", "/mcp", body, {**TAKES, **headers})
    assert (answer.status, answer.json["jsonrpc"]) == (status, "2.0")
    assert part in str(answer.json["error"])


def test_there_is_no_other_method(offering: Server) -> None:
    """A client that asks for a stream of the server's own learns that there is none."""
    assert offering.call("GET", "/mcp", None, TAKES).status == 405


def test_a_server_without_folders_says_so(server: Server) -> None:
    """The error says how to start one that has some."""
    answer = server.call("POST", "/mcp", message(**CALL), TAKES)
    assert answer.status == 400
    assert answer.json["error"]["message"] == "this server offers no folders; start it with --folder"
