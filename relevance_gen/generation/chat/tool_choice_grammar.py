"""Build the grammar of a turn.

It covers tool calls that match their schemas, and constrained answers after reasoning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.chat.conversation import Conversation, ToolDefinition
from relevance_gen.generation.constraints.json_schemas import without_unknown_formats
from relevance_gen.generation.constraints.token_constraint import (
    FIELD_COMMENT,
    grammar_source,
    guidance_module,
)
from relevance_gen.generation.output_parsing.tool_call_formats import ToolCallFormat
from relevance_gen.generation.queue.request import GRAMMAR_FIELDS, MAX_GRAMMAR_CHARACTERS
from relevance_gen.types import GenerationRequest
from relevance_gen.wire import JsonObject

_PYTHON_JSON_STYLE: Final = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""Templates write arguments with Python's `json.dumps`. The next prompt then repeats the output of
the model, so that the prefix cache can reuse it."""
_ANY_TEXT: Final = r"/(.|\n)*/"
_SPACE: Final = r"/\s{0,4}/"
_LARK_START: Final = re.compile(r'//[^\n]*|"(?:\\.|[^"\\\n])*+"?|/(?:\\.|[^/\\\n])*+/?|\bstart\b')
"""A comment, string or regular expression of a Lark grammar, or the name of its start rule.

A string or regular expression without an end reaches to the end of its line or to a line break
after a backslash, so that matching takes linear time.
"""


def grammar_fields(
    conversation: Conversation,
    request: GenerationRequest,
    tool_calls: ToolCallFormat,
    reasoning_end: str,
) -> JsonObject:
    """Return a grammar that permits only valid turns, as fields that replace fields of `request`.

    In a valid turn, the answer matches the request's own constraint, such as a JSON schema, unless
    a call is required: then that constraint is ignored. The arguments of tool calls are JSON
    objects; they match the schemas of the tools if a call is required or any of the tools is
    strict.

    The result is empty, so that tool calls are not constrained, if no call is required, no tool is
    strict, a turn may contain several calls, and the request is not constrained. Without
    callable tools, it is also empty if the fields of `request` permit only valid turns already.

    Args:
        conversation: the tools, and which of them must be called.
        request: may constrain the answer.
        tool_calls: the format of calls.
        reasoning_end: the text that ends the reasoning at the start of the turn; empty if the turn
            starts without reasoning.

    Raises:
        InvalidRequestError: constrained answers cannot be distinguished from calls, the grammar of
            the request is GBNF, or the new grammar is too long.
    """
    field = next((name for name in GRAMMAR_FIELDS if getattr(request, name) is not None), None)
    choice = conversation.choice
    tools = conversation.callable_tools
    must_call = bool(tools) and choice.mode == "required"
    enforces_schemas = must_call or any(tool.strict for tool in tools)
    if tools:
        permits_any_turn = field is None and choice.is_parallel and not enforces_schemas
    else:
        permits_any_turn = field is None or not reasoning_end
    if permits_any_turn:
        return {}

    rules = ["start: turn"]
    if reasoning_end:
        rules = [
            "start: thought SPACE turn",
            f"thought[lazy]: ANY {_lark_string(reasoning_end)}",
            f"SPACE: {_SPACE}",
            f"ANY: {_ANY_TEXT}",
        ]
    if field is not None and not must_call:
        rules.append(_answer_rules(request, field))
    if tools:
        rules += _call_rules(
            tools, tool_calls, enforces_schemas=enforces_schemas, is_parallel=choice.is_parallel
        )
        rules += _turn_rules(tool_calls, must_call=must_call, has_answer=field is not None)
    else:
        rules.append("turn: answer")
    field_name = "tools" if tools else str(field)
    grammar = FIELD_COMMENT.format(field_name) + "\n".join(rules)
    if len(grammar) > MAX_GRAMMAR_CHARACTERS:
        raise InvalidRequestError(
            f"must hold at most {MAX_GRAMMAR_CHARACTERS:,} characters as a grammar", field_name
        )
    return {**dict.fromkeys(GRAMMAR_FIELDS), "grammar": grammar}


