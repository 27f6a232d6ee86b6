"""Conversations as all dialects say them: turns, the tools that may be called in them, and which have to be."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import attrs
from attrs import field, frozen

from relevance_gen import checks, wire
from relevance_gen.errors import InvalidRequestError

MAX_TOOLS = 512
_NAME = re.compile(r"[\w.-]{1,128}", re.ASCII)


def _or_no_parameters(schema: Any) -> Any:
    return schema or {"type": "object", "properties": {}}


_NAMES = "1 to 128 letters, digits, dots, hyphens and underscores"
_MODES = ("auto", "none", "required")

ChatMessage: TypeAlias = Mapping[str, Any]
"""A turn, as transformers has it: ``role`` ("system", "user", "assistant", "tool") and ``content``, a text or a list of
parts of type ``text``; of an assistant's also ``reasoning_content``, a text, and ``tool_calls``, a list of
``{"id", "type": "function", "function": {"name", "arguments"}}`` with the arguments as an object or as its JSON; of a
tool's ``tool_call_id``, and its ``name`` where that is known."""


@frozen
class ToolDefinition:
    """A function of the client's that the model may call.

    Args:
        name: 1 to 128 letters, digits, dots, hyphens and underscores, in ASCII.
        description: what it does, for the model.
        parameters: a JSON schema of its arguments, which are an object.
        strict: whether its arguments must fit that schema even where the model is free to call it or not.
    """

    name: str = field(
        validator=checks.must_be(
            _NAMES, lambda v: isinstance(v, str) and _NAME.fullmatch(v) is not None
        )
    )
    description: str = field(default="", validator=checks.string)
    parameters: Mapping[str, Any] = field(
        factory=dict,
        converter=_or_no_parameters,
        validator=checks.must_be(
            "a JSON schema of an object",
            lambda v: isinstance(v, Mapping) and v.get("type", "object") == "object",
        ),
    )
    strict: bool = field(default=False, validator=checks.flag)

    def to_template_value(self) -> dict[str, Any]:
        """Return what a template is told of it, as transformers tells."""
        told = {
            "name": self.name,
            "description": self.description,
            "parameters": dict(self.parameters),
        }
        return {"type": "function", "function": told}


@frozen
class ToolChoice:
    """Which tools are called: by its mode those that the model chooses, none, or at least one.

    Only the tools with these names may be called, all where there are none; in one turn several where it `is_parallel`.
    """

    mode: Literal["auto", "none", "required"] = "auto"
    names: tuple[str, ...] = ()
    is_parallel: bool = True


@frozen
class Conversation:
    """What is to be continued, before the model's template has written it.

    Args:
        messages: the turns so far.
        tools: what the model may call.
        choice: which of these it has to call.
        variables: what else the template reads.
        required: those of them that the template must know, as the answer depends on them, and what clients call each.
        continues: whether the last message is to be continued.
        schema_fields: what the caller calls the parameters of each tool, by its name, for errors.
    """

    messages: Sequence[ChatMessage]
    tools: tuple[ToolDefinition, ...] = ()
    choice: ToolChoice = ToolChoice()
    variables: Mapping[str, Any] = field(factory=dict)
    required: Mapping[str, str] = field(factory=dict)
    continues: bool = False
    schema_fields: Mapping[str, str] = field(factory=dict)

    @property
    def callable(self) -> tuple[ToolDefinition, ...]:
        """The tools that may be called in the next turn."""
        if self.choice.mode == "none":
            return ()
        return tuple(
            tool for tool in self.tools if not self.choice.names or tool.name in self.choice.names
        )


