"""The paths of OpenAI's API on the scripted server and on a real model."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest

from relevance_gen.embedding.encoder import Encoder
from small_models import ENCODER, END, STORY
from tests.serve.harness import JSON, KEY, KEYED, REAL, SMALL_MODEL, Server, eventually
from tests.serve.test_rerank import peer_error

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "hello you"}], "max_tokens": 3}


def tool(name: str, **more: Any) -> dict[str, Any]:
    """Return a tool in OpenAI's format."""
    return {"type": "function", "function": {"name": name, **more}}


def post(server: Server, path: str, body: object) -> Any:
    """Return the answer to a request that is allowed."""
    answer = server.call("POST", path, body, JSON)
    assert answer.status == 200, answer.body
    return answer.json


def events_of(server: Server, path: str, body: dict[str, Any]) -> list[Any]:
    """Return the data of a stream's events, after checking its end marker."""
    answer = server.call("POST", path, {**body, "stream": True}, JSON)
    assert answer.status == 200, answer.body
    assert answer.headers["Content-Type"] == "text/event-stream"
    lines = [
        line for line in answer.body.decode().split("\n\n") if line and not line.startswith(":")
    ]
    assert all(line.startswith("data: ") for line in lines)
    if lines[-1] != "data: [DONE]":
        assert "error" in json.loads(lines[-1].removeprefix("data: "))
    return [json.loads(line.removeprefix("data: ")) for line in lines if line != "data: [DONE]"]


# ── Chats ─────────────────────────────────────────────────────────────────────────────────────────


def test_chat_returns_choice_per_sample(server: Server) -> None:
    """Every sample is a choice with a message, and the tokens used are counted."""
    answer = post(server, CHAT, {**HELLO, "n": 2, "model": "gpt-x"})
    assert list(answer) == ["id", "model", "object", "created", "choices", "usage"]
    assert (answer["object"], answer["model"]) == ("chat.completion", "gpt-x")
    message = {"role": "assistant", "content": "word0 word1 word2 ", "refusal": None}
    assert answer["choices"] == [
        {"index": n, "message": message, "logprobs": None, "finish_reason": "length"}
        for n in range(2)
    ]
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 6, "total_tokens": 9}


def test_chat_stream_has_role_text_reason_and_usage(server: Server) -> None:
    """For each sample the role comes first, then its text, then its finish reason; the usage is last, on request."""
    events = events_of(server, CHAT, {**HELLO, "n": 2, "stream_options": {"include_usage": True}})
    assert {(event["object"], event["id"], event["model"]) for event in events} == {
        ("chat.completion.chunk", events[0]["id"], "relevance_gen")
    }
    *chunks, last = events
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 6)
    for sample in range(2):
        choices = [
            chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == sample
        ]
        assert choices[0]["delta"] == {"role": "assistant", "content": ""}
        assert (
            "".join(choice["delta"].get("content", "") for choice in choices)
            == "word0 word1 word2 "
        )
        assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + [
            "length"
        ]
    assert all(event["choices"] for event in events_of(server, CHAT, HELLO))


def test_chat_returns_logprobs(server: Server) -> None:
    """With logprobs each token has its text, its bytes and the likeliest in its place, streamed or not."""
    asked = {**HELLO, "logprobs": True, "top_logprobs": 1}
    entry = {"token": "word1 ", "logprob": 0.0, "bytes": list(b"word1 ")}
    whole = post(server, CHAT, asked)["choices"][0]["logprobs"]
    assert whole["content"][1] == {**entry, "top_logprobs": [entry]}
    streamed = [event["choices"][0]["logprobs"] for event in events_of(server, CHAT, asked)]
    assert streamed == [None] * (len(streamed) - 1) + [whole]
    assert (
        post(server, CHAT, {**HELLO, "logprobs": True})["choices"][0]["logprobs"]["content"][0][
            "top_logprobs"
        ]
        == []
    )


