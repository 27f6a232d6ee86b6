"""Render a conversation to a generation request.

The request has a prompt, the grammar of the answer, and the output format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Final

import attrs
from attrs import frozen

from relevance_gen.errors import InvalidRequestError, did_you_mean
from relevance_gen.generation.chat.chat_template import (
    check_messages,
    message_texts,
    render_prompt,
    renderer_for,
)
from relevance_gen.generation.chat.conversation import (
    ChatMessage,
    Conversation,
    ToolDefinition,
    check_calls,
    function_call,
)
from relevance_gen.generation.chat.tool_choice_grammar import grammar_fields
from relevance_gen.generation.output_parsing.output_parser import (
    CALL_ID_CHARACTERS,
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
from relevance_gen.wire import JsonObject

_MAX_ARGUMENT_VALUES: Final = 1 << 16
"""Values in the arguments of all calls of a conversation; parsed values take many times the memory
of their text."""
_REASONING_FIELDS: Final = ("reasoning_content", "reasoning")
_TEMPLATE_REASONING_FIELDS: Final = (*_REASONING_FIELDS, "thinking")
"""The names under which templates read the reasoning of a message."""
_READS_ARGUMENTS_AS_OBJECT: Final = re.compile(
    r"""(arguments|_args|tool_calls?(\.function|\['function'\])?)['"\])]*\s*"""
    r"""(\|\s*(tojson|items)|is\s+(not\s+)?(string|mapping)|\.items)"""
)
_CHECKS_ID_LENGTH: Final = re.compile(r"length\s*(!=|==|<)\s*9\b")
_ID_WITH_NAME_MARKER: Final = "<|tool_call_begin|>"
"""The text before a call's id in Kimi's templates, which expect the name of the tool in the id."""
_TOOLS_PROMPT: Final = """\
You may call these tools. Of each you are told its name, what it does, and the JSON schema of its arguments:
{tools}
To call one, write this and nothing behind it, with its name for NAME and a JSON object for ARGUMENTS:
{call}
What it returns is shown to you as <tool_response>."""


@frozen
class RenderedChat:
    """A request that continues a conversation, and the format of the model's answer."""

    request: GenerationRequest
    output_format: OutputFormat


def render_chat(
    conversation: Conversation,
    request: GenerationRequest,
    model: ChatFormat,
    chat_template: str | None = None,
    client: str | None = None,
) -> RenderedChat:
    """Render a conversation with the model's chat template into the text of `request`.

    If the template does not support tools, or its tool-call format is unknown, the system message
    describes the tools; calls and results are then rendered as text of the assistant and the user.

    Args:
        conversation: the messages, tools and template variables.
        request: all other options.
        model: the chat format stored in the model file.
        chat_template: overrides the template of the model file.
        client: the client, as in `RequestContext`.

    Raises:
        InvalidRequestError: the model has no chat template, the template rejects these messages, or
            it does not use a variable listed in `conversation.required`.
    """
    source = model.template if chat_template is None else chat_template
    template = source if isinstance(source, str) else ""
    words = set(re.findall(r"\w+", template))
    renderer = renderer_for(client)
    for variable, field_name in conversation.required.items():
        if variable not in words:
            known_variables = renderer.variables_of(template)
            raise InvalidRequestError(
                "must be a variable of this model's chat template",
                field_name,
                remedy=did_you_mean(variable, known_variables, "omit it"),
            )

    known_format = tool_call_format_of(template)
    tool_calls = known_format or HERMES
    tool_words = words if known_format else set()
    check_messages(conversation.messages, continues=conversation.continues)
    converter = _MessageConverter(template)
    messages = [
        converter.convert(message, f"messages[{index}]")
        for index, message in enumerate(conversation.messages)
    ]
    if "tool_calls" not in tool_words:
        messages = _render_calls_as_text(messages, tool_calls)
    variables = conversation.variables
    if conversation.tools and "tools" in tool_words:
        tools = [tool.to_template_value() for tool in conversation.tools]
        variables = {**variables, "tools": tools}
    elif conversation.tools:
        messages = _add_tools_prompt(messages, conversation.tools, tool_calls)
    text = render_prompt(
        messages,
        model,
        chat_template,
        variables,
        continues=conversation.continues,
        renderer=renderer,
    )

    output_format = _output_format(conversation, template, tool_calls, text)
    reasoning = output_format.reasoning
    reasoning_end = ""
    if reasoning is not None and output_format.starts_with_reasoning:
        reasoning_end = reasoning.ends[0]
    grammar = grammar_fields(conversation, request, tool_calls, reasoning_end)
    return RenderedChat(attrs.evolve(request, text=text, **grammar), output_format)


def _output_format(
    conversation: Conversation, template: str, tool_calls: ToolCallFormat, prompt: str
) -> OutputFormat:
    tools = frozenset(tool.name for tool in conversation.callable_tools)
    reasoning = reasoning_format_of(template)
    starts_with_reasoning = (
        reasoning is not None
        and not reasoning.ends_are_openings
        and prompt.rstrip().endswith(reasoning.template_marker)
    )
    schemas = {}
    if tool_calls.argument_tags:
        schemas = {
            tool.name: tool.parameters.get("properties") for tool in conversation.callable_tools
        }
    return OutputFormat(
        tools=tools,
        tool_calls=tool_calls if tools else None,
        reasoning=reasoning,
        starts_with_reasoning=starts_with_reasoning,
        schemas=schemas,
    )


