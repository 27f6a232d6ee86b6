"""What one sample changes in the model's logits before it draws: bias, then penalties; and end tokens held back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from relevance_gen.generation.sampling.sampler import Replacement
from relevance_gen.llama.language_model import Logits
from relevance_gen.types import GenerationRequest

T = TypeVar("T", bound=np.generic)

_LARGEST = float(np.finfo(np.float32).max)


class LogitsProcessor:
    """The logits of single tokens, as a request wants them: the others are never touched, nor is the model's array.

    A biased logit is logit + bias. Of a token that the sample has generated c ≥ 1 times it is then divided by the
    repetition penalty if positive, else multiplied by it, and presence_penalty + c · frequency_penalty is subtracted.
    As long as there are fewer than min_tokens tokens, the `ends` of a sample are impossible; those beyond the
    vocabulary are ignored.
    """

    def __init__(self, request: GenerationRequest, ends: Iterable[int], n_vocab: int) -> None:
        self._request = request
        self._penalises = bool(
            request.presence_penalty or request.frequency_penalty or request.repetition_penalty != 1
        )
        self._ends = np.array(
            [token for token in ends if token < n_vocab] if request.min_tokens else [], np.intp
        )
        self._n_generated = 0
        # Position i of the arrays belongs to one token; they have room for more.
        self._position = {token: i for i, token in enumerate(request.logit_bias)}
        self._ids: NDArray[np.intp] = np.array([*request.logit_bias], np.intp)
        self._bias: NDArray[np.float64] = np.array([*request.logit_bias.values()], np.float64)
        self._counts: NDArray[np.float64] = np.zeros(len(self._ids), np.float64)

    @property
    def changes_logits(self) -> bool:
        """Whether the next draw needs `replacement`."""
        return bool(self._position) or self._n_generated < self._request.min_tokens

    def count(self, token: int) -> None:
        """Take note of a generated token."""
        self._n_generated += 1
        if not self._penalises:
            return
        position = self._position.setdefault(token, len(self._position))
        if position == len(self._ids):
            self._ids = _with_room(self._ids)
            self._bias, self._counts = _with_room(self._bias), _with_room(self._counts)
        self._ids[position] = token
        self._counts[position] += 1

    def replacement(self, logits: Logits) -> Replacement:
        """Return which of the model's `logits`, shape (V,), are to be replaced, and by what."""
        request, n = self._request, len(self._position)
        ids, counts = self._ids[:n], self._counts[:n]
        values = logits[ids] + self._bias[:n]
        was_generated = counts > 0
        with np.errstate(over="ignore"):
            repeated = np.where(
                values > 0, values / request.repetition_penalty, values * request.repetition_penalty
            )
        values = np.where(was_generated, repeated, values)
        values -= request.presence_penalty * was_generated + request.frequency_penalty * counts
        adjusted = np.clip(values, -_LARGEST, _LARGEST).astype(np.float32)
        if (
            self._n_generated < request.min_tokens
        ):  # behind the others: an end token may have a bias too
            ids = np.concatenate((ids, self._ends))
            adjusted = np.concatenate((adjusted, np.full(len(self._ends), -np.inf, np.float32)))
        return ids, adjusted


def _with_room(array: NDArray[T]) -> NDArray[T]:
    return np.concatenate((array, np.zeros(len(array) + 16, array.dtype)))
