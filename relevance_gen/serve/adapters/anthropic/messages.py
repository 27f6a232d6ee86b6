"""``POST /v1/messages``, the next turn of a conversation, and ``/v1/messages/count_tokens``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import attrs
from attrs import field, frozen

from relevance_gen import checks, fields
from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.chat.conversation import (
    MAX_MESSAGES,
    Conversation,
    ToolChoice,
    ToolDefinition,
    Turns,
    a_message,
    choice_of,
    function_call,
    messages_of,
    texts_of,
    tool_of,
    tools_of,
    turn_of,
)
from relevance_gen.generation.queue.request import RequestContext
from relevance_gen.serve.adapters.anthropic.blocks import THREAD, BlockEvents, citer_of
from relevance_gen.serve.adapters.shared import (
    Operation,
    model_field,
    new_generation,
    read_lenient,
)
from relevance_gen.serve.services.generation import AS_MUCH_AS_FITS, GenerationTask
from relevance_gen.types import GenerationRequest
from relevance_gen.wire import JsonObject

_FIELD_NAMES = {
    "text": "prompt",
    "stop": "stop_sequences",
    "json_schema": "output_config.format",
}
"""Fields of `GenerationRequest` to the client's names of them.

Anthropic's clients recognize the error of a full context by "prompt is too long".
"""
_REFUSED = ("container", "fallbacks", "mcp_servers", "output_format", THREAD)
"""Unsupported fields that would change the response."""
_HOSTED_TOOLS = re.compile(r"(?:web_search|web_fetch|code_execution|tool_search_tool_\w+?)_\d{8}")
"""Types of the tools that only Anthropic's servers run; their versions are dates. They are
skipped."""
_BILLING_LINE = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")
"""The line with which Claude Code starts the system prompt.