def test_messages_may_be_parts_and_developers(server: Server) -> None:
    """Parts of text are joined, a developer is the system, and names and the like change nothing."""
    messages = [
        {"role": "developer", "content": "be brief", "name": "x"},
        {
            "role": "user",
            "content": [{"type": "text", "text": "hello"}, {"type": "text", "text": " you"}],
        },
        {"role": "assistant", "content": "yes", "tool_calls": [], "refusal": None, "audio": None},
    ]
    ignored = {
        "user": "u",
        "store": True,
        "metadata": {},
        "service_tier": "auto",
        "parallel_tool_calls": True,
        "x": 1,
    }
    nothing = {
        "tools": [],
        "tool_choice": "none",
        "functions": None,
        "modalities": ["text"],
        "response_format": None,
    }
    answer = post(
        server, CHAT, {"messages": messages, "max_completion_tokens": 1, **ignored, **nothing}
    )
    assert answer["usage"]["prompt_tokens"] == len(
        "system: be brief user: hello you assistant: yes".split()
    )


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": ["hello"]}, "messages[0]"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
                ]
            },
            "messages[0].content[0]",
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}
                ]
            },
            "messages[0].content[0]",
        ),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": [{}]}]},
            "messages[0].tool_calls[0]",
        ),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": {}}]},
            "messages[0].tool_calls",
        ),
        ({"messages": [{"role": "assistant", "reasoning": 1}]}, "messages[0].reasoning_content"),
        (
            {"messages": [{"role": "tool", "content": "", "tool_call_id": 1}]},
            "messages[0].tool_call_id",
        ),
        ({"messages": [{"role": "user", "content": "no template"}]}, "messages"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "custom"}]}, "tools[0]"),
        ({"tools": [tool("f"), tool("f")]}, "tools[1]"),
        ({"tools": [tool("f g")]}, "tools[0].function.name"),
        ({"tools": [tool("f", parameters={"type": "string"})]}, "tools[0].function.parameters"),
        ({"tools": [tool("f", strict=1)]}, "tools[0].function.strict"),
        ({"tools": {}, "tool_choice": "auto"}, "tools"),
        ({"tools": [tool("f")], "tool_choice": "f"}, "tool_choice"),
        (
            {"tools": [tool("f")], "tool_choice": {"type": "function", "function": {"name": "g"}}},
            "tool_choice",
        ),
        ({"parallel_tool_calls": 1}, "parallel_tool_calls"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{}]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": ["text"]}}, "response_format.type"),
        ({"response_format": {}}, "response_format.type"),
        ({"n": 0}, "n"),
        ({"n": 257}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_completion_tokens": 1.5}, "max_completion_tokens"),
        ({"temperature": -1}, "temperature"),
        ({"temperature": "1"}, "temperature"),
        ({"top_p": 2}, "top_p"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"frequency_penalty": -3}, "frequency_penalty"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 101}}, "logit_bias[1]"),
        ({"logprobs": 1}, "logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"stop": [""]}, "stop[0]"),
        ({"stop": 3}, "stop"),
        ({"stop": {}}, "stop"),
        ({"seed": 2**64}, "seed"),
        ({"seed": True}, "seed"),
        ({"stream": "yes"}, "stream"),
        ({"stream": True, "stream_options": []}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"min_tokens": 4}, "min_tokens"),
        ({"max_input_tokens": -1}, "max_input_tokens"),
        ({"model": 3}, "model"),
    ],
)
def test_invalid_chat_field_is_400(server: Server, change: dict[str, Any], param: str) -> None:
    """An invalid or unsupported field is a 400 that names it, streamed or not."""
    for stream in ({}, {"stream": True}):
        answer = server.call("POST", CHAT, {**HELLO, **stream, **change}, JSON)
        assert (answer.status, peer_error(answer.json)["param"]) == (400, param), answer.body
        assert answer.json["message"].startswith(param) or param == "messages"


def test_chat_without_template_names_completions_path(server: Server) -> None:
    """A conversation without a chat template is rejected, with the path that needs no template."""
    answer = server.call(
        "POST", CHAT, {"messages": [{"role": "user", "content": "no template"}]}, JSON
    )
    assert (answer.status, answer.json["error"]["param"]) == (400, "messages")
    assert "/v1/completions" in answer.json["message"]


# ── Completions ───────────────────────────────────────────────────────────────────────────────────


def test_completions_of_several_prompts_are_numbered_through(server: Server) -> None:
    """The choices are the samples of each prompt in order; with echo each begins with its prompt."""
    answer = post(
        server, COMPLETIONS, {"prompt": ["one", "two three"], "n": 2, "max_tokens": 2, "echo": True}
    )
    assert answer["object"] == "text_completion"
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in answer["choices"]] == ["oneword0 word1 "] * 2 + [
        "two threeword0 word1 "
    ] * 2
    assert answer["usage"] == {"prompt_tokens": 3, "completion_tokens": 8, "total_tokens": 11}
    (choice,) = post(server, COMPLETIONS, {"prompt": "one"})["choices"]
    assert choice == {
        "text": "".join(f"word{n} " for n in range(16)),
        "logprobs": None,
        "index": 0,
    } | {"finish_reason": "length"}


