"""Bias and penalties, against the reference that changes every logit by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.generation.sampling.logits_processor import LogitsProcessor
from relevance_gen.types import GenerationRequest
from tests.reference_generation import distribution

N_VOCAB = 12
tokens = st.integers(0, N_VOCAB - 1)
requests = st.builds(
    GenerationRequest,
    text=st.just(""),
    top_k=st.just(0),
    eos_token_ids=st.lists(st.integers(0, N_VOCAB + 3), max_size=3),
    max_tokens=st.just(100),
    min_tokens=st.integers(0, 30),
    presence_penalty=st.sampled_from([-1, 0, 2]),
    frequency_penalty=st.sampled_from([-0.5, 0, 0.25]),
    repetition_penalty=st.sampled_from([0.5, 1, 1.3, 40]),
    logit_bias=st.dictionaries(tokens, st.sampled_from([-100, -0.5, 1, 5, 100]), max_size=4),
)


def adjusted(request, logits, generated):
    """Return the logits after `generated` tokens."""
    adjustment = LogitsProcessor(request, request.eos_token_ids, len(logits))
    for token in generated:
        adjustment.count(token)
    if not adjustment.changes_logits:
        return logits
    ids, values = adjustment.replacement(logits)
    result = logits.copy()
    result[ids] = values
    return result


@given(request=requests, generated=st.lists(tokens, max_size=40), seed=st.integers(0, 10**6))
def test_what_is_changed_gives_the_distribution_of_the_reference(request, generated, seed):
    """The softmax of the adjusted logits is the reference's distribution, whatever was generated."""
    logits = np.random.default_rng(seed).normal(0, 3, N_VOCAB).astype(np.float32)
    before = logits.copy()
    exact = adjusted(request, logits, generated).astype(np.float64)
    weights = np.exp(exact - exact.max())
    np.testing.assert_allclose(
        weights / weights.sum(), distribution(logits, request, generated), atol=1e-5
    )
    np.testing.assert_array_equal(logits, before)


def test_penalties_by_hand():
    """Bias first, then repetition, then frequency for every occurrence and presence once; the prompt is not counted."""
    request = GenerationRequest(
        "",
        logit_bias={0: 1, 3: -1},
        repetition_penalty=2,
        frequency_penalty=0.25,
        presence_penalty=0.5,
    )
    result = adjusted(request, np.array([1, -1, 2, 4], np.float32), [0, 1, 0])
    np.testing.assert_allclose(
        result, [(1 + 1) / 2 - 0.5 - 2 * 0.25, -1 * 2 - 0.5 - 0.25, 2, 4 - 1]
    )


def test_penalties_that_cancel_are_still_counted():
    """Presence 1 and frequency -1 leave a logit as it is after the first occurrence and raise it after the second."""
    request = GenerationRequest("", presence_penalty=1, frequency_penalty=-1)
    zeros = np.zeros(3, np.float32)
    assert adjusted(request, zeros, [2])[2] == 0
    assert adjusted(request, zeros, [2, 2])[2] == 1


@pytest.mark.parametrize("fields", [{}, {"eos_token_ids": [1]}, {"logit_bias": {}}])
def test_what_is_not_asked_for_costs_nothing(fields):
    """Without bias, penalties and min_tokens no logit is looked at, however many tokens come."""
    adjustment = LogitsProcessor(
        GenerationRequest("", **fields), fields.get("eos_token_ids", ()), 8
    )
    for token in range(8):
        adjustment.count(token)
    assert not adjustment.changes_logits


def test_end_tokens_are_held_back_so_long_and_no_longer():
    """With min_tokens 2 the first two draws cannot end; a bias on the end token does not help it until then."""
    request = GenerationRequest("", eos_token_ids=(1,), min_tokens=2, logit_bias={1: 100})
    drawn = [adjusted(request, np.zeros(3, np.float32), [0] * n)[1] for n in range(4)]
    assert drawn == [-np.inf, -np.inf, 100, 100]


@pytest.mark.parametrize("penalty", [5e-324, 1e-40, 1e40, 1.7e308])
def test_no_penalty_makes_a_logit_infinite(penalty):
    """However extreme, a repetition penalty leaves finite logits, so that no request breaks the draw."""
    request = GenerationRequest("", repetition_penalty=penalty)
    assert np.isfinite(adjusted(request, np.array([3, -3, 0], np.float32), [0, 1, 2])).all()
