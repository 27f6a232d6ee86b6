"""``POST /v1/messages``, the next turn of a conversation of content blocks, and ``/v1/messages/count_tokens``."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
from attrs import field, frozen
from attrs.validators import optional

from relevance_gen import checks, wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.chat.conversation import (
    Conversation,
    ToolChoice,
    ToolDefinition,
    choice_of,
    messages_of,
    texts_of,
    tool_of,
    tools_of,
    turn_of,
)
from relevance_gen.generation.queue.request import RequestContext
from relevance_gen.serve.adapters.anthropic.blocks import BlockEvents
from relevance_gen.serve.adapters.anthropic.citations import citer_of
from relevance_gen.serve.services.generation import AS_MUCH_AS_FITS, GenerationTask, Responses
from relevance_gen.serve.settings import DEFAULT_NAME
from relevance_gen.types import GenerationRequest

_MAX_NAME_CHARACTERS = 1024
_NAMES = {"text": "messages", "stop": "stop_sequences", "json_schema": "output_config.format"}
_REFUSED = ("container", "fallbacks", "mcp_servers", "output_format")
"""What would change the answer and is not done."""
_MODES = {"auto": "auto", "any": "required", "none": "none", "tool": "required"}
_EFFORTS = {"xhigh": "high", "max": "high"}
"""Degrees of effort beyond those that templates know."""
_TEXTS = {"text": "text"}
_BLOCKS = {
    "user": 'a block of type "text", "document" or "tool_result", whole: this model reads nothing else',
    "assistant": 'a block of type "text", "thinking", "redacted_thinking" or "tool_use", whole',
    "system": 'a block of type "text"',
}


@frozen(kw_only=True)
class MessagesRequest:
    """The fields that are read, as ``static/openapi.json`` describes them."""

    messages: Sequence[Any] = field(
        validator=checks.must_be(
            "a list of at least one message", lambda v: isinstance(v, list) and len(v) > 0
        )
    )
    model: str = field(default=DEFAULT_NAME, validator=checks.short(_MAX_NAME_CHARACTERS))
    max_tokens: int = field(default=AS_MUCH_AS_FITS, validator=checks.integer(1))
    system: Any = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int = field(default=0, validator=checks.integer(0))
    stop_sequences: Sequence[str] = ()
    stream: bool = field(default=False, validator=checks.flag)
    tools: Sequence[Any] = field(default=(), validator=checks.a_list)
    tool_choice: Mapping[str, Any] | None = field(
        default=None, validator=optional(checks.an_object)
    )
    thinking: Mapping[str, Any] | None = field(default=None, validator=optional(checks.an_object))
    output_config: Mapping[str, Any] | None = field(
        default=None, validator=optional(checks.an_object)
    )

    def conversation(self) -> Conversation:
        """Return the messages as turns, and the tools."""
        turns: list[dict[str, Any]] = []
        if self.system:
            turn_of("system", turns)["content"] += texts_of(self.system, "system", _TEXTS)
        for place, message in enumerate(self.messages):
            _add(message, turns, f"messages[{place}]")
        tools = tools_of([_tool(tool, f"tools[{place}]") for place, tool in enumerate(self.tools)])
        choice = ToolChoice() if self.tool_choice is None else _choice(self.tool_choice, tools)
        effort = (self.output_config or {}).get("effort")
        if not isinstance(effort, str | None):
            raise InvalidRequestError.must_be("output_config.effort", "a string", effort)
        variables: dict[str, object] = (
            {"reasoning_effort": _EFFORTS.get(effort, effort)} if effort else {}
        )
        if self.thinking:
            budget = (
                {"thinking_budget": n}
                if checks.is_integer(n := self.thinking.get("budget_tokens"))
                else {}
            )
            variables |= {"enable_thinking": self.thinking.get("type") != "disabled", **budget}
        continues = turns[-1]["role"] == "assistant" and not turns[-1]["tool_calls"]
        named = {tool.name: f"tools[{place}].input_schema" for place, tool in enumerate(tools)}
        return Conversation(messages_of(turns), tools, choice, variables, {}, continues, named)

    def generation(self) -> GenerationRequest:
        """Return the request to generate with, whose text is not written yet."""
        form = (self.output_config or {}).get("format")
        schema = (
            form.get("schema")
            if isinstance(form, dict) and form.get("type") == "json_schema"
            else None
        )
        if form is not None and not isinstance(schema, dict):
            raise InvalidRequestError.must_be(
                "output_config.format", 'of type "json_schema" with a schema', form
            )
        given: dict[str, Any] = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "json_schema": schema,
        }
        given = {name: value for name, value in given.items() if value is not None}
        try:
            return GenerationRequest(
                "", max_tokens=self.max_tokens, top_k=self.top_k, stop=self.stop_sequences, **given
            )
        except InvalidRequestError as error:
            raise error.with_field_names(_NAMES) from None


def read(body: object) -> tuple[GenerationTask, Callable[[Responses], object] | BlockEvents]:
    """Read the body of ``POST /v1/messages``."""
    for name in _REFUSED:
        if isinstance(body, dict) and body.get(name):
            raise InvalidRequestError(
                "is not supported by this server", name, remedy="leave it out"
            )
    request = wire.structure(MessagesRequest, body, is_lenient=True)
    generation, conversation = request.generation(), request.conversation()
    context = RequestContext(use_model_eos=True)
    citer = citer_of(request.messages)
    if citer is not None and generation.json_schema is not None:
        raise InvalidRequestError(
            "cannot be given where documents are to be cited", "output_config.format"
        )
    task = GenerationTask(
        (generation,),
        conversation=conversation,
        context=context,
        names=_NAMES,
        model=request.model,
        citer=citer,
    )
    events = BlockEvents(request.model, request.max_tokens, citer)
    return task, events if request.stream else events.whole


def read_count(body: object) -> tuple[GenerationTask, Callable[[Responses], object]]:
    """Read the body of ``POST /v1/messages/count_tokens``."""
    task, _ = read(body)
    pluralize = attrs.evolve(task, context=attrs.evolve(task.context, count_only=True))
    return pluralize, lambda responses: {"input_tokens": responses[0].prompt_tokens}


def _add(message: object, turns: list[dict[str, Any]], path: str) -> None:
    if not isinstance(message, dict):
        raise InvalidRequestError.must_be(path, "an object with a role and a content", message)
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in _BLOCKS:
        raise InvalidRequestError.must_be(f"{path}.role", "user, assistant or system", role)
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise InvalidRequestError.must_be(f"{path}.content", "a text or a list of blocks", content)
    if not content:
        turn_of(role, turns)
    for place, block in enumerate(content):
        _add_block(block, role, turns, f"{path}.content[{place}]")


def _add_block(block: object, role: str, turns: list[dict[str, Any]], path: str) -> None:
    """Add a block to the turns: results of tools are turns of their own."""
    match role, block:
        case _, {"type": "text", "text": str(text)}:
            turn_of(role, turns)["content"].append(text)
        case "user", {"type": "document", "source": {"type": str(kind), **source}, **more}:
            turn_of(role, turns)["content"].append(_document(kind, source, more, path))
        case "user", {"type": "tool_result", "tool_use_id": str(call_id), **more}:
            said = texts_of(more.get("content") or "", f"{path}.content", _TEXTS)
            said = ["Error:", *said] if more.get("is_error") else said
            turn_of("tool", turns).update(tool_call_id=call_id, content=said)
        case "assistant", {
            "type": "tool_use",
            "id": str(call_id),
            "name": str(name),
            "input": dict(arguments),
        }:
            call = {
                "id": call_id,
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            turn_of(role, turns)["tool_calls"].append(call)
        case "assistant", {"type": "thinking", "thinking": str(thought)}:
            turn_of(role, turns)["reasoning_content"].append(thought)
        case "assistant", {"type": "redacted_thinking"}:
            turn_of(role, turns)  # what only Anthropic can read
        case _:
            raise InvalidRequestError.must_be(
                path, _BLOCKS[role], block.get("type") if isinstance(block, dict) else block
            )


def _document(kind: str, source: Mapping[Any, Any], more: Mapping[Any, Any], path: str) -> str:
    """Return what the model reads of a document of text: its title, what is said of it, and its text."""
    if kind not in ("text", "content"):
        raise InvalidRequestError.must_be(
            f"{path}.source.type", '"text" or "content": this model reads no files', kind
        )
    wanted = more.get("citations") or {}
    if not isinstance(wanted, dict) or not isinstance(wanted.get("enabled"), bool | None):
        raise InvalidRequestError.must_be(
            f"{path}.citations", "an object with enabled, true or false", wanted
        )
    name = "data" if kind == "text" else "content"
    texts = texts_of(source.get(name), f"{path}.source.{name}", _TEXTS)
    heads = (
        texts_of(more[key], f"{path}.{key}", _TEXTS)
        for key in ("title", "context")
        if more.get(key)
    )
    return "\n".join([*itertools.chain.from_iterable(heads), *texts])


def _tool(given: object, path: str) -> ToolDefinition:
    kind = given.get("type") if isinstance(given, dict) else given
    if not isinstance(given, dict) or kind not in (None, "custom"):
        allowed = 'an object with a name and an input_schema, of type "custom" or none: no others are supported'
        raise InvalidRequestError.must_be(path, allowed, kind)
    try:
        return tool_of({**given, "parameters": given.get("input_schema")}, path)
    except InvalidRequestError as error:
        raise error.with_field(
            (error.field or path).replace(".parameters", ".input_schema")
        ) from None


def _choice(given: Mapping[str, Any], tools: Sequence[ToolDefinition]) -> ToolChoice:
    kind, name = given.get("type"), given.get("name")
    if not isinstance(kind, str) or kind not in _MODES or (kind == "tool") != isinstance(name, str):
        allowed = 'an object of type "auto", "any" or "none", or of type "tool" with a name'
        raise InvalidRequestError.must_be("tool_choice", allowed, kind)
    is_parallel = given.get("disable_parallel_tool_use") is not True
    return choice_of(ToolChoice(_MODES[kind], (name,) if name else (), is_parallel), tools)  # type: ignore[arg-type]
