"""Conversations in the form that all API adapters share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.chat.conversation import (
    Conversation,
    ToolChoice,
    ToolDefinition,
    check_calls,
    choice_of,
    tools_of,
)
from relevance_gen.generation.output_parsing.output_parser import finish_reason_of, merge_parts
from relevance_gen.types import ContentPart

SEARCH, FETCH = ToolDefinition("search", "Find texts."), ToolDefinition("fetch")


def function(name, **more):
    """Return a tool in OpenAI's format."""
    return {"type": "function", "function": {"name": name, **more}}


def test_tools_of_openai_format_uses_defaults():
    """Defaults are an empty description, no arguments, and not strict."""
    schema = {"type": "object", "properties": {"q": {"type": "string"}}}
    assert tools_of([function("search", description="Find texts."), FETCH]) == (SEARCH, FETCH)
    assert tools_of([function("f", parameters=schema, strict=True)]) == (
        ToolDefinition("f", "", schema, strict=True),
    )
    assert FETCH.to_template_value() == function(
        "fetch", description="", parameters={"type": "object", "properties": {}}
    )
    assert tools_of(()) == ()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ("search", "tools"),
        ([function("f")] * 513, "tools"),
        ([1], "tools[0]"),
        ([{"type": "web_search"}], "tools[0]"),
        ([function("f"), {"type": "function"}], "tools[1].function"),
        ([function("f"), function("f")], "tools[1]"),
        ([function("")], "tools[0].function.name"),
        ([function("größe")], "tools[0].function.name"),
        ([function("f" * 129)], "tools[0].function.name"),
        ([function("f", description=7)], "tools[0].function.description"),
        ([function("f", parameters=[1])], "tools[0].function.parameters"),
        ([function("f", parameters={"type": "array"})], "tools[0].function.parameters"),
        ([function("f", strict="yes")], "tools[0].function.strict"),
    ],
    ids=str,
)
def test_tools_of_invalid_tool_error_names_the_field(given, field):
    """The error names the field as clients of OpenAI know it."""
    with pytest.raises(InvalidRequestError) as caught:
        tools_of(given)
    assert caught.value.field == field


def test_choice_of_accepts_mode_function_and_allowed_tools():
    """A choice is a mode, a function, or a list of allowed tools."""
    tools = (SEARCH, FETCH)
    assert choice_of(None, tools) == choice_of("auto", tools) == ToolChoice()
    assert choice_of("none", ()) == ToolChoice("none")
    assert choice_of("required", tools, is_parallel=False) == ToolChoice(
        "required", (), is_parallel=False
    )
    named = {"type": "function", "function": {"name": "fetch"}}
    assert choice_of(named, tools) == ToolChoice("required", ("fetch",), is_parallel=False)
    allowed = {
        "type": "allowed_tools",
        "allowed_tools": {"mode": "required", "tools": [function("search")]},
    }
    assert choice_of(allowed, tools) == ToolChoice("required", ("search",))
    assert (
        choice_of(ToolChoice("required", ("search",)), tools, is_parallel=False).is_parallel
        is False
    )
    assert Conversation((), tools, choice_of(named, tools)).callable_tools == (FETCH,)
    assert Conversation((), tools, ToolChoice("none")).callable_tools == ()
    assert Conversation((), tools).callable_tools == tools


@pytest.mark.parametrize(
    "given",
    [
        "any",
        1,
        [],
        {"type": "function"},
        {"type": "function", "function": {"name": 1}},
        {"type": "function", "function": {"name": "other"}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "none", "tools": [function("search")]}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["search"]}},
        {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [{"function": 5}]}},
        {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto", "tools": [{"function": {"name": []}}]},
        },
        {"type": ["function"]},
    ],
    ids=str,
)
def test_choice_of_invalid_or_unknown_tool_is_rejected(given):
    """An invalid choice and a choice of an unknown tool are errors."""
    with pytest.raises(InvalidRequestError) as caught:
        choice_of(given, (SEARCH,))
    assert caught.value.field == "tool_choice"
    with pytest.raises(InvalidRequestError):
        choice_of("required", ())


def test_check_calls_accepts_string_and_object_arguments():
    """Arguments may be a string or an object, and the id may be missing."""
    call = {"function": {"name": "search", "arguments": "{}"}}
    check_calls({"role": "assistant", "tool_calls": [call, {**call, "id": "1"}]}, "messages[0]")
    check_calls(
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {}}}]},
        "messages[0]",
    )
    for wrong in ({}, 1, {"function": {"name": "f"}}, {"function": {"name": 1, "arguments": ""}}):
        with pytest.raises(InvalidRequestError) as caught:
            check_calls({"role": "assistant", "tool_calls": [call, wrong]}, "messages[3]")
        assert caught.value.field == "messages[3].tool_calls[1]"


texts = st.text(max_size=4)


@given(
    st.lists(
        st.tuples(st.sampled_from(["text", "reasoning", "tool_call"]), st.lists(texts, max_size=3)),
        max_size=4,
    )
)
def test_merge_parts_joins_pieces_by_place(expected_parts):
    """Each part has its place and the joined texts of its pieces."""
    pieces = [
        ContentPart(kind, text, place)
        for place, (kind, texts) in enumerate(expected_parts)
        for text in ["", *texts]
    ]
    parts = tuple(
        ContentPart(kind, "".join(texts), place)
        for place, (kind, texts) in enumerate(expected_parts)
    )
    assert merge_parts(pieces) == merge_parts(parts) == parts


def test_finish_reason_of_calls_is_tool_calls():
    """The exceptions are the length limit and a call that is truncated by a stop string or by the model."""
    call = ContentPart("tool_call", "{}", 0, "search", "1")
    assert finish_reason_of("eos", [call]) == finish_reason_of("stop", [call]) == "tool_calls"
    assert finish_reason_of("length", [call]) == "length"
    for text in ("", '{"query": "a', '"a"'):
        cut = ContentPart("tool_call", text, 1, "search", "2")
        assert [finish_reason_of(reason, [call, cut]) for reason in ("stop", "eos")] == [
            "stop",
            "eos",
        ]
        assert finish_reason_of("stop", [cut, ContentPart("text", "So.", 2)]) == "tool_calls"
    assert finish_reason_of("eos", [ContentPart("text", "")]) == "eos"
