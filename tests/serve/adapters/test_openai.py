"""Tests of the adapters for OpenAI's completions and chat completions, without HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, TypeAlias

import attrs
import pytest

from relevance_gen.asking import citations as citing
from relevance_gen.errors import InvalidRequestError
from relevance_gen.serve.adapters.openai import chat, completions, embeddings, requests
from relevance_gen.serve.services.generation import GenerationTask
from relevance_gen.types import (
    Completion,
    ContentPart,
    GenerationRequest,
    GenerationResponse,
    TokenLogprob,
    TokenTexts,
)

Reader: TypeAlias = Callable[[object], tuple[GenerationTask, object]]


def test_several_prompts_give_equal_requests() -> None:
    """The requests of several prompts differ only in their text."""
    body = {
        "prompt": ["a", "b"],
        "n": 2,
        "stop": ["x"],
        "logit_bias": {"7": 1},
        "seed": -1,
        "max_tokens": 3,
    }
    task, _ = completions.read(body)
    options = {
        "max_tokens": 3,
        "num_samples": 2,
        "stop": ("x",),
        "logit_bias": {7: 1.0},
        "seed": 2**64 - 1,
        "top_k": 0,
    }
    assert task.requests == (GenerationRequest("a", **options), GenerationRequest("b", **options))
    assert (task.context.use_model_eos, task.context.return_token_texts) == (True, False)


FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
PARTS = (
    ContentPart("reasoning", "Hm.", 0),
    ContentPart("text", "Let me see.", 1),
    ContentPart("tool_call", '{"q": 1}', 2, "search", "id1"),
    ContentPart("tool_call", "{}", 3, "fetch", "id2"),
)


def test_chat_turn_with_calls_has_openai_format() -> None:
    """Reasoning has both field names, arguments are strings, and empty content is null."""
    _, present = chat.read({"messages": [{"role": "user", "content": "x"}]})
    turn = Completion("Let me see.", 9, 0.0, "tool_calls", parts=PARTS, reasoning_tokens=4)
    reported = present((GenerationResponse(0.0, 0.0, 1, "x", 7, (turn,), reused_tokens=5),))
    counts = {"prompt_tokens": 7, "completion_tokens": 9, "total_tokens": 16}
    details = {
        "prompt_tokens_details": {"cached_tokens": 5},
        "completion_tokens_details": {"reasoning_tokens": 4},
    }
    assert reported["usage"] == counts | details
    (choice,) = reported["choices"]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"] == {
        "role": "assistant",
        "content": "Let me see.",
        "refusal": None,
        "reasoning_content": "Hm.",
        "reasoning": "Hm.",
        "tool_calls": [
            {
                "id": "id1",
                "type": "function",
                "function": {"name": "search", "arguments": '{"q": 1}'},
            },
            {"id": "id2", "type": "function", "function": {"name": "fetch", "arguments": "{}"}},
        ],
    }
    silent = attrs.evolve(turn, text="", parts=PARTS[2:])
    (choice,) = present((GenerationResponse(0.0, 0.0, 1, "x", 1, (silent,)),))["choices"]
    assert choice["message"]["content"] is None
    assert "reasoning" not in choice["message"]


DOCUMENTS = [
    "It rained.",
    {"id": "tale", "text": "Cows sleep. Cats purr when they sleep."},
    {"data": {"snippet": "Dogs bark."}},
    {},
]


def test_chat_answer_cites_request_documents() -> None:
    """Each supported sentence has citations with the spans of the request's documents."""
    said = "Cats purr when they sleep. Dogs bark. Dragons gold."
    answer = (GenerationResponse(0.0, 0.0, 1, "x", 1, (Completion(said, 9, 0.0, "eos"),)),)
    body = {"messages": [{"role": "user", "content": "x"}], "documents": DOCUMENTS}
    task, present = chat.read(body)
    assert task.citer is not None
    (choice,) = present(answer)["choices"]
    first, second = choice["message"]["citations"]
    assert [said[one["start"] : one["end"]] for one in (first, second)] == [
        first["text"],
        second["text"],
    ]
    assert (first["text"], second["text"]) == ("Cats purr when they sleep.", "Dogs bark.")
    assert first["sources"] == [{"type": "document", "id": "tale", "start": 12, "end": 38}]
    assert [source["id"] for source in second["sources"]] == ["doc:2"]
    from openai.types.chat import ChatCompletion  # takes a second, and only here

    assert ChatCompletion.model_validate(present(answer)).choices[0].message.citations == [
        first,
        second,
    ]
    _, events = chat.read({**body, "stream": True})
    ended = [json.loads(line[6:]) for line in events.end(answer).split(b"\n\n") if b"delta" in line]
    assert ended[-1]["choices"][0]["delta"] == {"citations": [first, second]}


