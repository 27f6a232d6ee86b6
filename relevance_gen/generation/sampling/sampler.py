"""Sample the next token of each sample of a batch, in pure numpy; no row depends on another row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from relevance_gen.errors import GenerationError
from relevance_gen.llama.language_model import Logits
from relevance_gen.types import GenerationRequest, TokenLogprob

Ids: TypeAlias = NDArray[np.intp]
Uniforms: TypeAlias = NDArray[np.float64]
Weights: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.uint8]
"""Tokens that may be sampled, one bit each: bit i % 8 of byte i // 8 belongs to token i."""

NO_TOKEN = -1
"""Result of sampling if a mask allows no token of a probability above 0."""

_MIN_FOLDED_VOCABULARY = 4096
"""Size of a vocabulary below which one argpartition of a row is faster than folding it first."""
_BYTES = np.arange(256, dtype=np.uint8)
_BYTE_BITS = np.unpackbits(_BYTES[:, None], axis=1, bitorder="little")
_MASK_LOGITS = np.where(_BYTE_BITS, np.float32(0), np.float32(-np.inf))
"""Values that a byte of a mask adds to the logits of its eight tokens, shape (256, 8)."""
_N_SAMPLED_WEIGHTS = 4096
"""Weights from which a bound for all weights is estimated: sorting them takes little time compared
to all weights."""


@frozen(eq=False)
class Replacement:
    """Logits to use instead of the model's.

    Attributes:
        ids: token ids, shape (n,); the last occurrence of a token counts.
        logits: their logits, shape (n,), float32.
    """

    ids: Ids
    logits: Logits


def sample(
    logits: Logits,
    requests: Sequence[GenerationRequest],
    uniforms: Uniforms,
    replacements: Mapping[int, Replacement] | None = None,
    masks: Mapping[int, Mask] | None = None,
) -> Ids:
    """Sample one token for each of B rows.

    Replacements → mask → temperature → top_k → top_p → min_p → inverse of the cumulative
    distribution at the row's uniform.

    Args:
        logits: shape (B, V), float32; unchanged after the call.
        requests: sampling parameters of each row.
        uniforms: shape (B,), float64 in [0, 1); sampling uses no other random numbers.
        replacements: row to logits that replace the model's while the row is sampled.
        masks: row to allowed tokens; a row without a mask allows all.

    Returns:
        Token ids, shape (B,); `NO_TOKEN` if a mask allows no possible token.

    Raises:
        GenerationError: the largest logit of a row is NaN or infinite, so the model is broken.
    """
    replacements = replacements or {}
    original_logits = {row: logits[row, replaced.ids] for row, replaced in replacements.items()}
    for row, replaced in replacements.items():
        logits[row, replaced.ids] = replaced.logits
    try:
        if masks:
            return _sample_masked(logits, requests, uniforms, masks)
        return _sample_rows(logits, requests, uniforms)
    finally:
        # Copying all logits instead would take longer than sampling.
        for row, model_logits in original_logits.items():
            logits[row, replacements[row].ids] = model_logits


def _sample_masked(
    logits: Logits,
    requests: Sequence[GenerationRequest],
    uniforms: Uniforms,
    masks: Mapping[int, Mask],
) -> Ids:
    n_rows, n_vocab = logits.shape
    tokens = np.empty(n_rows, np.intp)
    unmasked = [row for row in range(n_rows) if row not in masks]
    if unmasked:
        tokens[unmasked] = _sample_rows(
            logits[unmasked],
            [requests[row] for row in unmasked],
            uniforms[unmasked],
        )
    for row, mask in masks.items():
        masked = _MASK_LOGITS.take(mask, axis=0).ravel()[:n_vocab]
        masked += logits[row]
        if masked.max() == -np.inf:
            tokens[row] = NO_TOKEN
        else:
            uniform = uniforms[row : row + 1]
            tokens[row] = _sample_rows(masked[None], [requests[row]], uniform)[0]
    return tokens


def _sample_rows(
    logits: Logits,
    requests: Sequence[GenerationRequest],
    uniforms: Uniforms,
) -> Ids:
    """Sample each row, rows with the same top_k together."""
    rows_by_top_k: dict[int, list[int]] = {}
    for row, request in enumerate(requests):
        top_k = _effective_top_k(request, logits.shape[1])
        rows_by_top_k.setdefault(top_k, []).append(row)
    tokens = np.empty(len(requests), np.intp)
    for top_k, rows in rows_by_top_k.items():
        # A slice selects all rows without a copy.
        selection = slice(None) if len(rows) == len(requests) else np.array(rows)
        if top_k == 1:
            selected = logits[selection]
            _check_finite(selected.max(axis=1))
            tokens[selection] = selected.argmax(axis=1)
        elif top_k:
            tokens[selection] = _sample_top_k(
                logits[selection],
                top_k,
                [requests[row] for row in rows],
                uniforms[selection],
            )
        else:
            for row in rows:
                tokens[row] = _sample_row(logits[row], requests[row], float(uniforms[row]))
    return tokens