def test_completions_stream(server: Server) -> None:
    """The pieces of each choice add up to the complete text; an echoed prompt comes first."""
    body = {
        "prompt": ["one", "two"],
        "n": 2,
        "max_tokens": 2,
        "echo": True,
        "stream_options": {"include_usage": True},
    }
    *chunks, last = events_of(server, COMPLETIONS, body)
    assert last["usage"]["total_tokens"] == 10
    texts = [
        "".join(c["choices"][0]["text"] for c in chunks if c["choices"][0]["index"] == n)
        for n in range(4)
    ]
    assert texts == [choice["text"] for choice in post(server, COMPLETIONS, body)["choices"]]
    assert [c["choices"][0]["finish_reason"] for c in chunks][-4:] == ["length"] * 4


def test_completions_return_logprobs(server: Server) -> None:
    """Log probabilities are aligned with tokens, top log probabilities and text offsets; echo adds those of the prompt."""
    (choice,) = post(server, COMPLETIONS, {"prompt": "a b", "max_tokens": 2, "logprobs": 1})[
        "choices"
    ]
    assert choice["logprobs"] == {
        "tokens": ["word0 ", "word1 "],
        "token_logprobs": [0.0, 0.0],
        "top_logprobs": [{"word0 ": 0.0}, {"word1 ": 0.0}],
        "text_offset": [0, 6],
    }
    asked = {"prompt": "a b", "max_tokens": 1, "logprobs": 0, "echo": True}
    (choice,) = post(server, COMPLETIONS, asked)["choices"]
    assert choice["logprobs"] == {
        "tokens": ["word0 ", "word1 ", "word0 "],
        "token_logprobs": [None, -1.0, 0.0],
        "top_logprobs": None,
        "text_offset": [0, 6, 12],
    }


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": {"x": 1}}, "prompt"),
        ({"prompt": [1, -2]}, "prompt[1]"),
        ({"prompt": [[1], [1.5]]}, "prompt[1][0]"),
        ({"prompt": [[1], []]}, "prompt[1]"),
        ({"prompt": ["x", [1, 2]]}, "prompt[1]"),
        ({"prompt": [[1, 2], "x"]}, "prompt[1]"),
        ({"prompt": ["x"] * 129, "n": 2}, "prompt"),
        ({"prompt": ["fine", "long"]}, "prompt"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 2}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"echo": 1}, "echo"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"eos_token_ids": [-1]}, "eos_token_ids[0]"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repeat_penalty": 2}, "repeat_penalty"),
        ({"json_schema": 3}, "json_schema"),
        ({"choice": []}, "choice"),
        ({"structured_outputs": {"json": {}}}, "structured_outputs"),
        ({"regex": "a", "response_format": {"type": "json_object"}}, "response_format"),
        ({"allowed_token_ids": [-1]}, "allowed_token_ids[0]"),
        ({"typical_p": 0.5}, "typical_p"),
        ({"bad_words": ["x"]}, "bad_words"),
        ({"top_a": 0.5}, "top_a"),
    ],
)
def test_invalid_completion_field_is_400(
    server: Server, change: dict[str, Any], param: str
) -> None:
    """An invalid or unsupported field is a 400 with the client's name of the field."""
    for stream in ({}, {"stream": True}):
        answer = server.call(
            "POST", COMPLETIONS, {"prompt": "x", "max_tokens": 2, **stream, **change}, JSON
        )
        assert (answer.status, peer_error(answer.json)["param"]) == (400, param), answer.body
        assert answer.json["message"].startswith(param)
    assert eventually(lambda: server.stats()["backlog"] == 0)


def test_default_values_of_unsupported_fields_are_ignored(server: Server) -> None:
    """An empty suffix, best_of up to n, and null for every option change nothing."""
    nulls = dict.fromkeys(
        ["stop", "seed", "logit_bias", "logprobs", "n", "stream", "stream_options", "temperature"]
    )
    plain = post(server, COMPLETIONS, {"prompt": "x", "max_tokens": 2})["choices"]
    asked = {"prompt": "x", "max_tokens": 2, "suffix": "", "best_of": 1, "user": "u", **nulls}
    assert post(server, COMPLETIONS, asked)["choices"] == plain


# ── Both ──────────────────────────────────────────────────────────────────────────────────────────


def test_models_are_listed(server: Server, by_words: Server) -> None:
    """The list has the file name of the model, the project's for the embedded model, or no entry."""
    (model,) = server.call("GET", "/v1/models").json["data"]
    assert (model["id"], model["object"], model["owned_by"]) == (
        "relevance_gen",
        "model",
        "relevance_gen",
    )
    assert model["created"] > 1.7e9
    assert by_words.call("GET", "/v1/models").json == {"object": "list", "data": []}
    answer = by_words.call("POST", CHAT, HELLO, JSON)
    assert (answer.status, peer_error(answer.json)["param"]) == (400, "model")