@pytest.mark.parametrize(
    "change", [{"documents": [{}, " "]}, {"documents": None}, {"response_format": FORM}], ids=str
)
def test_chat_without_citable_documents_has_no_citations(change: dict[str, Any]) -> None:
    """Empty documents, no documents and structured output give no citations."""
    body = {"messages": [{"role": "user", "content": "x"}], "documents": DOCUMENTS, **change}
    task, present = chat.read(body)
    assert task.citer is None
    answer = (GenerationResponse(0.0, 0.0, 1, "x", 1, (Completion("Dogs bark.", 9, 0.0, "eos"),)),)
    (choice,) = present(answer)["choices"]
    assert "citations" not in choice["message"]


def test_chat_above_citation_limit_has_no_citations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If citing exceeds its limit, the answer is returned without citations."""
    monkeypatch.setattr(citing, "_MAX_COMPARED_WORDS", 1)
    _, present = chat.read(
        {"messages": [{"role": "user", "content": "x"}], "documents": ["Dogs bark."]}
    )
    answer = (GenerationResponse(0.0, 0.0, 1, "x", 1, (Completion("Dogs bark.", 9, 0.0, "eos"),)),)
    (choice,) = present(answer)["choices"]
    assert (choice["message"]["content"], choice["message"]["citations"]) == ("Dogs bark.", [])


def test_chat_stream_numbers_calls_per_sample() -> None:
    """Calls are numbered per sample; name and id are in the first delta, then arguments."""
    _, events = chat.read({"messages": [{"role": "user", "content": "x"}], "stream": True, "n": 2})
    pieces = [*PARTS, ContentPart("tool_call", " ", 3, "", "")]
    reported = [events.text(sample, piece) for sample in (0, 1) for piece in pieces]
    deltas = [
        json.loads(line[6:])["choices"][0]["delta"]
        for event in reported
        for line in event.decode().split("\n\n")[:-1]
    ]
    called = {
        "type": "function",
        "id": "id2",
        "index": 1,
        "function": {"name": "fetch", "arguments": "{}"},
    }
    one = [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "Hm.", "reasoning": "Hm."},
        {"content": "Let me see."},
        {
            "tool_calls": [
                {
                    **called,
                    "index": 0,
                    "id": "id1",
                    "function": {"name": "search", "arguments": '{"q": 1}'},
                }
            ]
        },
        {"tool_calls": [called]},
        {"tool_calls": [{"index": 1, "function": {"arguments": " "}}]},
    ]
    assert deltas == one + one


def test_many_prompts_are_validated_once() -> None:
    """Fields shared by all prompts are validated once per request."""
    bias = {str(token): 1 for token in range(4096)}
    started_s = time.process_time()
    task, _ = completions.read({"prompt": ["x"] * 256, "logit_bias": bias})
    assert len(task.requests) == 256
    assert time.process_time() - started_s < 0.5


def test_stop_string_limit_depends_on_number_of_prompts() -> None:
    """Stop strings are compiled per prompt, so more prompts allow fewer characters."""
    stop = ["x" * 1000]
    assert completions.read({"prompt": ["x"] * 65, "stop": stop})
    with pytest.raises(
        InvalidRequestError, match="stop must hold at most 992 characters"
    ) as caught:
        completions.read({"prompt": ["x"] * 66, "stop": stop})
    assert caught.value.field == "stop"


@pytest.mark.parametrize(
    ("read", "body"),
    [
        (completions.read, {"prompt": "x"}),
        (chat.read, {"messages": [{"role": "user", "content": "x"}]}),
        (embeddings.read, {"input": "x"}),
    ],
)
def test_model_name_is_limited(read: Callable[[object], object], body: dict[str, object]) -> None:
    """The length of the model name is limited because each streamed chunk repeats it."""
    assert read({**body, "model": "m" * 1024})
    with pytest.raises(
        InvalidRequestError, match="model must be a string of at most 1,024 characters"
    ):
        read({**body, "model": "m" * 1025})


def test_echo_limit_depends_on_number_of_samples() -> None:
    """An answer has one copy per sample, so more samples allow a shorter prompt."""
    body = {"prompt": ["x" * (1 << 12)] * 4, "n": 64, "max_input_tokens": 8}
    assert completions.read({**body, "echo": True})
    body["prompt"] = ["x" * (1 << 12)] * 3 + ["x" * (1 + (1 << 12))]
    assert completions.read(body)
    with pytest.raises(InvalidRequestError, match="echo must be False if n ×") as caught:
        completions.read({**body, "echo": True})
    assert caught.value.field == "echo"


def test_logprobs_limit_depends_on_number_of_prompts() -> None:
    """The answer holds the alternatives of all prompts, so more prompts allow fewer."""
    body = {"prompt": ["x"] * 64, "max_tokens": 1 << 13, "logprobs": 2}
    assert completions.read(body)
    assert completions.read({**body, "prompt": "x", "logprobs": 20, "max_tokens": 1 << 30})
    with pytest.raises(
        InvalidRequestError,
        match="logprobs must be at most 2 for 524,288 tokens in all samples, got 3",
    ):
        completions.read({**body, "logprobs": 3})
    scored = {"prompt": ["x" * 1024] * 2, "n": 32, "max_tokens": 0, "echo": True}
    assert completions.read({**scored, "logprobs": 16})
    with pytest.raises(
        InvalidRequestError, match="logprobs must be at most 16 for 65,536 tokens in all samples"
    ):
        completions.read({**scored, "logprobs": 17})


SCHEMA = {"type": "array"}
MESSAGES = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("read", "body"), [(completions.read, {"prompt": "x"}), (chat.read, {"messages": MESSAGES})]
)
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"eos_token_ids": [5, 6]}, {"eos_token_ids": (5, 6)}),
        ({"repetition_penalty": 1.5}, {"repetition_penalty": 1.5}),
        ({"max_input_tokens": 9}, {"max_input_tokens": 9}),
        ({"min_tokens": 2}, {"min_tokens": 2}),
        ({"max_completion_tokens": 7}, {"max_tokens": 7}),
        ({"max_tokens": 9, "max_completion_tokens": 7}, {"max_tokens": 7}),
        ({"json_schema": '{"type": "array"}'}, {"json_schema": SCHEMA}),
        ({"json_schema": SCHEMA}, {"json_schema": SCHEMA}),
        ({"regex": "a+"}, {"regex": "a+"}),
        ({"grammar": "start: /a/"}, {"grammar": "start: /a/"}),
        ({"choice": ["a", 'b"']}, {"choice": ("a", 'b"')}),
        ({"bad_words": [], "regex": "a"}, {"regex": "a"}),
        ({"allowed_token_ids": [3]}, {"allowed_token_ids": (3,)}),
        ({"response_format": {"type": "json_object", "schema": SCHEMA}}, {"json_schema": SCHEMA}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
            {"json_schema": SCHEMA},
        ),
        ({"ignore_eos": False, "typical_p": 1, "bad_words": []}, {}),
    ],
)
def test_extension_field_sets_generation_request_field(
    read: Reader, body: dict[str, Any], fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    """An extension field sets the corresponding field of the generation request."""
    task, _ = read({**body, **fields})
    default, _ = read(body)
    assert task.requests == (attrs.evolve(default.requests[0], **expected),)
    assert read({**body, "ignore_eos": True})[0].context.use_model_eos is False


@pytest.mark.parametrize(
    ("read", "body"), [(completions.read, {"prompt": "x"}), (chat.read, {"messages": MESSAGES})]
)
@pytest.mark.parametrize("name", sorted(requests.REFUSED))
def test_unsupported_field_raises(read: Reader, body: dict[str, Any], name: str) -> None:
    """Each unsupported field that would change the answer raises an error with its name."""
    for value in (0.5, ["x"], {"x": 1}):
        with pytest.raises(
            InvalidRequestError, match=f"{name} is not supported by this server"
        ) as caught:
            read({**body, name: value})
        assert caught.value.field == name
    assert read({**body, name: None})


@pytest.mark.parametrize(
    ("read", "body"), [(completions.read, {"prompt": "x"}), (chat.read, {"messages": MESSAGES})]
)
@pytest.mark.parametrize(("name", "replacement"), sorted(requests.ALIASES.items()))
def test_alias_of_another_server_is_refused_with_the_field_to_use(
    read: Reader, body: dict[str, Any], name: str, replacement: str
) -> None:
    """A field under another server's name is refused, and the error names this server's field."""
    expected = f"{name} is not supported by this server; use {replacement}"
    with pytest.raises(InvalidRequestError, match=expected):
        read({**body, name: 1})


@pytest.mark.parametrize(
    ("field", "nothing"),
    [("best_of", 1), ("add_special_tokens", False), ("reasoning", {}), ("include_reasoning", True)],
)
def test_unsupported_chat_field_raises(field: str, nothing: object) -> None:
    """Fields without a meaning in chats raise an error unless they have a neutral value."""
    with pytest.raises(InvalidRequestError, match=f"{field} is not supported by this server"):
        chat.read({"messages": MESSAGES, field: {"effort": "low"}})
    assert chat.read({"messages": MESSAGES, field: nothing})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"json_schema": [None, None]}, "json_schema"),
        ({"stream_options": {"include_usage": {}}}, "stream_options.include_usage must be"),
        (
            {"response_format": {"type": "text", "json_schema": {"schema": [None]}}},
            "response_format.json_schema.schema must be an object",
        ),
        (
            {"response_format": {"type": "json_object", "json_schema": 5}},
            "response_format.json_schema must be an object",
        ),
        ({"json_schema": {}, "choice": ["a"]}, "choice cannot be combined with json_schema"),
        ({"regex": "a", "grammar": "start: /a/"}, "grammar cannot be combined with regex"),
        (
            {"regex": "a", "response_format": {"type": "json_object"}},
            "response_format cannot be combined with regex",
        ),
    ],
)
def test_two_output_constraints_raise_with_client_field_names(
    fields: dict[str, Any], message: str
) -> None:
    """A request with two constraints of the output is refused, in the client's field names."""
    with pytest.raises(InvalidRequestError, match=message):
        completions.read({"prompt": "x", **fields})


