"""A proxy between a coding agent and a server: it records requests and forces tool calls.

The embedded model cannot choose a tool. In the first request of a conversation the proxy selects
the agent's shell with ``tool_choice`` and replaces the schema of its arguments by constants. In all
other requests the answer is a constant. All other fields, the generation and the stream are those
of the agent and of the server. With `searches`, the shell is called until the agent offers the tool
``search`` of its MCP server, which starts meanwhile; then that tool is called once.
"""

from __future__ import annotations

import http.client
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from attrs import define, field, frozen

COMMAND = "cat ferry.md"
_SHELLS = {"exec_command": "cmd", "shell_command": "command", "Bash": "command", "bash": "command"}
"""The argument with the command for each name of a shell tool."""
SEARCH_QUESTION = "times of the ferry"
_SEARCH = "mcp__folders__search"
"""The tool of the MCP server "folders"; Codex sends it in the namespace ``mcp__folders``."""
_ANSWER = {"type": "string", "const": "It leaves at seven."}
_FORMAT = {"type": "json_schema", "name": "answer", "schema": _ANSWER}
_CONSTANT_ANSWER: dict[str, dict[str, Any]] = {
    "/v1/responses": {"tool_choice": "none", "text": {"format": _FORMAT}},
    "/v1/messages": {"tool_choice": {"type": "none"}, "output_config": {"format": _FORMAT}},
    "/v1/chat/completions": {
        "tool_choice": "none",
        "response_format": {"type": "json_schema", "json_schema": _FORMAT},
    },
}


@frozen
class Exchange:
    """A request of an agent, and the server's answer to it.

    Attributes:
        path: without the query.
        sent: the body as the agent sent it.
        status: the status of the answer.
        answer: the complete body of the answer.
    """

    path: str
    sent: dict[str, Any]
    status: int
    answer: str


@define
class ForcingProxy:
    """The proxy; it listens while its context is open.

    Attributes:
        port: the port of the server.
        searches: whether the tool ``search`` is called before the answer.
        exchanges: the requests for generations in order of their answers.
    """

    port: int
    searches: bool = False
    exchanges: list[Exchange] = field(factory=list)
    _server: ThreadingHTTPServer = field(init=False)

    def __enter__(self) -> Self:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                proxy.forward(self, b"")

            def do_POST(self) -> None:
                proxy.forward(self, self.rfile.read(int(self.headers["Content-Length"])))

            def log_message(self, *_: object) -> None:
                """Write no log."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def url(self) -> str:
        """The address for the agent."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def forward(self, request: BaseHTTPRequestHandler, body: bytes) -> None:
        """Send a request to the server, and its answer to the agent."""
        path = request.path.partition("?")[0]
        is_generation = request.command == "POST" and path in _CONSTANT_ANSWER
        sent = json.loads(body) if is_generation else {}
        if is_generation:
            body = json.dumps(forced(path, sent, searches=self.searches)).encode()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in ("content-length", "host", "accept-encoding", "connection")
        }
        connection.request(request.command, request.path, body or None, headers)
        response = connection.getresponse()
        request.send_response(response.status)
        request.send_header("Content-Type", response.headers.get("Content-Type", ""))
        request.send_header("Connection", "close")
        request.end_headers()
        request.close_connection = True
        answer = b""
        while piece := response.read1():
            answer += piece
            request.wfile.write(piece)
        connection.close()
        if is_generation:
            self.exchanges.append(Exchange(path, sent, response.status, answer.decode()))


def forced(path: str, sent: dict[str, Any], *, searches: bool) -> dict[str, Any]:
    """Return a request whose answer is the call of a tool, or a constant."""
    answered = {**sent, **_CONSTANT_ANSWER[path]}
    if not sent.get("tools"):
        answered.pop("tool_choice")
        return answered
    names = names_of(sent["tools"])
    conversation = json.dumps(sent.get("input", sent.get("messages")))
    name = next(iter(names & _SHELLS.keys()), "")
    if searches and _SEARCH in names:
        name = _SEARCH
    marker = SEARCH_QUESTION if searches else COMMAND
    if marker in conversation or not name:
        return answered
    constants = {"question": {"const": SEARCH_QUESTION}}
    if name != _SEARCH:
        constants = {_SHELLS[name]: {"const": COMMAND}, "description": {"const": "Read a file"}}
    schema = {
        "type": "object",
        "properties": constants,
        "required": list(constants),
        "additionalProperties": False,
    }
    choices: dict[str, Any] = {
        "/v1/responses": {"type": "function", "name": name},
        "/v1/messages": {"type": "tool", "name": name},
        "/v1/chat/completions": {"type": "function", "function": {"name": name}},
    }
    tools = [with_schema(tool, name, schema) for tool in sent["tools"]]
    return {**sent, "tools": tools, "tool_choice": choices[path]}


def names_of(tools: list[dict[str, Any]]) -> set[str]:
    """Return the names of tools; of a tool in a namespace, ``NAMESPACE__NAME``."""
    names = set()
    for tool in tools:
        if tool.get("type") == "namespace":
            names |= {f"{tool['name']}__{name_of(part)}" for part in tool["tools"]}
        else:
            names.add(name_of(tool))
    return names


def name_of(tool: dict[str, Any]) -> str:
    """Return the name of a tool in any dialect; empty for hosted tools without a name."""
    name: str = tool.get("function", tool).get("name", "")
    return name


def with_schema(tool: dict[str, Any], name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return a tool with another schema of its arguments if it has this name, else the tool."""
    if tool.get("type") == "namespace":
        inner = name.removeprefix(f"{tool['name']}__")
        return {**tool, "tools": [with_schema(part, inner, schema) for part in tool["tools"]]}
    if name_of(tool) != name:
        return tool
    if "function" in tool:
        return {**tool, "function": {**tool["function"], "parameters": schema}}
    return {**tool, "input_schema" if "input_schema" in tool else "parameters": schema}
