"""Make a request of a conversation: its prompt, what its answer must be, and how that is read."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

import attrs

from relevance_gen.errors import InvalidRequestError, did_you_mean
from relevance_gen.generation.chat.chat_template import (
    check_messages,
    prompt_of,
    renderer_for,
    said_in,
)
from relevance_gen.generation.chat.conversation import (
    ChatMessage,
    Conversation,
    ToolDefinition,
    check_calls,
)
from relevance_gen.generation.chat.tool_choice_grammar import grammar_of
from relevance_gen.generation.output_parsing.output_parser import (
    ID_CHARACTERS,
    OutputFormat,
    call_id,
)
from relevance_gen.generation.output_parsing.tool_call_formats import (
    HERMES,
    ToolCallFormat,
    reasoning_format_of,
    tool_call_format_of,
)
from relevance_gen.llama.language_model import ChatFormat
from relevance_gen.types import GenerationRequest

_MAX_VALUES: Final = 1 << 16
"""Values in the arguments of all calls of a conversation: as objects they take many times their text's memory."""
_THOUGHTS: Final = ("reasoning_content", "reasoning", "thinking")
"""What templates call the thoughts of a turn."""
_READS_OBJECTS: Final = re.compile(
    r"""(arguments|_args|tool_calls?(\.function|\['function'\])?)['"\])]*\s*"""
    r"""(\|\s*(tojson|items)|is\s+(not\s+)?(string|mapping)|\.items)"""
)
_WANTS_IDS: Final = re.compile(r"length\s*(!=|==|<)\s*9\b")
_IDS_TELL_NAMES: Final = "<|tool_call_begin|>"
"""Stands before the id of a call in Kimi's templates, which write no other name of it."""
_DESCRIPTION: Final = """\
You may call these tools. Of each you are told its name, what it does, and the JSON schema of its arguments:
{tools}
To call one, write this and nothing behind it, with its name for NAME and a JSON object for ARGUMENTS:
{call}
What it returns is shown to you as <tool_response>."""


def write(
    conversation: Conversation,
    request: GenerationRequest,
    model: ChatFormat,
    chat_template: str | None = None,
    client: str | None = None,
) -> tuple[GenerationRequest, OutputFormat]:
    """Return `request` with the conversation for its text, and how a model writes the turn that is to come.

    A template that knows nothing of tools, or calls them in a syntax that is not known here, is told of them in the
    system's message; calls and results are then texts of the assistant and of the user. A `chat_template` counts
    instead of the one in the model's file; the client is named as in a `RequestContext`.

    It raises an `InvalidRequestError` where there is no template for these messages, or it does not know what it must.
    """
    given = model.template if chat_template is None else chat_template
    template = given if isinstance(given, str) else ""
    words = set(re.findall(r"\w+", template))
    for name, called in conversation.required.items():
        if name not in words:
            remedy = did_you_mean(name, renderer_for(client).variables_of(template), "leave it out")
            raise InvalidRequestError(
                "is not known to the chat template of this model", called, remedy=remedy
            )
    known, thoughts = tool_call_format_of(template), reasoning_format_of(template)
    syntax = known or HERMES
    check_messages(conversation.messages, continues=conversation.continues)
    messages = _as_read(conversation.messages, template)
    if known is None or "tool_calls" not in words:
        messages = _in_words(messages, syntax)
    variables = conversation.variables
    if conversation.tools and known is not None and "tools" in words:
        variables = {
            **variables,
            "tools": [tool.to_template_value() for tool in conversation.tools],
        }
    elif conversation.tools:
        messages = _described(messages, conversation.tools, syntax)
    text = prompt_of(
        *(messages, model, chat_template, variables),
        continues=conversation.continues,
        renderer=renderer_for(client),
    )
    is_thinking = (
        thoughts is not None and not thoughts.is_kept and text.rstrip().endswith(thoughts.sign)
    )
    tools = frozenset(tool.name for tool in conversation.callable)
    schemas = {
        tool.name: tool.parameters.get("properties")
        for tool in conversation.callable
        if syntax.tags
    }
    answer = OutputFormat(tools, syntax if tools else None, thoughts, is_thinking, schemas)
    end = thoughts.ends[0] if thoughts is not None and is_thinking else ""
    return attrs.evolve(
        request, text=text, **grammar_of(conversation, request, answer.syntax, end)
    ), answer


