"""The token that is drawn for each sequence of a batch."""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np
from attrs import frozen

from relevance_gen.generation.engine.sample_state import Sequence
from relevance_gen.generation.sampling import sampler as sampling
from relevance_gen.llama.language_model import Logits
from relevance_gen.types import TokenLogprob


@frozen
class SampledToken:
    """A token that was drawn, or `sampling.NO_TOKEN`, with what the request wants to know of it.

    That is its log probability, and as many of the likeliest tokens in its place.
    """

    token: int
    logprob: float | None
    alternatives: tuple[TokenLogprob, ...]


def draw(sequences: Items[Sequence], logits: Logits) -> list[SampledToken]:
    """Draw a token for each of `sequences`, row i of `logits` belonging to the i-th."""
    rows = list(enumerate(sequences))
    tokens = sampling.sample(
        logits,
        [sequence.request for sequence in sequences],
        np.array([sequence.draw() for sequence in sequences]),
        {
            row: each.adjustment.replacement(logits[row])
            for row, each in rows
            if each.adjustment.changes_logits
        },
        {row: mask for row, each in rows if (mask := each.mask()) is not None},
    )
    logprobs: dict[int, float] = {}
    if wanted := [row for row, sequence in rows if sequence.request.logprobs]:
        values = sampling.log_probabilities(logits[wanted], tokens[wanted])
        logprobs = dict(zip(wanted, values.tolist(), strict=True))
    return [
        SampledToken(
            token,
            logprobs.get(row),
            sampling.likeliest(logits[row], n) if (n := sequence.n_alternatives) else (),
        )
        for token, (row, sequence) in zip(tokens.tolist(), rows, strict=True)
    ]
