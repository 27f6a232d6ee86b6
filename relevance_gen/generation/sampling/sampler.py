"""Choose the next token of every sequence of a batch at once. Pure numpy; no row's choice depends on another row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from relevance_gen.errors import GenerationError
from relevance_gen.llama.language_model import Logits
from relevance_gen.types import GenerationRequest, TokenLogprob

Ids = NDArray[np.intp]
Weights = NDArray[np.float64]
Replacement: TypeAlias = tuple[Ids, Logits]
"""Token ids, shape (n,), and the logits to use for them; of a token given twice the last counts."""
Mask: TypeAlias = NDArray[np.uint8]
"""Which tokens may be drawn, a bit for each: bit i % 8 of byte i // 8 is that of token i."""

NO_TOKEN = -1
"""What is drawn where a mask leaves nothing that is possible."""

_MIN_BLOCKED_VOCABULARY = 4096
"""Below this, one argpartition of the whole row is faster than finding the blocks that matter first."""
_BYTES = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
_PENALTIES = np.where(_BYTES, np.float32(0), np.float32(-np.inf))
"""What each value of a mask's byte adds to the logits of its eight tokens, shape (256, 8)."""
_SOME_WEIGHTS = 4096
"""Weights that are looked at to guess a bound for the others: sorting them takes no time beside computing them all."""


def sample(
    logits: Logits,
    settings: Sequence[GenerationRequest],
    uniforms: NDArray[np.float64],
    replacements: Mapping[int, Replacement] | None = None,
    masks: Mapping[int, Mask] | None = None,
) -> Ids:
    """Draw one token for each row.

    Replacements → mask → temperature → top_k → top_p → min_p → inverse of the cumulative distribution at
    the row's uniform.

    Args:
        logits: shape (B, V), float32; afterwards as before.
        settings: for each row a request that says how it is drawn.
        uniforms: shape (B,), float64 in [0, 1); the draw is a function of them alone.
        replacements: row to the logits that are others than the model's while that row is drawn.
        masks: row to the tokens that may be drawn, where these are not all.

    Returns:
        Token ids, shape (B,); `NO_TOKEN` where a mask leaves nothing.

    Raises:
        GenerationError: a row has a NaN or infinite largest logit: the model is broken, not the request.
    """
    replacements = replacements or {}
    own = {row: logits[row, ids] for row, (ids, _) in replacements.items()}
    for row, (ids, values) in replacements.items():
        logits[row, ids] = values
    try:
        return (
            _draw_masked(logits, settings, uniforms, masks)
            if masks
            else _draw(logits, settings, uniforms)
        )
    finally:  # a copy of all logits would take longer than drawing
        for row, values in own.items():
            logits[row, replacements[row][0]] = values


def _draw_masked(
    logits: Logits,
    settings: Sequence[GenerationRequest],
    uniforms: NDArray[np.float64],
    masks: Mapping[int, Mask],
) -> Ids:
    tokens = np.empty(len(settings), np.intp)
    if free := [row for row in range(len(settings)) if row not in masks]:
        tokens[free] = _draw(logits[free], [settings[row] for row in free], uniforms[free])
    for row, mask in masks.items():
        masked = _PENALTIES.take(mask, axis=0).ravel()[: logits.shape[1]]
        masked += logits[row]
        if masked.max() == -np.inf:
            tokens[row] = NO_TOKEN
        else:
            tokens[row] = _draw(masked[None], [settings[row]], uniforms[row : row + 1])[0]
    return tokens


def _draw(
    logits: Logits, settings: Sequence[GenerationRequest], uniforms: NDArray[np.float64]
) -> Ids:
    n_vocab = logits.shape[1]
    groups: dict[int, list[int]] = {}
    for row, one in enumerate(settings):
        # The likeliest alone is greedy; as many as the vocabulary is no cut at all.
        top_k = 1 if one.temperature == 0 else one.top_k if one.top_k < n_vocab else 0
        groups.setdefault(top_k, []).append(row)
    tokens = np.empty(len(settings), np.intp)
    for top_k, members in groups.items():
        rows = slice(None) if len(members) == len(settings) else np.array(members)
        if top_k == 1:
            some = logits[rows]
            _check_finite(some.max(axis=1))
            tokens[rows] = some.argmax(axis=1)
        elif top_k:
            tokens[rows] = _draw_among(
                logits[rows], top_k, [settings[row] for row in members], uniforms[rows]
            )
        else:
            for row in members:
                tokens[row] = _draw_from_all(logits[row], settings[row], float(uniforms[row]))
    return tokens