def _effective_top_k(request: GenerationRequest, n_vocab: int) -> int:
    """Return how many of the most likely tokens can be sampled; 0 for all."""
    if request.temperature == 0:
        return 1
    return request.top_k if request.top_k < n_vocab else 0


def log_probabilities(logits: Logits, tokens: Ids) -> NDArray[np.float64]:
    """Return ln p(token) of one token for each of B rows, shape (B,), float64.

    p is the model's own distribution: ln p is computed as logit − ln Σ exp(logits).

    Args:
        logits: the model's logits before any bias, penalty or temperature, shape (B, V).
        tokens: the token id of each row, shape (B,).
    """
    token_logits = logits[np.arange(len(tokens)), tokens].astype(np.float64)
    # Row by row, so that the temporary arrays of a row fit into the processor's cache.
    log_totals = np.array([_log_sum_exp(row) for row in logits])
    logprobs: NDArray[np.float64] = token_logits - log_totals
    return logprobs


def top_logprobs(logits: Logits, n_tokens: int) -> tuple[TokenLogprob, ...]:
    """Return the `n_tokens` most likely tokens of the model's own distribution, best first.

    Tokens of probability 0 are left out; of equally likely tokens the lower id comes first.

    Args:
        logits: shape (V,).
        n_tokens: in [1, V].
    """
    ids = np.sort(largest_ids(logits[None], n_tokens)[0])
    logprobs = logits[ids].astype(np.float64) - _log_sum_exp(logits)
    # A stable sort keeps the lower id first.
    order = np.argsort(-logprobs, kind="stable")
    ids, logprobs = ids[order], logprobs[order]
    return tuple(
        TokenLogprob(token, logprob)
        for token, logprob in zip(ids.tolist(), logprobs.tolist(), strict=True)
        if logprob > -np.inf
    )


def _log_sum_exp(logits: Logits) -> float:
    largest = logits.max()
    total = np.exp(logits - largest).sum(dtype=np.float64)
    return float(largest) + float(np.log(total))


def largest_ids(logits: Logits, k: int) -> Ids:
    """Return the ids of each row's `k` largest logits in descending order.

    The shape is (B, k) for logits of shape (B, V). A large vocabulary is folded into a matrix with
    the ids in row order. The `k` largest logits are in the `k` columns with the largest maxima,
    because an element of any other column is not larger than `k` such maxima. `k` is in [1, V].
    """
    n_rows, n_vocab = logits.shape
    # This height balances the time for the column maxima with the time for the selected columns.
    height = int((n_vocab / k) ** 0.5)
    if n_vocab < _MIN_FOLDED_VOCABULARY or height < 4:
        candidates = np.argpartition(logits, n_vocab - k, axis=1)[:, n_vocab - k :]
        return _in_descending_order(logits, candidates)
    width = n_vocab // height
    n_folded = height * width
    # (B, height, width): a view of the first height · width logits of each row.
    row_stride, stride = logits.strides
    strides = row_stride, width * stride, stride
    folded = np.lib.stride_tricks.as_strided(logits, (n_rows, height, width), strides)
    # (B, k): columns with the largest maxima.
    maxima = folded.max(axis=1)
    columns = np.argpartition(maxima, width - k, axis=1)[:, width - k :]
    # (B, k · height): ids of all elements of these columns.
    ids_in_columns = columns[:, :, None] + np.arange(0, n_folded, width)
    ids_in_columns = ids_in_columns.reshape(n_rows, -1)
    # (B, V − height · width): ids beyond the folded part.
    remaining_ids = np.arange(n_folded, n_vocab)
    remaining = np.broadcast_to(remaining_ids, (n_rows, len(remaining_ids)))
    candidates = np.concatenate((ids_in_columns, remaining), axis=1)
    values = np.take_along_axis(logits, candidates, axis=1)
    first = values.shape[1] - k
    best = np.argpartition(values, first, axis=1)[:, first:]
    best_ids = np.take_along_axis(candidates, best, axis=1)
    return _in_descending_order(logits, best_ids)


