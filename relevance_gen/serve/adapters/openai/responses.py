"""``POST /v1/responses``: the next turn of a conversation of items. The server stores no turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import field, frozen

from relevance_gen import checks, fields
from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.chat.conversation import (
    MAX_MESSAGES,
    Conversation,
    Turns,
    choice_of,
    function_call,
    messages_of,
    texts_of,
    tools_of,
    turn_of,
)
from relevance_gen.generation.queue.request import RequestContext
from relevance_gen.serve.adapters.openai.items import ItemEvents, decode_reasoning
from relevance_gen.serve.adapters.openai.requests import (
    EMPTY,
    NEVER,
    REFUSED,
    SamplingRequest,
    read_as,
)
from relevance_gen.serve.adapters.openai.tools import (
    CUSTOM_ARGUMENT,
    ClientTool,
    choice_of_functions,
    client_tools,
    function_name,
)
from relevance_gen.serve.adapters.shared import Operation
from relevance_gen.serve.services.generation import AS_MUCH_AS_FITS, GenerationTask
from relevance_gen.wire import JsonObject

_FIELD_NAMES = {
    "text": "input",
    "messages": "input",
    "json_schema": "text.format",
    "max_tokens": "max_output_tokens",
}
"""Fields of `GenerationRequest` to the client's names of them."""
_REFUSED = {
    **REFUSED,
    **dict.fromkeys(("background", "context_management", "conversation", "moderation"), EMPTY),
    **dict.fromkeys(("previous_response_id", "prompt", "store"), EMPTY),
    "max_completion_tokens": NEVER,
    "max_tokens": NEVER,
    "n": (1,),
    "top_logprobs": (0,),
    "truncation": ("disabled",),
}
"""Unsupported fields, most of which need stored turns."""
_ENCODED_REASONING = "reasoning.encrypted_content"
_LOGPROBS = "message.output_text.logprobs"
_TEXT_FIELDS = {
    "input_text": "text",
    "output_text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
}
"""Type of a content part to the field with its text."""
_ROLES = ("user", "assistant", "system", "developer")
_items = checks.list_of("item", 1, MAX_MESSAGES)


@frozen(kw_only=True)
class ResponsesRequest(SamplingRequest):
    """The fields of a request, as ``static/openapi.json`` describes them."""

    input: Any = field(
        validator=checks.Rule(
            f"a text, or {_items.allowed}",
            lambda value: isinstance(value, str) or _items.is_allowed(value),
        )
    )
    instructions: str | None = fields.optional(checks.string)
    max_output_tokens: int | None = fields.optional(checks.integer(1))
    tools: Sequence[Any] = field(default=(), validator=checks.a_list)
    tool_choice: Any = None
    parallel_tool_calls: bool = fields.flag(default=True)
    text: JsonObject | None = fields.optional(checks.an_object)
    reasoning: JsonObject | None = fields.optional(checks.an_object)
    include: Sequence[str] = field(default=(), validator=checks.a_list)

    def conversation(self, client_tools: Sequence[ClientTool]) -> Conversation:
        """Return the items as turns, with the tools and the variables of the chat template."""
        turns: Turns = []
        if self.instructions:
            turn_of("system", turns)["content"].append(self.instructions)
        if isinstance(self.input, str):
            turn_of("user", turns)["content"].append(self.input)
        else:
            for index, item in enumerate(self.input):
                _add_item(item, turns, f"input[{index}]")
        tools = tools_of([tool.function for tool in client_tools])
        tool_choice = choice_of_functions(self.tool_choice)
        return Conversation(
            messages_of(turns),
            tools,
            choice=choice_of(tool_choice, tools, is_parallel=self.parallel_tool_calls),
            variables=self._template_variables(),
        )

    def _template_variables(self) -> JsonObject:
        effort = (self.reasoning or {}).get("effort")
        if effort is not None:
            checks.string.check("reasoning.effort", effort)
        if effort == "none":
            return {"enable_thinking": False}
        return {"reasoning_effort": effort} if effort else {}

    @property
    def output_schema(self) -> object:
        """The schema that the text must conform to, if any; `response_format` is a fallback."""
        match text_format := (self.text or {}).get("format"):
            case None | {"type": "text"}:
                return super().output_schema
            case {"type": "json_object"}:
                return {"type": "object"}
            case {"type": "json_schema", "schema": dict(schema)}:
                return schema
        raise InvalidRequestError.must_be(
            "text.format",
            'an object of type "text" or "json_object", or of type "json_schema" with a schema',
            text_format,
        )


