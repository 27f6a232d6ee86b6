"""Tests of turns in OpenAI's responses and Anthropic's messages, checked with their clients."""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relevance_gen.errors import BusyError, InvalidRequestError, TooLargeError
from relevance_gen.generation.chat.conversation import ToolChoice
from relevance_gen.generation.output_parsing.output_parser import finish_reason_of, merge_parts
from relevance_gen.request_scope import budget_scope
from relevance_gen.serve.adapters.anthropic import blocks, messages
from relevance_gen.serve.adapters.openai import chat, responses
from relevance_gen.serve.adapters.shared import Problem
from relevance_gen.types import Completion, ContentPart, GenerationResponse

HELLO = {"role": "user", "content": "hello"}
SEARCH = {"type": "object", "properties": {"query": {"type": "string"}}, "required": ["query"]}

texts = st.text(st.characters(codec="utf-8"), max_size=8)
calls = st.dictionaries(
    st.text(max_size=3), st.none() | st.integers(-9, 9) | texts, max_size=3
).map(json.dumps)


@st.composite
def turns(draw: st.DrawFn) -> list[ContentPart]:
    """Draw the pieces of a turn: its parts, each cut anywhere."""
    pieces = []
    for place, kind in enumerate(
        draw(st.lists(st.sampled_from(["text", "reasoning", "tool_call"]), max_size=4))
    ):
        text = draw(calls if kind == "tool_call" else texts.filter(bool))
        name, call_id = ("search", f"call{place}") if kind == "tool_call" else ("", "")
        cuts = [0, *sorted(draw(st.lists(st.integers(0, len(text)), max_size=3))), len(text)]
        pieces += [
            ContentPart(kind, text[a:b], place, name, call_id) for a, b in itertools.pairwise(cuts)
        ]
    return pieces


def outcome(
    pieces: Sequence[ContentPart], reason: str = "eos", stop_string: str = ""
) -> tuple[GenerationResponse, ...]:
    """Return the response to a turn that consists of the pieces."""
    parts = merge_parts(pieces)
    text = "".join(part.text for part in parts if part.kind == "text")
    reason = finish_reason_of(reason, parts)
    completion = Completion(
        text, 3, 9.0, reason, parts=parts, stop_string=stop_string, reasoning_tokens=2
    )
    return (GenerationResponse(8.0, 9.0, 1, "a prompt", 7, (completion,), reused_tokens=4),)


def events(
    stream: Any, pieces: Sequence[ContentPart], ended: tuple[GenerationResponse, ...]
) -> list[dict[str, Any]]:
    """Return the data of a stream's events, each of which is named as its data are."""
    sent = b"".join([*(stream.text(0, piece) for piece in pieces), stream.end(ended)]).decode()
    found = []
    for event in sent.split("\n\n")[:-1]:
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def of_responses(**more: Any) -> Any:
    """Return what words the stream of a response."""
    return responses.read({"input": "hello", "stream": True, **more})[1]


def of_messages(**more: Any) -> Any:
    """Return what words the stream of a message."""
    return messages.read({"messages": [HELLO], "max_tokens": 3, "stream": True, **more})[1]


@given(pieces=turns(), reason=st.sampled_from(["eos", "length"]))
@example(pieces=[], reason="eos")
def test_openai_client_accumulates_events_to_response(
    pieces: list[ContentPart], reason: str
) -> None:
    """The client's accumulated response, the finished items and the last event are equal."""
    stream = of_responses(include=["reasoning.encrypted_content"])
    ended = outcome(pieces, reason)
    # Imported in the function, because the import is slow and each test process reads this file.
    import openai.lib.streaming.responses._responses as openais
    from openai import omit
    from openai.types.responses import Response, ResponseStreamEvent

    state: Any = openais.ResponseStreamState(input_tools=omit, text_format=omit)
    reported = events(stream, pieces, ended)
    for data in reported:
        snapshot = None
        state.handle_event(openais.construct_type_unchecked(type_=ResponseStreamEvent, value=data))
        snapshot = state._ResponseStreamState__current_snapshot
    whole = stream.full_response(ended)
    assert reported[-1] == {
        **reported[-1],
        "type": f"response.{whole['status']}",
        "response": whole,
    }
    assert [
        data["item"] for data in reported if data["type"] == "response.output_item.done"
    ] == whole["output"]
    assert [data["sequence_number"] for data in reported] == list(range(len(reported)))
    assert Response.model_validate(whole).usage.output_tokens_details.reasoning_tokens == 2
    for item, said in zip(snapshot.output, whole["output"], strict=True):
        if item.type == "message":
            assert item.content[0].text == said["content"][0]["text"]
        if item.type == "function_call":
            assert (item.arguments, item.call_id, item.name) == (
                said["arguments"],
                said["call_id"],
                "search",
            )