def turn_of(role: str, turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the turn that a role goes on with, whose texts are lists: the last where that is its own, or a new one."""
    if role == "tool" or not turns or turns[-1]["role"] != role:
        turns.append({"role": role, "content": [], "reasoning_content": [], "tool_calls": []})
    return turns[-1]


def messages_of(turns: Sequence[Mapping[str, Any]]) -> list[ChatMessage]:
    """Return the messages that the turns of `turn_of` have become."""
    texts = ("content", "reasoning_content")
    joined = [{**turn, **{name: "\n".join(turn[name]) for name in texts}} for turn in turns]
    return [
        {name: value for name, value in turn.items() if value or name == "content"}
        for turn in joined
    ]


def texts_of(content: object, path: str, kinds: Mapping[str, str]) -> list[str]:
    """Return the texts of a content, a text or a list of parts; refuse anything else.

    The `kinds` of parts that are read are each given with the field that has its text.
    """
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise InvalidRequestError.must_be(path, "a text or a list of parts", content)
    texts = []
    for place, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else part
        text = (
            part.get(kinds[kind])
            if isinstance(part, dict) and isinstance(kind, str) and kind in kinds
            else None
        )
        if not isinstance(text, str):
            allowed = (
                f'a part of type "{next(iter(kinds))}" with a text: this model reads nothing else'
            )
            raise InvalidRequestError.must_be(f"{path}[{place}]", allowed, kind)
        texts.append(text)
    return texts


def check_calls(message: ChatMessage, path: str) -> None:
    """Refuse a message whose calls, or what they refer to, are not as `ChatMessage` says."""
    for name in ("reasoning_content", "tool_call_id", "name"):
        if not isinstance(message.get(name), str | None):
            raise InvalidRequestError.must_be(f"{path}.{name}", "a string", message[name])
    calls = message.get("tool_calls")
    if not isinstance(calls, list | tuple | None):
        raise InvalidRequestError.must_be(f"{path}.tool_calls", "a list", calls)
    for place, call in enumerate(calls or ()):
        here = f"{path}.tool_calls[{place}]"
        match call:
            case {"function": {"name": str(), "arguments": str() | Mapping()}}:
                if not isinstance(call.get("id"), str | None):
                    raise InvalidRequestError.must_be(f"{here}.id", "a string", call["id"])
            case _:
                allowed = "an object with a function that has a name and arguments"
                raise InvalidRequestError.must_be(here, allowed, call)


def tools_of(given: object) -> tuple[ToolDefinition, ...]:
    """Read a list of `ToolDefinition`, or of OpenAI's ``{"type": "function", "function": {…}}``; refuse anything else."""
    if not isinstance(given, Sequence) or isinstance(given, str | bytes) or len(given) > MAX_TOOLS:
        raise InvalidRequestError.must_be("tools", f"a list of at most {MAX_TOOLS} tools", given)
    tools = tuple(
        one if isinstance(one, ToolDefinition) else _tool(one, f"tools[{place}]")
        for place, one in enumerate(given)
    )
    for place, tool in enumerate(tools):
        if any(tool.name == other.name for other in tools[:place]):
            raise InvalidRequestError(f"has the name of another: {tool.name}", f"tools[{place}]")
    return tools


def _tool(given: object, path: str) -> ToolDefinition:
    if not isinstance(given, Mapping) or given.get("type") != "function":
        kind = given.get("type") if isinstance(given, Mapping) else given
        raise InvalidRequestError.must_be(
            path, 'an object of type "function": no others are supported', kind
        )
    return tool_of(given.get("function"), f"{path}.function")


def tool_of(given: object, path: str) -> ToolDefinition:
    """Read an object with a ``name``, perhaps ``description``, ``parameters`` and ``strict``; refuse anything else."""
    return wire.structure(ToolDefinition, given, path=path, is_lenient=True)


def choice_of(
    given: object, tools: Sequence[ToolDefinition], *, is_parallel: bool = True
) -> ToolChoice:
    """Read a choice as OpenAI's chats and responses have it: a mode, a tool, or tools that are allowed.

    It raises an `InvalidRequestError` where it is none of these, or chooses what is not among the tools.
    """
    if isinstance(given, ToolChoice):
        choice = attrs.evolve(given, is_parallel=given.is_parallel and is_parallel)
    elif given is None or given in _MODES:
        choice = ToolChoice(given or "auto", (), is_parallel)  # type: ignore[arg-type]
    else:
        choice = _named(given, is_parallel)
    for name in choice.names:
        if all(name != tool.name for tool in tools):
            raise InvalidRequestError("names a tool that is not among tools", "tool_choice", name)
    if choice.mode == "required" and not tools:
        raise InvalidRequestError("needs tools to choose from", "tool_choice")
    return choice


def _named(given: object, is_parallel: bool) -> ToolChoice:
    kind = given.get("type") if isinstance(given, Mapping) else None
    inner = given.get(kind, given) if isinstance(given, Mapping) and isinstance(kind, str) else None
    match kind, inner:
        case "function", {"name": str(name)}:
            return ToolChoice("required", (name,), is_parallel=False)
        case "allowed_tools", {"mode": ("auto" | "required") as mode, "tools": [_, *_] as some}:
            functions = [
                one.get("function", one) if isinstance(one, Mapping) else None for one in some
            ]
            names = tuple(
                one["name"] for one in functions if isinstance(one, Mapping) and "name" in one
            )
            if len(names) == len(some):
                return ToolChoice(mode, names, is_parallel)
    allowed = '"auto", "none", "required", a function, or allowed_tools'
    raise InvalidRequestError.must_be("tool_choice", allowed, given)
