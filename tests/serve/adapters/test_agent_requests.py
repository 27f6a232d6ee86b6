"""Requests with the fields that Codex, Claude Code and Anthropic's tool runners send, shortened by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from relevance_gen.errors import InvalidRequestError
from relevance_gen.serve.adapters.anthropic import blocks, messages
from relevance_gen.serve.adapters.openai import chat, requests, responses, tools
from relevance_gen.serve.adapters.shared import Problem
from relevance_gen.types import Completion, ContentPart, GenerationResponse

REQUESTS = Path(__file__).with_name("requests")


def request_of(name: str, **fields: Any) -> dict[str, Any]:
    """Return a request from its file with some fields replaced."""
    body: dict[str, Any] = json.loads((REQUESTS / f"{name}.json").read_text())
    return {**body, **fields}


def ended(*parts: ContentPart, reason: Any = "tool_calls") -> tuple[GenerationResponse, ...]:
    """Return the response whose only sample is a turn of some parts."""
    completion = Completion("", 3, 9.0, reason, parts=parts)
    return (GenerationResponse(8.0, 9.0, 1, "a prompt", 7, (completion,)),)


def event_data(written: bytes) -> list[dict[str, Any]]:
    """Return the data of server-sent events."""
    lines = [line for line in written.decode().split("\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def stream_of(events: Any, pieces: Sequence[ContentPart]) -> list[dict[str, Any]]:
    """Return the data of the events of a turn that is streamed in pieces."""
    texts: dict[int, str] = {}
    parts: dict[int, ContentPart] = {}
    written = b""
    for piece in pieces:
        written += events.text(0, piece)
        texts[piece.index] = texts.get(piece.index, "") + piece.text
        parts[piece.index] = piece
    whole = [
        ContentPart(part.kind, texts[place], place, part.name, part.id)
        for place, part in parts.items()
    ]
    return event_data(written + events.end(ended(*whole)))


def test_codex_request_offers_functions_under_flat_names() -> None:
    """Hosted tools are skipped, and custom tools take one text."""
    task, _ = responses.read(request_of("codex"))
    conversation = task.conversation
    assert [tool.name for tool in conversation.tools] == [
        "exec_command",
        "apply_patch",
        "multi_agent_v1__spawn_agent",
        "mcp__search__search",
    ]
    patch = conversation.tools[1]
    assert patch.parameters["required"] == ["input"]
    assert patch.description.endswith('start: "*** Begin Patch" LF "*** End Patch"')
    assert conversation.tools[3].schema_field == "tools[6].tools[0].parameters"


def test_codex_history_names_functions_as_they_are_offered() -> None:
    """Earlier calls of a namespace and of a custom tool are calls of the offered functions."""
    task, _ = responses.read(request_of("codex"))
    calls = [
        call["function"]
        for message in task.conversation.messages
        for call in message.get("tool_calls", ())
    ]
    assert calls[0] == {"name": "mcp__search__search", "arguments": '{"question":"ferry"}'}
    assert calls[1]["name"] == "apply_patch"
    assert calls[1]["arguments"] == {"input": "*** Begin Patch\n*** End Patch"}
    results = [message for message in task.conversation.messages if message["role"] == "tool"]
    assert [result["content"] for result in results] == ["ferry.md:1-2", "Done"]


def test_call_of_namespace_is_split_into_name_and_namespace() -> None:
    """Items in events and in the whole response name the client's tool."""
    _, events = responses.read(request_of("codex"))
    pieces = [
        ContentPart("tool_call", '{"question"', 0, "mcp__search__search", "call_1"),
        ContentPart("tool_call", ':"ferry"}', 0, "mcp__search__search", "call_1"),
    ]
    data = stream_of(events, pieces)
    items = [event["item"] for event in data if "item" in event]
    for item in (*items, data[-1]["response"]["output"][0]):
        assert (item["type"], item["name"], item["namespace"]) == (
            "function_call",
            "search",
            "mcp__search",
        )
    assert items[-1]["arguments"] == '{"question":"ferry"}'
    done = [event for event in data if event["type"] == "response.function_call_arguments.done"]
    assert [event["name"] for event in done] == ["search"]


def test_call_of_custom_tool_is_a_text() -> None:
    """The arguments of the function are written as the text of a custom tool call."""
    _, events = responses.read(request_of("codex"))
    pieces = [
        ContentPart("tool_call", '{"input": "*** Be', 0, "apply_patch", "call_1"),
        ContentPart("tool_call", 'gin\\nPatch"}', 0, "apply_patch", "call_1"),
    ]
    data = stream_of(events, pieces)
    assert [event["type"].removeprefix("response.") for event in data] == [
        *("created", "in_progress", "output_item.added"),
        *("custom_tool_call_input.delta", "custom_tool_call_input.done"),
        *("output_item.done", "completed"),
    ]
    assert (data[3]["delta"], data[4]["input"]) == ("*** Begin\nPatch",) * 2
    assert data[2]["item"]["input"] == ""
    item = data[-1]["response"]["output"][0]
    assert data[5]["item"] == item
    assert (item["type"], item["name"], item["input"]) == (
        "custom_tool_call",
        "apply_patch",
        "*** Begin\nPatch",
    )
    assert "arguments" not in item
    from openai.types.responses import Response

    assert Response.model_validate(data[-1]["response"]).output[0].type == "custom_tool_call"


