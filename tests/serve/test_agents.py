"""Agents over HTTP: both protocol versions with the official client, admission, and rejected messages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

pytest.importorskip("mcp", reason="the extra mcp is not installed")

from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from relevance_gen import ChunkIndex
from tests.agents.session import call_text
from tests.serve.harness import KEY, KEYED, REAL, SMALL_MODEL, Server
from tests.serve.test_indexes import OTHER_KEY, id_of

TAKES = {**KEYED, "Accept": "application/json, text/event-stream"}
CALL = {"name": "search", "arguments": {"question": "Which fruit ripens in the dark?"}}
META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
OF_2026 = {
    **TAKES,
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/call",
    "Mcp-Name": "search",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two folders, and a secret file outside them."""
    top = tmp_path_factory.mktemp("served")
    for name, text in (
        ("fruit", "Bananas ripen in the dark.\n"),
        ("animals", "Cats purr at night.\n"),
    ):
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


@pytest.fixture(scope="module")
def indexing(folders: Path) -> Iterator[Server]:
    """A real server of two workers with indexes and without folders; one index is for a second key only."""
    ChunkIndex(["Cats purr at night.", "Dogs bark at noon."]).save(folders / "pets.index")
    ChunkIndex(["A secret about cats."]).save(folders / "secret.index")
    flags = ["--index", f"pets={folders}/pets.index", "--index", f"secret={folders}/secret.index"]
    flags += ["--index-key", f"secret={id_of(OTHER_KEY)}", "--index", f"animals={folders}/animals"]
    environ = {"RELEVANCE_GEN_API_KEYS": f"{KEY},{OTHER_KEY}", "RELEVANCE_GEN_CACHE": "off"}
    with Server(*SMALL_MODEL, "--workers", "2", *flags, program=REAL, **environ) as started:
        yield started


@asynccontextmanager
async def official(server: Server, mode: str = "auto", key: str = KEY) -> AsyncIterator[Client]:
    """Connect the official client."""
    async with (
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=60) as http,
        Client(streamable_http_client(f"{server.url}/mcp", http_client=http), mode=mode) as client,
    ):
        yield client


