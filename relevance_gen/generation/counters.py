"""What a runner has done, for a metrics page."""

from __future__ import annotations

from attrs import astuple, define


@define
class Counters:
    """What a runner has done since it started.

    Attributes:
        requests_finished: answered with a response.
        requests_cancelled: cancelled by their callers.
        requests_failed: answered with an error.
        prompt_tokens: tokens of all prompts served.
        prompt_tokens_reused: how many of them came from the prefix cache.
        prefix_cache_hits: prompts that reused at least one slice.
        generated_tokens: tokens generated.
        first_tokens: requests that have produced a token.
        first_token_s: total time from acceptance to first token, over those requests.
        decode_steps: batches of one token for each running sequence.
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
        return Counters(*map(sum, zip(astuple(self), astuple(other), strict=True)))