def test_truncated_call_of_custom_tool_is_incomplete() -> None:
    """Arguments that cannot be read are passed on as they are."""
    _, write = responses.read(request_of("codex", stream=False))
    part = ContentPart("tool_call", '{"input": "*** Be', 0, "apply_patch", "call_1")
    (item,) = write(ended(part, reason="length"))["output"]
    assert (item["status"], item["input"]) == ("incomplete", '{"input": "*** Be')


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "custom", "name": "apply_patch"}, ("apply_patch",)),
        (
            {"type": "function", "name": "search", "namespace": "mcp__search"},
            ("mcp__search__search",),
        ),
        ({"type": "function", "name": "exec_command"}, ("exec_command",)),
    ],
    ids=["custom", "namespace", "function"],
)
def test_tool_choice_names_tool_of_client(choice: dict[str, str], names: tuple[str, ...]) -> None:
    """The response repeats the choice as the client wrote it."""
    task, write = responses.read(request_of("codex", stream=False, tool_choice=choice))
    assert task.conversation.choice.names == names
    assert write(ended())["tool_choice"] == choice


def test_custom_tool_with_regular_expression_is_constrained() -> None:
    """The expression is part of the schema, as the text must match it completely."""
    custom = {
        "type": "custom",
        "name": "date",
        "format": {"type": "grammar", "syntax": "regex", "definition": r"\d{4}|none"},
    }
    (function,) = [tool.function for tool in tools.client_tools([custom])]
    assert function.strict
    assert function.parameters["properties"]["input"]["pattern"] == r"^(?:\d{4}|none)$"


@pytest.mark.parametrize(
    ("tool", "field"),
    [
        ({"type": "mcp", "server_label": "x"}, "tools[0]"),
        ({"type": "namespace", "name": "a", "tools": [{"type": "namespace"}]}, "tools[0].tools[0]"),
        (
            {"type": "namespace", "name": "a", "tools": [{"type": "function"}]},
            "tools[0].tools[0].name",
        ),
        ({"type": "custom", "name": "a", "format": {"type": "json"}}, "tools[0].format"),
        ({"type": "namespace", "name": "a"}, "tools[0]"),
        ("x", "tools[0]"),
    ],
    ids=["mcp", "nested", "no name", "format", "no tools", "no object"],
)
def test_unsupported_tool_is_refused_by_its_path(tool: object, field: str) -> None:
    """Tools that neither the model nor this server can use are errors."""
    with pytest.raises(InvalidRequestError) as raised:
        responses.read({"input": "hello", "tools": [tool]})
    assert raised.value.field == field


def test_billing_line_of_claude_code_does_not_change_the_prompt() -> None:
    """Requests that differ in that line alone have the same prompt; hosted tools are skipped."""
    first, second = request_of("claude_code"), request_of("claude_code")
    second["system"][0]["text"] = first["system"][0]["text"].replace("cch=00000", "cch=f3a91")
    task, other_task = messages.read(first)[0], messages.read(second)[0]
    assert task.conversation == other_task.conversation
    assert task.conversation.messages[0]["content"] == "You are Claude Code."
    assert [tool.name for tool in task.conversation.tools] == ["Bash"]
    assert task.conversation.tools[0].schema_field == "tools[1].input_schema"


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        ("x-anthropic-billing-header: cch=1;\nBe brief.", "Be brief."),
        (
            "Never send x-anthropic-billing-header: cch=1;",
            "Never send x-anthropic-billing-header: cch=1;",
        ),
    ],
    ids=["first line", "within a text"],
)
def test_billing_line_is_dropped_only_at_the_start(system: str, expected: str) -> None:
    """A text that mentions the header later is unchanged."""
    task, _ = messages.read(request_of("claude_code", system=system))
    assert task.conversation.messages[0]["content"] == expected


RESULT = {
    "type": "search_result",
    "title": "Timetable",
    "source": "https://example.org/ferry",
    "content": [{"type": "text", "text": "The ferry leaves at nine."}],
    "citations": {"enabled": True},
}


@pytest.mark.parametrize("is_nested", [False, True], ids=["in the message", "in a tool result"])
def test_search_result_is_read(is_nested: bool) -> None:
    """Search results are read with title and source."""
    block = RESULT
    if is_nested:
        block = {"type": "tool_result", "tool_use_id": "toolu_1", "content": [RESULT]}
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": [block]}]}
    task, _ = messages.read(body)
    content = task.conversation.messages[0]["content"]
    assert content == "Timetable\nhttps://example.org/ferry\nThe ferry leaves at nine."


@pytest.mark.parametrize("kind", ["create", "continue"])
def test_thread_is_refused_with_code_of_tool_runners(kind: str) -> None:
    """Tool runners continue with the whole conversation after this code."""
    with pytest.raises(InvalidRequestError, match="thread is not supported") as raised:
        messages.read(request_of("tool_runner", thread={"type": kind}))
    error = blocks.error(Problem("invalid_request", str(raised.value), raised.value.field))["error"]
    assert error["type"] == "invalid_request_error"
    assert error["details"]["error_code"] == "thread_unsupported_request"


def test_null_thread_is_accepted() -> None:
    """Null is the default of every field."""
    messages.read(request_of("tool_runner", thread=None))


def test_full_context_has_the_code_of_openai() -> None:
    """The type stays the documented type."""
    error: Any = requests.error(
        Problem("context_length_exceeded", "messages is too long", "messages")
    )
    assert (error["error"]["type"], error["error"]["code"]) == (
        "invalid_request",
        "context_length_exceeded",
    )


@pytest.mark.parametrize(("kind", "content"), [("tool_call", None), ("text", "")])
def test_first_delta_of_chat_has_null_content_before_a_call(kind: Any, content: str | None) -> None:
    """Clients show an empty text part otherwise."""
    _, events = chat.read({"messages": [{"role": "user", "content": "hi"}], "stream": True})
    name = "search" if kind == "tool_call" else ""
    first, *_ = event_data(events.text(0, ContentPart(kind, "{}", 0, name, "call_1")))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": content}