def test_chat_passes_template_variables() -> None:
    """Template variables are merged, content parts are joined, and replayed turns are accepted."""
    parts = [{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"}]
    body = {
        "messages": [
            {"role": "user", "content": parts},
            {"role": "assistant", "content": None},
            *MESSAGES,
        ],
        "chat_template_kwargs": {"enable_thinking": True, "x": 1},
        "enable_thinking": False,
        "reasoning_effort": "low",
    }
    asked = chat.read(body)[0].conversation
    assert asked is not None
    assert [message["content"] for message in asked.messages] == ["a\nb", "", "x"]
    assert asked.variables == {"enable_thinking": False, "x": 1, "reasoning_effort": "low"}
    assert asked.required == {
        "enable_thinking": "enable_thinking",
        "x": "chat_template_kwargs.x",
        "reasoning_effort": "reasoning_effort",
    }


def test_completion_logprobs_include_end_token_when_scoring() -> None:
    """With prompt log probabilities the end token is included; otherwise it is omitted."""
    ended = Completion("", 1, 0.0, "eos", (7,), (-1.0,), ((TokenLogprob(7, -1.0),),))
    token_texts = TokenTexts(
        (1, 2), {1: b"a", 2: b"\xc3", 7: b""}, frozenset({7}), ((TokenLogprob(2, -0.5),),)
    )
    assert completions.completion_logprobs(ended, token_texts, (None, -2.0)) == {
        "tokens": ["a", "bytes:\\xc3", ""],
        "token_logprobs": [None, -2.0, -1.0],
        "top_logprobs": [None, {"bytes:\\xc3": -0.5}, {"": -1.0}],
        "text_offset": [0, 1, 1],
    }
    assert completions.completion_logprobs(ended, token_texts, ())["tokens"] == []
