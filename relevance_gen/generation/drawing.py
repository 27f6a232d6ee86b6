"""Draw the next token of every sequence of a batch, and tell what its request wants to know of it."""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np
from attrs import frozen

from relevance_gen.generation import sampling
from relevance_gen.generation.sequence import Sequence
from relevance_gen.llama.language_model import Logits
from relevance_gen.types import TokenLogprob


@frozen
class Drawn:
    """A token that was drawn.

    Attributes:
        token: its id, or `sampling.NO_TOKEN`.
        logprob: its log probability, where the request wants it.
        alternatives: the likeliest tokens in its place, as many as the request wants.
    """

    token: int
    logprob: float | None
    alternatives: tuple[TokenLogprob, ...]


def draw(sequences: Items[Sequence], logits: Logits) -> list[Drawn]:
    """Draw a token for each of `sequences`, row i of `logits` belonging to the i-th."""
    rows = list(enumerate(sequences))
    tokens = sampling.sample(
        logits,
        [sequence.settings for sequence in sequences],
        np.array([sequence.draw() for sequence in sequences]),
        {row: each.adjustment.replacement(logits[row]) for row, each in rows if each.adjustment.changes_logits},
        {row: each.constraint.mask(may_end=each.may_end) for row, each in rows if each.constraint is not None},
    )
    logprobs: dict[int, float] = {}
    if wanted := [row for row, sequence in rows if sequence.wants_logprobs]:
        values = sampling.log_probabilities(logits[wanted], tokens[wanted])
        logprobs = dict(zip(wanted, values.tolist(), strict=True))
    return [
        Drawn(token, logprobs.get(row), sampling.likeliest(logits[row], n) if (n := sequence.n_alternatives) else ())
        for token, (row, sequence) in zip(tokens.tolist(), rows, strict=True)
    ]
