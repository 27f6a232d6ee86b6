"""``POST /v1/responses``: the next turn of a conversation whose turns are items; the server remembers none of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
from attrs import field, frozen
from attrs.validators import optional

from relevance_gen import checks
from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.chat.conversation import (
    Conversation,
    ToolDefinition,
    choice_of,
    messages_of,
    texts_of,
    tool_of,
    tools_of,
    turn_of,
)
from relevance_gen.generation.queue.request import RequestContext
from relevance_gen.serve.adapters.openai.items import ItemEvents, unpacked
from relevance_gen.serve.adapters.openai.requests import (
    REFUSED,
    SamplingRequest,
    is_empty,
    names_in,
    read_as,
    unless,
)
from relevance_gen.serve.services.generation import AS_MUCH_AS_FITS, GenerationTask, Responses

_NAMES = {
    "text": "input",
    "messages": "input",
    "json_schema": "text.format",
    "max_tokens": "max_output_tokens",
}
_REFUSED = {
    **REFUSED,
    **unless(
        is_empty,
        "background context_management conversation moderation previous_response_id prompt store",
    ),
    **unless(lambda _: False, "max_completion_tokens max_new_tokens max_tokens n_predict"),
    "n": lambda v: v == 1,
    "top_logprobs": lambda v: v == 0,
    "truncation": lambda v: v == "disabled",
}
"""What would change the answer, or needs a memory, and is not done."""
_THOUGHTS, _LOGPROBS = "reasoning.encrypted_content", "message.output_text.logprobs"
_SEARCH = "web_search"
"""Begins the types of the one tool of OpenAI's servers that agents offer without being asked."""
_TEXTS = {
    "input_text": "text",
    "output_text": "text",
    "reasoning_text": "text",
    "refusal": "refusal",
}


@frozen(kw_only=True)
class ResponsesRequest(SamplingRequest):
    """The fields that are read, as ``static/openapi.json`` describes them."""

    input: Any = field(
        validator=checks.must_be(
            "a text, or a list of at least one item",
            lambda v: isinstance(v, str) or (isinstance(v, list) and bool(v)),
        )
    )
    instructions: str | None = field(default=None, validator=optional(checks.string))
    max_output_tokens: int | None = field(default=None, validator=optional(checks.integer(1)))
    tools: Sequence[Any] = field(default=(), validator=checks.a_list)
    tool_choice: Any = None
    parallel_tool_calls: bool = field(default=True, validator=checks.flag)
    text: Mapping[str, Any] | None = field(default=None, validator=optional(checks.an_object))
    reasoning: Mapping[str, Any] | None = field(default=None, validator=optional(checks.an_object))
    include: Sequence[str] = field(default=(), validator=checks.a_list)

    def conversation(self) -> Conversation:
        """Return the items as turns, and the tools."""
        turns: list[dict[str, Any]] = []
        if self.instructions:
            turn_of("system", turns)["content"].append(self.instructions)
        items = (
            [{"role": "user", "content": self.input}] if isinstance(self.input, str) else self.input
        )
        for place, item in enumerate(items):
            _add(item, turns, f"input[{place}]")
        tools = tools_of([*_functions(self.tools)])
        choice = choice_of(self.tool_choice, tools, is_parallel=self.parallel_tool_calls)
        effort = (self.reasoning or {}).get("effort")
        if not isinstance(effort, str | None):
            raise InvalidRequestError.must_be("reasoning.effort", "a string", effort)
        variables = (
            {"enable_thinking": False}
            if effort == "none"
            else {"reasoning_effort": effort}
            if effort
            else {}
        )
        named = {
            tool.get("name"): f"tools[{place}].parameters" for place, tool in enumerate(self.tools)
        }
        return Conversation(messages_of(turns), tools, choice, variables, schema_fields=named)

    @property
    def schema(self) -> object:
        """The schema that the text must fit, if it must fit one."""
        match form := (self.text or {}).get("format"):
            case None | {"type": "text"}:
                return None
            case {"type": "json_object"}:
                return {"type": "object"}
            case {"type": "json_schema", "schema": dict(schema)}:
                return schema
        allowed = (
            'an object of type "text" or "json_object", or of type "json_schema" with a schema'
        )
        raise InvalidRequestError.must_be("text.format", allowed, form)


def read(body: object) -> tuple[GenerationTask, Callable[[Responses], object] | ItemEvents]:
    """Read the body of ``POST /v1/responses``."""
    request = read_as(ResponsesRequest, body, _REFUSED)
    if _LOGPROBS in request.include:
        raise InvalidRequestError(
            f"must not have {_LOGPROBS}: log probabilities are not told here", "include"
        )
    names = _NAMES | names_in(body)
    if request.schema is not None:
        request = attrs.evolve(
            request, response_format={"type": "json_object", "schema": request.schema}
        )
    conversation = request.conversation()
    generation = request.generation("", request.max_output_tokens or AS_MUCH_AS_FITS, None, names)
    context = RequestContext(use_model_eos=not request.ignore_eos)
    task = GenerationTask(
        (generation,), conversation=conversation, context=context, names=names, model=request.model
    )
    choice = conversation.choice
    is_named = choice.mode == "required" and len(choice.names) == 1
    told = {
        "model": request.model,
        "parallel_tool_calls": request.parallel_tool_calls,
        "tool_choice": {"type": "function", "name": choice.names[0]} if is_named else choice.mode,
    }
    events = ItemEvents(told, packs_thoughts=_THOUGHTS in request.include)
    return task, events if request.stream else events.whole


def _add(item: object, turns: list[dict[str, Any]], path: str) -> None:
    if not isinstance(item, dict):
        raise InvalidRequestError.must_be(path, "an object", item)
    match item.get("type") or "message":
        case "message":
            role = item.get("role")
            if role not in ("user", "assistant", "system", "developer"):
                raise InvalidRequestError.must_be(
                    f"{path}.role", "user, assistant, system or developer", role
                )
            said = texts_of(item.get("content"), f"{path}.content", _TEXTS)
            turn_of("system" if role == "developer" else role, turns)["content"] += said
        case "reasoning":
            content = item.get("content") or unpacked(item.get("encrypted_content"))
            turn_of("assistant", turns)["reasoning_content"] += texts_of(
                content or [], f"{path}.content", _TEXTS
            )
        case "function_call":
            call_id, name, arguments = (
                _text(item, name, path) for name in ("call_id", "name", "arguments")
            )
            call = {
                "id": call_id,
                "type": "function",
                "function": {"name": name, "arguments": arguments},
            }
            turn_of("assistant", turns)["tool_calls"].append(call)
        case "function_call_output":
            said = texts_of(item.get("output"), f"{path}.output", _TEXTS)
            turn_of("tool", turns).update(tool_call_id=_text(item, "call_id", path), content=said)
        case other:
            allowed = '"message", "function_call", "function_call_output" or "reasoning"'
            raise InvalidRequestError.must_be(f"{path}.type", allowed, other)


def _text(item: Mapping[str, Any], name: str, path: str) -> str:
    if not isinstance(text := item.get(name), str):
        raise InvalidRequestError.must_be(f"{path}.{name}", "a string", text)
    return text


def _functions(given: Sequence[Any]) -> Iterator[ToolDefinition]:
    for place, tool in enumerate(given):
        kind = tool.get("type") if isinstance(tool, dict) else tool
        if kind == "function":
            yield tool_of(tool, f"tools[{place}]")
        elif not isinstance(kind, str) or not kind.startswith(_SEARCH):
            allowed = 'an object of type "function": no others are supported'
            raise InvalidRequestError.must_be(f"tools[{place}]", allowed, kind)