def _call_rules(
    tools: Sequence[ToolDefinition],
    tool_calls: ToolCallFormat,
    *,
    enforces_schemas: bool,
    is_parallel: bool,
) -> list[str]:
    """Return the rules of tool calls.

    The rule ``lead`` matches the text before the name of the first call; ``rest`` matches this
    name and all text of the calls after it.

    Args:
        tools: the tools that may be called.
        tool_calls: the format of calls.
        enforces_schemas: whether arguments must match the schemas of the tools; otherwise they can
            be any JSON object.
        is_parallel: whether a turn may contain several calls.
    """
    between = _lark_string(tool_calls.between_calls + tool_calls.before_name)
    more = f"({between} one)*" if is_parallel else ""
    alternatives = " | ".join(f"one{index}" for index in range(len(tools)))
    rules = [
        f"rest: one {more} {_lark_string(tool_calls.after_calls)}",
        f"lead: {_lark_string(tool_calls.before_calls + tool_calls.before_name)}",
        f"one: {alternatives}",
    ]
    for index, tool in enumerate(tools):
        schema: Mapping[str, Any] = {"type": "object", "x-guidance": _PYTHON_JSON_STYLE}
        if enforces_schemas:
            schema = _arguments_schema(tool)
            rules.append(FIELD_COMMENT.format(tool.schema_field or "tools").rstrip())
        before = _lark_string(tool.name + tool_calls.before_arguments)
        after = _lark_string(tool_calls.after_arguments)
        rules.append(f"one{index}: {before} %json {json.dumps(schema)} {after}".rstrip())
    return rules


def _turn_rules(tool_calls: ToolCallFormat, *, must_call: bool, has_answer: bool) -> list[str]:
    """Return the Lark rules of a turn, which use the rules ``lead`` and ``rest`` of `_call_rules`.

    Args:
        tool_calls: the format of calls.
        must_call: whether the turn must consist of calls.
        has_answer: whether a rule ``answer`` constrains the answer. A turn is then either calls or
            an answer; otherwise it is any text, or text with calls after it.

    Raises:
        InvalidRequestError: `has_answer` is true, and calls cannot be distinguished from answers.
    """
    if must_call:
        return ["turn: lead rest"]
    call_start = tool_calls.before_calls + tool_calls.before_name
    if not call_start.startswith("{"):
        if has_answer:
            return ["turn: lead rest | answer"]
        return [
            "turn: SAID | said rest",
            f"SAID: {_ANY_TEXT}",
            f"said[lazy]: SAID {_lark_string(call_start)}",
        ]
    if has_answer:
        raise InvalidRequestError(
            'must be "none" if the answer is constrained: this model\'s calls cannot be distinguished from answers',
            "tool_choice",
        )
    return ["turn: lead rest | SAID", r"SAID: /([^{](.|\n)*)?/"]


def _lark_string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _arguments_schema(tool: ToolDefinition) -> Mapping[str, Any]:
    """Return the schema of a tool's arguments for llguidance.

    Formats that llguidance does not support are removed. If the schema lists properties, further
    properties are excluded, unless it has ``additionalProperties`` itself.
    """
    schema = without_unknown_formats(dict(tool.parameters))
    options = schema.get("x-guidance")
    style = {**(options if isinstance(options, dict) else {}), **_PYTHON_JSON_STYLE}
    closed = {"additionalProperties": False} if "properties" in schema else {}
    return {**closed, **schema, "x-guidance": style}


def _answer_rules(request: GenerationRequest, field: str) -> str:
    """Return the request's own constraint as Lark rules, whose start rule is named ``answer``.

    Args:
        request: a request with a constraint.
        field: the name of the field of `request` that contains the constraint.

    Raises:
        InvalidRequestError: the grammar of the request is GBNF.
    """
    if field == "choice":
        return "answer: " + " | ".join(map(_lark_string, getattr(request, field)))
    grammar = grammar_source(request).to_lark()
    if field == "grammar" and guidance_module().GBNF.search(grammar):
        raise InvalidRequestError(
            "must be Lark, not GBNF, in a conversation with tools or reasoning", field
        )
    return _LARK_START.sub(lambda match: "answer" if match[0] == "start" else match[0], grammar)