@given(pieces=turns(), reason=st.sampled_from(["eos", "length", "stop"]))
@example(pieces=[], reason="eos")
def test_anthropic_client_accumulates_events_to_message(
    pieces: list[ContentPart], reason: str
) -> None:
    """The client's accumulator has the blocks, reason and usage of the complete message."""
    import anthropic.lib.streaming._messages as anthropics
    from anthropic.types import Message

    stream = of_messages()
    ended = outcome(pieces, reason, stop_string="x" if reason == "stop" else "")
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in events(stream, pieces, ended):
        snapshot = anthropics.accumulate_event(
            event=event, current_snapshot=snapshot, json_bufs=buffers
        )
    whole = Message.model_validate(stream.full_response(ended))
    assert [block.to_dict() for block in snapshot.content] == [
        block.to_dict() for block in whole.content
    ]
    assert snapshot.usage.to_dict() == whole.usage.to_dict()
    assert (snapshot.stop_reason, snapshot.stop_sequence) == (
        whole.stop_reason,
        whole.stop_sequence,
    )


STORY = "It rained. Cats purr at night. Ünder the 🌙 cows moo loudly!"
TALES = [
    {"type": "text", "text": "Bees dance in the sun. They hum."},
    {"type": "text", "text": "Dogs bark."},
]
DOCUMENTS = [
    {
        "type": "document",
        "source": {"type": "text", "media_type": "text/plain", "data": "Cats purr at night."},
    },
    {
        "type": "document",
        "title": "A story",
        "citations": {"enabled": True},
        "source": {"type": "text", "data": STORY},
    },
    {
        "type": "document",
        "citations": {"enabled": True},
        "source": {"type": "content", "content": TALES},
    },
]
"""The first is not to be cited."""
SAID = (
    *(
        "Cats purr at night.",
        "Cows moo loudly!",
        "Bees dance in the sun.",
        "Nobody knows Napoleon.",
        "Dogs bark.",
    ),
    *("They hum.", "Cats purr and bees dance.", "\n\n", "🌙", "..."),
)


def of_cited(**more: Any) -> Any:
    """Return what words the stream of a message that is cited from the documents."""
    return of_messages(
        messages=[{"role": "user", "content": [*DOCUMENTS, {"type": "text", "text": "What?"}]}],
        **more,
    )


def cited_blocks(stream: Any, pieces: Sequence[ContentPart]) -> list[dict[str, Any]]:
    """Return what Anthropic's own accumulator makes of the blocks of a stream."""
    import anthropic.lib.streaming._messages as anthropics

    snapshot: Any = None
    for event in events(stream, pieces, outcome(pieces)):
        snapshot = anthropics.accumulate_event(event=event, current_snapshot=snapshot, json_bufs={})
    return [block.to_dict() for block in snapshot.content]


@given(data=st.data(), said=st.lists(st.sampled_from(SAID), min_size=1, max_size=8).map(" ".join))
def test_cited_blocks_join_to_text_with_valid_spans(data: st.DataObject, said: str) -> None:
    """For any split, the blocks join to the text, and each citation matches its document."""
    cuts = [0, *sorted(data.draw(st.lists(st.integers(0, len(said)), max_size=6))), len(said)]
    found = cited_blocks(
        of_cited(), [ContentPart("text", said[a:b]) for a, b in itertools.pairwise(cuts)]
    )
    assert "".join(block["text"] for block in found) == said
    for block in found:
        for one in block.get("citations") or ():
            if one["type"] == "char_location":
                assert (one["document_index"], one["document_title"], one["file_id"]) == (
                    1,
                    "A story",
                    None,
                )
                assert one["cited_text"] == STORY[one["start_char_index"] : one["end_char_index"]]
            else:
                assert (one["document_index"], one["document_title"], one["file_id"]) == (
                    2,
                    None,
                    None,
                )
                assert one["end_block_index"] == one["start_block_index"] + 1
                assert one["cited_text"] == TALES[one["start_block_index"]]["text"]
    from anthropic.types import Message

    pieces = [ContentPart("text", said)]
    whole = Message.model_validate(of_cited().full_response(outcome(pieces)))
    assert [block.to_dict() for block in whole.content] == cited_blocks(of_cited(), pieces)