def _in_descending_order(logits: Logits, ids: Ids) -> Ids:
    """Sort each row of `ids`, shape (B, k), by descending logit."""
    values = np.take_along_axis(logits, ids, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    return np.take_along_axis(ids, order, axis=1)


def _sample_top_k(
    logits: Logits,
    k: int,
    requests: Sequence[GenerationRequest],
    uniforms: Uniforms,
) -> Ids:
    """Sample each row from its `k` most likely tokens."""
    # (B, k), descending in each row.
    ids = largest_ids(logits, k)
    values = np.take_along_axis(logits, ids, axis=1).astype(np.float64)
    _check_finite(values.max(axis=1))
    # (B, 1) each.
    temperature = np.array([[request.temperature] for request in requests])
    top_p = np.array([[request.top_p] for request in requests])
    min_p = np.array([[request.min_p] for request in requests])
    # (B, k): probabilities relative to the most likely token. A temperature near 0 overflows to
    # exp(−inf) = 0.
    with np.errstate(over="ignore"):
        weights = np.exp((values - values[:, :1]) / temperature)
    cumulative = weights.cumsum(axis=1)
    mass_before = cumulative - weights
    # top_p and min_p each keep a prefix of a row, which includes the most likely token.
    is_included = mass_before < top_p * cumulative[:, -1:]
    is_included |= top_p >= 1
    is_included &= weights >= min_p
    is_included[:, 0] = True
    # (B, k): cumulative distribution of the included tokens; (B,): index of the sampled token in
    # its row.
    cumulative = np.where(is_included, weights, 0.0).cumsum(axis=1)
    targets = uniforms[:, None] * cumulative[:, -1:]
    ranks = (cumulative <= targets).sum(axis=1)
    ranks = np.minimum(ranks, is_included.sum(axis=1) - 1)
    return np.take_along_axis(ids, ranks[:, None], axis=1)[:, 0]


def _sample_row(logits: Logits, request: GenerationRequest, uniform: float) -> int:
    """Sample one row of logits, shape (V,), from the whole vocabulary, and return the token id."""
    largest = logits.max()
    _check_finite(largest)
    weights = _relative_probabilities(logits, largest, request.temperature)
    total = float(weights.sum())
    if request.top_p >= 1 and request.min_p == 0:
        return _reaching(weights, uniform * total, "right")
    candidates = _candidates(weights, total, request)
    ascending = np.sort(logits[candidates])
    descending = _relative_probabilities(ascending[::-1], largest, request.temperature)
    if request.top_p < 1:
        n_top_p = _reaching(descending, request.top_p * total, "left") + 1
        descending = descending[:n_top_p]
    rank = _reaching(descending, uniform * float(descending.sum()), "right")
    value = ascending[-1 - rank]
    # Of tokens with equal logits, the lower id comes first.
    n_larger = len(ascending) - int(ascending.searchsorted(value, "right"))
    return int(np.flatnonzero(logits == value)[rank - n_larger])


def _relative_probabilities(logits: Logits, largest: np.float32, temperature: float) -> Weights:
    """Return the probabilities at `temperature`, divided by the largest probability, shape (n,).

    Args:
        logits: logits of n tokens, shape (n,).
        largest: the largest logit of the row.
        temperature: above 0.
    """
    weights = np.subtract(logits, largest, dtype=np.float64)
    if temperature != 1:
        # A temperature near 0 overflows to exp(−inf) = 0.
        with np.errstate(over="ignore"):
            weights /= temperature
    return np.exp(weights, out=weights)


def _candidates(weights: Weights, total: float, request: GenerationRequest) -> Ids:
    """Return the ids of all tokens that top_p and min_p can keep, and of a few further tokens.

    This avoids sorting all weights. A token with a probability below (1 − top_p) / V cannot be
    among the most likely tokens whose probabilities sum to top_p, because all such tokens together
    have a probability below 1 − top_p. A larger bound is also estimated from a sample of the
    weights; it is used if the tokens above it together have a probability above top_p.

    Args:
        weights: probabilities relative to the most likely token, shape (V,).
        total: sum of the weights.
        request: the request with top_p and min_p.
    """
    bound = max((1 - request.top_p) * total / len(weights), request.min_p)
    step = len(weights) // _N_SAMPLED_WEIGHTS + 1
    ascending = np.sort(weights[::step])
    target = (1 - request.top_p) / 2 * total / step
    index = int(ascending.cumsum().searchsorted(target))
    estimated_bound = ascending[min(index, len(ascending) - 1)]
    if estimated_bound > bound and request.top_p < 1:
        ids = np.flatnonzero(weights >= estimated_bound)
        if weights[ids].sum() > request.top_p * total:
            return ids
    return np.flatnonzero(weights >= bound)


def _reaching(weights: Weights, target: float, side: Literal["left", "right"]) -> int:
    """Return the first index at which the cumulative sum of `weights` reaches `target`.

    With `side` "right" the sum must exceed the target. If rounding keeps the sum below the
    target, return the index of the last weight above 0. Blocks are summed first, because a
    cumulative sum of all weights is ten times slower.
    """
    width = int(len(weights) ** 0.5)
    block_starts = np.arange(0, len(weights), width)
    block_sums = np.add.reduceat(weights, block_starts).cumsum()
    block = int(block_sums.searchsorted(target, side))
    start = block * width
    sum_before = block_sums[block - 1] if block else 0.0
    sums = weights[start : start + width].cumsum() + sum_before
    offset = int(sums.searchsorted(target, side))
    if offset < len(sums):
        return start + offset
    return int(np.flatnonzero(weights[: start + width])[-1])


def _check_finite(largest: NDArray[np.floating] | np.floating) -> None:
    if not np.isfinite(largest).all():
        raise GenerationError(
            "the model produced logits that are not finite: its file or its build is damaged"
        )