def _as_read(messages: Sequence[ChatMessage], template: str) -> list[dict[str, Any]]:
    """Return messages with their thoughts, calls and results as a template reads them."""
    thoughts = [name for name in _THOUGHTS if re.search(rf"\b{name}\b", template)]
    takes_objects, wants_ids = _READS_OBJECTS.search(template), _WANTS_IDS.search(template)
    names: dict[str, tuple[str, int]] = {}
    n_values = 0
    turns = []

    def known_as(given: str) -> str:
        if _IDS_TELL_NAMES in template and given in names:
            return "functions.{}:{}".format(*names[given])
        return call_id(given) if wants_ids and len(given) != ID_CHARACTERS else given

    for place, message in enumerate(messages):
        check_calls(message, f"messages[{place}]")
        turn = {
            name: value
            for name, value in message.items()
            if name not in (*_THOUGHTS[:2], "tool_calls")
        }
        thought = message.get("reasoning_content") or message.get("reasoning")
        calls = message.get("tool_calls") or ()
        if thought:
            turn |= dict.fromkeys(thoughts, thought)
        if calls and turn.get("content"):
            turn.pop("thinking", None)  # harmony has no place for both
        if calls:
            turn["tool_calls"] = []
        for call in calls:
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            n_values += len(re.findall(r"[\[{,]", arguments)) if isinstance(arguments, str) else 0
            if n_values > _MAX_VALUES:
                raise InvalidRequestError(
                    f"must hold at most {_MAX_VALUES:,} values in calls' arguments", "messages"
                )
            arguments = _object_of(arguments) if takes_objects else _text_of(arguments)
            given = call.get("id") or f"call{len(names)}"
            names[given] = name, len(names)
            function = {"name": name, "arguments": arguments}
            turn["tool_calls"].append(
                {"id": known_as(given), "type": "function", "function": function}
            )
        if message.get("role") == "tool" and (given := message.get("tool_call_id")):
            turn = {
                "name": names[given][0] if given in names else "",
                **turn,
                "tool_call_id": known_as(given),
            }
        turns.append(turn)
    return turns


def _object_of(arguments: object) -> object:
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _text_of(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _in_words(messages: Sequence[dict[str, Any]], syntax: ToolCallFormat) -> list[dict[str, Any]]:
    """Return messages with calls as texts of the assistant, and the results of a turn as one text of the user."""
    turns: list[dict[str, Any]] = []
    is_result = False
    for message in messages:
        content, was_result = "\n".join(said_in(message)), is_result
        if is_result := message["role"] == "tool" and "tool_call_id" in message:
            text = f"<tool_response>\n{content}\n</tool_response>"
            said = f"{turns.pop()['content']}\n" if was_result else ""
            turns.append({"role": "user", "content": said + text})
            continue
        calls = [call["function"] for call in message.pop("tool_calls", ())]
        if calls:
            written = (syntax.call(call["name"], _text_of(call["arguments"])) for call in calls)
            message["content"] = (
                f"{content}\n{syntax.opening}{syntax.separator.join(written)}{syntax.closing}".lstrip()
            )
        turns.append(message)
    return turns


def _described(
    messages: Sequence[dict[str, Any]], tools: Sequence[ToolDefinition], syntax: ToolCallFormat
) -> list[dict[str, Any]]:
    """Put a description of the tools into the system's message."""
    told = [json.dumps(tool.to_template_value()["function"], ensure_ascii=False) for tool in tools]
    call = f"{syntax.opening}{syntax.call('NAME', 'ARGUMENTS')}{syntax.closing}"
    text = _DESCRIPTION.format(tools="\n".join(told), call=call)
    first = messages[0]
    if first["role"] == "system":
        return [{**first, "content": "\n\n".join((*said_in(first), text))}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
