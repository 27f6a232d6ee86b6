"""Ollama's interface: requests become tasks, and responses become lines of JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from relevance_gen.errors import InvalidRequestError
from relevance_gen.serve.adapters import ollama
from relevance_gen.serve.adapters.shared import Problem
from relevance_gen.serve.services.generation import AS_MUCH_AS_FITS
from relevance_gen.serve.services.model_details import ModelDetails
from relevance_gen.types import Completion, ContentPart, GenerationResponse

HELLO = {"role": "user", "content": "hello"}
TOOL = {"type": "function", "function": {"name": "search", "parameters": {"type": "object"}}}


def ended(*parts: ContentPart, reason: Any = "eos") -> tuple[GenerationResponse, ...]:
    """Return the response whose only sample is a turn of some parts."""
    text = "".join(part.text for part in parts if part.kind == "text")
    completion = Completion(text, 3, 9.5, reason, parts=parts)
    return (GenerationResponse(8.0, 9.5, 1, "a prompt", 7, (completion,)),)


def lines_of(written: bytes) -> list[dict[str, Any]]:
    """Return the values of lines, each without the time of its creation."""
    assert written.endswith(b"\n")
    values = [json.loads(line) for line in written.decode().splitlines()]
    for value in values:
        assert value.pop("created_at").endswith("Z")
        assert value.pop("model") == "m"
    return values


def test_options_become_fields_of_the_request() -> None:
    """Ollama's names and defaults are translated, and options of the runtime are ignored."""
    options = {
        **{"num_predict": 4, "temperature": 0.1, "seed": 5, "stop": ["x"], "top_k": 3},
        **{"top_p": 0.5, "min_p": 0.1, "repeat_penalty": 1.5, "presence_penalty": 1},
        **{"frequency_penalty": 0.5, "num_ctx": 8192, "num_gpu": 1, "repeat_last_n": -1},
    }
    task, _ = ollama.read_chat({"messages": [HELLO], "options": options, "keep_alive": "5m"})
    (request,) = task.requests
    assert (request.max_tokens, request.seed, request.stop) == (4, 5, ("x",))
    assert (request.temperature, request.top_k, request.top_p) == (0.1, 3, 0.5)
    assert (request.min_p, request.repetition_penalty) == (0.1, 1.5)
    assert (request.presence_penalty, request.frequency_penalty) == (1, 0.5)


