"""The sampler, against distributions computed the slow way."""

from functools import partial

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relevance_gen.errors import GenerationError
from relevance_gen.generation.sampling.sampler import (
    NO_TOKEN,
    Replacement,
    largest_ids,
    log_probabilities,
    sample,
    top_logprobs,
)
from relevance_gen.types import GenerationRequest
from tests.profiles import costly
from tests.reference_generation import distribution

options = partial(GenerationRequest, "")

any_requests = st.builds(
    options,
    temperature=st.sampled_from([0.0, 1e-300, 0.1, 0.7, 1.0, 3.0, 1e300]),
    top_k=st.sampled_from([0, 1, 2, 5, 50, 10_000]),
    top_p=st.sampled_from([0.0, 0.3, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
)


def random_logits(seed: int, n_rows: int, n_vocab: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, (n_rows, n_vocab)).astype(np.float32)


@costly
@given(seed=st.integers(0, 10**6), n_vocab=st.integers(1, 80), settings=any_requests)
@example(seed=1, n_vocab=60, settings=options())
@example(seed=1, n_vocab=60, settings=options(top_k=0, top_p=0.5, min_p=0.2))
def test_sample_evenly_spaced_uniforms_match_probabilities(seed, n_vocab, settings):
    """N evenly spaced uniforms sample each token N·p times, up to the two ends of its interval."""
    n = 1000
    row = random_logits(seed, 1, n_vocab)
    tokens = sample(np.repeat(row, n, axis=0), [settings] * n, (np.arange(n) + 0.5) / n)
    counts = np.bincount(tokens, minlength=n_vocab)
    np.testing.assert_allclose(counts, n * distribution(row[0], settings), atol=1.01)


@costly
@given(
    seed=st.integers(0, 10**6),
    spread=st.sampled_from([0.0, 0.5, 4.0]),
    digits=st.sampled_from([0, 7]),
    settings=st.builds(
        options,
        temperature=st.sampled_from([0.7, 1.0, 2.0]),
        top_k=st.just(0),
        top_p=st.sampled_from([0.0, 0.5, 0.95, 0.9999, 1.0]),
        min_p=st.sampled_from([0.0, 0.001, 0.3]),
    ),
)
def test_sample_large_vocabulary_without_top_k_matches_reference(seed, spread, digits, settings):
    """For flat and peaked distributions and for ties, excluded tokens never occur and all others match their probability."""
    n, n_vocab = 500, 3000
    row = np.round(np.random.default_rng(seed).normal(0, spread, n_vocab), digits).astype(
        np.float32
    )
    expected = distribution(row, settings)
    tokens = sample(np.repeat(row[None], n, axis=0), [settings] * n, (np.arange(n) + 0.5) / n)
    counts = np.bincount(tokens, minlength=n_vocab)
    assert not counts[expected == 0].any()
    np.testing.assert_allclose(counts, n * expected, atol=1.01)


@given(
    seed=st.integers(0, 10**6),
    rows=st.lists(any_requests, min_size=1, max_size=8),
    n_vocab=st.sampled_from([7, 5000]),
)
def test_sample_mixed_batch_equals_single_rows(seed, rows, n_vocab):
    """In a batch of different requests, each row gets the token that it gets in a batch of one row."""
    logits = random_logits(seed, len(rows), n_vocab)
    uniforms = np.random.default_rng(seed).random(len(rows))
    alone = [
        int(sample(logits[i : i + 1], rows[i : i + 1], uniforms[i : i + 1])[0])
        for i in range(len(rows))
    ]
    assert sample(logits, rows, uniforms).tolist() == alone


@given(
    seed=st.integers(0, 10**6),
    rows=st.lists(
        st.tuples(any_requests, st.sampled_from([None, 0.0, 0.02, 0.5, 1.0])),
        min_size=1,
        max_size=6,
    ),
    n_vocab=st.sampled_from([1, 7, 8, 61, 5000]),
)
def test_sample_mask_equals_infinite_negative_logits(seed, rows, n_vocab):
    """A mask has the effect of logits of −inf; without an allowed token the result is `NO_TOKEN`; logits stay unchanged."""
    chance = np.random.default_rng(seed)
    logits, uniforms = random_logits(seed, len(rows), n_vocab), chance.random(len(rows))
    before, impossible, masks = logits.copy(), logits.copy(), {}
    for row, (_, share) in enumerate(rows):
        if share is not None:
            allowed = chance.random(n_vocab) < share
            masks[row] = np.packbits(allowed, bitorder="little")
            impossible[row, ~allowed] = -np.inf
    requests = [request for request, _ in rows]
    sampled = sample(logits, requests, uniforms, masks=masks)
    for row, request in enumerate(requests):
        if np.isneginf(impossible[row]).all():
            assert sampled[row] == NO_TOKEN
        else:
            assert (
                sampled[row]
                == sample(impossible[row : row + 1], [request], uniforms[row : row + 1])[0]
            )
    np.testing.assert_array_equal(logits, before)


@given(
    seed=st.integers(0, 10**6),
    n_vocab=st.sampled_from([1, 30, 4095, 4096, 5000, 9973]),
    k=st.integers(1, 300),
)
def test_largest_ids_any_vocabulary_equals_full_sort(seed, n_vocab, k):
    """The k largest logits, selected by column maxima, are the first k of a full sort, in order."""
    k = min(k, n_vocab)
    logits = random_logits(seed, 3, n_vocab)
    ids = largest_ids(logits, k)
    np.testing.assert_array_equal(
        np.take_along_axis(logits, ids, axis=1), -np.sort(-logits, axis=1)[:, :k]
    )
    assert all(len(set(row)) == k for row in ids.tolist())


@pytest.mark.parametrize("n_vocab", [50, 5000])
def test_sample_top_k_with_ties_keeps_k_tokens(n_vocab):
    """If all logits are equal, top_k keeps exactly k tokens."""
    n = 2000
    tokens = sample(
        np.zeros((n, n_vocab), np.float32), [options(top_k=5)] * n, (np.arange(n) + 0.5) / n
    )
    assert len(set(tokens.tolist())) == 5


def test_sample_replacement_applies_first_and_is_undone():
    """A replaced logit changes the sampled token of its row only; the logits are restored, also after an error."""
    logits = np.array([[3.0, 2.0, 0.0], [3.0, 2.0, 0.0]], np.float32)
    before = logits.copy()
    replacement = Replacement(np.array([0, 2, 0]), np.array([9, -np.inf, 1.5], np.float32))
    tokens = sample(logits, [options(temperature=0)] * 2, np.zeros(2), {1: replacement})
    assert tokens.tolist() == [0, 1]
    np.testing.assert_array_equal(logits, before)
    logits[1, 1] = np.nan
    with pytest.raises(GenerationError):
        sample(logits, [options()] * 2, np.zeros(2), {0: replacement})
    np.testing.assert_array_equal(logits[0], before[0])


def test_sample_impossible_tokens_never_occur():
    """A logit of −inf has probability 0 at both ends of the uniform interval."""
    logits = np.array([[-np.inf, 0.0, -np.inf, 0.0, -np.inf]], np.float32)
    for top_k in (0, 2, 4):
        for uniform in (0.0, 0.5, np.nextafter(1, 0)):
            assert sample(logits, [options(top_k=top_k)], np.array([uniform]))[0] in (1, 3)


@pytest.mark.parametrize("settings", [options(temperature=0), options(top_k=2), options(top_k=0)])
@pytest.mark.parametrize("broken", [np.nan, np.inf])
def test_sample_non_finite_logit_raises(settings, broken):
    """A logit of NaN or +inf raises a GenerationError."""
    with pytest.raises(GenerationError, match="not finite"):
        sample(np.array([[0, broken, 0, 0]], np.float32), [settings], np.array([0.5]))


@costly
@given(seed=st.integers(0, 10**6), n_vocab=st.sampled_from([1, 5, 30, 5000]), n=st.integers(1, 20))
def test_top_logprobs_any_row_equals_full_sort(seed, n_vocab, n):
    """The first n of a full sort, ties by the lower id, with the log probabilities of `log_probabilities`."""
    n = min(n, n_vocab)
    row = random_logits(seed, 1, n_vocab)[0]
    row[: n_vocab // 2] = row[0]
    logprobs = log_probabilities(np.repeat(row[None], n_vocab, axis=0), np.arange(n_vocab))
    top_tokens = top_logprobs(row, n)
    np.testing.assert_array_equal([top.logprob for top in top_tokens], -np.sort(-logprobs)[:n])
    assert [top.logprob for top in top_tokens] == [logprobs[top.token] for top in top_tokens]
    assert [top.token for top in top_tokens] == sorted(
        {top.token for top in top_tokens}, key=lambda i: (-logprobs[i], i)
    )


def test_top_logprobs_impossible_tokens_are_left_out():
    """A token of probability 0 is left out, because JSON has no number for its log probability."""
    assert [
        top.token for top in top_logprobs(np.array([-np.inf, 1, -np.inf, 2], np.float32), 3)
    ] == [
        3,
        1,
    ]


@given(
    seed=st.integers(0, 10**6),
    n_vocab=st.integers(1, 3000),
    scale=st.sampled_from([0.1, 1.0, 30.0]),
)
def test_log_probabilities_equal_log_softmax(seed, n_vocab, scale):
    """Log probabilities agree with a float64 softmax to 1e-5, and their exponentials sum to 1."""
    logits = random_logits(seed, 1, n_vocab) * np.float32(scale)
    exact = logits[0].astype(np.float64)
    exact -= exact.max()
    exact -= np.log(np.exp(exact).sum())
    logprobs = log_probabilities(np.repeat(logits, n_vocab, axis=0), np.arange(n_vocab))
    np.testing.assert_allclose(logprobs, exact, atol=1e-5)
