"""Grammars of turns: calls that fit their schemas in a syntax, and answers behind thoughts."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.chat.conversation import Conversation, ToolDefinition
from relevance_gen.generation.constraints.json_schemas import without_unknown_formats
from relevance_gen.generation.constraints.token_constraint import (
    NAMED_FOR,
    guidance_module,
    source_of,
)
from relevance_gen.generation.output_parsing.tool_call_formats import ToolCallFormat
from relevance_gen.generation.queue.request import GRAMMAR_FIELDS, MAX_GRAMMAR_CHARACTERS
from relevance_gen.types import GenerationRequest

_AS_PYTHON: Final = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""Templates write arguments as Python's json does: so the next prompt repeats what the model has written."""
_ANY_TEXT: Final = r"/(.|\n)*/"
_SPACE: Final = r"/\s{0,4}/"
_START: Final = re.compile(r'//[^\n]*|"(?:\\.|[^"\\])*"|/(?:\\.|[^/\\\n])*/|\bstart\b')


def grammar_of(
    conversation: Conversation,
    request: GenerationRequest,
    syntax: ToolCallFormat | None,
    thought_end: str,
) -> dict[str, Any]:
    """Return what a turn in a conversation must be, as fields of a `GenerationRequest` to change.

    The request may say what the answer must be; where there has to be a call, that says nothing. Tools are called in
    the syntax, or not at all, and `thought_end` ends the thoughts that the turn begins with; it is empty where it does
    not. It raises an `InvalidRequestError` where answers and calls cannot be told apart.
    """
    field = next((name for name in GRAMMAR_FIELDS if getattr(request, name) is not None), None)
    choice, tools = conversation.choice, conversation.callable if syntax else ()
    must_call = bool(tools) and choice.mode == "required"
    may_only = bool(tools) and (
        field is not None or not choice.is_parallel or any(tool.strict for tool in tools)
    )
    if not must_call and not may_only and not (thought_end and field):
        return {}
    rules = ["start: thought SPACE turn" if thought_end else "start: turn"]
    if thought_end:
        rules += [
            f"thought[lazy]: ANY {_quoted(thought_end)}",
            f"SPACE: {_SPACE}",
            f"ANY: {_ANY_TEXT}",
        ]
    if field is not None and not must_call:
        rules.append(_answer(request, field))
    if not tools or syntax is None:
        rules.append("turn: answer")
    else:
        is_checked = must_call or any(tool.strict for tool in tools)
        fields = conversation.schema_fields if is_checked else None
        rules += _calls(tools, syntax, fields, is_parallel=choice.is_parallel)
        rules += _turn(syntax, must_call=must_call, has_answer=field is not None)
    named = "tools" if tools else str(field)
    text = NAMED_FOR.format(named) + "\n".join(rules)
    if len(text) > MAX_GRAMMAR_CHARACTERS:
        raise InvalidRequestError(
            f"must hold at most {MAX_GRAMMAR_CHARACTERS:,} characters as a grammar", named
        )
    return {**dict.fromkeys(GRAMMAR_FIELDS), "grammar": text}


def _calls(
    tools: tuple[ToolDefinition, ...],
    syntax: ToolCallFormat,
    fields: Mapping[str, str] | None,
    *,
    is_parallel: bool,
) -> list[str]:
    """Return the rules of calls, the first without the rule ``lead``; with `fields` they fit the schemas so called."""
    more = f"({_quoted(syntax.separator + syntax.before)} one)*" if is_parallel else ""
    rules = [
        f"rest: one {more} {_quoted(syntax.closing)}",
        f"lead: {_quoted(syntax.opening + syntax.before)}",
    ]
    rules.append("one: " + " | ".join(f"one{place}" for place in range(len(tools))))
    for place, tool in enumerate(tools):
        schema = json.dumps(
            {"type": "object", "x-guidance": _AS_PYTHON} if fields is None else _schema(tool)
        )
        if fields is not None:
            rules.append(NAMED_FOR.format(fields.get(tool.name, "tools")).rstrip())
        rules.append(
            f"one{place}: {_quoted(tool.name + syntax.between)} %json {schema} {_quoted(syntax.after)}".rstrip()
        )
    return rules


def _turn(syntax: ToolCallFormat, *, must_call: bool, has_answer: bool) -> list[str]:
    """Return the rules of a turn: calls, or also what may come in their place or before them."""
    lead = syntax.opening + syntax.before
    if must_call:
        return ["turn: lead rest"]
    if not lead.startswith("{"):
        if has_answer:
            return ["turn: lead rest | answer"]
        return [f"turn: SAID | said rest\nSAID: {_ANY_TEXT}\nsaid[lazy]: SAID {_quoted(lead)}"]
    if has_answer:
        why = "must be none where the answer must have a form: this model's calls cannot be told from it"
        raise InvalidRequestError(why, "tool_choice")
    return [r"turn: lead rest | SAID", r"SAID: /([^{](.|\n)*)?/"]


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""


def _schema(tool: ToolDefinition) -> Mapping[str, Any]:
    """Return the schema of a tool's arguments, which has no others than it names."""
    schema = without_unknown_formats(dict(tool.parameters))
    closed = {"additionalProperties": False} if "properties" in schema else {}
    options = schema.get("x-guidance")
    return {
        **closed,
        **schema,
        "x-guidance": {**(options if isinstance(options, dict) else {}), **_AS_PYTHON},
    }


def _answer(request: GenerationRequest, field: str) -> str:
    """Return the rules of a request's own grammar, which begin with ``answer``."""
    value = getattr(request, field)
    if field == "choice":
        return "answer: " + " | ".join(map(_quoted, value))
    text = source_of(request).lark()
    if field == "grammar" and guidance_module().GBNF.search(text):
        raise InvalidRequestError(
            "must be Lark, and not GBNF, where a turn may have calls or thoughts", field
        )
    return _START.sub(lambda found: "answer" if found[0] == "start" else found[0], text)