def test_model_path_returns_list_entry(server: Server, by_words: Server) -> None:
    """The path with a model's name returns its entry in the list, also for a name with a slash; other names are 404."""
    not_found = 'http_requests_total{endpoint="v1_models_id",status="404"}'
    with Server("--model", "owner/name") as slashed:
        for name, asked in (("relevance_gen", server), ("owner/name", slashed)):
            before = asked.metric(not_found)
            (model,) = asked.call("GET", "/v1/models").json["data"]
            for written in (name, quote(name, safe="")):
                answer = asked.call("GET", f"/v1/models/{written}")
                assert (answer.status, answer.json) == (200, model)
            for other in ("another", f"{name}x", f"{name}/x", "%00", "%F0%9F%98%80", "{id}"):
                answer = asked.call("GET", f"/v1/models/{other}")
                assert (answer.status, peer_error(answer.json)["code"]) == (
                    404,
                    "model_not_found",
                ), other
                assert peer_error(answer.json)["param"] == "model"
            assert (
                asked.call("POST", f"/v1/models/{name}", {}).headers["Allow"]
                == "GET, HEAD, OPTIONS"
            )
            assert asked.metric(not_found) == before + 6
    assert by_words.call("GET", "/v1/models/relevance_gen").status == 404


def test_failures_have_the_clients_form() -> None:
    """A full backlog is a 429 with Retry-After; what fails in mid-stream is an event that ends it without [DONE]."""
    with Server("--generation-timeout-s", "0.3") as server:
        assert eventually(server.is_healthy)
        full = server.call("POST", COMPLETIONS, {"prompt": ["x"] * 100}, JSON)
        assert (full.status, peer_error(full.json)["type"], full.headers["Retry-After"]) == (
            429,
            "overloaded",
            "3",
        )
        assert eventually(lambda: server.stats()["backlog"] == 0)
        *_, last = events_of(server, CHAT, {**HELLO, "max_tokens": 100_000})
        assert peer_error(last)["type"] == "timeout"


def test_setting_requires_keys() -> None:
    """If generation requires a key, so do these paths, in either header; each is counted under its own name."""
    with Server("--generation-requires-key", "on", "--rate-limit", "5/hour") as server:
        assert eventually(server.is_healthy)
        for method, path, body in (("POST", CHAT, HELLO), ("GET", "/v1/models", None)):
            refused = server.call(method, path, body, JSON)
            assert (refused.status, peer_error(refused.json)["type"]) == (401, "unauthorized")
            assert server.call(method, path, body, KEYED).status == 200
            bearer = server.call(method, path, body, {**JSON, "Authorization": f"Bearer {KEY}"})
            assert (bearer.status, "RateLimit-Remaining" in bearer.headers) == (200, True)
        assert (
            server.metric('http_requests_total{endpoint="v1_chat_completions",status="200"}') == 2
        )
        assert server.metric('http_requests_total{endpoint="v1_models",status="401"}') == 1


# ── Vectors ───────────────────────────────────────────────────────────────────────────────────────

EMBEDDINGS = "/v1/embeddings"


def embedded(server: Server, **body: Any) -> Any:
    """Return the answer to a request for vectors."""
    answer = server.call("POST", EMBEDDINGS, body, KEYED)
    assert answer.status == 200, answer.body
    return answer.json


def test_texts_become_the_encoders_vectors(real: Server) -> None:
    """Vectors equal those of the library's encoder for the same kind of text, as numbers or as bytes."""
    texts = ["Cats purr.", "", "Dogs bark, and 😀 too."]
    with Encoder(ENCODER, n_threads=1) as encoder:
        expected = {kind: encoder.encode(texts, kind=kind) for kind in (None, "query", "passage")}
    for words, kind in ((None, None), ("query", "query"), ("search_document", "passage")):
        answer = embedded(real, input=texts, input_type=words)
        assert np.allclose([one["embedding"] for one in answer["data"]], expected[kind], atol=1e-6)
    assert [(one["object"], one["index"]) for one in answer["data"]] == [
        ("embedding", n) for n in range(3)
    ]
    assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 3
    (one,) = embedded(real, input=texts[0], encoding_format="base64", model="m", user="u")["data"]
    assert np.allclose(
        np.frombuffer(base64.b64decode(one["embedding"]), "<f4"), expected[None][0], atol=1e-6
    )


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"input": {"x": 1}}, "input"),
        ({"input": [1, 2]}, "input[0]"),
        ({"input": ["x", ["y"]]}, "input[1]"),
        ({"encoding_format": "int8"}, "encoding_format"),
        ({"encoding_format": ["float"]}, "encoding_format"),
        ({"input_type": "image"}, "input_type"),
        ({"dimensions": 8}, "dimensions"),
        ({"model": 3}, "model"),
    ],
)
def test_invalid_embedding_field_is_400(real: Server, change: dict[str, Any], param: str) -> None:
    """An invalid or unsupported field is a 400 that names it."""
    answer = real.call("POST", EMBEDDINGS, {"input": "x", **change}, KEYED)
    assert (answer.status, peer_error(answer.json)["param"]) == (400, param)
    assert answer.json["message"].startswith(param)


