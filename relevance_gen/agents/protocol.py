"""The Model Context Protocol by its official SDK: over stdio, or one message per HTTP request.

The SDK implements both versions of the protocol: the handshake of 2025-11-25 and earlier, and the
stateless requests of 2026-07-28. If the arguments of a tool call are invalid, the error message is
returned as the result of the call and not as a protocol error, because agents read the results of
tool calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final, Literal

import mcp_types as types
from attrs import frozen
from mcp.server import Server
from mcp.server.caching import CacheHint
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.exceptions import MCPError

import relevance_gen
from relevance_gen.errors import InvalidRequestError, RelevanceGenError, describe, did_you_mean

if TYPE_CHECKING:
    from relevance_gen.agents.folders import Folders
    from relevance_gen.agents.tools import NamedSearches, RefreshIndex, Tools
    from relevance_gen.generation.runner import Runner

_HOUR_MS: Final = 3_600_000
_NAME: Final = "relevance-gen"

RunTool = Callable[[Callable[[], str]], Awaitable[str]]
"""Calls a function, in the calling thread or in another thread, and returns its result."""


@frozen
class _ToolServer:
    """A server's handlers for the MCP messages that list tools and call a tool.

    Attributes:
        load_tools: returns the tools that clients can call; called once, when they are first
            needed.
        run: executes a tool call, in the calling thread or in another thread.
        refresh: called before each tool call whose argument ``index`` is a string, with that
            string. It begins to refresh the index of that name, and returns either a function whose
            result must be awaited until the refresh ends, or None if there is nothing to wait for.
    """

    load_tools: Callable[[], Tools]
    run: RunTool
    refresh: RefreshIndex

    @cached_property
    def _tools(self) -> Tools:
        return self.load_tools()

    async def list_tools(self, _: Any, __: Any) -> types.ListToolsResult:
        """Return the descriptions and parameters of all tools of this server."""
        hints = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)
        tools = [
            types.Tool(
                name=name,
                description=tool.purpose,
                input_schema=tool.schema,
                annotations=hints,
            )
            for name, tool in self._tools.by_name.items()
        ]
        return types.ListToolsResult(tools=tools)

    async def call_tool(self, _: Any, call: types.CallToolRequestParams) -> types.CallToolResult:
        """Call a tool, and return its answer; an error of the tool is returned as its answer.

        Raises:
            MCPError: there is no tool with this name.
        """
        self._check_name(call.name)
        arguments = call.arguments or {}
        index = arguments.get("index")
        is_error = False
        try:
            wait = self.refresh(index) if isinstance(index, str) else None
            if wait is not None:  # outside of the threads that run tools: they are few
                await wait()
            text = await self.run(lambda: self._tools.call(call.name, arguments))
        except InvalidRequestError as error:
            text, is_error = error.to_json_message(), True
        except RelevanceGenError as error:
            text, is_error = str(error), True
        text = text.encode("utf-8", "backslashreplace").decode("utf-8")
        content = types.TextContent(type="text", text=text)
        return types.CallToolResult(content=[content], is_error=is_error)

    def _check_name(self, name: str) -> None:
        names = self._tools.by_name
        if name not in names:
            offered = "no index is offered to this key"
            if names:
                offered = f"tools are {', '.join(names)}"
            remedy = did_you_mean(name, names, offered)
            message = f"there is no tool {describe(name)}; {remedy}"
            raise MCPError(types.INVALID_PARAMS, message)


def _server(
    handlers: _ToolServer, instructions: str, scope: Literal["public", "private"]
) -> Server:
    """Return an MCP server for the tools of `handlers`.

    Args:
        handlers: list and call the tools.
        instructions: a description of the server for its clients.
        scope: "public" if all clients have the same tools, so that the list of tools can be cached
            for all clients; "private" if the tools depend on the client.
    """
    return Server(
        _NAME,
        version=relevance_gen.__version__,
        instructions=instructions,
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        cache_hints={"tools/list": CacheHint(_HOUR_MS, scope)},
    )


def serve_stdio(
    roots: Mapping[str, str],
    runner: Runner | None,
    indexes: NamedSearches,
    refresh: RefreshIndex,
) -> None:
    """Answer MCP messages from standard input until it ends.

    The modules that search are imported when a client first lists or calls tools, because some
    clients wait only briefly for the answer to ``initialize``. Then the folders are first read in
    the background.

    Args:
        roots: the paths of the folders that tools search, as `name_folders` returns them.
        runner: the model of the tool ``ask``; None for no such tool.
        indexes: the searches of indexes, by name.
        refresh: begins to refresh an index; see `_ToolServer`.
    """

    def load_tools() -> Tools:
        from relevance_gen.agents.folders import Folders
        from relevance_gen.agents.tools import Tools

        folders = Folders.open([*roots.values()])
        folders.begin_to_read()
        return Tools(folders, runner, indexes)

    handlers = _ToolServer(load_tools, asyncio.to_thread, refresh)
    asyncio.run(_serve_stdio(_server(handlers, _instructions(roots), "public")))


async def _serve_stdio(server: Server) -> None:
    async with stdio_server() as (incoming, outgoing):
        await server.run(incoming, outgoing, server.create_initialization_options())


def _instructions(roots: Mapping[str, str]) -> str:
    """Return the text that a server on this machine sends to its clients as MCP instructions.

    It contains the paths of the folders, `roots`, because an agent on this machine needs them to
    read and write the files itself.
    """
    if not roots:
        return "Searches indexes, by their names."
    if "" in roots:
        return f"Searches {roots['']}. Paths are relative to that."
    names = ", ".join(f"{name} = {root}" for name, root in roots.items())
    return f"Searches these folders, whose names begin all paths: {names}."


def _no_refresh(_name: str) -> None:
    return None


async def _run_here(function: Callable[[], str]) -> str:
    return function()


class McpExchange:
    """Answers single MCP messages that arrive over HTTP, each in the calling thread.

    A background thread begins to read the folders when the exchange is created.
    """

    def __init__(self, folders: Folders) -> None:
        folders.begin_to_read()
        self._folders = folders

    def answer(
        self,
        headers: Iterable[tuple[bytes, bytes]],
        body: bytes,
        indexes: NamedSearches | None = None,
    ) -> tuple[int, bytes]:
        """Return the HTTP status and the body of the response to a ``POST``.

        Args:
            headers: the headers of the request; their names must be in lower case.
            body: the message as JSON.
            indexes: the searches of the indexes that the client may search, by name; None for none.
        """
        from relevance_gen.agents.tools import Tools

        load_tools = partial(Tools, self._folders, indexes=indexes)
        handlers = _ToolServer(load_tools, _run_here, _no_refresh)
        server = _server(handlers, "Searches the folders and indexes of a server.", "private")
        status = 500  # unless the SDK sends another status
        response = b""
        for message in asyncio.run(_post(server, headers, body)):
            status = message.get("status", status)
            response += message.get("body", b"")
        return status, response


async def _post(
    server: Server, headers: Iterable[tuple[bytes, bytes]], body: bytes
) -> list[dict[str, Any]]:
    """Pass a ``POST`` to the ASGI application of the SDK.

    Returns:
        The ASGI messages of the response; together they contain its status and its body.
    """
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/mcp",
        "query_string": b"",
        "headers": list(headers),
    }
    incoming: asyncio.Queue[Any] = asyncio.Queue()
    incoming.put_nowait({"type": "http.request", "body": body})
    outgoing: asyncio.Queue[Any] = asyncio.Queue()
    manager = StreamableHTTPSessionManager(server, json_response=True, stateless=True)
    async with manager.run():
        await manager.handle_request(scope, incoming.get, outgoing.put)
    return [outgoing.get_nowait() for _ in range(outgoing.qsize())]
