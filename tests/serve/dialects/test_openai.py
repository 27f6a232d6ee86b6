"""OpenAI's completions, apart from HTTP."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from relevance_gen.errors import InvalidRequestError
from relevance_gen.serve.dialects.openai import chat, completions, embeddings
from relevance_gen.types import GenerationRequest


def test_each_prompt_has_the_same_request() -> None:
    """The requests of several prompts differ in their text alone."""
    body = {"prompt": ["a", "b"], "n": 2, "stop": ["x"], "logit_bias": {"7": 1}, "seed": -1, "max_tokens": 3}
    task, _ = completions.read(body)
    options = {"max_tokens": 3, "num_samples": 2, "stop": ("x",), "logit_bias": {7: 1.0}, "seed": 2**64 - 1, "top_k": 0}
    assert task.requests == (GenerationRequest("a", **options), GenerationRequest("b", **options))
    assert (task.n_samples, task.manner.stops_itself, task.manner.spells) == (4, True, False)


def test_many_prompts_cost_little_more_than_one() -> None:
    """What is checked once for a request is not checked again for each of its prompts."""
    bias = {str(token): 1 for token in range(4096)}
    started_s = time.process_time()
    task, _ = completions.read({"prompt": ["x"] * 256, "logit_bias": bias})
    assert len(task.requests) == 256
    assert time.process_time() - started_s < 0.5


def test_stop_strings_are_bounded_over_all_prompts() -> None:
    """They are compiled for each prompt, so many prompts may have fewer characters of them."""
    stop = ["x" * 1000]
    assert completions.read({"prompt": ["x"] * 65, "stop": stop})
    with pytest.raises(InvalidRequestError, match="stop must hold at most 992 characters") as caught:
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
def test_a_models_name_is_short(read: Callable[[object], object], body: dict[str, object]) -> None:
    """Every chunk of a stream repeats it, so a long one would make a small request a very large answer."""
    assert read({**body, "model": "m" * 1024})
    with pytest.raises(InvalidRequestError, match="model must be a string of at most 1,024 characters"):
        read({**body, "model": "m" * 1025})


def test_an_echoed_prompt_is_bounded_over_all_samples() -> None:
    """An answer holds it once for each sample, so many samples may have a shorter one."""
    body = {"prompt": ["x" * (1 << 12)] * 4, "n": 64, "max_input_tokens": 8}
    assert completions.read({**body, "echo": True})
    body["prompt"] = ["x" * (1 << 12)] * 3 + ["x" * (1 + (1 << 12))]
    assert completions.read(body)
    with pytest.raises(InvalidRequestError, match="echo must be false where n times") as caught:
        completions.read({**body, "echo": True})
    assert caught.value.field == "echo"


def test_alternatives_are_bounded_over_all_prompts() -> None:
    """An answer holds those of every prompt until the last is done, so many prompts may have fewer of them."""
    body = {"prompt": ["x"] * 64, "max_tokens": 1 << 13, "logprobs": 2}
    assert completions.read(body)
    assert completions.read({**body, "prompt": "x", "logprobs": 20, "max_tokens": 1 << 30})
    with pytest.raises(
        InvalidRequestError, match="logprobs must be at most 2 for 524,288 tokens in all samples, got 3"
    ):
        completions.read({**body, "logprobs": 3})