def test_text_longer_than_encoder_context_is_400(real: Server) -> None:
    """A long text is refused by its position instead of being truncated."""
    with Encoder(ENCODER, n_threads=1) as encoder:
        n_ctx = encoder.n_ctx
    answer = real.call("POST", EMBEDDINGS, {"input": ["cat", "cat " * n_ctx]}, KEYED)
    error = peer_error(answer.json)
    assert (answer.status, error["param"]) == (400, "input[1]")
    assert error["code"] == "context_length_exceeded"
    assert f"fewer than {n_ctx} tokens" in error["message"]


def test_more_prompts_than_may_be_queued_are_a_400() -> None:
    """Waiting does not help, so the status is not 429, which clients repeat."""
    with Server("--max-queue", "2") as server:
        assert eventually(server.is_healthy)
        answer = server.call("POST", COMPLETIONS, {"prompt": ["a", "b", "c"]}, JSON)
    error = peer_error(answer.json)
    assert (answer.status, error["param"]) == (400, "prompt")
    assert "must be at most 2 prompts" in error["message"]


@pytest.mark.parametrize("n_words", [10_000, 200_000])
def test_prompt_longer_than_context_has_its_code(real: Server, n_words: int) -> None:
    """A prompt that does not fit has the code by which clients recognize it, however long it is."""
    answer = real.call("POST", COMPLETIONS, {"prompt": "word " * n_words, "max_tokens": 2}, KEYED)
    assert answer.status == 400
    assert peer_error(answer.json)["code"] == "context_length_exceeded"


def test_vectors_need_a_key_an_encoder_and_room(server: Server) -> None:
    """Without a key it is a 401; without an encoder a 400, which clients do not retry; too many texts are a 413."""
    refused = server.call("POST", EMBEDDINGS, {"input": "x"}, JSON)
    assert (refused.status, peer_error(refused.json)["type"]) == (401, "unauthorized")
    without = server.call("POST", EMBEDDINGS, {"input": "x"}, KEYED)
    assert (without.status, "--encoder" in peer_error(without.json)["message"]) == (400, True)
    with Server(
        "--model", "none", "--encoder", str(ENCODER), "--encoder-queue", "2", program=REAL
    ) as small:
        assert eventually(lambda: small.metric("encoders") == 1), small.log
        assert small.call("POST", EMBEDDINGS, {"input": ["x"] * 2}, KEYED).status == 200
        too_many = small.call("POST", EMBEDDINGS, {"input": ["x"] * 3}, KEYED)
        assert (too_many.status, peer_error(too_many.json)["param"]) == (413, "input")
        assert small.metric("encoded_texts_total") == 2


# ── A real model ──────────────────────────────────────────────────────────────────────────────────


def test_completion_equals_generate_with_same_seed(real: Server) -> None:
    """The text and the log probabilities of a real model equal those of /generate with the same seed."""
    same = {"max_tokens": 6, "seed": 5, "temperature": 1.0}
    own = real.generate(
        {"text": "hello", "num_samples": 2, "logprobs": True, "top_k": 0, **same}
    ).json["responses"]
    asked = {"prompt": ["hello", "x"], "n": 2, "logprobs": 2, **same}
    choices = post(real, COMPLETIONS, asked)["choices"][:2]
    assert [choice["text"] for choice in choices] == [one["text"] for one in own]
    assert [choice["logprobs"]["token_logprobs"] for choice in choices] == [
        one["logprobs"] for one in own
    ]
    for choice in choices:
        whole = [token for token in choice["logprobs"]["tokens"] if not token.startswith("bytes:")]
        assert "".join(whole) == choice["text"].replace("�", "")
        for token, likeliest in zip(
            choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"], strict=True
        ):
            assert max(likeliest.values()) >= token
    negative = [
        post(real, COMPLETIONS, {**asked, "seed": seed})["choices"][0]["text"]
        for seed in (-1, -1, -2)
    ]
    assert negative[0] == negative[1] != negative[2]