def test_options_have_the_defaults_of_ollama() -> None:
    """Without options, with null, and with negative limits, a turn is as long as the context allows."""
    nulls = dict.fromkeys(("temperature", "top_k", "top_p", "stop", "num_predict", "seed"))
    for options in ({}, {"num_predict": -1, "seed": -1}, nulls):
        task, events = ollama.read_chat({"messages": [HELLO], "options": options})
        (request,) = task.requests
        assert (request.temperature, request.top_k, request.top_p) == (0.8, 40, 0.9)
        assert (request.max_tokens, request.seed) == (AS_MUCH_AS_FITS, None)
        assert isinstance(events, ollama.OllamaLines)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"options": {"top_k": -1}}, "options.top_k"),
        ({"options": {"num_predict": "many"}}, "options.num_predict"),
        ({"options": {"repeat_penalty": 0}}, "options.repeat_penalty"),
        ({"options": {"mirostat": 2}}, "options.mirostat"),
        ({"options": {"seed": 0.5}}, "options.seed"),
        ({"options": []}, "options"),
        ({"format": "xml"}, "format"),
        ({"think": "much"}, "think"),
        ({"keep_alive": {}}, "keep_alive"),
        ({"tools": [[None, None]], "messages": []}, "tools[0]"),
        ({"options": {"top_k": -1}, "messages": []}, "options.top_k"),
        ({"logprobs": True}, "logprobs"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
        ({"messages": [{**HELLO, "images": ["aGk="]}]}, "messages[0].images"),
        ({"messages": [{"role": "robot"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": [1]}]}, "messages[0].content"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_invalid_field_is_refused_by_its_name(fields: dict[str, Any], field: str) -> None:
    """Errors name the client's field; images are refused because the model reads only text."""
    with pytest.raises(InvalidRequestError) as raised:
        ollama.read_chat({"messages": [HELLO], **fields})
    assert raised.value.field == field


def test_formats_are_schemas() -> None:
    """The format is a JSON schema, or any object."""
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    for format_, expected in (("json", {"type": "object"}), (schema, schema), ("", None)):
        task, _ = ollama.read_generate({"prompt": "x", "format": format_})
        assert task.requests[0].json_schema == expected


def test_results_of_tools_refer_to_calls_in_order() -> None:
    """Calls and results without ids get the same numbers; other ids are unchanged."""
    call = {"function": {"name": "search", "arguments": {"query": "ferry"}}}
    messages = [
        HELLO,
        {"role": "assistant", "content": "", "tool_calls": [call, {**call, "id": "mine"}]},
        {"role": "tool", "tool_name": "search", "content": "nine"},
        {"role": "tool", "tool_name": "search", "content": "ten", "tool_call_id": "mine"},
    ]
    task, _ = ollama.read_chat({"messages": messages, "tools": [TOOL]})
    conversation = task.conversation
    assert conversation is not None
    _, turn, first, second = conversation.messages
    assert [made["id"] for made in turn["tool_calls"]] == ["call0", "mine"]
    assert (first["tool_call_id"], first["name"]) == ("call0", "search")
    assert second["tool_call_id"] == "mine"
    assert conversation.tools[0].schema_field == "tools[0].function.parameters"


@pytest.mark.parametrize(
    ("think", "variables", "is_required"),
    [
        (True, {"enable_thinking": True}, True),
        (False, {"enable_thinking": False}, False),
        ("low", {"enable_thinking": True, "reasoning_effort": "low"}, True),
        (None, {}, False),
    ],
)
def test_think_is_a_variable_of_the_template(
    think: object, variables: dict[str, object], is_required: bool
) -> None:
    """A model that cannot think refuses to think, and accepts not to."""
    task, _ = ollama.read_chat({"messages": [HELLO], "think": think})
    assert task.conversation is not None
    assert task.conversation.variables == variables
    assert set(task.conversation.required.values()) == ({"think"} if is_required else set())


def test_stream_of_chat_has_texts_calls_and_counts() -> None:
    """Texts and thinking are written as they arrive, calls completely before the last line."""
    _, lines = ollama.read_chat({"model": "m", "messages": [HELLO], "tools": [TOOL]})
    assert isinstance(lines, ollama.OllamaLines)
    parts = (
        ContentPart("reasoning", "Hm.", 0),
        ContentPart("text", "Let me see.", 1),
        ContentPart("tool_call", '{"query": "ferry"}', 2, "search", "call_1"),
    )
    written = b"".join(lines.text(0, part) for part in parts)
    values = lines_of(written + lines.end(ended(*parts, reason="tool_calls")))
    messages = [value["message"] for value in values]
    assert messages[0] == {"role": "assistant", "content": "", "thinking": "Hm."}
    assert messages[1] == {"role": "assistant", "content": "Let me see."}
    function = {"index": 0, "name": "search", "arguments": {"query": "ferry"}}
    assert messages[2]["tool_calls"] == [{"id": "call_1", "function": function}]
    assert [value["done"] for value in values] == [False, False, False, True]
    assert {name: values[-1][name] for name in ("done_reason", "eval_count")} == {
        "done_reason": "stop",
        "eval_count": 3,
    }
    assert (values[-1]["prompt_eval_count"], values[-1]["total_duration"]) == (7, 1_500_000_000)


def test_whole_chat_is_the_stream_in_one_object() -> None:
    """Without a stream, one object has the text, the thinking, the calls and the counts."""
    _, write = ollama.read_chat({"model": "m", "messages": [HELLO], "stream": False})
    assert callable(write)
    parts = (ContentPart("reasoning", "Hm.", 0), ContentPart("text", "Nine.", 1))
    value: Any = write(ended(*parts, reason="length"))
    assert value["message"] == {"role": "assistant", "content": "Nine.", "thinking": "Hm."}
    assert (value["done"], value["done_reason"]) == (True, "length")


def test_truncated_call_is_left_out() -> None:
    """Arguments must be an object, and a truncated call has none."""
    _, write = ollama.read_chat({"model": "m", "messages": [HELLO], "stream": False})
    assert callable(write)
    part = ContentPart("tool_call", '{"query": "fe', 0, "search", "call_1")
    value: Any = write(ended(part, reason="length"))
    assert "tool_calls" not in value["message"]


def test_completion_is_a_turn_or_raw() -> None:
    """A prompt is a user's message after the system prompt, or with raw the text of the model."""
    task, lines = ollama.read_generate({"model": "m", "prompt": "Once", "system": "Be brief."})
    assert task.conversation is not None
    assert [dict(message) for message in task.conversation.messages] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Once"},
    ]
    assert isinstance(lines, ollama.OllamaLines)
    assert lines_of(lines.text(0, "upon")) == [{"done": False, "response": "upon"}]
    task, _ = ollama.read_generate({"prompt": "Once", "raw": True})
    assert (task.conversation, task.requests[0].text) == (None, "Once")


@pytest.mark.parametrize(("keep_alive", "reason"), [("5m", "load"), (0, "unload"), (None, "load")])
def test_request_without_prompt_loads_the_model(keep_alive: object, reason: str) -> None:
    """Nothing is generated, and the response names the reason."""
    task, lines = ollama.read_generate({"model": "m", "keep_alive": keep_alive})
    assert task.context.count_only
    assert isinstance(lines, ollama.OllamaLines)
    (value,) = lines_of(lines.end(ended()))
    assert value == {"response": "", "done": True, "done_reason": reason}


def test_error_of_stream_is_a_line() -> None:
    """Clients raise the text as an error."""
    _, lines = ollama.read_chat({"model": "m", "messages": [HELLO]})
    assert isinstance(lines, ollama.OllamaLines)
    assert lines.error(Problem("overloaded", "the backlog is full", None)) == (
        b'{"error":"the backlog is full"}\n'
    )


def test_model_is_described_from_its_metadata() -> None:
    """The context length is that of the server, and thinking is read from the template."""
    metadata = {
        "general.architecture": "llama",
        "general.file_type": 7,
        "llama.context_length": 2048,
        "tokenizer.chat_template": "{% if enable_thinking %}",
    }
    details = ModelDetails("m", "generate", 10, 1_700_000_000_000_000_000, metadata, 4096)
    name, present = ollama.read_show({"name": "m"})
    shown: Any = present(details)
    assert name == "m"
    assert shown["model_info"]["llama.context_length"] == 4096
    assert shown["capabilities"] == ["completion", "tools", "thinking"]
    assert shown["details"]["quantization_level"] == "Q8_0"
    assert shown["modified_at"] == "2023-11-14T22:13:20Z"
    (listed,) = ollama.list_models([details])["models"]  # type: ignore[index]
    assert (listed["name"], listed["size"]) == ("m", 10)
    missing = ModelDetails("m", "embed", 0, 0, {}, None)
    shown = present(missing)
    assert (shown["capabilities"], shown["model_info"]) == (["embedding"], {})
