"""Changes of one sample's logits before sampling: bias, penalties, suppressed EOS tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from relevance_gen.generation.sampling.sampler import Replacement
from relevance_gen.llama.language_model import Logits
from relevance_gen.types import GenerationRequest

T = TypeVar("T", bound=np.generic)

_MAX_LOGIT = float(np.finfo(np.float32).max)
_GROWTH = 16
"""Elements by which an array grows, in addition to its double size."""


class LogitsProcessor:
    """Computes the changed logits of single tokens of one sample; the model's array is not changed.

    The bias is added to the logit of a token. If the sample has generated the token c ≥ 1 times,
    the logit is then divided by the repetition penalty if the logit is positive, and multiplied by
    the repetition penalty otherwise; then presence_penalty + c · frequency_penalty is subtracted.
    While the sample has fewer than min_tokens tokens, its EOS tokens are impossible.

    Args:
        request: bias and penalties.
        eos_token_ids: tokens that end the sample; ids beyond the vocabulary are ignored.
        n_vocab: size of the vocabulary.
    """

    def __init__(
        self, request: GenerationRequest, eos_token_ids: Iterable[int], n_vocab: int
    ) -> None:
        self._request = request
        has_additive_penalty = request.presence_penalty or request.frequency_penalty
        self._has_penalty = bool(has_additive_penalty or request.repetition_penalty != 1)
        suppressed: list[int] = []
        if request.min_tokens:
            suppressed = [token for token in eos_token_ids if token < n_vocab]
        self._suppressed_ids = np.array(suppressed, np.intp)
        self._n_generated = 0
        # Each changed token has an index into the arrays; the arrays have unused elements at their
        # end.
        biased = list(request.logit_bias)
        self._index_by_token = {token: index for index, token in enumerate(biased)}
        self._ids: NDArray[np.intp] = np.array(biased, np.intp)
        biases = list(request.logit_bias.values())
        self._bias: NDArray[np.float64] = np.array(biases, np.float64)
        self._counts: NDArray[np.float64] = np.zeros(len(biased), np.float64)

    @property
    def changes_logits(self) -> bool:
        """Whether `replacement` may change a logit of the next token."""
        return bool(self._index_by_token) or self._suppresses_eos

    @property
    def _suppresses_eos(self) -> bool:
        return self._n_generated < self._request.min_tokens

    def count(self, token: int) -> None:
        """Count a generated token in total and, if the request has penalties, by its token id."""
        self._n_generated += 1
        if not self._has_penalty:
            return
        index = self._index_by_token.setdefault(token, len(self._index_by_token))
        if index == len(self._ids):
            self._ids = _extended(self._ids)
            self._bias = _extended(self._bias)
            self._counts = _extended(self._counts)
        self._ids[index] = token
        self._counts[index] += 1

    def replacement(self, logits: Logits) -> Replacement:
        """Return the tokens whose logits change, and their new logits.

        `logits` are those of the model, shape (V,).
        """
        request = self._request
        n_changed = len(self._index_by_token)
        # All arrays have the shape (n_changed,).
        ids, counts = self._ids[:n_changed], self._counts[:n_changed]
        values = logits[ids] + self._bias[:n_changed]
        was_generated = counts > 0
        penalty = request.repetition_penalty
        with np.errstate(over="ignore"):
            penalized = np.where(values > 0, values / penalty, values * penalty)
        values = np.where(was_generated, penalized, values)
        values -= request.presence_penalty * was_generated + request.frequency_penalty * counts
        changed = np.clip(values, -_MAX_LOGIT, _MAX_LOGIT).astype(np.float32)
        if self._suppresses_eos:
            # After the other tokens, because an EOS token may have a bias too and the last value
            # counts.
            impossible = np.full(len(self._suppressed_ids), -np.inf, np.float32)
            ids = np.concatenate((ids, self._suppressed_ids))
            changed = np.concatenate((changed, impossible))
        return Replacement(ids, changed)


def _extended(array: NDArray[T]) -> NDArray[T]:
    """Return a copy of an array with zeros appended: its own length and `_GROWTH` more."""
    zeros = np.zeros(len(array) + _GROWTH, array.dtype)
    return np.concatenate((array, zeros))