def test_echo_has_prompt_log_probabilities(real: Server) -> None:
    """The prompt's tokens, joined, are the prompt, and all but the first have the model's log probability."""
    asked = {
        "prompt": "hello there",
        "echo": True,
        "logprobs": 0,
        "max_tokens": 1,
        "temperature": 0,
    }
    (choice,) = post(real, COMPLETIONS, asked)["choices"]
    own = real.generate(
        {"text": "hello there", "prompt_logprobs": True, "max_tokens": 1, "temperature": 0}
    ).json
    reported = choice["logprobs"]
    assert reported["token_logprobs"][: own["prompt_tokens"]] == own["prompt_logprobs"]
    assert "".join(reported["tokens"][: own["prompt_tokens"]]) == "hello there"
    assert choice["text"].startswith("hello there")


def score(answer: Any, n_context: list[int]) -> list[tuple[float, bool]]:
    """Parse a response like local-completions of lm-evaluation-harness, which ignores the last token."""
    scores = []
    for choice, begin in zip(answer["choices"], n_context, strict=True):
        logprobs, likeliest = (
            choice["logprobs"][name][begin:-1] for name in ("token_logprobs", "top_logprobs")
        )
        greedy = all(
            one == max(tops.values()) for one, tops in zip(logprobs, likeliest, strict=True)
        )
        scores.append((sum(logprobs), greedy))
    return scores


def test_lm_evaluation_harness_scores_texts(real: Server) -> None:
    """Scoring requests of lm-evaluation-harness, with tokens or texts, return the log probabilities of the model."""
    asked = {
        "model": "any",
        "temperature": 0,
        "max_tokens": 1,
        "logprobs": 1,
        "seed": 1234,
        "echo": True,
    }
    text = "xq jk zv"
    own = real.generate(
        {
            "text": text,
            "prompt_logprobs": True,
            "max_tokens": 5,
            "temperature": 0,
            "return_tokens": True,
        }
    )
    tokens, continued = [2 + byte for byte in text.encode()], own.json["responses"][0]["tokens"]
    (other, _), (alike, is_greedy) = score(
        post(real, COMPLETIONS, {**asked, "prompt": [tokens, tokens + continued]}), [3, len(tokens)]
    )
    assert other == sum(own.json["prompt_logprobs"][3:])
    assert (alike < 0, is_greedy) == (True, True)
    assert score(post(real, COMPLETIONS, {**asked, "prompt": text}), [3]) == [(other, False)]
    assert score(post(real, COMPLETIONS, {**asked, "prompt": [text]}), [3]) == [(other, False)]
    generation = {
        "model": "any",
        "max_tokens": 4,
        "temperature": 0,
        "stop": ["\n\n", "</s>"],
        "seed": 1234,
    }
    by_tokens = post(real, COMPLETIONS, {**generation, "prompt": [tokens]})["choices"]
    assert by_tokens == post(real, COMPLETIONS, {**generation, "prompt": text})["choices"]


def test_zero_max_tokens_returns_prompt_only(real: Server) -> None:
    """With max_tokens 0 no token is generated or counted, and the prompt is returned; a stream ends at once."""
    asked = {
        "prompt": [2 + byte for byte in b"xq \xc3\xa9\xc3"],
        "max_tokens": 0,
        "echo": True,
        "logprobs": 2,
    }
    answer = post(real, COMPLETIONS, asked)
    (choice,) = answer["choices"]
    assert (choice["text"], choice["finish_reason"], answer["usage"]["completion_tokens"]) == (
        "xq é�",
        "length",
        0,
    )
    assert choice["logprobs"]["tokens"] == [
        "x",
        "q",
        " ",
        "bytes:\\xc3",
        "bytes:\\xa9",
        "bytes:\\xc3",
    ]
    assert [tops is None or len(tops) for tops in choice["logprobs"]["top_logprobs"]] == [True] + [
        2
    ] * 5
    assert post(real, COMPLETIONS, {"prompt": "x", "max_tokens": 0})["choices"][0]["text"] == ""
    *_, last = events_of(real, COMPLETIONS, {"prompt": "x", "max_tokens": 0})
    assert last["choices"][0]["finish_reason"] == "length"


def test_unknown_token_id_is_400(real: Server) -> None:
    """Only the model can detect this; the error names the prompt."""
    answer = real.call("POST", COMPLETIONS, {"prompt": [1, 10**6]}, JSON)
    assert (answer.status, peer_error(answer.json)["param"]) == (400, "prompt")