def test_each_sentence_has_block_with_citations() -> None:
    """Reasoning and unsupported sentences have no citation; a document block is cited whole."""
    said = "Cats purr at night. Nobody knows Napoleon. Bees dance in the sun and hum."
    hidden = "Cats purr at night."
    pieces = [
        ContentPart("reasoning", hidden, 0),
        *(ContentPart("text", letter, 1) for letter in said),
        ContentPart("text", "Dogs bark.", 2),
    ]
    thought, cats, nobody, bees, dogs = cited_blocks(of_cited(), pieces)
    assert thought == {"type": "thinking", "thinking": hidden, "signature": ""}
    assert (cats["text"], nobody["text"]) == ("Cats purr at night.", " Nobody knows Napoleon.")
    assert [citation["cited_text"] for citation in cats["citations"]] == ["Cats purr at night."]
    assert "citations" not in nobody
    assert [citation["cited_text"] for citation in bees["citations"]] == [
        "Bees dance in the sun. They hum."
    ]
    assert [
        (citation["start_block_index"], citation["cited_text"]) for citation in dogs["citations"]
    ] == [(1, "Dogs bark.")]


def test_citation_limit_keeps_text_and_earlier_citations() -> None:
    """If citing is refused, the text continues without error and earlier citations remain."""
    said = " ".join(SAID[:5])
    reported: list[list[str]] = []
    for error in (TooLargeError, BusyError):
        for n_allowed in range(30):
            left = itertools.count(n_allowed, -1)

            def expect(unit: str, number: int) -> None:
                assert number >= 0, unit
                if next(left) <= 0:  # noqa: B023
                    raise error("no room")  # noqa: B023

            with budget_scope(expect):
                found = cited_blocks(of_cited(), [ContentPart("text", said)])
            assert "".join(block["text"] for block in found) == said
            reported.append(
                [one["cited_text"] for block in found for one in block.get("citations") or ()]
            )
    assert reported[:30] == reported[30:]
    assert (reported[0], len(reported[29])) == ([], 4)
    assert all(more[: len(less)] == less for less, more in itertools.pairwise(reported[:30]))


def test_response_events_are_in_order() -> None:
    """Each part is added, streamed in deltas and finished before the next part begins."""
    pieces = [
        ContentPart("reasoning", "Hm.", 0),
        ContentPart("text", "Hello", 1),
        ContentPart("tool_call", "{}", 2, "search", "c"),
    ]
    kinds = [
        event["type"].removeprefix("response.")
        for event in events(of_responses(), pieces, outcome(pieces))
    ]
    assert kinds == [
        *("created", "in_progress"),
        *("output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.done"),
        *("content_part.done", "output_item.done"),
        *("output_item.added", "content_part.added", "output_text.delta", "output_text.done"),
        *("content_part.done", "output_item.done"),
        *(
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
        ),
        "completed",
    ]


