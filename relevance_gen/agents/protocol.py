"""The tools, spoken as the Model Context Protocol by its official SDK: over stdio, or a message at a time over HTTP.

Both eras of the protocol are the SDK's: the handshake of 2025-11-25 and before, and the stateless requests of
2026-07-28. What a tool refuses is an answer of the tool's, as agents read these, and not an error of the protocol's.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Final, Literal

import mcp_types as types
from mcp.server import Server
from mcp.server.caching import CacheHint
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError

import relevance_gen
from relevance_gen.agents.folders import Folders
from relevance_gen.agents.tools import Indexes, Look, Tools
from relevance_gen.errors import InvalidRequestError, RelevanceGenError, describe, did_you_mean
from relevance_gen.generation.runner import Runner

_HOUR_MS: Final = 3_600_000
_NAME: Final = "relevance-gen"

Run = Callable[[Callable[[], str]], Awaitable[str]]


def _server(
    tools: Tools,
    instructions: str,
    run: Run,
    scope: Literal["public", "private"],
    look: Look = lambda _: None,
) -> Server:
    """Make the server of some tools; `run` calls what answers, in whatever thread; `scope`: who has the same tools."""
    hints = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
    listed = [
        types.Tool(name=name, description=tool.purpose, input_schema=tool.schema, annotations=hints)
        for name, tool in tools.by_name.items()
    ]

    async def list_tools(_: Any, __: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listed)

    async def call_tool(_: Any, asked: types.CallToolRequestParams) -> types.CallToolResult:
        if asked.name not in tools.by_name:
            others = (
                f"tools are {', '.join(tools.by_name)}"
                if tools.by_name
                else "no index is offered to this key"
            )
            remedy = did_you_mean(asked.name, tools.by_name, others)
            raise MCPError(
                types.INVALID_PARAMS, f"there is no tool {describe(asked.name)}; {remedy}"
            )
        try:
            name = (asked.arguments or {}).get("index")
            if isinstance(name, str) and (
                wait := look(name)
            ):  # without a thread, of which there are few
                await wait()
            text, is_error = await run(lambda: tools.call(asked.name, asked.arguments or {})), False
        except InvalidRequestError as error:
            text, is_error = error.to_json_message(), True
        except RelevanceGenError as error:
            text, is_error = str(error), True
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
        return types.CallToolResult(
            content=[types.TextContent(type="text", text=text)], is_error=is_error
        )

    return Server(
        _NAME,
        version=relevance_gen.__version__,
        instructions=instructions,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        cache_hints={"tools/list": CacheHint(_HOUR_MS, scope)},
    )


def serve_stdio(folders: Folders, runner: Runner | None, indexes: Indexes, look: Look) -> None:
    """Answer what comes over the standard input, until that ends. Folders are read at once, beside it."""

    async def serve() -> None:
        server = _server(
            Tools(folders, runner, indexes),
            _instructions(folders),
            asyncio.to_thread,
            "public",
            look,
        )
        async with stdio_server() as (incoming, outgoing):
            _warm_up(folders)
            await server.run(incoming, outgoing, server.create_initialization_options())

    asyncio.run(serve())


def _warm_up(folders: Folders) -> None:
    """Begin to read folders, in a thread."""

    def look() -> None:
        with suppress(RelevanceGenError):  # who asks is told
            folders.look()

    threading.Thread(target=look, daemon=True).start()


def _instructions(folders: Folders) -> str:
    """Say where the folders lie: an agent on the same machine may write there, too."""
    if not folders.indexes:
        return "Searches indexes, by their names."
    if "" in folders.indexes:
        return f"Searches {folders.indexes[''].root}. Paths are relative to that."
    roots = ", ".join(f"{name} = {index.root}" for name, index in folders.indexes.items())
    return f"Searches these folders, whose names begin all paths: {roots}."


async def _at_once(do: Callable[[], str]) -> str:
    return do()


class Exchange:
    """Answers messages that come one at a time over HTTP, each in the thread that brings it; begins to read folders."""

    def __init__(self, folders: Folders) -> None:
        _warm_up(folders)
        self._folders = folders

    def answer(
        self, headers: Iterable[tuple[bytes, bytes]], body: bytes, indexes: Indexes | None = None
    ) -> tuple[int, bytes]:
        """Return the status and the body of the answer to a ``POST`` of one who may name some indexes.

        Names of headers are in lower case.
        """
        tools = Tools(self._folders, indexes=indexes)
        server = _server(
            tools, "Searches the folders and indexes of a server.", _at_once, "private"
        )
        status, parts, waiting = (
            500,
            list[bytes](),
            [{"type": "http.request", "body": body, "more_body": False}],
        )
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/mcp",
            "query_string": b"",
            "headers": list(headers),
        }

        async def receive() -> Any:
            return waiting.pop() if waiting else await asyncio.Event().wait()

        async def send(message: Any) -> None:
            nonlocal status
            status = int(message.get("status", status))
            parts.append(message.get("body", b""))

        async def exchange() -> None:
            manager = StreamableHTTPSessionManager(server, json_response=True, stateless=True)
            async with manager.run():
                await manager.handle_request(scope, receive, send)

        asyncio.run(exchange())
        return status, b"".join(parts)