def read(body: object) -> Operation:
    """Check a ``POST /v1/responses`` body; return its task and the writer of the response."""
    request = read_as(ResponsesRequest, body, _REFUSED)
    if _LOGPROBS in request.include:
        raise InvalidRequestError(
            f"must not contain {_LOGPROBS}: this path returns no log probabilities", "include"
        )
    names = _FIELD_NAMES | request.schema_names
    max_tokens = request.max_output_tokens or AS_MUCH_AS_FITS
    tool_list = [*client_tools(request.tools)]
    conversation = request.conversation(tool_list)
    tools = {tool.function.name: tool for tool in tool_list}
    task = GenerationTask(
        (request.generation(max_tokens, None, names),),
        conversation=conversation,
        context=RequestContext(use_model_eos=not request.ignore_eos),
        names=names,
        model=request.model,
    )
    choice = conversation.choice
    tool_choice: object = choice.mode
    if choice.mode == "required" and len(choice.names) == 1:
        tool_choice = tools[choice.names[0]].choice()
    request_fields = {
        "model": request.model,
        "parallel_tool_calls": request.parallel_tool_calls,
        "tool_choice": tool_choice,
    }
    events = ItemEvents(
        request_fields, tools, encodes_reasoning=_ENCODED_REASONING in request.include
    )
    return task, events if request.stream else events.full_response


def _add_item(item: Any, turns: Turns, path: str) -> None:
    """Append an item of the request to the turns.

    `path` is the field of the request that holds the item, for errors.
    """
    checks.an_object.check(path, item)
    match item.get("type") or "message":
        case "message":
            role = item.get("role")
            if role not in _ROLES:
                allowed = "user, assistant, system or developer"
                raise InvalidRequestError.must_be(f"{path}.role", allowed, role)
            texts = texts_of(item.get("content"), f"{path}.content", _TEXT_FIELDS)
            turn_of("system" if role == "developer" else role, turns)["content"] += texts
        case "reasoning":
            content = item.get("content") or decode_reasoning(item.get("encrypted_content")) or []
            texts = texts_of(content, f"{path}.content", _TEXT_FIELDS)
            turn_of("assistant", turns)["reasoning_content"] += texts
        case "function_call":
            _add_call(item, _string(item, "arguments", path), turns, path)
        case "custom_tool_call":
            arguments = {CUSTOM_ARGUMENT: _string(item, "input", path)}
            _add_call(item, arguments, turns, path)
        case "function_call_output" | "custom_tool_call_output":
            texts = texts_of(item.get("output"), f"{path}.output", _TEXT_FIELDS)
            call_id = _string(item, "call_id", path)
            turn_of("tool", turns).update(tool_call_id=call_id, content=texts)
        case kind:
            allowed = (
                '"message", "function_call", "function_call_output", "custom_tool_call",'
                ' "custom_tool_call_output" or "reasoning"'
            )
            raise InvalidRequestError.must_be(f"{path}.type", allowed, kind)


def _add_call(item: JsonObject, arguments: object, turns: Turns, path: str) -> None:
    """Append the call of a tool to the turns, as the call of the function that stands for it.

    Args:
        item: the item with the call.
        arguments: arguments of the function: as the client sent them, or for a custom tool an
            object that contains its text.
        turns: the turns, which are changed.
        path: the field of the request that holds the item, for errors.
    """
    for name in ("call_id", "name"):
        _string(item, name, path)
    call = function_call(item["call_id"], function_name(item), arguments)
    turn_of("assistant", turns)["tool_calls"].append(call)


def _string(item: JsonObject, name: str, path: str) -> str:
    checks.string.check(f"{path}.{name}", item.get(name))
    return str(item[name])
