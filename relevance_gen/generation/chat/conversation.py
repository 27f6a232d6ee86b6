"""Conversations in a form that all API adapters share.

A conversation has messages, tools, and a rule for which tools the model must call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import attrs
from attrs import field, frozen

from relevance_gen import checks, wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.wire import JsonObject

MAX_TOOLS = 512
MAX_MESSAGES = 10_000
"""Maximum number of messages of a conversation. Each costs about 0.1 ms before the model runs."""
_NAME = re.compile(r"[\w.-]{1,128}", re.ASCII)
_MODES = ("auto", "none", "required")

ChatMessage: TypeAlias = Mapping[str, Any]
"""A message in the format of transformers' chat templates.

``role`` is "system", "user", "assistant" or "tool"; ``content`` is a string or a list of parts of
type ``text``. A message of the assistant may have ``reasoning_content``, a string, and
``tool_calls``, a list of ``{"id", "type": "function", "function": {"name", "arguments"}}`` with the
arguments as an object or as its JSON. A message of a tool has ``tool_call_id``, and optionally
``name``.
"""
Messages: TypeAlias = Sequence[ChatMessage]

Turns: TypeAlias = list[JsonObject]
"""The turns of a conversation, as `turn_of` appends them."""

_TEXT_FIELDS = {"text": "text"}

a_message = checks.Rule(
    "an object with a role and a content", lambda value: isinstance(value, Mapping)
)
_tool_name = checks.Rule(
    "1 to 128 letters, digits, dots, hyphens and underscores",
    lambda value: isinstance(value, str) and _NAME.fullmatch(value) is not None,
)
_object_schema = checks.Rule(
    "a JSON schema of an object",
    lambda value: isinstance(value, Mapping) and value.get("type", "object") == "object",
)
_tool_list = checks.Rule(
    f"a list of at most {MAX_TOOLS} tools",
    lambda value: checks.sequence.is_allowed(value) and len(value) <= MAX_TOOLS,
)


def _as_object_schema(schema: Any) -> Any:
    return schema or {"type": "object", "properties": {}}


@frozen
class ToolDefinition:
    """A function of the client that the model may call.

    Attributes:
        name: 1 to 128 letters, digits, dots, hyphens and underscores, in ASCII.
        description: what the function does, for the model.
        parameters: a JSON schema of its arguments, which are an object.
        strict: whether its arguments must match that schema even if the model is free to call it or
            not.
        schema_field: the request field that holds `parameters`, for error messages; empty until
            `tools_of` or `tool_of` sets it. Comparisons ignore it.
    """

    name: str = field(validator=_tool_name)
    description: str = field(default="", validator=checks.string)
    parameters: Mapping[str, Any] = field(
        factory=dict,
        converter=_as_object_schema,
        validator=_object_schema,
    )
    strict: bool = field(default=False, validator=checks.flag)
    schema_field: str = field(default="", eq=False)

    def to_template_value(self) -> JsonObject:
        """Return the tool as chat templates read it, in the format of transformers."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": dict(self.parameters),
            },
        }


