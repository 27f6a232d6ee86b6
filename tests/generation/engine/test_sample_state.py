"""State of one sample: all reasons to end, and conditions under which it does not end."""

import pytest

from relevance_gen.generation.engine.sample_state import SampledToken, SampleState
from relevance_gen.generation.engine.stop_strings import StopStrings
from relevance_gen.types import GenerationRequest, TokenLogprob


def sample_state(room=100, index=0, seed=0, **fields):
    request = GenerationRequest("prompt", **fields)
    stops, ends = StopStrings(request.stop), frozenset(request.eos_token_ids)
    return SampleState(
        request=request,
        index=index,
        seed=seed,
        stops=stops,
        eos_token_ids=ends,
        n_prompt_tokens=6,
        max_context_tokens=room,
        n_vocab=8,
    )


def test_accept_eos_token_is_counted_without_text():
    """The EOS token is among the tokens and log probabilities, not in the text; held-back text is released."""
    sample = sample_state(eos_token_ids=[7], stop=["STOP"], return_tokens=True, logprobs=True)
    sample.accept(SampledToken(1, -0.5), b"now ST")
    assert sample.accept(SampledToken(7, -0.25), b"</s>") == "ST"
    completion = sample.completion(12.0)
    assert (completion.text, completion.finish_reason, completion.generated_tokens) == (
        "now ST",
        "eos",
        2,
    )
    assert (completion.tokens, completion.logprobs, completion.finished) == (
        (1, 7),
        (-0.5, -0.25),
        12.0,
    )


def test_accept_token_outside_eos_token_ids_does_not_end():
    """Only `eos_token_ids` end a sample; without them it runs to max_tokens."""
    sample = sample_state(max_tokens=3)
    for _ in range(3):
        assert sample.finish_reason is None
        sample.accept(SampledToken(7), b"")
    assert sample.finish_reason == "length"


def test_accept_stop_string_across_tokens_ends():
    """The text ends before the stop string, which may begin in an earlier token."""
    sample = sample_state(stop=["END"])
    assert [sample.accept(SampledToken(1), piece) for piece in (b"a E", b"N", b"D b")] == [
        "a ",
        "",
        "",
    ]
    assert sample.completion(0).text == "a "
    assert sample.finish_reason == "stop"


def test_accept_last_token_with_stop_string_is_stop():
    """The reason is "stop", not "length"."""
    sample = sample_state(stop=["b"], max_tokens=2)
    sample.accept(SampledToken(1), b"a")
    sample.accept(SampledToken(1), b"b")
    assert sample.finish_reason == "stop"


def test_accept_stop_string_within_min_tokens_is_text():
    """A stop string within the first min_tokens tokens is text; a stop string completed by the next token stops."""
    sample = sample_state(stop=["aa"], min_tokens=3)
    for _ in range(3):
        sample.accept(SampledToken(1), b"a")
        assert sample.finish_reason is None
    sample.accept(SampledToken(1), b"a")
    assert (sample.finish_reason, sample.completion(0).text) == ("stop", "aa")


def test_flush_within_min_tokens_completes_no_stop_string():
    """If min_tokens equals max_tokens, the U+FFFD of an incomplete character is text and does not stop."""
    sample = sample_state(stop=["\ufffd"], min_tokens=1, max_tokens=1)
    assert sample.accept(SampledToken(1), b"\xf0") == "\ufffd"
    assert sample.finish_reason == "length"


def test_accept_full_context_ends_with_length():
    """The smaller of max_tokens and remaining context ends the sample; an incomplete character becomes U+FFFD."""
    sample = sample_state(room=2, max_tokens=50)
    sample.accept(SampledToken(1), b"a")
    assert sample.accept(SampledToken(1), b"\xf0\x9f") == "�"
    assert sample.finish_reason == "length"


def test_next_uniform_depends_on_seed_and_index():
    """Seed and sample index together determine each random number."""
    uniforms = {
        (seed, i): sample_state(seed=seed, index=i).next_uniform()
        for seed in (0, 1, 2**200)
        for i in (0, 1)
    }
    assert len(set(uniforms.values())) == 6
    assert (
        sample_state(seed=5 + 2**32).next_uniform() != sample_state(seed=5, index=1).next_uniform()
    )
    assert uniforms[0, 1] == sample_state(seed=0, index=1).next_uniform()


def test_completion_of_running_sample_raises():
    """A running sample has no completion."""
    with pytest.raises(ValueError, match="still running"):
        sample_state().completion(0)


def test_accept_top_logprobs_align_with_tokens():
    """Each token has its top log probabilities, including the EOS token."""
    sample = sample_state(top_logprobs=2, eos_token_ids=[7])
    pairs = [(TokenLogprob(1, -0.1), TokenLogprob(7, -3.0)), (TokenLogprob(7, -0.5),)]
    for token, top_logprobs in zip((1, 7), pairs, strict=True):
        sample.accept(SampledToken(token, None, top_logprobs), b"x")
    assert sample.completion(0).top_logprobs == tuple(pairs)


def test_completion_without_flags_has_no_tokens_and_logprobs():
    """Tokens and log probabilities are `None` unless requested."""
    sample = sample_state(max_tokens=1)
    sample.accept(SampledToken(1), b"a")
    assert sample.completion(0).tokens is None
    assert sample.completion(0).logprobs is None
    assert sample.completion(0).top_logprobs is None
