"""One sample's life: every reason to end, and what it may not end by."""

import pytest

from relevance_gen.generation.engine.sample_state import SampledToken, SampleState
from relevance_gen.generation.engine.stop_strings import StopStrings
from relevance_gen.types import GenerationRequest, TokenLogprob


def sequence(room=100, index=0, seed=0, **fields):
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


def test_the_end_token_is_counted_and_not_shown():
    """The end token is among the tokens and log probabilities, not in the text; what was held back is released."""
    one = sequence(eos_token_ids=[7], stop=["STOP"], return_tokens=True, logprobs=True)
    one.accept(SampledToken(1, -0.5), b"now ST")
    assert one.accept(SampledToken(7, -0.25), b"</s>") == "ST"
    completion = one.completion(12.0)
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


def test_an_end_token_the_request_does_not_name_does_not_end():
    """Only `eos_token_ids` end a sample: with none it runs to max_tokens."""
    one = sequence(max_tokens=3)
    for _ in range(3):
        assert one.finish_reason is None
        one.accept(SampledToken(7), b"")
    assert one.finish_reason == "length"


def test_a_stop_string_across_tokens_ends_and_is_cut():
    """The text ends before the stop string, also where that begins in an earlier token."""
    one = sequence(stop=["END"])
    assert [one.accept(SampledToken(1), piece) for piece in (b"a E", b"N", b"D b")] == [
        "a ",
        "",
        "",
    ]
    assert one.completion(0).text == "a "
    assert one.finish_reason == "stop"


def test_a_stop_string_completed_by_the_last_allowed_token_is_a_stop():
    """Of "stop" and "length", "stop" wins."""
    one = sequence(stop=["b"], max_tokens=2)
    one.accept(SampledToken(1), b"a")
    one.accept(SampledToken(1), b"b")
    assert one.finish_reason == "stop"


def test_the_first_tokens_complete_no_stop_string():
    """A stop string completed by one of the first min_tokens tokens is text; one completed by the next token stops."""
    one = sequence(stop=["aa"], min_tokens=3)
    for _ in range(3):
        one.accept(SampledToken(1), b"a")
        assert one.finish_reason is None
    one.accept(SampledToken(1), b"a")
    assert (one.finish_reason, one.completion(0).text) == ("stop", "aa")


def test_a_flush_completes_no_stop_string_too_early():
    """The U+FFFD of a character that max_tokens breaks is text, and no stop, where min_tokens is max_tokens."""
    one = sequence(stop=["\ufffd"], min_tokens=1, max_tokens=1)
    assert one.accept(SampledToken(1), b"\xf0") == "\ufffd"
    assert one.finish_reason == "length"


def test_the_room_left_in_the_context_bounds_a_sample():
    """The smaller of max_tokens and room ends it with "length", and a broken character is shown as one."""
    one = sequence(room=2, max_tokens=50)
    one.accept(SampledToken(1), b"a")
    assert one.accept(SampledToken(1), b"\xf0\x9f") == "�"
    assert one.finish_reason == "length"


def test_draws_repeat_with_the_seed_and_differ_between_samples():
    """Seed and sample index together decide every uniform number."""
    draws = {
        (seed, i): sequence(seed=seed, index=i).next_uniform()
        for seed in (0, 1, 2**200)
        for i in (0, 1)
    }
    assert len(set(draws.values())) == 6
    assert sequence(seed=5 + 2**32).next_uniform() != sequence(seed=5, index=1).next_uniform()
    assert draws[0, 1] == sequence(seed=0, index=1).next_uniform()


def test_a_running_sample_has_no_completion():
    """Asking for the completion too early is an error."""
    with pytest.raises(ValueError, match="still running"):
        sequence().completion(0)


def test_alternatives_line_up_with_the_tokens():
    """Each token has its alternatives, the end token too."""
    one = sequence(top_logprobs=2, eos_token_ids=[7])
    pairs = [(TokenLogprob(1, -0.1), TokenLogprob(7, -3.0)), (TokenLogprob(7, -0.5),)]
    for token, alternatives in zip((1, 7), pairs, strict=True):
        one.accept(SampledToken(token, None, alternatives), b"x")
    assert one.completion(0).top_logprobs == tuple(pairs)


def test_absent_unless_asked_for():
    """Tokens and log probabilities stay `None` without their flags."""
    one = sequence(max_tokens=1)
    one.accept(SampledToken(1), b"a")
    assert one.completion(0).tokens is None
    assert one.completion(0).logprobs is None
    assert one.completion(0).top_logprobs is None
