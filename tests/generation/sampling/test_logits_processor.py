"""Logits processor: bias and penalties, compared with a reference that changes each logit separately."""

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


def processed(request, logits, generated):
    """Return the changed logits after `generated` tokens."""
    processor = LogitsProcessor(request, request.eos_token_ids, len(logits))
    for token in generated:
        processor.count(token)
    if not processor.changes_logits:
        return logits
    replacement = processor.replacement(logits)
    result = logits.copy()
    result[replacement.ids] = replacement.logits
    return result


@given(request=requests, generated=st.lists(tokens, max_size=40), seed=st.integers(0, 10**6))
def test_replacement_any_request_gives_distribution_of_reference(request, generated, seed):
    """The softmax of the changed logits equals the distribution of the reference; the logits stay unchanged."""
    logits = np.random.default_rng(seed).normal(0, 3, N_VOCAB).astype(np.float32)
    before = logits.copy()
    exact = processed(request, logits, generated).astype(np.float64)
    weights = np.exp(exact - exact.max())
    np.testing.assert_allclose(
        weights / weights.sum(), distribution(logits, request, generated), atol=1e-5
    )
    np.testing.assert_array_equal(logits, before)


def test_replacement_all_penalties_equals_manual_computation():
    """Bias, then repetition penalty, then presence penalty once and frequency penalty per occurrence; without the prompt."""
    request = GenerationRequest(
        "",
        logit_bias={0: 1, 3: -1},
        repetition_penalty=2,
        frequency_penalty=0.25,
        presence_penalty=0.5,
    )
    result = processed(request, np.array([1, -1, 2, 4], np.float32), [0, 1, 0])
    np.testing.assert_allclose(
        result, [(1 + 1) / 2 - 0.5 - 2 * 0.25, -1 * 2 - 0.5 - 0.25, 2, 4 - 1]
    )


def test_replacement_canceling_penalties_counts_each_occurrence():
    """Presence 1 and frequency -1 leave a logit unchanged after the first occurrence and raise it after the second."""
    request = GenerationRequest("", presence_penalty=1, frequency_penalty=-1)
    zeros = np.zeros(3, np.float32)
    assert processed(request, zeros, [2])[2] == 0
    assert processed(request, zeros, [2, 2])[2] == 1


@pytest.mark.parametrize("fields", [{}, {"eos_token_ids": [1]}, {"logit_bias": {}}])
def test_changes_logits_default_request_is_false(fields):
    """Without bias, penalties and min_tokens no logit changes, regardless of the generated tokens."""
    processor = LogitsProcessor(GenerationRequest("", **fields), fields.get("eos_token_ids", ()), 8)
    for token in range(8):
        processor.count(token)
    assert not processor.changes_logits


def test_replacement_min_tokens_suppresses_eos_token():
    """With min_tokens 2 the first two tokens cannot be the EOS token, even if it has a positive bias."""
    request = GenerationRequest("", eos_token_ids=(1,), min_tokens=2, logit_bias={1: 100})
    eos_logits = [processed(request, np.zeros(3, np.float32), [0] * n)[1] for n in range(4)]
    assert eos_logits == [-np.inf, -np.inf, 100, 100]


@pytest.mark.parametrize("penalty", [5e-324, 1e-40, 1e40, 1.7e308])
def test_replacement_extreme_penalty_is_finite(penalty):
    """An extreme repetition penalty leaves finite logits, so that no request breaks sampling."""
    request = GenerationRequest("", repetition_penalty=penalty)
    assert np.isfinite(processed(request, np.array([3, -3, 0], np.float32), [0, 1, 2])).all()
