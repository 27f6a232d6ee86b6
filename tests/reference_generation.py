"""Slow reference of generation: one sequence at a time, probabilities in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from relevance_gen.types import GenerationRequest

Distribution = NDArray[np.float64]


def distribution(
    logits: NDArray[np.floating], request: GenerationRequest, generated: Sequence[int] = ()
) -> Distribution:
    """Return the probability of each token as the next token after `generated`.

    Bias → penalties → temperature → top_k → top_p → min_p, as requests have them. Ties: the lower
    id.
    """
    scores = logits.astype(np.float64)
    for token, bias in request.logit_bias.items():
        scores[token] += bias
    for token in set(generated):
        repeated = request.repetition_penalty
        scores[token] = scores[token] / repeated if scores[token] > 0 else scores[token] * repeated
        scores[token] -= request.presence_penalty + request.frequency_penalty * list(
            generated
        ).count(token)
    if len(generated) < request.min_tokens:
        scores[[token for token in request.eos_token_ids if token < len(scores)]] = -np.inf
    if request.temperature == 0:
        return np.eye(len(scores))[scores.argmax()]
    order = sorted(range(len(scores)), key=lambda token: (-scores[token], token))
    if request.top_k:
        order = order[: request.top_k]
    weight = {
        token: float(np.exp((scores[token] - scores[order[0]]) / request.temperature))
        for token in order
    }
    total = sum(weight.values())
    nucleus, mass = [], 0.0
    for token in order:
        nucleus.append(token)
        mass += weight[token]
        if mass >= request.top_p * total:
            break
    likely = [token for token in nucleus if weight[token] >= request.min_p]
    result = np.zeros(len(scores))
    for token in likely:
        result[token] = weight[token]
    return result / result.sum()


def text_before_stop(pieces: Sequence[bytes], stops: Sequence[str]) -> tuple[str, bool]:
    """Return the text of all `pieces` before the first complete stop string, and whether there is a stop string."""
    text = b"".join(pieces).decode(errors="replace")
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            return text[: end - max(map(len, ending))], True
    return text, False


def greedy(
    next_logits: Callable[[list[int]], NDArray[np.floating]], prompt: list[int], n_tokens: int
) -> list[int]:
    """Return the `n_tokens` most likely continuations, each given all previous tokens."""
    tokens = list(prompt)
    for _ in range(n_tokens):
        tokens.append(int(np.argmax(next_logits(tokens))))
    return tokens[len(prompt) :]
