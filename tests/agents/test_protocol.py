"""Tests of MCP over stdio: both protocol generations, several clients, invalid calls, changes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("mcp", reason="the extra mcp is not installed")

from relevance_gen import ChunkIndex
from tests.agents.session import COMMAND, ENVIRONMENT, call_text, exchange_lines, official, request
from tests.environments import interpreter_with

HELLO = {"capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
OF_2026 = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": HELLO["clientInfo"],
}
QUESTION = "which method does a request begin with?"


@pytest.mark.parametrize("mode", ["legacy", "2026-07-28"])
def test_official_client_searches_reads_and_lists(project: Path, mode: str) -> None:
    """In both protocol generations the three read-only tools work and return errors as results."""

    async def use() -> None:
        async with official(project, mode=mode) as client:
            tools = (await client.list_tools()).tools
            assert [tool.name for tool in tools] == ["search", "read", "files"]
            assert all(
                tool.annotations is not None and tool.annotations.read_only_hint for tool in tools
            )
            assert mode == "2026-07-28" or str(project) in str(client.instructions)
            text, is_error = await call_text(client, "search", question=QUESTION)
            assert not is_error
            assert text.startswith("src/parser.py:1-7  ")
            assert (await call_text(client, "read", path="notes.txt", last_line=1))[0].startswith(
                "1\tBananas"
            )
            assert (await call_text(client, "files"))[0].startswith("README.md\n")
            text, is_error = await call_text(client, "search", question=QUESTION, limit=3)
            assert is_error
            assert text.startswith(
                "limit is not a known field; the fields are question, folder, glob, top_n"
            )
            with pytest.raises(
                Exception, match=r"there is no tool 'serach'; did you mean search\?"
            ):
                await client.call_tool("serach", {})

    asyncio.run(use())


@pytest.mark.parametrize("version", ["2024-11-05", "1999-01-01"])
def test_handshake_answers_supported_or_latest_revision(project: Path, version: str) -> None:
    """The server accepts each known revision; for an unknown revision it offers the latest."""
    answers, _ = exchange_lines(
        project,
        [
            request(1, "initialize", protocolVersion=version, **HELLO),
            b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
            request(2, "tools/call", name="search", arguments={"question": QUESTION}),
        ],
        2,
    )
    hello, found = answers
    assert hello["result"]["protocolVersion"] == (
        version if version != "1999-01-01" else "2025-11-25"
    )
    assert found["result"]["content"][0]["text"].startswith("src/parser.py:1-7")


def test_stateless_request_needs_no_handshake(project: Path) -> None:
    """Requests of revision 2026-07-28 carry all metadata, and tool lists have a time to live."""
    answers, _ = exchange_lines(
        project,
        [
            request(1, "server/discover", _meta=OF_2026),
            request(2, "tools/list", _meta=OF_2026),
            request(3, "tools/call", name="files", arguments={}, _meta=OF_2026),
        ],
        3,
    )
    discovered, listed, files = (answer["result"] for answer in answers)
    assert discovered["supportedVersions"] == ["2026-07-28"]
    assert listed["ttlMs"] == 3_600_000
    assert listed["cacheScope"] == "public"
    assert files["content"][0]["text"].startswith("README.md\n")


def test_named_indexes_are_searched(project: Path, tmp_path: Path) -> None:
    """A saved index and a folder are searched in their current state; a missing index is an error."""
    pets, docs = tmp_path / "pets.index", tmp_path / "docs"
    ChunkIndex(["Cats purr at night.", "Dogs bark at noon."]).save(pets)
    docs.mkdir()
    (docs / "fruit.txt").write_text("Bananas ripen in the dark.\n")
    places = {"pets": pets, "docs": docs, "gone": tmp_path / "gone.index"}
    flags = [part for name, place in places.items() for part in ("--index", f"{name}={place}")]

    async def use() -> None:
        async with official(project, flags=flags) as client:
            tools = {tool.name: tool.input_schema for tool in (await client.list_tools()).tools}
            assert [*tools] == ["search", "read", "files"]
            assert tools["search"]["properties"]["index"]["enum"] == [*places]
            assert "index" not in tools["search"]["required"]
            assert (await call_text(client, "search", question=QUESTION))[0].startswith(
                "src/parser.py:1-7  "
            )
            for _ in range(2):
                text, is_error = await call_text(
                    client, "search", question="Which animals bark?", index="pets"
                )
                assert not is_error
                assert text.startswith("pets[1]  ")
            text, _ = await call_text(
                client, "search", question="Which fruit ripens in the dark?", index="docs"
            )
            assert text.startswith("fruit.txt:1-1  ")
            (docs / "zebra.txt").write_text("Zebras graze.\n")
            assert (
                "zebra.txt:1-1  "
                in (await call_text(client, "search", question="Who grazes?", index="docs"))[0]
            )
            text, is_error = await call_text(client, "search", question="x", index="gone")
            assert is_error
            assert text == "index gone cannot be searched now: No such file or directory"
        async with official(flags=["--index", f"pets={pets}"]) as client:
            (tool,) = (await client.list_tools()).tools
            assert tool.input_schema["required"] == ["question", "index"]
            text, _ = await call_text(
                client, "search", question="Which animals bark?", index="pets"
            )
            assert text.startswith("pets[1]  ")

    asyncio.run(use())


def test_unread_index_does_not_delay_other_calls(project: Path) -> None:
    """While 64 calls wait for an index whose store never answers, another tool answers and the server can end."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        slow = f"http://127.0.0.1:{silent.getsockname()[1]}/index"
        command = [*COMMAND, "--index", f"slow={slow}", str(project)]
        with subprocess.Popen(
            command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as server:
            assert server.stdin is not None and server.stdout is not None  # noqa: PT018
            asked = {"question": QUESTION, "index": "slow"}
            calls = [
                request(n, "tools/call", name="search", arguments=asked, _meta=OF_2026)
                for n in range(64)
            ]
            calls.append(request(64, "tools/call", name="files", arguments={}, _meta=OF_2026))
            server.stdin.write(b"".join(line + b"\n" for line in calls))
            server.stdin.flush()
            n_before = 0
            while (answer := json.loads(server.stdout.readline()))["id"] != 64:
                n_before += 1
            assert answer["result"]["isError"] is False
            server.stdin.close()
            rest = server.stdout.read()
            # On a busy machine, waiting calls may reach their time limit before.
            assert n_before or b"still being read" not in rest


def test_invalid_lines_do_not_break_protocol(project: Path) -> None:
    """The server ignores lines without valid JSON-RPC and writes only JSON-RPC messages to stdout."""
    (project / "broken.pdf").write_bytes(b"%PDF-1.7\nnothing")
    (project / "binary.bin").write_bytes(bytes(range(256)) * 10)
    nonsense = [
        b"hello",
        b"",
        b"[1,2]",
        b"\xff\xfe",
        b'{"jsonrpc":"2.0","id":9,"method":5}',
        b"null",
        b'"\\ud800"',
    ]
    answers, errors = exchange_lines(
        project,
        [
            request(1, "initialize", protocolVersion="2025-06-18", **HELLO),
            *nonsense,
            request(3, "tools/call", name="search", arguments={"question": "zebra"}),
            request(4, "no/such/method"),
        ],
        3,
    )
    by_id = {answer.get("id"): answer for answer in answers}
    assert all(answer["jsonrpc"] == "2.0" for answer in answers)
    assert "README.md:1-3" in by_id[3]["result"]["content"][0]["text"]
    assert by_id[4]["error"]["code"] == -32601
    assert "Traceback" not in errors


def test_server_ends_at_end_of_input_while_indexing(tmp_path: Path) -> None:
    """The server exits at the end of its input, without a traceback, while it reads the folder."""
    (tmp_path / "big").mkdir()
    for number in range(300):
        (tmp_path / "big" / f"{number}.txt").write_text(f"zebra {number} " * 2000)
    answers, errors = exchange_lines(
        tmp_path / "big", [request(1, "initialize", protocolVersion="2025-06-18", **HELLO)], 1
    )
    assert answers[0]["result"]
    assert "Traceback" not in errors
    assert "Fatal" not in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-folder"], "FOLDER must be an existing folder, got '"),
        (["file.txt"], "FOLDER must be an existing folder, got '"),
        (
            ["--index", "pets"],
            "--index must be NAME=FILE, NAME=FOLDER or NAME=ADDRESS, with letters",
        ),
        (["--index", "pets="], "got 'pets='"),
        (["--index", "two words=."], "got 'two words=.'"),
        (["--index", "two\nlines=."], r"got 'two\nlines=.'"),
        (["--index", ""], "must not be empty"),
        (
            ["--index", "pets=file.txt", "--index", "pets=."],
            "--index must be given once for each name, got 'pets'",
        ),
        (["--folder", "x"], "unrecognized arguments: --folder"),
    ],
)
def test_invalid_start_arguments_are_reported_on_stderr(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    """Invalid arguments end the program at once with an error and an empty standard output."""
    (tmp_path / "file.txt").write_text("zebra")
    command = [sys.executable, "-m", "relevance_gen", "mcp", *arguments]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert not done.stdout
    assert message in done.stderr


def test_fastmcp_client_works(project: Path) -> None:
    """The fastmcp client lists the tools, searches, and receives an error for a wrong argument."""
    python = interpreter_with("fastmcp", "fastmcp")
    program = Path(__file__).with_name("fastmcp_client.py")
    done = subprocess.run(
        [python, program, sys.executable, project, ENVIRONMENT["PYTHONPATH"]],
        env={"PATH": os.environ["PATH"], "HOME": str(project)}, capture_output=True, text=True, timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    tools, found, refused = done.stdout.split("\n---\n")
    assert tools == "search read files"
    assert found.startswith("src/parser.py:1-7  ")
    assert "did you mean top_n?" in refused


def mixed_calls(project: Path, n_calls: int) -> None:
    """Have one client call everything, rightly and wrongly, while files come, change and go."""
    chance = np.random.default_rng(n_calls)

    def change() -> None:
        number = chance.integers(20)
        path = project / f"file{number}.txt"
        if chance.random() < 0.3:
            path.unlink(missing_ok=True)
        else:
            path.write_bytes(
                [f"zebra {number}\n".encode() * 9, b"\0\xff" * 99, b""][chance.integers(3)]
            )
        if chance.random() < 0.02:
            shutil.move(project, away := project.with_name("away"))
            shutil.move(away, project)

    wrong: list[tuple[str, dict[str, Any]]] = [
        ("search", {}), ("search", {"question": ""}), ("search", {"question": 3}), ("search", {"query": "zebra"}),
        ("read", {"path": "../secret.txt"}), ("read", {"path": "link.txt"}), ("read", {"path": "file99.txt"}),
        ("read", {"path": "notes.txt", "first_line": 10**6}), ("files", {"glob": "/"}), ("files", {"folder": "gone"}),
    ]  # fmt: skip

    async def use() -> None:
        async with official(project) as client:
            n_wrong = 0
            for number in range(n_calls):
                change()
                if chance.random() < 0.3:
                    name, arguments = wrong[chance.integers(len(wrong))]
                    text, is_error = await call_text(client, name, **arguments)
                    assert is_error, text
                    n_wrong += 1
                    continue
                (project / "now.txt").write_text(f"giraffe {number}")
                text, is_error = await call_text(
                    client, "search", question="giraffe", max_tokens=int(chance.integers(50, 2000))
                )
                assert not is_error
                assert f"giraffe {number}\n" in text
                text, is_error = await call_text(
                    client, "read", path=f"file{chance.integers(20)}.txt"
                )
                assert "swordfish" not in text
                listed = (await call_text(client, "files"))[0].splitlines()[:-1]
                there = sorted(
                    one.name for one in project.iterdir() if one.is_file() and not one.is_symlink()
                )
                assert listed == [*there, "src/parser.py"]
            assert n_wrong

    asyncio.run(use())


def test_session_of_50_mixed_calls(project: Path) -> None:
    """Valid calls are answered from the current files; invalid calls return errors."""
    mixed_calls(project, 50)


@pytest.mark.soak
def test_session_of_1000_mixed_calls(project: Path) -> None:
    """Valid calls are answered from the current files; invalid calls return errors."""
    mixed_calls(project, 1000)
