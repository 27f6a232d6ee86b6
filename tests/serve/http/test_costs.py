"""The table of costs against the measured memory of responses."""

from __future__ import annotations

import pickle
import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest

from relevance_gen import ChunkIndex, wire
from relevance_gen.asking.citations import Attributor
from relevance_gen.request_scope import budget_scope
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.serve.adapters import own
from relevance_gen.serve.adapters.openai import chat, completions
from relevance_gen.serve.http.resources import costs
from relevance_gen.types import Completion, GenerationResponse, TokenLogprob, TokenTexts

_FLAT_BYTES = 2 << 20
"""Memory of any response: JSON is written in tens of thousands of pieces before they are joined."""


def response_of(
    n_tokens: int, n_likeliest: int, n_prompt: int, n_samples: int
) -> GenerationResponse:
    """Return a response with as few repeated tokens as possible, and all optional fields."""
    draws = np.random.default_rng(0)

    def tokens(n: int) -> tuple[int, ...]:
        return tuple(draws.integers(0, 100_000, n).tolist())

    def logprobs(n: int) -> tuple[float, ...]:
        return tuple((-10 * draws.random(n)).tolist())

    def likeliest(n: int) -> tuple[tuple[TokenLogprob, ...], ...]:
        return tuple(
            tuple(map(TokenLogprob, tokens(n_likeliest), logprobs(n_likeliest))) for _ in range(n)
        )

    samples = tuple(
        Completion(
            *("text" * n_tokens, n_tokens, 1.0, "length"),
            tokens(n_tokens),
            logprobs(n_tokens),
            likeliest(n_tokens),
        )
        for _ in range(n_samples)
    )
    prompt, in_places = tokens(n_prompt), likeliest(n_prompt)[1:]
    reported = [*prompt, *(token for sample in samples for token in sample.tokens or ())]
    reported += [
        each.token
        for rows in (in_places, *(sample.top_logprobs or () for sample in samples))
        for row in rows
        for each in row
    ]
    token_texts = TokenTexts(
        prompt, {token: f" w{token}".encode() for token in reported}, frozenset(), in_places
    )
    known = (None, *logprobs(n_prompt)[1:]) if n_prompt else None
    return GenerationResponse(
        1.0, 1.0, n_samples, "" if n_prompt else "x", n_prompt, samples, known, token_texts
    )


ALL: dict[str, Any] = {"text": "x", "return_tokens": True, "logprobs": True, "top_logprobs": 1}
MESSAGES = [{"role": "user", "content": "x"}]


@pytest.mark.parametrize(
    ("cost", "read", "body", "shape"),
    [
        (costs.GENERATION, own.read_generation, ALL, (16_000, 0, 0, 1)),
        (costs.GENERATION, own.read_generation, ALL, (600, 20, 0, 1)),
        (costs.COMPLETION, completions.read, {"prompt": "x", "logprobs": 0}, (16_000, 0, 0, 1)),
        (costs.COMPLETION, completions.read, {"prompt": "x", "logprobs": 5}, (3000, 5, 0, 1)),
        (
            costs.COMPLETION,
            completions.read,
            {"prompt": [1], "logprobs": 5, "echo": True, "n": 4},
            (10, 5, 1000, 4),
        ),
        (costs.CHAT, chat.read, {"messages": MESSAGES, "logprobs": True}, (8000, 0, 0, 1)),
        (
            costs.CHAT,
            chat.read,
            {"messages": MESSAGES, "logprobs": True, "top_logprobs": 20},
            (600, 20, 0, 1),
        ),
    ],
)
def test_response_memory_is_within_its_cost(cost: Any, read: Any, body: Any, shape: Any) -> None:
    """The bound is at most four times the memory, for ids, log probabilities and top log probabilities."""
    task, present = read(body)
    outcome = (response_of(*shape),)
    wire.serialize(present((response_of(1, 1, 0, 1),)))  # fill the caches
    was_tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before_bytes = tracemalloc.get_traced_memory()[0]
        wire.serialize(present(outcome))
        taken_bytes = tracemalloc.get_traced_memory()[1] - before_bytes
    finally:
        if not was_tracing:
            tracemalloc.stop()
    assert taken_bytes - _FLAT_BYTES <= cost.of_responses(outcome, task) <= 4 * taken_bytes


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("猫。" * 4000, "猫。犬。" * 2000),
        ("cats purr. " * 1000, "a b c d " * 5000),
        ("a " * 20_000, "我喜欢猫" * 5000),
    ],
)
def test_citation_memory_is_within_its_reservations(text: str, source: str) -> None:
    """The bound covers sentences of the text and its sources, matches and JSON, for different proportions."""
    announced_bytes = 0

    def expect(unit: str, number: int) -> None:
        nonlocal announced_bytes
        announced_bytes += getattr(costs.CITATION, unit) * number

    task, present = own.read_citation({"text": text, "chunk_txts": [source]})
    Attributor(["x"]).cite("x")  # fill the caches
    was_tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before_bytes = tracemalloc.get_traced_memory()[0]
        with budget_scope(expect):
            wire.serialize(present([*Attributor(task.chunks).cite(task.text)]))
        taken_bytes = tracemalloc.get_traced_memory()[1] - before_bytes
    finally:
        if not was_tracing:
            tracemalloc.stop()
    assert taken_bytes - _FLAT_BYTES <= announced_bytes


def test_queued_task_bytes_counts_tokens_and_texts() -> None:
    """The tokens that it allows once, though it has many prompts, and the texts that it may be."""
    body = {
        "prompt": ["x"] * 8,
        "allowed_token_ids": [*range(1000, 2000)],
    }
    plain, _ = completions.read({"prompt": ["x"] * 8})
    asked, _ = completions.read(body)
    kept_bytes = costs.queued_task_bytes(asked) - costs.queued_task_bytes(plain)
    assert 1000 * (8 + 28) <= kept_bytes < 1000 * (8 + 28) + 1000
    chosen, _ = completions.read({"prompt": ["x"] * 8, "choice": ["word" * 1000, "b" * 1000]})
    assert 5000 <= costs.queued_task_bytes(chosen) - costs.queued_task_bytes(plain) < 6000


@pytest.mark.parametrize(
    "text", ["the black cat sat ", "黑色的猫坐在垫子上", "\U0001f600\U0001f601\U0001f602"]
)
@pytest.mark.parametrize("n_texts", [1, 500])
def test_phrase_memory_is_within_its_cost(text: str, n_texts: int) -> None:
    """The bound covers a saved index with lazily decoded texts: many short texts or one long text."""
    said = text * (150_000 // len(text) // n_texts) + " black cat"
    index = pickle.loads(pickle.dumps(ChunkIndex([said] * n_texts)))
    question = SearchParams('"black cat"', 1, syntax="operators")
    index.answer_all([question])  # fill the caches
    reported: Counter[str] = Counter()
    tracemalloc.start()
    try:
        before_bytes = tracemalloc.get_traced_memory()[0]
        with budget_scope(lambda unit, number: reported.update({unit: number})):
            index.answer_all([question])
        taken_bytes = tracemalloc.get_traced_memory()[1] - before_bytes
    finally:
        tracemalloc.stop()
    counted_bytes = costs.SEARCH.phrase_char * reported["phrase_char"] + costs.SEARCH.cluster_index
    assert taken_bytes - _FLAT_BYTES <= counted_bytes