class _MessageConverter:
    """Converts the messages of a conversation, in order, to the form that a template reads."""

    def __init__(self, template: str) -> None:
        self._reasoning_fields = [
            name for name in _TEMPLATE_REASONING_FIELDS if re.search(rf"\b{name}\b", template)
        ]
        self._reads_objects = _READS_ARGUMENTS_AS_OBJECT.search(template) is not None
        self._needs_short_ids = _CHECKS_ID_LENGTH.search(template) is not None
        self._needs_ids_with_names = _ID_WITH_NAME_MARKER in template
        self._tool_names: dict[str, str] = {}  # by the id of a call
        self._ids_with_names: dict[str, str] = {}
        self._n_values = 0

    def convert(self, message: ChatMessage, path: str) -> JsonObject:
        """Return a message in the form that the chat template reads.

        Templates differ in the field that contains the reasoning, in the type of a call's arguments
        (text or object), and in the format of call ids.

        Args:
            message: a message of the conversation.
            path: the path of the message in the request, such as ``messages[3]``, for error
                messages.
        """
        check_calls(message, path)
        skipped = (*_REASONING_FIELDS, "tool_calls")
        converted = {name: value for name, value in message.items() if name not in skipped}
        if reasoning := message.get("reasoning_content") or message.get("reasoning"):
            converted |= dict.fromkeys(self._reasoning_fields, reasoning)
        calls = message.get("tool_calls") or ()
        if calls:
            if converted.get("content"):
                # The template of gpt-oss refuses calls with both content and thinking.
                converted.pop("thinking", None)
            converted["tool_calls"] = [self._convert_call(call) for call in calls]
        tool_call_id = message.get("tool_call_id")
        if message["role"] == "tool" and tool_call_id:
            return {
                "name": self._tool_names.get(tool_call_id, ""),
                **converted,
                "tool_call_id": self._convert_id(tool_call_id),
            }
        return converted

    def _convert_call(self, call: JsonObject) -> JsonObject:
        name = call["function"]["name"]
        arguments = call["function"]["arguments"]
        if isinstance(arguments, str):
            self._n_values += len(re.findall(r"[\[{,]", arguments))
        if self._n_values > _MAX_ARGUMENT_VALUES:
            raise InvalidRequestError(
                f"must hold at most {_MAX_ARGUMENT_VALUES:,} values in calls' arguments", "messages"
            )
        n_calls = len(self._tool_names)
        original_id = call.get("id") or f"call{n_calls}"
        self._tool_names[original_id] = name
        self._ids_with_names[original_id] = f"functions.{name}:{n_calls}"
        arguments = _to_object(arguments) if self._reads_objects else _to_json(arguments)
        return function_call(self._convert_id(original_id), name, arguments)

    def _convert_id(self, original_id: str) -> str:
        if self._needs_ids_with_names and original_id in self._ids_with_names:
            return self._ids_with_names[original_id]
        if self._needs_short_ids and len(original_id) != CALL_ID_CHARACTERS:
            return call_id(original_id)
        return original_id


def _to_object(arguments: object) -> object:
    """Parse a string that is a JSON object; return any other value unchanged."""
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _to_json(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _render_calls_as_text(
    messages: Sequence[JsonObject], tool_calls: ToolCallFormat
) -> list[JsonObject]:
    """Return messages with tool calls and their results as plain text.

    Used for templates without support for tools. Calls become text of the assistant in the format
    `tool_calls`, and all results of a turn become one message of the user.
    """
    converted: list[JsonObject] = []
    is_result = False
    for message in messages:
        content = "\n".join(message_texts(message))
        was_result = is_result
        is_result = message["role"] == "tool" and "tool_call_id" in message
        if is_result:
            text = f"<tool_response>\n{content}\n</tool_response>"
            if was_result:
                text = f"{converted.pop()['content']}\n{text}"
            converted.append({"role": "user", "content": text})
            continue
        calls = []
        for call in message.pop("tool_calls", ()):
            function = call["function"]
            arguments = _to_json(function["arguments"])
            calls.append(tool_calls.render_call(function["name"], arguments))
        if calls:
            message["content"] = f"{content}\n{tool_calls.render_turn(calls)}".lstrip()
        converted.append(message)
    return converted


def _add_tools_prompt(
    messages: Sequence[JsonObject], tools: Sequence[ToolDefinition], tool_calls: ToolCallFormat
) -> list[JsonObject]:
    """Return messages with a description of the tools and of the format of calls.

    The description is added to the first message if that is a system message, otherwise it is a new
    system message before the others. `tool_calls` is the format of calls.
    """
    descriptions = [
        json.dumps(tool.to_template_value()["function"], ensure_ascii=False) for tool in tools
    ]
    call = tool_calls.render_turn([tool_calls.render_call("NAME", "ARGUMENTS")])
    text = _TOOLS_PROMPT.format(tools="\n".join(descriptions), call=call)
    first = messages[0]
    if first["role"] == "system":
        content = "\n\n".join((*message_texts(first), text))
        return [{**first, "content": content}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]