def test_message_events_are_in_order() -> None:
    """Each block starts, is streamed in deltas and stops; its index is its position."""
    pieces = [
        ContentPart("reasoning", "Hm.", 0),
        ContentPart("text", "Hello", 1),
        ContentPart("tool_call", "{}", 2, "search", "c"),
    ]
    reported = events(of_messages(), pieces, outcome(pieces, "tool_calls"))
    assert [event["type"] for event in reported] == [
        "message_start",
        *("content_block_start", "content_block_delta", "content_block_stop") * 3,
        *("message_delta", "message_stop"),
    ]
    assert [event["index"] for event in reported if "index" in event] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert reported[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert reported[-2]["usage"] == {
        **{"input_tokens": 3, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4},
        "output_tokens": 3,
    }


def test_message_stop_reason() -> None:
    """The limit, a full context, a stop sequence and the end token give distinct stop reasons."""
    reported = [
        of_messages(max_tokens=3).full_response(outcome([], reason, by))
        for reason, by in (("eos", ""), ("stop", "x"))
    ]
    reported += [of_messages(max_tokens=n).full_response(outcome([], "length")) for n in (3, 32000)]
    assert [(one["stop_reason"], one["stop_sequence"]) for one in reported] == [
        *(("end_turn", None), ("stop_sequence", "x")),
        *(("max_tokens", None), ("model_context_window_exceeded", None)),
    ]


@pytest.mark.parametrize(
    "text", ['{"query": "wha', "", "[1]", "nothing", '{"a":' * 99 + "1" + "}" * 99]
)
def test_incomplete_call_has_empty_input(text: str) -> None:
    """The input of a tool call is an object even if the generated JSON is incomplete."""
    (block,) = of_messages().full_response(
        outcome([ContentPart("tool_call", text, 0, "search", "c")], "length")
    )["content"]
    assert block == {"type": "tool_use", "id": "c", "name": "search", "input": {}}


def test_failed_stream_ends_with_error() -> None:
    """A failed response ends with an error event and status; a message with Anthropic's error type."""
    assert b'"type":"overloaded_error","message":"busy"' in of_messages().error(
        Problem("overloaded", "busy", None)
    )
    written = of_responses().error(Problem("overloaded", "busy", "input")).decode()
    assert written.startswith("event: error\n")
    assert '"code":"overloaded","message":"busy","param":"input"' in written
    assert "event: response.failed\n" in written


# ── What agents send ──────────────────────────────────────────────────────────────────────────────


def test_codex_request_is_read() -> None:
    """Reasoning, text and calls become one assistant turn, and the web search tool is ignored."""
    packed = "base64:" + base64.b64encode(b"I must look.").decode()
    shell = {
        "type": "function",
        "name": "shell",
        "description": "Run.",
        "strict": False,
        "parameters": SEARCH,
    }
    body = {
        "model": "gpt-5-codex",
        "instructions": "You are Codex.",
        "input": [
            {
                "type": "message",
                "role": "developer",
                "content": [{"type": "input_text", "text": "Be careful."}],
            },
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "List files."}],
            },
            {"type": "reasoning", "summary": [], "content": None, "encrypted_content": packed},
            {"type": "reasoning", "summary": [], "encrypted_content": "gAAAAABm_another_server's"},
            {
                **{"type": "message", "role": "assistant", "id": "msg_1"},
                "content": [{"type": "output_text", "text": "Looking."}],
            },
            {
                "type": "function_call",
                "name": "shell",
                "arguments": '{"query":"ls"}',
                "call_id": "c1",
            },
            {
                "type": "function_call",
                "name": "shell",
                "arguments": '{"query":"pwd"}',
                "call_id": "c2",
            },
            {"type": "function_call_output", "call_id": "c1", "output": "a.txt"},
            {
                "type": "function_call_output",
                "call_id": "c2",
                "output": [{"type": "input_text", "text": "/home"}],
            },
        ],
        "tools": [{"type": "web_search", "external_web_access": False}, shell],
        **{
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"effort": "medium", "summary": "auto"},
        },
        **{
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": "x",
        },
        "text": {"verbosity": "low"},
    }
    task, _ = responses.read(body)
    assert task.conversation is not None
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "shell", "arguments": '{"query":"ls"}'},
    }
    other = {
        "id": "c2",
        "type": "function",
        "function": {"name": "shell", "arguments": '{"query":"pwd"}'},
    }
    assert list(task.conversation.messages) == [
        {"role": "system", "content": "You are Codex.\nBe careful."},
        {"role": "user", "content": "List files."},
        {
            **{"role": "assistant", "content": "Looking.", "reasoning_content": "I must look."},
            "tool_calls": [call, other],
        },
        {"role": "tool", "content": "a.txt", "tool_call_id": "c1"},
        {"role": "tool", "content": "/home", "tool_call_id": "c2"},
    ]
    assert [tool.name for tool in task.conversation.tools] == ["shell"]
    assert task.conversation.variables == {"reasoning_effort": "medium"}
    assert not task.conversation.required


def test_encrypted_reasoning_is_decoded() -> None:
    """The packed content of a reasoning item is used if its plain content is missing."""
    stream = of_responses(include=["reasoning.encrypted_content"])
    (item,) = stream.full_response(outcome([ContentPart("reasoning", "Hm, ü.", 0)]))["output"]
    for sent in ({**item, "content": None}, item):
        task, _ = responses.read({"input": [sent, HELLO]})
        assert task.conversation is not None
        assert task.conversation.messages[0]["reasoning_content"] == "Hm, ü."
    assert (
        "encrypted_content"
        not in of_responses().full_response(outcome([ContentPart("reasoning", "Hm.", 0)]))[
            "output"
        ][0]
    )


