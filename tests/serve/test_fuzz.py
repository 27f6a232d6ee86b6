"""For any input the server answers as described, without a 500 and without hanging."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.serve.harness import KEY, KEYED, Answer, Server
from tests.serve.test_rerank import peer_error

PATHS = [
    "/search",
    "/distributor/search",
    "/generate",
    "/generate_stream",
    "/rerank",
    "/v2/rerank",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/embeddings",
    "/v1/models",
    "/v1/models/x",
    "/health",
    "/stats",
    "/metrics",
    "/docs",
    "/x",
]
PEERS_PATHS = (
    *("/rerank", "/v2/rerank"),
    *("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/models", "/v1/models/x"),
)
FIELDS = [
    *(
        "query",
        "chunk_txts",
        "top_n",
        "true_order",
        "text",
        "metadata",
        "original_index",
        "max_tokens",
        "num_samples",
    ),
    *("stop", "eos_token_ids", "temperature", "top_k", "top_p", "seed", "logprobs", "x"),
    *(
        "documents",
        "texts",
        "return_documents",
        "relevant_spans",
        "return_text",
        "mode",
        "threshold",
        "max_spans",
    ),
    *(
        "prompt",
        "messages",
        "role",
        "content",
        "type",
        "n",
        "echo",
        "top_logprobs",
        "logit_bias",
        "stream",
        "tools",
    ),
    *("input", "encoding_format", "input_type", "dimensions"),
]

texts = st.text(st.characters(exclude_categories=()), max_size=12)
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-3, 8)
    | st.floats()
    | texts
    | st.sampled_from(["a b", "", 2**70])
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from(FIELDS) | texts, inner, max_size=4)
    ),
    max_leaves=10,
)
searches = st.fixed_dictionaries(
    {
        "query": texts | leaves,
        "chunk_txts": st.lists(
            texts | st.fixed_dictionaries({"text": texts}, optional={"metadata": values})
        ),
    },
    optional={"top_n": leaves, "true_order": st.booleans()},
)
generations = st.fixed_dictionaries(
    {"text": texts},
    optional={
        "max_tokens": st.integers(-1, 4),
        "num_samples": st.integers(-1, 3),
        "temperature": leaves,
        "stop": values,
    },
)
reranks = st.fixed_dictionaries(
    {"query": texts | leaves},
    optional={
        "documents": st.lists(texts | st.fixed_dictionaries({"text": texts}) | values, max_size=4),
        "texts": st.lists(texts, max_size=4) | values,
        "top_n": leaves,
        "return_documents": st.booleans() | leaves,
        "return_text": st.booleans() | leaves,
        "relevant_spans": values
        | st.fixed_dictionaries(
            {"mode": st.just("enabled")}, optional={"threshold": leaves, "max_spans": leaves}
        ),
        "model": leaves,
        "x": values,
    },
)
sampled = {
    "max_tokens": st.integers(1, 4),
    "n": st.integers(-1, 3) | leaves,
    "temperature": leaves,
    "top_p": leaves,
    "stop": values,
    "seed": leaves,
    "logit_bias": values
    | st.dictionaries(st.sampled_from(["1", "2", "x", "999"]), st.integers(-101, 101), max_size=2),
    "stream": st.booleans() | leaves,
    "stream_options": values | st.fixed_dictionaries({"include_usage": st.booleans()}),
    "top_logprobs": leaves,
    "logprobs": st.booleans() | leaves,
    "x": values,
}
completions = st.fixed_dictionaries(
    {"prompt": texts | st.lists(texts, max_size=3) | values},
    optional={**sampled, "echo": st.booleans() | leaves, "best_of": leaves, "suffix": leaves},
)
parts = texts | st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(["text", "image_url"]), "text": texts}) | values
)
chats = st.fixed_dictionaries(
    {
        "messages": st.lists(
            st.fixed_dictionaries({"role": texts, "content": parts}) | values, max_size=3
        )
        | values,
    },
    optional={
        **sampled,
        "response_format": values,
        "tools": values,
        "tool_choice": values,
        "max_completion_tokens": leaves,
    },
)
embeddings = st.fixed_dictionaries(
    {"input": texts | st.lists(texts, max_size=3) | values},
    optional={
        "encoding_format": st.sampled_from(["float", "base64"]) | values,
        "input_type": st.sampled_from(["query", "search_document"]) | values,
        "dimensions": leaves,
        "model": leaves,
    },
)
bodies = st.one_of(
    (values | searches | generations | reranks | completions | chats | embeddings).map(
        lambda value: json.dumps(value).encode()
    ),
    st.binary(max_size=60),
    searches.map(lambda value: gzip.compress(json.dumps(value).encode())),
    searches.map(lambda value: zstandard.compress(json.dumps(value).encode())),
)
header_values = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30)
headers = st.fixed_dictionaries(
    {},
    optional={
        "X-API-Key": header_values | st.just("a-test-key"),
        "Authorization": st.sampled_from(["Bearer a-test-key", "Bearer", "bearer  x", "Basic eA=="])
        | header_values,
        "Content-Type": header_values | st.just("application/json"),
        "Content-Encoding": st.sampled_from(["gzip", "zstd", "identity", "br", "", "gzip, gzip"])
        | header_values,
        "Accept-Encoding": st.sampled_from(["gzip", "zstd", "*;q=0.1", "gzip;q=x"]) | header_values,
        "X-Request-ID": header_values,
        "Origin": header_values,
        "Expect": st.sampled_from(["", "miracles"]),
        "Accept": header_values,
        "Range": header_values,
        "If-None-Match": header_values,
    },
)


@given(
    method=st.sampled_from(["GET", "HEAD", "POST", "PUT", "OPTIONS", "DELETE"]),
    path=st.sampled_from(PATHS),
    body=bodies,
    given_headers=headers,
    keyed=st.booleans(),
)
def test_any_request_gets_documented_status(
    real: Server, method: str, path: str, body: bytes, given_headers: dict[str, str], keyed: bool
) -> None:
    """Any method, path, headers and body get a described status in time, and errors have the one documented shape."""
    answer = real.call(
        method, path, body, {**given_headers, **KEYED} if keyed else given_headers, timeout_s=60
    )
    assert answer.status in {200, 204, 400, 401, 403, 404, 405, 413, 415, 417, 429}
    if answer.status >= 400 and answer.body:
        assert_an_error(answer, is_peers=path in PEERS_PATHS)


def assert_an_error(answer: Answer, *, is_peers: bool) -> None:
    """Require a documented shape of an error."""
    if not is_peers:
        assert set(answer.error) >= {"type", "message"}
    elif isinstance(answer.json["error"], str):
        assert set(answer.json) == {"error", "error_type"}
    else:
        assert peer_error(answer.json)["message"]


@given(body=completions, chat=chats)
def test_any_completion_is_answered_or_400(
    chatting: Server, body: dict[str, Any], chat: dict[str, Any]
) -> None:
    """A completion or a chat gets a choice for each sample, streamed or not, or a 400 with the reason."""
    for path, sent in (("/v1/completions", body), ("/v1/chat/completions", chat)):
        limit = {} if "max_completion_tokens" in sent else {"max_tokens": sent.get("max_tokens", 4)}
        answer = chatting.call("POST", path, json.dumps({**sent, **limit}).encode(), KEYED)
        if answer.status != 200:
            assert answer.status == 400, answer.body
            assert_an_error(answer, is_peers=True)
            continue
        n_prompts = len(sent["prompt"]) if isinstance(sent.get("prompt"), list) else 1
        n_choices = n_prompts * (1 if sent.get("n") is None else sent["n"])
        if sent.get("stream"):
            assert answer.body.endswith(b"data: [DONE]\n\n")
            assert answer.body.count(b'"finish_reason":"') == n_choices
        else:
            assert [choice["index"] for choice in answer.json["choices"]] == list(range(n_choices))


@given(body=embeddings)
def test_embeddings_returns_vectors_or_400(real: Server, body: dict[str, Any]) -> None:
    """A request for vectors gets vectors of equal length, or a 400 with the reason."""
    answer = real.call("POST", "/v1/embeddings", json.dumps(body).encode(), KEYED)
    if answer.status != 200:
        assert answer.status == 400, answer.body
        assert_an_error(answer, is_peers=True)
        return
    vectors = [one["embedding"] for one in answer.json["data"]]
    assert len(vectors) == (1 if isinstance(body["input"], str) else len(body["input"]))
    assert len({len(vector) for vector in vectors}) == 1


@given(body=reranks, path=st.sampled_from(["/rerank", "/v1/rerank", "/v2/rerank"]))
def test_any_rerank_is_answered_or_400(real: Server, body: dict[str, Any], path: str) -> None:
    """A rerank gets the requested number of documents, with scores in [0, 1], best first, or a 400 in its API format."""
    answer = real.call("POST", path, json.dumps(body).encode(), KEYED)
    if answer.status != 200:
        assert answer.status == 400
        assert_an_error(answer, is_peers=True)
        return
    is_tei = "texts" in body
    documents = body["texts" if is_tei else "documents"]
    results = answer.json if is_tei else answer.json["results"]
    scores = [result["score" if is_tei else "relevance_score"] for result in results]
    assert scores == sorted(scores, reverse=True)
    assert all(0 <= score <= 1 for score in scores)
    places = [result["index"] for result in results]
    n_wanted = len(documents) if body.get("top_n") is None else min(body["top_n"], len(documents))
    assert len(places) == len(set(places)) == n_wanted
    assert set(places) <= set(range(len(documents)))


@given(body=searches)
def test_any_search_is_answered_or_400(real: Server, body: dict[str, Any]) -> None:
    """A search gets results that keep to the rules, or a 400 that names a field."""
    sent = json.dumps(body).encode()
    answer = real.search(sent)
    if answer.status == 400:
        assert answer.error["message"]
        return
    assert answer.status == 200
    results = answer.json["results"]
    assert len(results) <= body.get("top_n", 10)
    assert [result["chunk_id"] for result in results] == list(range(len(results)))
    for result in results:
        chunk = body["chunk_txts"][result["original_index"]]
        text, metadata = (
            (chunk, {}) if isinstance(chunk, str) else (chunk["text"], chunk.get("metadata", {}))
        )
        assert (result["chunk_txt"], result["metadata"]) == (text, metadata)


def test_schemathesis_finds_nothing(real: Server, tmp_path: Path) -> None:
    """schemathesis, with inputs that the description allows and forbids, finds no contradicting response."""
    run_schemathesis(real, tmp_path, "--max-examples=2", "--phases=examples,fuzzing")


@pytest.mark.soak
def test_schemathesis_finds_nothing_in_a_long_run(real: Server, tmp_path: Path) -> None:
    """The same with many examples and the systematic coverage of every bound and keyword."""
    run_schemathesis(real, tmp_path, "--max-examples=200", "--phases=examples,coverage,fuzzing")


def run_schemathesis(server: Server, directory: Path, *flags: str) -> None:
    """Run schemathesis against a server, with its output in `directory`."""
    program = Path(sys.executable).with_name("schemathesis")
    if not program.exists():
        pytest.skip("schemathesis is not installed")
    # A body with too many JSON values is refused before its schema is checked.
    (directory / "schemathesis.toml").write_text(
        "[checks.negative_data_rejection]\nexpected-statuses = ['4xx', '5xx']\n"
    )
    done = subprocess.run(
        [
            *(
                program,
                "run",
                f"{server.url}/openapi.json",
                f"--header=X-API-Key: {KEY}",
                "--checks=all",
            ),
            # JSON Schema calls 10.0 an integer; the contract does not. The properties above check
            # valid inputs.
            *(
                "--exclude-checks=positive_data_acceptance",
                "--suppress-health-check=all",
                "--seed=1",
                *("--request-timeout=120", "--max-response-time=120"),
                *flags,
            ),
        ],
        capture_output=True,
        text=True,
        cwd=directory,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
