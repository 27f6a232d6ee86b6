"""Requests of agents, as they were recorded: Codex, Claude Code and Anthropic's tool runners."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from relevance_gen.errors import InvalidRequestError
from relevance_gen.serve.adapters.anthropic import blocks, messages
from relevance_gen.serve.adapters.openai import chat, requests, responses
from relevance_gen.types import ContentPart

REQUESTS = Path(__file__).with_name("requests")


def recorded(name: str, **fields: Any) -> dict[str, Any]:
    """Return a recorded request with some fields replaced."""
    body: dict[str, Any] = json.loads((REQUESTS / f"{name}.json").read_text())
    return {**body, **fields}


def event_data(written: bytes) -> list[dict[str, Any]]:
    """Return the data of server-sent events."""
    lines = [line for line in written.decode().split("\n") if line.startswith("data: {")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def test_codex_request_is_accepted() -> None:
    """The model is offered the functions; tools of other types are skipped."""
    task, _ = responses.read(recorded("codex"))
    assert [tool.name for tool in task.conversation.tools] == ["exec_command"]


def test_billing_line_of_claude_code_does_not_change_the_prompt() -> None:
    """Requests that differ in that line alone have the same prompt; hosted tools are skipped."""
    first, second = recorded("claude_code"), recorded("claude_code")
    second["system"][0]["text"] = first["system"][0]["text"].replace("cch=00000", "cch=f3a91")
    task, other_task = messages.read(first)[0], messages.read(second)[0]
    assert task.conversation == other_task.conversation
    assert task.conversation.messages[0]["content"] == "You are Claude Code."
    assert [tool.name for tool in task.conversation.tools] == ["Bash"]
    assert task.conversation.schema_fields == {"Bash": "tools[1].input_schema"}


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
    task, _ = messages.read(recorded("claude_code", system=system))
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
        messages.read(recorded("tool_runner", thread={"type": kind}))
    error = blocks.error("invalid_request", str(raised.value), raised.value.field)["error"]
    assert error["type"] == "invalid_request_error"
    assert error["details"]["error_code"] == "thread_unsupported_request"


def test_null_thread_is_accepted() -> None:
    """Null is the default of every field."""
    messages.read(recorded("tool_runner", thread=None))


def test_full_context_has_the_code_of_openai() -> None:
    """The type stays the documented type."""
    error: Any = requests.error("context_length_exceeded", "messages is too long", "messages")
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