def message(method: str = "tools/call", number: Any = 1, **params: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": number, "method": method, "params": params}


@pytest.mark.parametrize("mode", ["auto", "legacy", "2026-07-28"])
def test_official_client_searches_over_http(offering: Server, mode: str) -> None:
    """With each protocol version the client lists three tools, and searches both folders without learning their paths."""

    async def use() -> None:
        async with official(offering, mode) as client:
            assert [tool.name for tool in (await client.list_tools()).tools] == [
                "search",
                "read",
                "files",
            ]
            result = await client.call_tool(
                "search", {"question": "Which fruit ripens in the dark?"}
            )
            assert result.content[0].text.startswith("fruit/facts.txt:1-1  ")
            result = await client.call_tool("read", {"path": "fruit/../../secret.txt"})
            assert result.is_error
            assert "served" not in result.content[0].text + str(client.instructions)

    asyncio.run(use())


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
def test_key_determines_visible_indexes(indexing: Server, mode: str) -> None:
    """Indexes of other keys are not in the schema, and selecting them gives the same error as an unknown name."""

    async def use(key: str) -> tuple[list[str], str, bool]:
        async with official(indexing, mode, key) as client:
            (tool,) = (await client.list_tools()).tools
            text, is_error = await call_text(
                client, "search", question="Which animals bark?", index="pets"
            )
            assert not is_error
            assert text.startswith("pets[1]  ")
            text, _ = await call_text(client, "search", question="Who purrs?", index="animals")
            assert text.startswith("facts.txt:1-1  ")
            return tool.input_schema["properties"]["index"]["enum"], *await call_text(
                client, "search", question="cats", index="secret"
            )

    names, text, is_error = asyncio.run(use(OTHER_KEY))
    assert (names, is_error) == (["pets", "secret", "animals"], False)
    assert text.startswith("secret[0]  ")
    names, text, is_error = asyncio.run(use(KEY))
    assert (names, is_error) == (["pets", "animals"], True)
    assert text == "index must be one of pets, animals, got 'secret'"


def test_mcp_without_own_indexes_lists_no_search_tool(folders: Path) -> None:
    """All indexes are for a second key."""
    flags = [
        "--index",
        f"secret={folders}/secret.index",
        "--index-key",
        f"secret={id_of(OTHER_KEY)}",
    ]
    ChunkIndex(["A secret about cats."]).save(folders / "secret.index")
    with Server(*SMALL_MODEL, *flags, program=REAL, RELEVANCE_GEN_CACHE="off") as started:
        assert (
            started.call("POST", "/mcp", message("tools/list"), TAKES).json["result"]["tools"] == []
        )
        reported = started.call("POST", "/mcp", message(**CALL), TAKES).json["error"]["message"]
    assert reported == "there is no tool 'search'; no index is offered to this key"


def test_search_sees_new_file(indexing: Server, folders: Path) -> None:
    """A search sees a file that was written immediately before."""
    (folders / "animals" / "new.txt").write_text("Zebras graze.\n")
    for _ in range(4):  # by either worker
        asked = message(name="search", arguments={"question": "Who grazes?", "index": "animals"})
        answer = indexing.call("POST", "/mcp", asked, TAKES)
        assert answer.json["result"]["content"][0]["text"].startswith("new.txt:1-1  "), answer.body
    (folders / "animals" / "new.txt").unlink()


@pytest.mark.parametrize("name", ["", 5, None, "x" * 300, ["pets"]])
def test_tool_rejects_invalid_index_name(indexing: Server, name: object) -> None:
    """An invalid index name is rejected; the list of tools depends on the key."""
    asked = message(name="search", arguments={"question": "cats", "index": name})
    result = indexing.call("POST", "/mcp", asked, TAKES).json["result"]
    assert result["isError"]
    assert result["content"][0]["text"].startswith("index must be ")
    listing = message("tools/list", _meta=META)
    answer = indexing.call(
        "POST", "/mcp", listing, {**OF_2026, "Mcp-Method": "tools/list", "Mcp-Name": ""}
    )
    assert answer.json["result"]["cacheScope"] == "private"


def test_message_of_each_protocol_generation_is_answered(offering: Server) -> None:
    """Requests work without a handshake, and notifications have an empty answer."""
    for headers, params in ((TAKES, CALL), (OF_2026, {**CALL, "_meta": META})):
        answer = offering.call("POST", "/mcp", message(**params), headers)
        assert answer.status == 200, answer.body
        assert answer.json["result"]["content"][0]["text"].startswith("fruit/facts.txt:1-1  ")
    answer = offering.call(
        "POST", "/mcp", {"jsonrpc": "2.0", "method": "notifications/initialized"}, TAKES
    )
    assert (answer.status, answer.body) == (202, b"")


@pytest.mark.parametrize(
    ("body", "headers", "status", "part"),
    [
        (message(**CALL), {"X-API-Key": "wrong"}, 401, "is wrong"),
        (message(**CALL), {"Host": "evil.example"}, 403, "Host must be listed in --allowed-hosts"),
        (
            message(**CALL),
            {"Origin": "https://evil.example"},
            403,
            "Origin must be the origin of this server",
        ),
        (message(**CALL), {"Accept": "text/html"}, 406, "Not Acceptable"),
        (message(**CALL), {"Content-Type": "text/plain"}, 415, "Content-Type"),
        (message(**CALL), {"MCP-Protocol-Version": "1999-01-01"}, 400, "_meta"),
        (
            message(**CALL, _meta=META),
            {**OF_2026, "Mcp-Name": "read"},
            400,
            "mcp-name header does not match",
        ),
        (
            message("no/method", _meta=META),
            {**OF_2026, "Mcp-Method": "no/method"},
            404,
            "Method not found",
        ),
        ([message(**CALL)], {}, 400, "the message must be a JSON object; a list"),
        (5, {}, 400, "the message must be a JSON object"),
        ({"id": 1, "method": "tools/list"}, {}, 400, 'jsonrpc must be "2.0", got null'),
        ({"jsonrpc": "2.0", "id": 1, "method": 5}, {}, 400, "method must be a string, got 5"),
        ({"jsonrpc": "2.0", "id": 1}, {}, 400, "method must be a string, got null"),
        ({"jsonrpc": "2.0", "id": True, "method": "ping"}, {}, 400, "id must be a string or"),
        ({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": []}, {}, 400, "params must be"),
        (message(name="search", arguments={"path": "x" * (4 << 20)}), {}, 413, "4,194,304 bytes"),
        (message(name="\ud800"), {}, 400, "-32"),
        ({"jsonrpc": "2.0", "id": {}, "method": "tools/list"}, OF_2026, 400, "id must be"),
    ],
)
def test_invalid_message_is_rejected(
    offering: Server, body: object, headers: dict[str, str], status: int, part: str
) -> None:
    """By the edge, whose errors are JSON-RPC's here, or by the protocol."""
    answer = offering.call("POST", "/mcp", body, {**TAKES, **headers})
    assert (answer.status, answer.json["jsonrpc"]) == (status, "2.0")
    assert part in answer.json["error"]["message"] + str(answer.json["error"]["code"])
    assert "Validation error" not in answer.body.decode()


def test_get_and_delete_are_rejected(offering: Server) -> None:
    """A request for a server-initiated stream is rejected."""
    assert offering.call("GET", "/mcp", None, TAKES).status == 405


def test_mcp_without_folders_is_rejected_with_remedy(server: Server) -> None:
    """The error contains the flags to start a server with folders or indexes."""
    answer = server.call("POST", "/mcp", message(**CALL), TAKES)
    assert answer.status == 400
    assert answer.json["error"]["message"] == (
        "this server offers no folders and no indexes; start it with --folder or --index"
    )
