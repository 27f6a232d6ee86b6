"""Conversations as all dialects say them."""

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
from relevance_gen.generation.output_parsing.content_parts import finish_reason_of, merge_parts
from relevance_gen.types import ContentPart

SEARCH, FETCH = ToolDefinition("search", "Find texts."), ToolDefinition("fetch")


def function(name, **more):
    """Return a tool of OpenAI's form."""
    return {"type": "function", "function": {"name": name, **more}}


def test_tools_are_read_as_openai_has_them():
    """What is left out is what it says: no description, no arguments, not strict."""
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
def test_tools_that_are_none_are_named(given, field):
    """An error names the field as OpenAI's clients know it."""
    with pytest.raises(InvalidRequestError) as caught:
        tools_of(given)
    assert caught.value.field == field


def test_a_choice_says_which_tools_are_called():
    """A mode, one function, or some that are allowed."""
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
    assert Conversation((), tools, choice_of(named, tools)).callable == (FETCH,)
    assert Conversation((), tools, ToolChoice("none")).callable == ()
    assert Conversation((), tools).callable == tools


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
def test_a_choice_that_is_none_is_refused(given):
    """And so is one of what is not there."""
    with pytest.raises(InvalidRequestError) as caught:
        choice_of(given, (SEARCH,))
    assert caught.value.field == "tool_choice"
    with pytest.raises(InvalidRequestError):
        choice_of("required", ())


def test_calls_in_messages_are_checked():
    """Arguments may be a text or an object, and an id may be missing."""
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
def test_pieces_put_together_are_the_parts(told):
    """Each part has its place, and the texts of all its pieces."""
    pieces = [
        ContentPart(kind, text, place)
        for place, (kind, texts) in enumerate(told)
        for text in ["", *texts]
    ]
    parts = tuple(
        ContentPart(kind, "".join(texts), place) for place, (kind, texts) in enumerate(told)
    )
    assert merge_parts(pieces) == merge_parts(parts) == parts


def test_calls_end_a_turn():
    """Unless it was cut off by the length, or within a call: by a stop string, or because the model left it there."""
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
