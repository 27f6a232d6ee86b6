"""Counts of the work of a runner, for metrics."""

from __future__ import annotations

from attrs import astuple, define


@define
class Counters:
    """Counts of the work of a runner since it started.

    Attributes:
        requests_finished: requests that ended with a response.
        requests_cancelled: requests that their callers cancelled.
        requests_failed: requests that ended with an error.
        prompt_tokens: tokens of all prompts.
        prompt_tokens_reused: tokens of prompts that came from the prefix cache.
        prefix_cache_hits: prompts of which the prefix cache had a part.
        generated_tokens: generated tokens.
        first_tokens: requests that have produced a token.
        first_token_s: total time from acceptance to the first token of these requests, in seconds.
        decode_steps: batches with one token for each running sample.
    """

    requests_finished: int = 0
    requests_cancelled: int = 0
    requests_failed: int = 0
    prompt_tokens: int = 0
    prompt_tokens_reused: int = 0
    prefix_cache_hits: int = 0
    generated_tokens: int = 0
    first_tokens: int = 0
    first_token_s: float = 0.0
    decode_steps: int = 0

    def __add__(self, other: Counters) -> Counters:
        pairs = zip(astuple(self), astuple(other), strict=True)
        return Counters(*map(sum, pairs))