def log_probabilities(logits: Logits, tokens: Ids) -> NDArray[np.float64]:
    """Return ln p(token) of the model's own distribution: logit − ln Σ exp(logits), shape (B,), float64.

    The logits, shape (B, V), are those before any bias, penalty or temperature.
    """
    chosen = logits[np.arange(len(tokens)), tokens].astype(np.float64)
    # Row by row, so that what is computed of a row fits into the processor's cache.
    result: NDArray[np.float64] = chosen - np.array([_log_sum_exp(row) for row in logits])
    return result


def likeliest(logits: Logits, n: int) -> tuple[TokenLogprob, ...]:
    """Return the `n` likeliest tokens of the model's own distribution, the likeliest first; n is in [1, V].

    Tokens of probability 0 are left out; of equally likely ones the lower id comes first. The logits have shape (V,).
    """
    ids = np.sort(largest_ids(logits[None], n)[0])
    logprobs = logits[ids].astype(np.float64) - _log_sum_exp(logits)
    order = np.argsort(-logprobs, kind="stable")
    pairs = zip(ids[order].tolist(), logprobs[order].tolist(), strict=True)
    return tuple(TokenLogprob(token, logprob) for token, logprob in pairs if logprob > -np.inf)


def _log_sum_exp(logits: Logits) -> float:
    largest = logits.max()
    return float(largest) + float(np.log(np.exp(logits - largest).sum(dtype=np.float64)))


def largest_ids(logits: Logits, k: int) -> Ids:
    """Return the ids of each row's `k` largest logits, largest first: of logits (B, V) ids (B, k); k is in [1, V].

    A vocabulary is folded into columns, and only the `k` columns with the largest maxima are looked into: an element of
    any other column has at least `k` elements above or beside it.
    """
    n_rows, n_vocab = logits.shape
    height = int(
        (n_vocab / k) ** 0.5
    )  # balances the scan of the maxima with the scan of the columns found
    if n_vocab < _MIN_BLOCKED_VOCABULARY or height < 4:
        candidates = np.argpartition(logits, n_vocab - k, axis=1)[:, n_vocab - k :]
        return _descending(logits, candidates)
    width = n_vocab // height
    folded = np.lib.stride_tricks.as_strided(
        logits,
        (n_rows, height, width),
        (logits.strides[0], width * logits.itemsize, logits.itemsize),
    )
    columns = np.argpartition(folded.max(axis=1), width - k, axis=1)[:, width - k :]
    inside = (columns[:, :, None] + np.arange(0, height * width, width)).reshape(n_rows, -1)
    rest = np.broadcast_to(np.arange(height * width, n_vocab), (n_rows, n_vocab - height * width))
    candidates = np.concatenate((inside, rest), axis=1)
    values = np.take_along_axis(logits, candidates, axis=1)
    best = np.argpartition(values, values.shape[1] - k, axis=1)[:, values.shape[1] - k :]
    return _descending(logits, np.take_along_axis(candidates, best, axis=1))


def _descending(logits: Logits, candidates: Ids) -> Ids:
    values = np.take_along_axis(logits, candidates, axis=1)
    order = np.argsort(-values, axis=1, kind="stable")
    return np.take_along_axis(candidates, order, axis=1)


