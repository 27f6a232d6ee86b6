"""``POST /v1/chat/completions``: the next turn of a conversation."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import field, frozen
from attrs.validators import optional

from relevance_gen import checks
from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.chat.conversation import (
    Conversation,
    check_calls,
    choice_of,
    texts_of,
    tools_of,
)
from relevance_gen.generation.queue.request import RequestContext
from relevance_gen.serve.adapters.openai import requests
from relevance_gen.serve.adapters.openai.citations import DocumentCiter
from relevance_gen.serve.adapters.openai.events import CompletionEvents
from relevance_gen.serve.adapters.openai.requests import (
    SamplingRequest,
    is_empty,
    names_in,
    read_as,
    unless,
)
from relevance_gen.serve.adapters.openai.tokens import FINISH_REASONS, chat_logprobs, usage
from relevance_gen.serve.services.generation import AS_MUCH_AS_FITS, GenerationTask, Responses
from relevance_gen.types import Completion, ContentPart, GenerationResponse

_NAMES = {"text": "messages", "num_samples": "n", "template_variables": "chat_template_kwargs"}

_ROLES = {"developer": "system"}
"""Roles that templates know by another name."""

_REFUSED = {
    **requests.REFUSED,
    **unless(is_empty, "audio chat_template echo functions reasoning thinking"),
    "add_special_tokens": lambda v: v is False,
    "best_of": lambda v: v == 1,
    "function_call": lambda v: v in ("none", "auto"),
    "include_reasoning": lambda v: v is True,
    "modalities": lambda v: v == ["text"],
    "web_search_options": lambda _: False,
}


@frozen(kw_only=True)
class ChatRequest(SamplingRequest):
    """The fields that are read, as ``static/openapi.json`` describes them; `_VARIABLES` are the template's."""

    messages: Sequence[Any] = field(
        validator=checks.must_be(
            "a list of at least one message", lambda v: isinstance(v, list) and len(v) > 0
        )
    )
    max_tokens: int | None = field(default=None, validator=optional(checks.integer(1)))
    max_completion_tokens: int | None = field(default=None, validator=optional(checks.integer(1)))
    logprobs: bool = field(default=False, validator=checks.flag)
    top_logprobs: int | None = field(default=None, validator=optional(requests.top_logprobs))
    chat_template_kwargs: Mapping[str, Any] | None = field(
        default=None, validator=optional(checks.an_object)
    )
    enable_thinking: bool | None = field(default=None, validator=optional(checks.flag))
    thinking_budget: int | None = field(default=None, validator=optional(checks.integer(0)))
    documents: Sequence[Any] | None = field(default=None, validator=optional(checks.a_list))
    reasoning_effort: str | None = field(default=None, validator=optional(checks.string))
    add_generation_prompt: bool | None = field(default=None, validator=optional(checks.flag))
    continue_final_message: bool = field(default=False, validator=checks.flag)
    tools: Sequence[Any] | None = None
    tool_choice: Any = "auto"
    parallel_tool_calls: bool = field(default=True, validator=checks.flag)

    def conversation(self) -> Conversation:
        """Return the messages, and what else the template reads."""
        messages = [
            _message(message, f"messages[{place}]") for place, message in enumerate(self.messages)
        ]
        if self.continue_final_message and (
            messages[-1]["role"] != "assistant" or self.add_generation_prompt
        ):
            rule = "must be false where the last message is not the assistant's, or add_generation_prompt is true"
            raise InvalidRequestError(rule, "continue_final_message")
        named = {name: value for name in _VARIABLES if (value := getattr(self, name)) is not None}
        variables = {**(self.chat_template_kwargs or {}), **named}
        asked = [
            name
            for name, value in variables.items()
            if name != "add_generation_prompt" and value not in (None, [])
        ]
        required = {
            name: name if name in named else f"chat_template_kwargs.{name}" for name in asked
        }
        tools = tools_of(() if self.tools is None else self.tools)
        choice = choice_of(self.tool_choice, tools, is_parallel=self.parallel_tool_calls)
        named = {
            tool.name: f"tools[{place}].function.parameters" for place, tool in enumerate(tools)
        }
        return Conversation(
            messages, tools, choice, variables, required, self.continue_final_message, named
        )


_VARIABLES = (
    "enable_thinking",
    "thinking_budget",
    "documents",
    "reasoning_effort",
    "add_generation_prompt",
)


def read(body: object) -> tuple[GenerationTask, Callable[[Responses], object] | CompletionEvents]:
    """Read the body of ``POST /v1/chat/completions``."""
    request = read_as(ChatRequest, body, _REFUSED)
    names = _NAMES | names_in(body)
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequestError("needs logprobs to be true", "top_logprobs")
    n_alternatives = (request.top_logprobs or 0) if request.logprobs else None
    max_tokens = request.max_completion_tokens or request.max_tokens or AS_MUCH_AS_FITS
    generation = request.generation("", max_tokens, n_alternatives, names)
    context = RequestContext(
        use_model_eos=not request.ignore_eos, return_token_texts=request.logprobs
    )
    citer = (
        None if generation.json_schema is not None else DocumentCiter.of(request.documents or ())
    )
    task = GenerationTask(
        (generation,),
        conversation=request.conversation(),
        context=context,
        names=names,
        model=request.model,
        citer=citer,
    )
    return task, _presenter(request, citer)