def test_claude_code_request_is_read() -> None:
    """Tool results become separate turns, and fields for caching and counting are ignored."""
    ephemeral = {"cache_control": {"type": "ephemeral"}}
    body = {
        **{
            "model": "claude-opus-4-5",
            "max_tokens": 32000,
            "stream": True,
            "metadata": {"user_id": "u"},
        },
        "system": [
            {"type": "text", "text": "You are Claude Code.", **ephemeral},
            {"type": "text", "text": "Help."},
        ],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "List files.", **ephemeral}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I must look.", "signature": ""},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "Looking."},
                    {"type": "tool_use", "id": "t1", "name": "Bash", "input": {"query": "ls"}},
                    {"type": "tool_use", "id": "t2", "name": "Bash", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "t1", "content": "a.txt"},
                    {
                        "type": "tool_result",
                        "tool_use_id": "t2",
                        "is_error": True,
                        "content": [_text("no query")],
                    },
                    {"type": "text", "text": "And now?", **ephemeral},
                ],
            },
        ],
        "tools": [
            {
                "name": "Bash",
                "description": "Run.",
                "input_schema": {"$schema": "x", **SEARCH},
                **ephemeral,
            }
        ],
        **{
            "thinking": {"type": "enabled", "budget_tokens": 31999},
            "output_config": {"effort": "max"},
        },
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    }
    task, _ = messages.read(body)
    assert task.conversation is not None
    call = {
        "id": "t1",
        "type": "function",
        "function": {"name": "Bash", "arguments": {"query": "ls"}},
    }
    other = {"id": "t2", "type": "function", "function": {"name": "Bash", "arguments": {}}}
    assert list(task.conversation.messages) == [
        {"role": "system", "content": "You are Claude Code.\nHelp."},
        {"role": "user", "content": "List files."},
        {
            **{"role": "assistant", "content": "Looking.", "reasoning_content": "I must look."},
            "tool_calls": [call, other],
        },
        {"role": "tool", "content": "a.txt", "tool_call_id": "t1"},
        {"role": "tool", "content": "Error:\nno query", "tool_call_id": "t2"},
        {"role": "user", "content": "And now?"},
    ]
    assert task.conversation.variables == {
        **{"enable_thinking": True, "thinking_budget": 31999},
        "reasoning_effort": "high",
    }
    assert (task.requests[0].max_tokens, task.requests[0].top_k) == (32000, 0)


def _text(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def test_text_documents_are_read_in_place() -> None:
    """Documents, complete or in blocks, keep their titles, contexts and positions."""
    plain = {"type": "text", "media_type": "text/plain", "data": "Cats purr."}
    blocks = {"type": "content", "content": [_text("Dogs bark."), _text("Cows moo.")]}
    said = _message(
        {
            "type": "document",
            "source": plain,
            "title": "Cats",
            "context": "A note.",
            "citations": {"enabled": False},
        },
        {"type": "document", "source": blocks, "title": None, "citations": None},
        {
            "type": "document",
            "source": {**blocks, "content": "Bees dance."},
            "cache_control": {"type": "ephemeral"},
        },
        _text("Who purrs?"),
    )
    task, _ = messages.read(said)
    assert task.conversation is not None
    (turn,) = task.conversation.messages
    assert (
        turn["content"]
        == "Cats\nA note.\nCats purr.\nDogs bark.\nCows moo.\nBees dance.\nWho purrs?"
    )


def test_final_assistant_message_is_continued() -> None:
    """A final assistant message is continued unless it has tool calls."""
    begun = {"role": "assistant", "content": [_text("In the")]}
    called = {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}],
    }
    for last, continues in ((begun, True), (called, False), (HELLO, False)):
        task, _ = messages.read({"messages": [HELLO, last]})
        assert task.conversation is not None
        assert task.conversation.continues == continues


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"type": "auto"}, ToolChoice()),
        ({"type": "none"}, ToolChoice("none")),
        (
            {"type": "any", "disable_parallel_tool_use": True},
            ToolChoice("required", is_parallel=False),
        ),
        ({"type": "tool", "name": "f"}, ToolChoice("required", ("f",))),
    ],
)
def test_anthropic_tool_choice_is_mapped(theirs: dict[str, Any], ours: ToolChoice) -> None:
    """Each Anthropic tool choice maps to a tool choice of the library."""
    task, _ = messages.read(
        {
            "messages": [HELLO],
            "tools": [{"name": "f", "input_schema": SEARCH}],
            "tool_choice": theirs,
        }
    )
    assert task.conversation is not None
    assert task.conversation.choice == ours


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("required", ToolChoice("required")),
        ({"type": "function", "name": "f"}, ToolChoice("required", ("f",), is_parallel=False)),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
            ToolChoice("auto", ("f",)),
        ),
    ],
)
def test_openai_tool_choice_is_mapped(theirs: object, ours: ToolChoice) -> None:
    """Each OpenAI tool choice maps to a tool choice of the library."""
    task, _ = responses.read(
        {"input": "x", "tools": [{"type": "function", "name": "f"}], "tool_choice": theirs}
    )
    assert task.conversation is not None
    assert task.conversation.choice == ours