def test_echoed_top_logprobs_are_bounded_by_memory(real: Server) -> None:
    """Each sample begins with the echoed prompt, with the top log probabilities of its tokens."""
    asked = {
        "prompt": [2 + byte for byte in b"a" * 240],
        "n": 256,
        "max_tokens": 0,
        "echo": True,
        "logprobs": 20,
    }
    answer = real.call("POST", COMPLETIONS, asked, JSON)
    assert (answer.status, peer_error(answer.json)["param"]) == (400, "logprobs")
    assert len(post(real, COMPLETIONS, {**asked, "n": 2})["choices"]) == 2


STORY_CHAT = {"messages": [{"role": "user", "content": "z"}], "temperature": 0, "max_tokens": 12}


def test_chat_template_variables_are_checked(chatting: Server) -> None:
    """A variable unknown to the template is rejected if the response depends on it; a final assistant message is continued."""
    for name, value in (
        ("reasoning_effort", "low"),
        ("enable_thinking", False),
        ("documents", [{"text": "x"}]),
    ):
        unknown = chatting.call("POST", CHAT, {**STORY_CHAT, name: value}, JSON)
        assert (unknown.status, peer_error(unknown.json)["param"]) == (400, name)
        assert "must be a variable of this model's chat template" in unknown.json["message"]
    assert post(chatting, CHAT, {**STORY_CHAT, "documents": [], "add_generation_prompt": True})
    assert post(
        chatting,
        CHAT,
        {**STORY_CHAT, "chat_template_kwargs": {"add_generation_prompt": True, "tools": None}},
    )
    misspelt = chatting.call(
        "POST", CHAT, {**STORY_CHAT, "chat_template_kwargs": {"mesages": 1}}, JSON
    )
    assert (misspelt.status, peer_error(misspelt.json)["param"]) == (
        400,
        "chat_template_kwargs.mesages",
    )
    assert "did you mean messages?" in misspelt.json["message"]
    long = chatting.call(
        "POST", CHAT, {**STORY_CHAT, "chat_template_kwargs": {"messages": "x" * (1 << 24)}}, KEYED
    )
    assert (long.status, peer_error(long.json)["param"]) == (400, "chat_template_kwargs")
    said = [*STORY_CHAT["messages"], {"role": "assistant", "content": "a"}]
    going_on = {**STORY_CHAT, "messages": said, "max_tokens": 1, "continue_final_message": True}
    answer = post(chatting, CHAT, going_on)
    assert answer["choices"][0]["message"]["content"]
    wrong = chatting.call("POST", CHAT, {**STORY_CHAT, "continue_final_message": True}, JSON)
    assert (wrong.status, peer_error(wrong.json)["param"]) == (400, "continue_final_message")


def test_chat_uses_model_template(chatting: Server) -> None:
    """The model's template writes the conversation; it is the same turn streamed or not, whole or token by token."""
    answer = post(chatting, CHAT, {**STORY_CHAT, "logprobs": True, "top_logprobs": 2})
    (choice,) = answer["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (STORY, "length")
    assert answer["usage"]["prompt_tokens"] == 2
    content = choice["logprobs"]["content"]
    assert bytes(byte for one in content for byte in one["bytes"]).decode() == STORY
    assert all(
        one["top_logprobs"][0] == {name: one[name] for name in ("token", "logprob", "bytes")}
        for one in content
    )
    streamed = events_of(chatting, CHAT, STORY_CHAT)
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in streamed) == STORY
    (text,) = post(
        chatting, COMPLETIONS, {"prompt": "z", "temperature": 0, "max_tokens": 12, "logprobs": 0}
    )["choices"]
    assert text["text"] == STORY
    assert text["logprobs"]["text_offset"][:6] == [0, 4, 9, 12, 15, 15]


def test_model_end_token_stops_sample(chatting: Server) -> None:
    """The model's end token ends a sample; it is reported as "stop", and is not part of the text."""
    forced = {"logit_bias": {str(END): 100}, "logprobs": True}
    (choice,) = post(chatting, CHAT, {**STORY_CHAT, **forced})["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("", "stop")
    assert choice["logprobs"]["content"] == []
    (choice,) = post(chatting, COMPLETIONS, {"prompt": "z", **forced, "logprobs": 1})["choices"]
    assert (choice["text"], choice["finish_reason"]) == ("", "stop")
    (own,) = chatting.generate({"text": "z", "logit_bias": {END: 100}, "max_tokens": 3}).json[
        "responses"
    ]
    assert own["finish_reason"] == "length"
    stopped = post(chatting, CHAT, {**STORY_CHAT, "stop": "é"})["choices"][0]
    assert (stopped["message"]["content"], stopped["finish_reason"]) == ("Once upon a caf", "stop")


CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 8},
        "visitors": {"type": "integer", "maximum": 999},
    },
    "required": ["city", "visitors"],
    "additionalProperties": False,
}


