"""Guessing from the prompt: what is guessed stood there before, and whatever is guessed, the answer stays the same."""

import attrs
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.generation.engine.draft_tokens import Lookup
from relevance_gen.generation.engine.engine import Engine
from relevance_gen.generation.engine.prefix_cache import PrefixCache
from relevance_gen.generation.runner import Runner
from relevance_gen.types import GenerationRequest
from small_models import BIGRAM, STORY
from tests.generation.engine.test_engine import Recorder, run
from tests.generation.scripted import ScriptedModel
from tests.profiles import costly


def obvious_guess(history, n_most):
    """Return what followed the last three tokens, or the last two, the last time before, token by token."""
    for width in (3, 2):
        for start in range(len(history) - width - 1, -1, -1):
            if history[start : start + width] == history[-width:]:
                guessed = list(history)
                for place in range(n_most):
                    guessed.append(guessed[start + width + place])
                return guessed[len(history) :]
    return []


@given(
    prompt=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    generated=st.lists(st.integers(0, 3), max_size=20),
    n_most=st.integers(0, 16),
)
def test_a_guess_is_what_followed_the_same_words_the_last_time(prompt, generated, n_most):
    """Three tokens are looked for first, then two, in the prompt and what was generated, the latest place first."""
    lookup = Lookup(np.array(prompt, np.int32), 16, room=64)
    for token in generated:
        lookup.note(token)
    assert lookup.guess(n_most) == obvious_guess(prompt + generated, n_most)


def test_guesses_grow_where_they_are_right_and_shrink_where_they_are_not():
    """After a guess of which n tokens were right comes one of at most 2n + 1, and never more than was asked for."""
    lookup = Lookup(np.array([1, 2, 3] * 20, np.int32), 8, room=100)
    lengths = []
    for n_right in (8, 0, 1, 3, 8):
        lengths.append(len(lookup.guess(100)))
        lookup.learn(n_right)
    assert lengths == [8, 8, 1, 3, 7]


def test_no_guess_goes_beyond_what_is_generated():
    """No row is computed behind a sample's last token."""
    lookup = Lookup(np.array([1, 2, 3] * 5, np.int32), 8, room=3)
    assert lookup.guess(8) == [1, 2]
    for token in (1, 2):
        lookup.note(token)
    assert lookup.guess(8) == []


def completions(runner, request, **fields):
    """Return what a request gets, but its times."""
    responses = runner.generate(attrs.evolve(request, **fields)).responses
    return [attrs.evolve(one, finished=0.0) for one in responses]


@costly
@given(
    text=st.text("abcz", min_size=1, max_size=60),
    temperature=st.sampled_from([0.0, 0.3, 1.0]),
    top_p=st.sampled_from([1.0, 0.9]),
    penalty=st.sampled_from([0.0, 0.5]),
    n_guessed=st.integers(1, 16),
    n_samples=st.integers(1, 5),
    seed=st.integers(0, 10**6),
)
def test_guesses_change_no_draw(
    bigram, text, temperature, top_p, penalty, n_guessed, n_samples, seed
):
    """Greedy or seeded, with stop strings, log probabilities and penalties: samples are those without guesses."""
    plain = GenerationRequest(
        text, max_tokens=60, num_samples=n_samples, stop=[" upon a café, ends 🙂! Once", "aaaa"],
        temperature=temperature, top_p=top_p, frequency_penalty=penalty, logprobs=True, top_logprobs=2,
        return_tokens=True, seed=seed,
    )  # fmt: skip
    assert completions(bigram, plain, prompt_lookup=n_guessed) == completions(bigram, plain)


def test_guesses_change_the_last_digits_of_log_probabilities(tiny):
    """With a real transformer rows computed together round differently, and that is all."""
    plain = GenerationRequest(
        "abcabcabcabc" * 5, max_tokens=80, temperature=0, logprobs=True, return_tokens=True
    )
    guessed, expected = (completions(tiny, plain, prompt_lookup=n)[0] for n in (16, 0))
    assert guessed.tokens == expected.tokens
    np.testing.assert_allclose(guessed.logprobs, expected.logprobs, atol=1e-4)


def test_a_text_that_repeats_itself_takes_fewer_steps():
    """The story, round and round, costs a step for each guess and not for each token, with a grammar too."""
    with Runner(BIGRAM, n_slots=2, n_ctx=256, n_threads=1) as runner:
        request = GenerationRequest("z", max_tokens=120, temperature=0)
        steps = []
        for fields in ({}, {"prompt_lookup": 16}, {"prompt_lookup": 8, "regex": "[^x]*"}):
            before = runner.counters().decode_steps
            assert completions(runner, request, **fields)[0].text == (STORY * 10)[: len(STORY) * 10]
            steps.append(runner.counters().decode_steps - before)
    assert steps[0] == 119
    assert steps[1] < 30
    assert steps[2] < 40


def test_nobody_who_does_not_guess_waits_for_those_who_do():
    """Beside a sequence without guesses there are none, and beside many there is no room for them."""

    def n_rows_of_steps(guesses):
        rows = []
        model = ScriptedModel(len(guesses), n_ctx=64, n_batch=64)
        decode = model.decode
        model.decode = lambda slots, *rest: (rows.append(slots), decode(slots, *rest))[1]
        recorder = Recorder()
        requests = [
            GenerationRequest(
                "abcabcabc", max_tokens=9, prompt_lookup=n, logit_bias={1: 50}, seed=1
            )
            for n in guesses
        ]
        run(
            Engine(model, PrefixCache(0), recorder, clock=lambda: 0.0),
            [recorder.ticket(one) for one in requests],
        )
        return [len(slots) for slots in rows if len(set(slots)) == len(guesses)]

    assert max(n_rows_of_steps([8])) > 1
    assert max(n_rows_of_steps([8, 8])) > 2
    assert max(n_rows_of_steps([8, 0])) == 2
    assert max(n_rows_of_steps([8] * 6)) == 6