def test_output_schema_reaches_generation() -> None:
    """The schema of the requested format is the schema of the generation, in both adapters."""
    form = {"type": "json_schema", "name": "x", "schema": SEARCH, "strict": True}
    task, _ = responses.read({"input": "x", "text": {"format": form}})
    assert task.requests[0].json_schema == SEARCH
    task, _ = responses.read({"input": "x", "text": {"format": {"type": "json_object"}}})
    assert task.requests[0].json_schema == {"type": "object"}
    task, _ = messages.read(
        {
            "messages": [HELLO],
            "output_config": {"format": {"type": "json_schema", "schema": SEARCH}},
        }
    )
    assert task.requests[0].json_schema == SEARCH


def test_count_request_generates_nothing() -> None:
    """The prompt tokens are counted and returned in Anthropic's format."""
    task, present = messages.read_count(
        {"messages": [HELLO], "tools": [{"name": "f", "input_schema": SEARCH}]}
    )
    assert task.context.count_only
    assert present((GenerationResponse(0.0, 0.0, 0, "", 7, ()),)) == {"input_tokens": 7}


FUNCTION = {"type": "function", "name": "f"}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": 1}, "input"),
        ({"input": ["x"]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].type"),
        ({"input": [{"type": ["x"]}]}, "input[0].type"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": ["user"], "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0]",
        ),
        ({"input": [{"role": "user", "content": [{"type": []}]}]}, "input[0].content[0]"),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": 1, "arguments": ""}]},
            "input[0].name",
        ),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input[0].output"),
        ({"input": [{"type": "reasoning", "content": [{"type": "x"}]}]}, "input[0].content[0]"),
        ({"instructions": 1}, "instructions"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"tools": {}}, "tools"),
        ({"tools": ["x"]}, "tools[0]"),
        (
            {"tools": [{"type": "web_search"}, {"type": "mcp", "server_label": "docs"}]},
            "tools[1]",
        ),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{**FUNCTION, "parameters": {"type": "string"}}]}, "tools[0].parameters"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "g"}}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"text": {"format": {"type": "xml"}}}, "text.format"),
        ({"text": {"format": 1}}, "text.format"),
        ({"reasoning": {"effort": 1}}, "reasoning.effort"),
        ({"include": ["message.output_text.logprobs"]}, "include"),
        ({"include": {"x": 1}}, "include"),
        ({"temperature": -1}, "temperature"),
        *(
            ({name: "x"}, name)
            for name in (
                "previous_response_id",
                "conversation",
                "prompt",
                "background",
                "moderation",
            )
        ),
        ({"store": True}, "store"),
        ({"truncation": "auto"}, "truncation"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"n": 2}, "n"),
    ],
)
def test_response_with_invalid_field_raises(change: dict[str, Any], field: str) -> None:
    """Invalid, stateful or unsupported fields raise an error with the client's field name."""
    with pytest.raises(InvalidRequestError) as caught:
        responses.read({"input": "hello", **change})
    assert caught.value.field == field


_NOTE = {"source": {"type": "text", "media_type": "text/plain", "data": "Cats purr."}}