def error(kind: str, message: str, field: str | None) -> dict[str, object]:
    """Return the body of an error; where the model cannot take a conversation, it says what can be done."""
    if field == "chat_template":
        message, field = f"{message}; /v1/completions takes a text without a template", "messages"
    return requests.error(kind, message, field)


_PASSED_ON = {
    "assistant": ("reasoning_content", "reasoning", "tool_calls"),
    "tool": ("tool_call_id", "name"),
}
"""What else a message of a role says."""


def _message(message: object, path: str) -> dict[str, Any]:
    if not isinstance(message, dict):
        raise InvalidRequestError.must_be(path, "an object with a role and a content", message)
    role, content = message.get("role"), message.get("content")
    if not isinstance(role, str):
        raise InvalidRequestError.must_be(f"{path}.role", "a string", role)
    for name in ("function_call", "audio"):
        if message.get(name) is not None and not is_empty(message[name]):
            raise InvalidRequestError(
                "is not supported by this server", f"{path}.{name}", remedy="leave it out"
            )
    if content is None and role == "assistant":
        content = ""
    texts = texts_of(content, f"{path}.content", {"text": "text", "refusal": "refusal"})
    said = {"role": _ROLES.get(role, role), "content": "\n".join(texts)}
    said |= {
        name: message[name] for name in _PASSED_ON.get(role, ()) if message.get(name) is not None
    }
    if "reasoning" in said:
        said.setdefault("reasoning_content", said.pop("reasoning"))
    check_calls(said, path)
    return said


def _turn(completion: Completion) -> dict[str, Any]:
    """Return a whole turn as OpenAI's clients read it; what is thought has two names among them."""
    calls = [
        {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.text}}
        for call in completion.tool_calls
    ]
    turn: dict[str, Any] = {
        "role": "assistant",
        "content": completion.text or (None if calls else ""),
    }
    turn["refusal"] = None
    if thought := completion.reasoning:
        turn |= {"reasoning_content": thought, "reasoning": thought}
    return turn | {"tool_calls": calls} if calls else turn


def _delta_writer() -> Callable[[int, ContentPart], dict[str, Any]]:
    """Return what writes the pieces of a stream's turns: calls are numbered in each for themselves."""
    calls: dict[int, dict[int, int]] = {}

    def delta(sample: int, piece: ContentPart) -> dict[str, Any]:
        if piece.kind == "text":
            return {"delta": {"content": piece.text}}
        if piece.kind == "reasoning":
            return {"delta": {"reasoning_content": piece.text, "reasoning": piece.text}}
        numbers = calls.setdefault(sample, {})
        is_new, number = piece.place not in numbers, numbers.setdefault(piece.place, len(numbers))
        if not is_new:
            return {
                "delta": {"tool_calls": [{"index": number, "function": {"arguments": piece.text}}]}
            }
        function = {"name": piece.name, "arguments": piece.text}
        return {
            "delta": {
                "tool_calls": [
                    {"index": number, "id": piece.id, "type": "function", "function": function}
                ]
            }
        }

    return delta


def _presenter(
    request: ChatRequest, citer: DocumentCiter | None
) -> Callable[[Responses], object] | CompletionEvents:
    identity = {"id": f"chatcmpl-{uuid.uuid4().hex}", "model": request.model}

    def cited(completion: Completion) -> dict[str, Any]:
        return {} if citer is None else {"citations": citer.citations(completion.text)}

    def ending(completion: Completion, response: GenerationResponse) -> dict[str, Any]:
        token_texts = response.token_texts
        logprobs = None if token_texts is None else chat_logprobs(completion, token_texts)
        return {"logprobs": logprobs, "finish_reason": FINISH_REASONS[completion.finish_reason]}

    def present(responses: Responses) -> object:
        (response,) = responses
        choices = [
            {
                "index": place,
                "message": _turn(completion) | cited(completion),
                **ending(completion, response),
            }
            for place, completion in enumerate(response.responses)
        ]
        head = {**identity, "object": "chat.completion", "created": int(response.created)}
        return {**head, "choices": choices, "usage": usage(responses)}

    if not request.stream:
        return present
    return CompletionEvents(
        {**identity, "object": "chat.completion.chunk"},
        request.n,
        beginning=lambda _: {"delta": {"role": "assistant", "content": ""}},
        piece=_delta_writer(),
        last=lambda completion, response: {
            "delta": cited(completion),
            **ending(completion, response),
        },
        includes_usage=request.includes_usage,
        write_error=error,
    )