@frozen
class ToolChoice:
    """Which tools the model may or must call.

    Attributes:
        mode: "auto": the model decides; "none": no calls; "required": at least one call.
        names: the tools that may be called; empty allows all.
        is_parallel: whether a turn may contain several calls.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()
    is_parallel: bool = True


@frozen
class Conversation:
    """A conversation to continue, before the chat template has rendered it.

    Attributes:
        messages: the messages so far.
        tools: the tools that the template describes to the model.
        choice: which of them the model may or must call.
        variables: further variables of the chat template, by name.
        required: for each variable that the template must use because the answer depends on it, the
            name of the request field that sets it.
        continues: whether the model continues the last message.
    """

    messages: Messages
    tools: tuple[ToolDefinition, ...] = ()
    choice: ToolChoice = ToolChoice()
    variables: Mapping[str, Any] = field(factory=dict)
    required: Mapping[str, str] = field(factory=dict)
    continues: bool = False

    @property
    def callable_tools(self) -> tuple[ToolDefinition, ...]:
        """The tools that the model may call in the next turn."""
        if self.choice.mode == "none":
            return ()
        names = self.choice.names
        return tuple(tool for tool in self.tools if not names or tool.name in names)


def turn_of(role: str, turns: Turns) -> JsonObject:
    """Return the turn to which the next text of `role` belongs: the last turn or a new turn.

    A new turn is appended to `turns`. A turn has a ``role`` and the lists ``content``,
    ``reasoning_content`` (both of texts) and ``tool_calls``. Each result of a tool is a turn of its
    own.
    """
    if role == "tool" or not turns or turns[-1]["role"] != role:
        turns.append({"role": role, "content": [], "reasoning_content": [], "tool_calls": []})
    return turns[-1]


def messages_of(turns: Turns) -> list[ChatMessage]:
    """Convert turns of `turn_of` to messages; newlines join the texts of a turn."""
    messages: list[ChatMessage] = []
    for turn in turns:
        message = {
            **turn,
            "content": "\n".join(turn["content"]),
            "reasoning_content": "\n".join(turn["reasoning_content"]),
        }
        messages.append(
            {name: value for name, value in message.items() if value or name == "content"}
        )
    return messages


def function_call(call_id: str, name: Any, arguments: object) -> JsonObject:
    """Return a call of a tool, as an item of ``tool_calls`` in a `ChatMessage`."""
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def texts_of(
    content: object,
    path: str,
    text_fields: Mapping[str, str] = _TEXT_FIELDS,
) -> list[str]:
    """Return the texts of a message content, which is a string or a list of parts.

    Args:
        content: the content.
        path: the path of the content in the request, for error messages.
        text_fields: maps each accepted type of parts to the name of the field with the part's text.

    Raises:
        InvalidRequestError: the content is neither, or a part has another type or no text.
    """
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise InvalidRequestError.must_be(path, "a string or a list of parts", content)
    texts = []
    for index, part in enumerate(content):
        part_type = part.get("type") if isinstance(part, dict) else part
        text = None
        if isinstance(part, dict) and isinstance(part_type, str) and part_type in text_fields:
            text = part.get(text_fields[part_type])
        if not isinstance(text, str):
            first_type = next(iter(text_fields))
            allowed = f'a part of type "{first_type}" with a text: this model reads only text'
            raise InvalidRequestError.must_be(f"{path}[{index}]", allowed, part_type)
        texts.append(text)
    return texts


def check_calls(message: ChatMessage, path: str) -> None:
    """Check the tool calls of a message, its reference to a call, and its reasoning.

    Args:
        message: a message of a conversation.
        path: the field of the message, for error messages.

    Raises:
        InvalidRequestError: a value has not the type that `ChatMessage` requires.
    """
    for name in ("reasoning_content", "tool_call_id", "name"):
        if message.get(name) is not None:
            checks.string.check(f"{path}.{name}", message[name])
    calls = message.get("tool_calls")
    if not isinstance(calls, list | tuple | None):
        raise InvalidRequestError.must_be(f"{path}.tool_calls", "a list", calls)
    for index, call in enumerate(calls or ()):
        call_path = f"{path}.tool_calls[{index}]"
        match call:
            case {"function": {"name": str(), "arguments": str() | Mapping()}}:
                if call.get("id") is not None:
                    checks.string.check(f"{call_path}.id", call["id"])
            case _:
                allowed = "an object with a function that has a name and arguments"
                raise InvalidRequestError.must_be(call_path, allowed, call)


def tools_of(values: Any) -> tuple[ToolDefinition, ...]:
    """Parse a list of `ToolDefinition` or of OpenAI's ``{"type": "function", "function": {…}}``.

    Raises:
        InvalidRequestError: a tool is invalid, two tools have the same name, or there are more than
            512.
    """
    _tool_list.check("tools", values)
    tools: dict[str, ToolDefinition] = {}
    for index, value in enumerate(values):
        path = f"tools[{index}]"
        tool = _tool_definition(value, path)
        if tool.name in tools:
            raise InvalidRequestError(f"must have a unique name, got {tool.name} again", path)
        tools[tool.name] = tool
    return tuple(tools.values())


def _tool_definition(value: object, path: str) -> ToolDefinition:
    if isinstance(value, ToolDefinition):
        return attrs.evolve(value, schema_field=value.schema_field or f"{path}.parameters")
    tool_type = value.get("type") if isinstance(value, Mapping) else value
    if isinstance(value, Mapping) and tool_type == "function":
        return tool_of(value.get("function"), f"{path}.function")
    raise InvalidRequestError.must_be(
        path, 'an object of type "function": other tools are not supported', tool_type
    )


def tool_of(value: object, path: str) -> ToolDefinition:
    """Parse an object with ``name`` and optional ``description``, ``parameters`` and ``strict``.

    `path` is the path of the object in the request, for error messages.

    Raises:
        InvalidRequestError: `value` is not such an object.
    """
    tool = wire.structure(ToolDefinition, value, path=path, is_lenient=True)
    return attrs.evolve(tool, schema_field=f"{path}.parameters")


def choice_of(
    value: object, tools: Sequence[ToolDefinition], *, is_parallel: bool = True
) -> ToolChoice:
    """Parse the field ``tool_choice`` of OpenAI's chat completions and responses.

    Args:
        value: a mode ("auto", "none", "required"), an object that names one tool, which must then
            be called, an object with a list of allowed tools, a `ToolChoice`, or None for "auto".
        tools: the tools of the conversation.
        is_parallel: whether a turn may contain several calls; ignored if `value` names one tool.

    Raises:
        InvalidRequestError: the value is none of these, names a tool that is not in `tools`, or
            requires a call although `tools` is empty.
    """
    if isinstance(value, ToolChoice):
        choice = attrs.evolve(value, is_parallel=value.is_parallel and is_parallel)
    elif value in (None, *_MODES):
        choice = ToolChoice(value or "auto", (), is_parallel)  # type: ignore[arg-type]
    else:
        choice = _choice_by_name(value, is_parallel)
    known_names = [tool.name for tool in tools]
    for name in choice.names:
        if name not in known_names:
            raise InvalidRequestError.must_be("tool_choice", "the name of a tool in tools", name)
    if choice.mode == "required" and not tools:
        raise InvalidRequestError("needs tools to choose from", "tool_choice")
    return choice


def _choice_by_name(value: Any, is_parallel: bool) -> ToolChoice:
    """Parse a tool choice that names one tool, or several allowed tools.

    OpenAI's chat completions nest the fields in an object with the name of the type, as in
    ``{"type": "function", "function": {"name": …}}``; responses do not. Both forms are accepted.
    """
    choice_type = value.get("type") if isinstance(value, Mapping) else None
    body = value.get(choice_type, value) if isinstance(choice_type, str) else value
    match choice_type, body:
        case "function", {"name": str(name)}:
            return ToolChoice("required", (name,), is_parallel=False)
        case "allowed_tools", {"mode": ("auto" | "required") as mode, "tools": [_, *_] as tools}:
            names = []
            for tool in tools:
                function = tool.get("function", tool) if isinstance(tool, Mapping) else None
                if isinstance(function, Mapping) and "name" in function:
                    names.append(function["name"])
            if len(names) == len(tools):
                return ToolChoice(mode, tuple(names), is_parallel)
    raise InvalidRequestError.must_be(
        "tool_choice", '"auto", "none", "required", a function, or allowed_tools', value
    )