def _message(*content: object, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(content)}]}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        (_message("x"), "messages[0].content[0]"),
        (_message({"type": "image"}), "messages[0].content[0]"),
        (_message({"type": "document"}), "messages[0].content[0]"),
        (
            _message({"type": "document", "source": {"type": "url"}}),
            "messages[0].content[0].source.type",
        ),
        (
            _message({"type": "document", "source": {"type": "text"}}),
            "messages[0].content[0].source.data",
        ),
        (_message({"type": "document", **_NOTE, "title": 5}), "messages[0].content[0].title"),
        (
            _message({"type": "document", **_NOTE, "citations": {"enabled": 1}}),
            "messages[0].content[0].citations",
        ),
        (
            _message({"type": "document", **_NOTE, "citations": [1]}),
            "messages[0].content[0].citations",
        ),
        (
            _message({"type": "document", **_NOTE, "citations": {"enabled": True}})
            | {"output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}}},
            "output_config.format",
        ),
        (_message({"type": "document", **_NOTE}, role="assistant"), "messages[0].content[0]"),
        (
            _message(
                {"type": "document", "source": {"type": "content", "content": [{"type": "image"}]}}
            ),
            "messages[0].content[0].source.content[0]",
        ),
        (_message({"type": "text", "text": 1}), "messages[0].content[0]"),
        (
            _message({"type": "tool_use", "id": "x", "name": "f", "input": {}}),
            "messages[0].content[0]",
        ),
        (
            _message({"type": "tool_use", "id": "x", "name": "f"}, role="assistant"),
            "messages[0].content[0]",
        ),
        (_message({"type": "tool_result"}), "messages[0].content[0]"),
        (
            _message(
                {
                    "type": "tool_result",
                    "tool_use_id": "x",
                    "content": [{"type": "text", "text": "a"}, {"type": "image"}],
                }
            ),
            "messages[0].content[0].content[1]",
        ),
        (
            _message({"type": "tool_result", "tool_use_id": "x", "content": [{"type": "image"}]}),
            "messages[0].content[0].content[0]",
        ),
        ({"system": [{"type": "image"}]}, "system[0]"),
        ({"system": 1}, "system"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_sequences": "x" * 3, "top_p": 9}, "top_p"),
        ({"stop_sequences": [1]}, "stop_sequences[0]"),
        ({"top_k": -1}, "top_k"),
        ({"model": "m" * 1025}, "model"),
        ({"tools": ["x"]}, "tools[0]"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools[0]"),
        ({"tools": [{"name": "f g"}]}, "tools[0].name"),
        ({"tools": [{"name": "f", "input_schema": {"type": "string"}}]}, "tools[0].input_schema"),
        ({"tools": [{"name": "f"}, {"name": "f"}]}, "tools[1]"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": []}}, "tool_choice"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice"),
        ({"tool_choice": {"type": "tool", "name": "g"}}, "tool_choice"),
        ({"tool_choice": "any"}, "tool_choice"),
        ({"thinking": "on"}, "thinking"),
        ({"output_config": {"effort": 1}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"mcp_servers": [{}]}, "mcp_servers"),
        ({"container": "x"}, "container"),
    ],
)
def test_message_with_invalid_field_raises(change: dict[str, Any], field: str) -> None:
    """Invalid or unsupported fields raise an error with the client's field name."""
    with pytest.raises(InvalidRequestError) as caught:
        messages.read({"messages": [HELLO], **change})
    assert caught.value.field == field


FIELDS = (
    "input",
    "messages",
    "role",
    "content",
    "type",
    "tools",
    "tool_choice",
    "name",
    "system",
    "text",
)
bodies = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(FIELDS), inner),
    max_leaves=12,
)


@pytest.mark.parametrize("read", [responses.read, messages.read, messages.read_count])
@given(body=bodies)
def test_any_body_is_read_or_rejected(read: Callable[[object], object], body: object) -> None:
    """Any JSON value is read or raises `InvalidRequestError`."""
    try:
        read(body)
    except InvalidRequestError as error:
        blocks.error(Problem("invalid_request", error.to_json_message(), error.field))


def schema_field_of(adapter: Any, body: dict[str, Any]) -> str:
    """Return the field that errors in the schema of the body's only function name."""
    (tool,) = adapter.read(body)[0].conversation.tools
    return tool.schema_field


def test_schema_errors_use_client_field_names() -> None:
    """An error in a tool's schema has the index of the tool in the client's field name."""
    schema = {"name": "f", "parameters": SEARCH}
    sent = {"messages": [HELLO], "tools": [{"type": "function", "function": schema}]}
    assert schema_field_of(chat, sent) == "tools[0].function.parameters"
    sent = {"input": "x", "tools": [{"type": "web_search"}, {"type": "function", **schema}]}
    assert schema_field_of(responses, sent) == "tools[1].parameters"
    sent = {"messages": [HELLO], "tools": [{"name": "f", "input_schema": SEARCH}]}
    assert schema_field_of(messages, sent) == "tools[0].input_schema"