It differs in every request, so that no later token of the prompt could be reused. It is dropped.
"""
_TOOL_MODES = {"auto": "auto", "any": "required", "none": "none", "tool": "required"}
_TEMPLATE_EFFORTS = {"xhigh": "high", "max": "high"}
"""Efforts above the highest effort of chat templates."""
_BLOCKS = {
    "user": 'a complete block of type "text", "document", "search_result" or "tool_result": '
    "the model reads no other types",
    "assistant": 'a complete block of type "text", "thinking", "redacted_thinking" or "tool_use"',
    "system": 'a block of type "text"',
}
"""The allowed blocks of each role, for errors."""


@frozen(kw_only=True)
class MessagesRequest:
    """The fields of a request, as ``static/openapi.json`` describes them."""

    messages: Sequence[Any] = field(validator=checks.list_of("message", 1, MAX_MESSAGES))
    model: str = model_field()
    max_tokens: int = AS_MUCH_AS_FITS
    system: Any = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int = 0
    stop_sequences: Sequence[str] = ()
    stream: bool = fields.flag()
    tools: Sequence[Any] = field(default=(), validator=checks.a_list)
    tool_choice: JsonObject | None = fields.optional(checks.an_object)
    thinking: JsonObject | None = fields.optional(checks.an_object)
    output_config: JsonObject | None = fields.optional(checks.an_object)

    def conversation(self) -> Conversation:
        """Return the messages as turns, with the tools and the variables of the chat template."""
        turns: Turns = []
        if self.system:
            turn_of("system", turns)["content"] += _system_texts(self.system)
        for index, message in enumerate(self.messages):
            _add_message(message, turns, f"messages[{index}]")
        definitions = [
            _tool(tool, f"tools[{index}]")
            for index, tool in enumerate(self.tools)
            if not (isinstance(tool, dict) and _HOSTED_TOOLS.fullmatch(str(tool.get("type"))))
        ]
        tools = tools_of(definitions)
        choice = ToolChoice() if self.tool_choice is None else _choice(self.tool_choice, tools)
        return Conversation(
            messages_of(turns),
            tools,
            choice=choice,
            variables=self._template_variables(),
            continues=turns[-1]["role"] == "assistant" and not turns[-1]["tool_calls"],
        )

    def _template_variables(self) -> JsonObject:
        variables: JsonObject = {}
        effort = (self.output_config or {}).get("effort")
        if effort is not None:
            checks.string.check("output_config.effort", effort)
        if effort:
            variables["reasoning_effort"] = _TEMPLATE_EFFORTS.get(effort, effort)
        if self.thinking:
            variables["enable_thinking"] = self.thinking.get("type") != "disabled"
            budget = self.thinking.get("budget_tokens")
            if checks.is_integer(budget):
                variables["thinking_budget"] = budget
        return variables

    def generation(self) -> GenerationRequest:
        """Return the generation request; its prompt is rendered from the conversation later."""
        return new_generation(
            _FIELD_NAMES,
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            stop=self.stop_sequences,
            json_schema=self._schema(),
        )

    def _schema(self) -> JsonObject | None:
        """Return the JSON schema of the output, if any."""
        match output_format := (self.output_config or {}).get("format"):
            case None:
                return None
            case {"type": "json_schema", "schema": dict(schema)}:
                return schema
        raise InvalidRequestError.must_be(
            "output_config.format", 'of type "json_schema" with a schema', output_format
        )


def read(body: object) -> Operation:
    """Check a ``POST /v1/messages`` body; return its task and the writer of the response."""
    request = read_lenient(MessagesRequest, body, _REFUSED)
    generation = request.generation()
    conversation = request.conversation()
    citer = citer_of(request.messages)
    if citer is not None and generation.json_schema is not None:
        raise InvalidRequestError("cannot be combined with citations", "output_config.format")
    task = GenerationTask(
        (generation,),
        conversation=conversation,
        context=RequestContext(use_model_eos=True),
        names=_FIELD_NAMES,
        model=request.model,
        citer=citer,
    )
    events = BlockEvents(request.model, request.max_tokens, citer)
    return task, events if request.stream else events.full_response


def read_count(body: object) -> Operation:
    """Check a ``POST /v1/messages/count_tokens`` body; return its task and response writer."""
    task, _ = read(body)
    task = attrs.evolve(task, context=attrs.evolve(task.context, count_only=True))
    return task, lambda responses: {"input_tokens": responses[0].prompt_tokens}


def _add_message(message: Any, turns: Turns, path: str) -> None:
    """Append the blocks of a message to the turns.

    `path` is the field of the request that holds the message, for errors.
    """
    a_message.check(path, message)
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str) or role not in _BLOCKS:
        raise InvalidRequestError.must_be(f"{path}.role", "user, assistant or system", role)
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise InvalidRequestError.must_be(f"{path}.content", "a text or a list of blocks", content)
    if not content:
        turn_of(role, turns)
    for index, block in enumerate(content):
        _add_block(block, role, turns, f"{path}.content[{index}]")


def _add_block(block: Any, role: str, turns: Turns, path: str) -> None:
    """Append a content block to the turns; a tool result is a turn of its own.

    Args:
        block: the block.
        role: the role of the message that contains it.
        turns: the turns, which are changed.
        path: the field of the request that holds the block, for errors.
    """
    match role, block:
        case _, {"type": "text", "text": str(text)}:
            turn_of(role, turns)["content"].append(text)
        case "user", {"type": "document", "source": {"type": str()}}:
            turn_of(role, turns)["content"].append(_document(block, path))
        case "user", {"type": "search_result"}:
            turn_of(role, turns)["content"].append(_search_result(block, path))
        case "user", {"type": "tool_result", "tool_use_id": str(call_id)}:
            texts = _result_texts(block.get("content") or "", f"{path}.content")
            if block.get("is_error"):
                texts = ["Error:", *texts]
            turn_of("tool", turns).update(tool_call_id=call_id, content=texts)
        case "assistant", {
            "type": "tool_use",
            "id": str(call_id),
            "name": str(name),
            "input": dict(arguments),
        }:
            turn_of(role, turns)["tool_calls"].append(function_call(call_id, name, arguments))
        case "assistant", {"type": "thinking", "thinking": str(reasoning)}:
            turn_of(role, turns)["reasoning_content"].append(reasoning)
        case "assistant", {"type": "redacted_thinking"}:
            turn_of(role, turns)  # only Anthropic's servers can decrypt it
        case _:
            got = block.get("type") if isinstance(block, dict) else block
            raise InvalidRequestError.must_be(path, _BLOCKS[role], got)


def _system_texts(system: object) -> list[str]:
    """Return the texts of the system prompt, without the billing line of Claude Code.

    This first line differs in every request; with it, no cached tokens could be reused.
    """
    first, *others = texts_of(system, "system")
    first = _BILLING_LINE.sub("", first)
    return [first, *others] if first else others


def _result_texts(content: object, path: str) -> list[str]:
    """Return the texts of a tool result, which may contain search results.

    `path` is the field of the request that holds `content`, for errors.
    """
    if not isinstance(content, list):
        return texts_of(content, path)
    parts = []
    for index, block in enumerate(content):
        match block:
            case {"type": "search_result"}:
                text = _search_result(block, f"{path}[{index}]")
                parts.append({"type": "text", "text": text})
            case _:
                parts.append(block)
    return texts_of(parts, path)


def _search_result(block: JsonObject, path: str) -> str:
    """Return the text of a search result for the model: its title, its source, and its content."""
    texts: list[str] = []
    for name in ("title", "source", "content"):
        texts += texts_of(block.get(name), f"{path}.{name}")
    return "\n".join(texts)


def _document(block: JsonObject, path: str) -> str:
    """Return the text of a document for the model: its title, its context, and its content.

    Args:
        block: the block of the document, whose ``source`` is an object with a type.
        path: the field of the request that holds the block, for errors.

    Raises:
        InvalidRequestError: the type of the source or a field is invalid.
    """
    source = block["source"]
    kind = source["type"]
    if kind not in ("text", "content"):
        allowed = '"text" or "content": the model reads no files'
        raise InvalidRequestError.must_be(f"{path}.source.type", allowed, kind)
    citations = block.get("citations") or {}
    if not isinstance(citations, dict) or not isinstance(citations.get("enabled"), bool | None):
        allowed = "an object with enabled, True or False"
        raise InvalidRequestError.must_be(f"{path}.citations", allowed, citations)
    content_field = "data" if kind == "text" else "content"
    content = texts_of(source.get(content_field), f"{path}.source.{content_field}")
    texts: list[str] = []
    for name in ("title", "context"):
        if block.get(name):
            texts += texts_of(block[name], f"{path}.{name}")
    return "\n".join([*texts, *content])


def _tool(tool: object, path: str) -> ToolDefinition:
    kind = tool.get("type") if isinstance(tool, dict) else tool
    if not isinstance(tool, dict) or kind not in (None, "custom"):
        allowed = 'an object with a name and an input_schema, of type "custom" or without a type'
        raise InvalidRequestError.must_be(path, allowed, kind)
    try:
        definition = tool_of({**tool, "parameters": tool.get("input_schema")}, path)
    except InvalidRequestError as error:
        field = (error.field or path).replace(".parameters", ".input_schema")
        raise error.with_field(field) from None
    return attrs.evolve(definition, schema_field=f"{path}.input_schema")


def _choice(tool_choice: JsonObject, tools: Sequence[ToolDefinition]) -> ToolChoice:
    kind, name = tool_choice.get("type"), tool_choice.get("name")
    has_name = isinstance(name, str)
    if not isinstance(kind, str) or kind not in _TOOL_MODES or (kind == "tool") != has_name:
        allowed = 'an object of type "auto", "any" or "none", or of type "tool" with a name'
        raise InvalidRequestError.must_be("tool_choice", allowed, kind)
    names = (name,) if name else ()
    is_parallel = tool_choice.get("disable_parallel_tool_use") is not True
    choice = ToolChoice(_TOOL_MODES[kind], names, is_parallel)  # type: ignore[arg-type]
    return choice_of(choice, tools)
