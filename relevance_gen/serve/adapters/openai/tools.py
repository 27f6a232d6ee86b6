"""Tools of ``/v1/responses``: functions, namespaces of functions, custom tools and hosted tools."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

from attrs import frozen

from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.chat.conversation import ToolDefinition, tool_of
from relevance_gen.generation.output_parsing.output_parser import parse_arguments
from relevance_gen.wire import JsonObject

CUSTOM_ARGUMENT = "input"
"""The argument of the function that stands for a custom tool: the text that the tool receives."""
_HOSTED_TOOLS = (
    "apply_patch",
    "code_interpreter",
    "computer",
    "file_search",
    "image_generation",
    "local_shell",
    "shell",
    "tool_search",
    "web_search",
)
"""Prefixes of the types of tools that only OpenAI's servers and models support. They are skipped.

Agents send them by default.
"""
_TOOL_TYPES = 'an object of type "function", "namespace" or "custom"'


@frozen
class ClientTool:
    """A tool of a request.

    Attributes:
        function: the function that the model is offered.
        name: the client's name of the tool.
        namespace: the namespace that contains it, if any.
        is_custom: whether it takes a text instead of arguments.
    """

    function: ToolDefinition
    name: str
    namespace: str | None
    is_custom: bool

    @property
    def identity(self) -> JsonObject:
        """The fields ``name`` and, if the tool is in a namespace, ``namespace``."""
        identity = {"name": self.name}
        return identity if self.namespace is None else {**identity, "namespace": self.namespace}

    def choice(self) -> JsonObject:
        """Return the tool choice that names this tool."""
        return {"type": "custom" if self.is_custom else "function", **self.identity}


def function_name(tool: JsonObject) -> Any:
    """Return the name of the function for a client's tool, call or tool choice.

    >>> function_name({"name": "search", "namespace": "mcp__docs"}), function_name({"name": "ls"})
    ('mcp__docs__search', 'ls')
    """
    namespace, name = tool.get("namespace"), tool.get("name")
    return name if namespace is None else f"{namespace}__{name}"


def client_tools(
    values: Sequence[Any], path: str = "tools", namespace: str | None = None
) -> Iterator[ClientTool]:
    """Yield the tools of a request, or of a namespace.

    A namespace is replaced by its tools. Hosted tools, which only OpenAI's servers run, are left
    out.

    Args:
        values: the tools as the client sent them.
        path: the field that holds them, for errors.
        namespace: the namespace that contains them; None for the tools of the request.

    Raises:
        InvalidRequestError: a tool is invalid or of an unknown type, or a namespace contains a
            namespace.
    """
    for index, value in enumerate(values):
        tool_path = f"{path}[{index}]"
        match value:
            case {"type": "function" | "custom" as kind}:
                is_custom = kind == "custom"
                tool = _custom_function(value, tool_path) if is_custom else value
                name = tool_of(tool, tool_path).name
                tool = {**tool, "name": function_name({"name": name, "namespace": namespace})}
                function = tool_of(tool, tool_path)
                yield ClientTool(function, name, namespace, is_custom)
            case {"type": "namespace", "name": str(name), "tools": [*tools]} if namespace is None:
                yield from client_tools(tools, f"{tool_path}.tools", name)
            case {"type": str(kind)} if kind.startswith(_HOSTED_TOOLS):
                continue
            case _:
                kind = value.get("type") if isinstance(value, dict) else value
                raise InvalidRequestError.must_be(tool_path, _TOOL_TYPES, kind)


def choice_of_functions(value: Any) -> Any:
    """Return a tool choice with the names of functions instead of the client's tools."""
    match value:
        case {"type": "custom" | "function", "name": str()}:
            return {"type": "function", "name": function_name(value)}
        case {"type": "allowed_tools", "tools": [*tools]}:
            return {**value, "tools": [*map(choice_of_functions, tools)]}
    return value


def custom_input(arguments: str) -> str:
    """Return the text for a custom tool: the argument ``input`` of the model's call.

    `arguments` that are truncated or invalid are returned as they are.
    """
    match parse_arguments(arguments):
        case {"input": str(text)}:
            return text
    return arguments


def _custom_function(tool: JsonObject, path: str) -> JsonObject:
    """Return the function that stands for a custom tool.

    A regular expression of the tool is part of the function's schema, and is enforced if llguidance
    is installed. JSON schemas cannot contain a Lark grammar: the model reads it in the description.
    """
    description = tool.get("description") or ""
    argument = {"type": "string"}
    match tool.get("format"):
        case None | {"type": "text"}:
            pass
        case {"type": "grammar", "syntax": "regex", "definition": str(pattern)}:
            argument["pattern"] = f"^(?:{pattern})$"
        case {"type": "grammar", "syntax": "lark", "definition": str(grammar)}:
            description = f"{description}\n\nThe input must match this grammar:\n{grammar}"
        case tool_format:
            allowed = 'of type "text", or of type "grammar" with a syntax and a definition'
            raise InvalidRequestError.must_be(f"{path}.format", allowed, tool_format)
    return {
        "name": tool.get("name"),
        "description": description,
        "parameters": {
            "type": "object",
            "properties": {CUSTOM_ARGUMENT: argument},
            "required": [CUSTOM_ARGUMENT],
        },
        "strict": "pattern" in argument and find_spec("llguidance") is not None,
    }