def test_chat_response_format_constrains_text(writing: Server) -> None:
    """With json_schema the text fits the schema, streamed or not; with json_object it begins an object."""
    asked = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
    body = {"messages": HELLO["messages"], "response_format": asked, "seed": 3, "logprobs": True}
    (choice,) = post(writing, CHAT, body)["choices"]
    assert choice["finish_reason"] == "stop"
    assert set(json.loads(choice["message"]["content"])) == {"city", "visitors"}
    spelled = bytes(byte for one in choice["logprobs"]["content"] for byte in one["bytes"])
    assert spelled.decode() == choice["message"]["content"]
    events = events_of(writing, CHAT, body)
    text = "".join(event["choices"][0]["delta"].get("content", "") for event in events)
    assert text == choice["message"]["content"]
    (free,) = post(writing, CHAT, {**HELLO, "response_format": {"type": "json_object"}, "seed": 1})[
        "choices"
    ]
    assert free["message"]["content"].lstrip().startswith("{")


@pytest.mark.parametrize(
    ("wanted", "param"),
    [
        ({"type": "json_schema"}, "response_format.json_schema.schema"),
        (
            {"type": "json_schema", "json_schema": {"name": "x"}},
            "response_format.json_schema.schema",
        ),
        (
            {"type": "json_schema", "json_schema": {"schema": [1]}},
            "response_format.json_schema.schema",
        ),
        (
            {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}},
            "response_format",
        ),
        ({"type": "json_schema", "json_schema": {"schema": {"enum": []}}}, "response_format"),
    ],
)
def test_invalid_response_format_is_400(
    writing: Server, wanted: dict[str, Any], param: str
) -> None:
    """A schema that is missing, wrong, or that nothing fits, is a 400 that names the field."""
    for stream in ({}, {"stream": True}):
        answer = writing.call("POST", CHAT, {**HELLO, "response_format": wanted, **stream}, JSON)
        assert (answer.status, peer_error(answer.json)["param"]) == (400, param), answer.body
        assert answer.json["message"].startswith(param)


def test_model_error_names_the_prompt(chatting: Server) -> None:
    """A prompt beyond the context and a bias of an unknown token are 400s in the client's names."""
    for path, body, param in (
        (CHAT, {"messages": [{"role": "user", "content": "ab " * 500}]}, "messages"),
        (COMPLETIONS, {"prompt": ["z", "ab " * 500]}, "prompt"),
        (COMPLETIONS, {"prompt": "z", "logit_bias": {"100000": 1}}, "logit_bias"),
    ):
        answer = chatting.call("POST", path, body, JSON)
        assert (answer.status, peer_error(answer.json)["param"]) == (400, param)
        assert answer.json["message"].startswith(param)


def test_workers_answer_equally() -> None:
    """With --workers the process that holds the model answers, errors and streams included."""
    with Server("--workers", "2", *SMALL_MODEL, program=REAL) as server:
        assert eventually(server.is_healthy), server.log
        body = {"prompt": ["hello", "you"], "max_tokens": 4, "temperature": 0}
        texts = [
            [choice["text"] for choice in post(server, COMPLETIONS, body)["choices"]]
            for _ in range(4)
        ]
        assert texts[1:] == texts[:1] * 3
        chunks = events_of(server, COMPLETIONS, body)
        joined = [
            "".join(c["choices"][0]["text"] for c in chunks if c["choices"][0]["index"] == n)
            for n in range(2)
        ]
        assert joined == texts[0]
        refused = server.call("POST", CHAT, HELLO, JSON)
        assert (refused.status, peer_error(refused.json)["param"]) == (400, "messages")
        assert server.call("GET", "/v1/models").json["data"][0]["id"] == "tiny"
        assert (
            server.call("POST", "/v2/rerank", {"query": "x", "documents": ["x"]}, KEYED).status
            == 200
        )


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/api/chat"]
)
def test_too_many_messages_are_refused_before_rendering(writing: Server, path: str) -> None:
    """A conversation of more than 10,000 messages is a 400 that names the field and the limit."""
    field = "input" if path == "/v1/responses" else "messages"
    body: dict[str, Any] = {field: [{"role": "user", "content": "a"}] * 10_001}
    if path == "/v1/messages":
        body["max_tokens"] = 1
    refused = writing.call("POST", path, body, KEYED)
    assert refused.status == 400
    assert f"{field} must be " in refused.body.decode()
    assert "10,000" in refused.body.decode()
