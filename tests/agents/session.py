"""Sessions with an MCP server: the official client and raw JSON lines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
COMMAND = [sys.executable, "-m", "relevance_gen", "mcp"]


@asynccontextmanager
async def official(
    *folders: Path, mode: str = "auto", flags: Sequence[str] = ()
) -> AsyncIterator[Client]:
    """Start a server as an editor does, in its first folder, and connect the official client."""
    cwd = str(folders[0]) if folders else None
    server = StdioServerParameters(
        command=COMMAND[0],
        args=[*COMMAND[1:], *flags, *map(str, folders)],
        env=ENVIRONMENT,
        cwd=cwd,
    )
    async with Client(stdio_client(server), mode=mode) as client:
        yield client


async def call_text(client: Client, name: str, **arguments: Any) -> tuple[str, bool]:
    """Call a tool; return its text, and whether it is an error."""
    result = await client.call_tool(name, arguments)
    (content,) = result.content
    return content.text, bool(result.is_error)


def exchange_lines(
    folder: Path, lines: list[bytes], n_answers: int
) -> tuple[list[dict[str, Any]], str]:
    """Send lines to a server; return its first `n_answers` JSON answers and its error output."""
    pipes: dict[str, Any] = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
    }
    with subprocess.Popen([*COMMAND, str(folder)], env=ENVIRONMENT, **pipes) as server:
        server.stdin.write(b"".join(line + b"\n" for line in lines))
        server.stdin.flush()
        answers = [json.loads(server.stdout.readline()) for _ in range(n_answers)]
        rest, errors = server.communicate(timeout=120)
        assert not rest
    assert server.returncode == 0, errors.decode()
    return sorted(answers, key=lambda answer: answer["id"] or 0), errors.decode()


def request(number: int, method: str, **params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode()