def _draw_among(
    logits: Logits, k: int, settings: Sequence[GenerationRequest], uniforms: NDArray[np.float64]
) -> Ids:
    """Draw from each row's `k` likeliest tokens."""
    ids = largest_ids(logits, k)
    values = np.take_along_axis(logits, ids, axis=1).astype(np.float64)
    _check_finite(values.max(axis=1))
    temperature, top_p, min_p = np.array([(s.temperature, s.top_p, s.min_p) for s in settings]).T[
        :, :, None
    ]
    with np.errstate(
        over="ignore"
    ):  # a temperature near 0 sends all but the largest to exp(-inf) = 0, as it should
        weights = np.exp((values - values[:, :1]) / temperature)
    cumulative = weights.cumsum(axis=1)
    # Both cuts keep a prefix, never an empty one: the likeliest weighs 1 and has nothing before it.
    mass_before = cumulative - weights
    kept = ((mass_before < top_p * cumulative[:, -1:]) | (top_p >= 1)) & (weights >= min_p)
    kept[:, 0] = True
    cumulative = np.where(kept, weights, 0.0).cumsum(axis=1)
    position = (cumulative <= uniforms[:, None] * cumulative[:, -1:]).sum(axis=1)
    position = np.minimum(position, kept.sum(axis=1) - 1)
    return np.take_along_axis(ids, position[:, None], axis=1)[:, 0]


def _draw_from_all(logits: Logits, settings: GenerationRequest, uniform: float) -> int:
    """Draw from the whole vocabulary of one row."""
    largest = logits.max()
    _check_finite(largest)
    weights = _weights(logits, largest, settings.temperature)
    total = float(weights.sum())
    if settings.top_p >= 1 and settings.min_p == 0:
        return _reaching(weights, uniform * total, "right")
    ascending = np.sort(logits[_candidates(weights, total, settings)])
    descending = _weights(ascending[::-1], largest, settings.temperature)
    if settings.top_p < 1:
        descending = descending[: _reaching(descending, settings.top_p * total, "left") + 1]
    rank = _reaching(descending, uniform * float(descending.sum()), "right")
    drawn = ascending[-1 - rank]
    n_above = len(ascending) - int(ascending.searchsorted(drawn, "right"))
    return int(
        np.flatnonzero(logits == drawn)[rank - n_above]
    )  # of equal ones the lower id comes first


def _weights(logits: Logits, largest: np.float32, temperature: float) -> Weights:
    """Return the probabilities in proportion: 1 for the largest logit."""
    weights = np.subtract(logits, largest, dtype=np.float64)
    if temperature != 1:
        with np.errstate(over="ignore"):  # as in `_draw_among`
            weights /= temperature
    return np.exp(weights, out=weights)


def _candidates(weights: Weights, total: float, settings: GenerationRequest) -> Ids:
    """Return the ids of all tokens that top_p and min_p can keep, and as few others as can be told without sorting.

    No token below a share of (1 − top_p) / V is among the likeliest that reach top_p: all such tokens have less than
    1 − top_p together. Where many are above it, a few of the weights tell a closer bound, which is right if what lies
    above it has more than top_p.
    """
    least = max((1 - settings.top_p) * total / len(weights), settings.min_p)
    step = len(weights) // _SOME_WEIGHTS + 1
    some = np.sort(weights[::step])
    closer = some[
        min(int(some.cumsum().searchsorted((1 - settings.top_p) / 2 * total / step)), len(some) - 1)
    ]
    if closer > least and settings.top_p < 1:
        ids = np.flatnonzero(weights >= closer)
        if weights[ids].sum() > settings.top_p * total:
            return ids
    return np.flatnonzero(weights >= least)


def _reaching(weights: Weights, target: float, side: Literal["left", "right"]) -> int:
    """Return where the running sum of `weights` first reaches (left) or exceeds (right) `target`.

    Where rounding keeps it below, that is the last weight above 0. Whole blocks are summed first, as a running sum of
    every weight takes ten times as long.
    """
    width = int(len(weights) ** 0.5)
    sums = np.add.reduceat(weights, np.arange(0, len(weights), width)).cumsum()
    block = int(sums.searchsorted(target, side))
    start = block * width
    running = weights[start : start + width].cumsum() + (sums[block - 1] if block else 0.0)
    position = int(running.searchsorted(target, side))
    if position < len(running):
        return start + position
    return int(np.flatnonzero(weights[: start + width])[-1])


def _check_finite(largest: NDArray[np.floating] | np.floating) -> None:
    if not np.isfinite(largest).all():
        raise GenerationError(
            "the model produced logits that are not finite: its file or its build is damaged"
        )
