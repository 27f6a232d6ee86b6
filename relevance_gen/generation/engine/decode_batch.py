"""What a step computes of each sequence, and the token that is drawn from it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from collections.abc import Sequence as Items

import numpy as np
from attrs import frozen

from relevance_gen.generation.engine.sample_state import Sequence
from relevance_gen.generation.sampling import sampler as sampling
from relevance_gen.llama.language_model import Logits
from relevance_gen.types import TokenLogprob

_MOST_ROWS = 16
"""Rows that guesses may fill a batch up to: more take longer than they save."""
_LEAST_GUESS = 2
"""Tokens of a guess that each sequence must have room for: below, there are too many sequences."""


class Rows:
    """The rows of a batch: of each slot its last token, and behind it what is guessed to follow.

    There are `slots`, `tokens` and `positions` of each row; by slot, ascending as in the `sequences`, its `first` row,
    and the `guesses` of what may follow, where there are any.
    """

    def __init__(self, sequences: Mapping[int, Sequence]) -> None:
        self.slots: list[int] = []
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.first: dict[int, int] = {}
        self.guesses: dict[int, list[int]] = {}
        n_most = _most_guessed(sequences.values())
        for slot, sequence in sequences.items():
            guess = sequence.lookup.guess(n_most) if n_most and sequence.lookup else []
            if guess:
                self.guesses[slot] = guess
            self.first[slot] = len(self.slots)
            self.slots += [slot] * (1 + len(guess))
            self.tokens += [sequence.tokens[-1], *guess]
            self.positions += range(sequence.position, sequence.position + 1 + len(guess))

    def was_guessed(self, slot: int, depth: int, token: int) -> bool:
        """Tell whether the next row of `slot` was computed for `token`, which was drawn from the row at `depth`."""
        guess = self.guesses.get(slot, ())
        return depth < len(guess) and guess[depth] == token

    def settle(self, slot: int, sequence: Sequence) -> None:
        """Let the lookup of `slot` learn how much of its guess was right."""
        if sequence.lookup is not None:
            sequence.lookup.learn(sequence.position - self.positions[self.first[slot]] - 1)


def _most_guessed(sequences: Collection[Sequence]) -> int:
    """Return how many tokens to guess for each of `sequences`.

    It is 0 unless all of them want guesses, because further rows slow the step for everyone in the batch.
    """
    if any(sequence.lookup is None for sequence in sequences):
        return 0
    n_most = (_MOST_ROWS - len(sequences)) // len(sequences)
    return n_most if n_most >= _LEAST_GUESS else 0


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
