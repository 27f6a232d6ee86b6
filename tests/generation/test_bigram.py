"""The engine on llama.cpp, compared with closed forms: the logits of the next token are a row of a table."""

import itertools

import numpy as np
import pytest

from relevance_gen.errors import InvalidRequestError
from relevance_gen.types import GenerationRequest
from small_models import BIGRAM_TOKENS, BOS, END, LETTER_A, STORY, bigram_table
from tests.reference_generation import distribution, greedy, text_before_stop

TABLE = bigram_table()
STORY_PIECES = 12


def complete(runner, text="a", **fields):
    """Return the completions of a request that returns tokens and log probabilities."""
    return runner.generate(
        GenerationRequest(text, return_tokens=True, logprobs=True, **fields)
    ).responses


def test_greedy_follows_argmax_of_table(bigram):
    """With temperature 0 each token is the argmax of the row of the previous token, from each letter."""
    for letter in range(26):
        (completion,) = complete(bigram, chr(ord("a") + letter), temperature=0, max_tokens=20)
        assert list(completion.tokens) == greedy(
            lambda tokens: TABLE[tokens[-1]], [LETTER_A + letter], 20
        )


def test_logprobs_are_independent_of_sampling_parameters(bigram):
    """Log probabilities equal the softmax of the table to 1e-5, before temperature, penalties and top_k."""
    for fields in (
        {},
        {"temperature": 0.3, "top_k": 3, "presence_penalty": 2, "min_p": 0.2, "top_p": 0.5},
    ):
        for completion in complete(bigram, num_samples=4, max_tokens=50, seed=1, **fields):
            steps = zip((LETTER_A, *completion.tokens), completion.tokens, strict=False)
            np.testing.assert_allclose(
                completion.logprobs, [LOG_SOFTMAX[step] for step in steps], atol=1e-5
            )


@pytest.mark.parametrize(
    "fields", [{}, {"temperature": 0}, {"top_k": 0, "top_p": 0.5}, {"regex": "[a-z]*"}]
)
def test_allowed_token_ids_restrict_samples(bigram, fields):
    """With a grammar or without, samples have only allowed tokens and no EOS token."""
    allowed = (LETTER_A + 2, LETTER_A + 5)
    for completion in complete(
        bigram, num_samples=4, max_tokens=30, seed=1, allowed_token_ids=allowed, **fields
    ):
        assert set(completion.tokens) <= set(allowed)
        assert completion.generated_tokens == 30


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"allowed_token_ids": [10**6]}, "below"),
        (
            {"allowed_token_ids": [5], "eos_token_ids": [5], "min_tokens": 1},
            "must leave at least one token",
        ),
        ({"allowed_token_ids": [*range(70_000)]}, "at most 65,536"),
    ],
)
def test_allowed_token_ids_impossible_raise(bigram, fields, says):
    """The error is raised before a token is sampled."""
    with pytest.raises(InvalidRequestError, match=says) as caught:
        bigram.generate({"text": "a", **fields})
    assert caught.value.field == "allowed_token_ids"


LOG_SOFTMAX = TABLE - np.log(np.exp(TABLE.astype(np.float64)).sum(axis=1, keepdims=True))


def test_top_logprobs_are_the_largest_of_the_row(bigram):
    """At each position they are the k largest values of the table's row, equal to logprobs, regardless of the request."""
    fields = {
        "temperature": 0.3,
        "top_k": 3,
        "presence_penalty": 2,
        "logit_bias": {LETTER_A: 30},
        "seed": 1,
    }
    for completion in complete(bigram, num_samples=4, max_tokens=50, top_logprobs=5, **fields):
        assert len(completion.top_logprobs) == 50
        steps = zip(
            (LETTER_A, *completion.tokens), completion.tokens, completion.logprobs, strict=False
        )
        for (current, token, logprob), alternatives in zip(
            steps, completion.top_logprobs, strict=True
        ):
            row = LOG_SOFTMAX[current]
            assert [alternative.token for alternative in alternatives] == np.argsort(
                -row, kind="stable"
            )[:5].tolist()
            np.testing.assert_allclose(
                [alternative.logprob for alternative in alternatives],
                np.sort(row)[:-6:-1],
                atol=1e-5,
            )
            assert {
                alternative.logprob for alternative in alternatives if alternative.token == token
            } <= {logprob}


@pytest.mark.parametrize("n_tokens", [1, 2, 127, 128, 129, 200])
def test_prompt_logprobs_equal_table(bigram, n_tokens):
    """Each token but the first has a log probability, across prefill chunks, and also when the prefix cache has the prompt."""
    letters = np.random.default_rng(n_tokens).integers(0, 26, n_tokens - 1)
    text = "".join(chr(ord("a") + letter) for letter in letters)
    prompt = [BOS, *(LETTER_A + letters).tolist()]
    plain, asked, again = (
        bigram.generate(
            GenerationRequest(
                text, max_tokens=5, temperature=0, logprobs=True, prompt_logprobs=wanted
            )
        )
        for wanted in (False, True, True)
    )
    assert plain.prompt_logprobs is None
    assert asked.prompt_logprobs[0] is None
    expected = [LOG_SOFTMAX[step] for step in itertools.pairwise(prompt)]
    np.testing.assert_allclose(asked.prompt_logprobs[1:], expected, atol=1e-5)
    assert again.prompt_logprobs == asked.prompt_logprobs
    assert plain.responses[0].logprobs == asked.responses[0].logprobs == again.responses[0].logprobs


def test_logit_bias_forces_and_excludes(bigram):
    """+100 forces a token, -100 excludes it."""
    (forced,) = complete(bigram, max_tokens=5, logit_bias={LETTER_A + 3: 100})
    assert forced.tokens == (LETTER_A + 3,) * 5
    (free,) = complete(bigram, temperature=0, max_tokens=1)
    (other,) = complete(bigram, temperature=0, max_tokens=1, logit_bias={free.tokens[0]: -100})
    assert other.tokens[0] == np.argsort(-TABLE[LETTER_A])[1]


def test_min_tokens_delays_the_end(bigram):
    """No kind of end occurs in the first min_tokens tokens; without min_tokens some samples end earlier."""
    ends = list(range(LETTER_A, LETTER_A + 12))
    for min_tokens in (0, 7):
        samples = complete(
            bigram,
            num_samples=64,
            max_tokens=40,
            seed=2,
            eos_token_ids=ends,
            stop=["e"],
            min_tokens=min_tokens,
        )
        assert (min(c.generated_tokens for c in samples) > 7) == (min_tokens == 7)
        assert {c.finish_reason for c in samples} <= {"eos", "stop", "length"}
        assert not any(token in ends for c in samples for token in c.tokens[:min_tokens])


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"logit_bias": {len(TABLE): 1}}, "logit_bias"),
        ({"eos_token_ids": [*range(len(TABLE))], "min_tokens": 1}, "eos_token_ids"),
        ({"top_logprobs": 20, "max_tokens": 255, "num_samples": 256}, "top_logprobs"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_request_beyond_model_raises(bigram, fields, field):
    """A token beyond the vocabulary, an empty choice of tokens and too many top_logprobs raise an error that names the field."""
    with pytest.raises(InvalidRequestError) as caught:
        bigram.generate(GenerationRequest("a", **fields))
    assert caught.value.field == field
    assert complete(bigram, max_tokens=1)


def chi_square_p(runner, drawn_with, judged_by):
    """Return the p-value of a χ² test of generated tokens against the closed form.

    Each token is mapped to a random position in its interval of the cumulative distribution, given
    all previous tokens: the result is uniform on [0, 1) if the sampler is correct. Previously
    generated tokens come first, then tokens in descending order of probability, so that a wrong
    penalty or limit shifts the result.
    """
    spread = np.random.default_rng(0)
    positions = []
    request = GenerationRequest("a", **judged_by)
    by_counts = {"presence_penalty", "frequency_penalty", "repetition_penalty"} & judged_by.keys()
    known = {}
    for completion in complete(runner, num_samples=16, max_tokens=100, seed=7, **drawn_with):
        for step, token in enumerate(completion.tokens):
            before = completion.tokens[:step]
            last = before[-1] if before else LETTER_A
            # A request without penalties depends on the last token only, so its distribution is
            # computed once per token.
            key = (last, step < request.min_tokens, tuple(sorted(before)) if by_counts else ())
            if key not in known:
                known[key] = distribution(TABLE[last], request, before)
            expected = known[key]
            assert expected[token] > 0 or drawn_with != judged_by
            first = np.lexsort((-expected, ~np.isin(np.arange(len(expected)), before)))
            below = expected[first[: np.flatnonzero(first == token)[0]]].sum()
            positions.append(below + spread.random() * expected[token])
    from scipy.stats import (
        chisquare,
    )  # slow to import, and all test processes import this file

    return chisquare(np.histogram(positions, bins=32, range=(0, 1))[0]).pvalue


EVERY_PARAMETER = [
    {},
    {"top_k": 0},
    {"top_k": 4},
    {"temperature": 0.6},
    {"temperature": 1.8, "top_k": 0},
    {"top_p": 0.6},
    {"top_p": 0.6, "top_k": 0},
    {"min_p": 0.15},
    {"min_p": 0.15, "top_k": 0},
    {"presence_penalty": 2},
    {"presence_penalty": -1.5},
    {"frequency_penalty": 1.5},
    {"frequency_penalty": -0.5},
    {"repetition_penalty": 1.8},
    {"repetition_penalty": 0.7, "top_k": 0},
    {"logit_bias": {LETTER_A: 3, LETTER_A + 1: 2.5, LETTER_A + 2: -100}},
    {"eos_token_ids": [*range(LETTER_A, LETTER_A + 9)], "min_tokens": 100},
    {
        "temperature": 0.8,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.02,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
    },
]


@pytest.mark.parametrize("fields", EVERY_PARAMETER, ids=str)
def test_samples_match_closed_form(bigram, fields):
    """1,600 tokens sampled with each parameter pass a χ² test against the documented distribution."""
    assert chi_square_p(bigram, fields, fields) > 1e-3


@pytest.mark.parametrize(
    ("drawn_with", "judged_by"),
    [
        ({"temperature": 0.7}, {}),
        ({"top_k": 20}, {"top_k": 40}),
        ({"top_p": 0.9}, {}),
        ({"min_p": 0.1}, {}),
        ({"presence_penalty": 1}, {}),
        ({"frequency_penalty": -0.5}, {}),
        ({"repetition_penalty": 1.8}, {}),
        ({"logit_bias": dict.fromkeys(range(30), 2.5)}, {}),
        ({"eos_token_ids": [*range(30)], "min_tokens": 100}, {}),
    ],
    ids=str,
)
def test_chi_square_test_detects_wrong_parameter(bigram, drawn_with, judged_by):
    """The same test fails clearly if tokens were sampled with another value than expected."""
    assert chi_square_p(bigram, drawn_with, judged_by) < 1e-6


def test_frequency_penalty_greedy_equals_manual_computation(bigram):
    """With frequency_penalty 2 the most likely token loses once its lead is below 2 per previous use."""
    (completion,) = complete(
        bigram, temperature=0, frequency_penalty=2, presence_penalty=1, max_tokens=60
    )
    current, counts = LETTER_A, np.zeros(len(TABLE))
    for token in completion.tokens:
        assert token == np.argmax(TABLE[current] - 2 * counts - (counts > 0))
        counts[token] += 1
        current = token


def test_eos_token_ends_sample_and_is_counted(bigram):
    """The EOS token is counted and among the tokens, but not in the text."""
    (free,) = complete(bigram, temperature=0, max_tokens=8)
    (ended,) = complete(bigram, temperature=0, max_tokens=8, eos_token_ids=[free.tokens[4]])
    n = free.tokens.index(free.tokens[4]) + 1
    assert ended.finish_reason == "eos"
    assert ended.tokens == free.tokens[:n]
    assert ended.text == b"".join(BIGRAM_TOKENS[token] for token in ended.tokens[:-1]).decode()


def test_without_eos_token_ids_samples_reach_max_tokens(bigram):
    """The model's own EOS token does not end a sample: 256 samples reach max_tokens, and some of them contain it."""
    completions = complete(bigram, num_samples=256, max_tokens=30, temperature=5, top_k=0, seed=0)
    assert {(c.generated_tokens, c.finish_reason) for c in completions} == {(30, "length")}
    assert any(END in c.tokens for c in completions)


@pytest.mark.parametrize(
    "stop", ["upon", "n a", "é, e", "é", "🙂", " 🙂! On", "Once", "s 🙂", "!", "not there"]
)
def test_stop_string_across_tokens_ends_text(bigram, stop):
    """The text ends before a stop string, regardless of token and byte boundaries."""
    (completion,) = complete(bigram, "z", temperature=0, max_tokens=40, stop=[stop])
    story = (STORY * 4).encode()
    generated = b"".join(BIGRAM_TOKENS[token] for token in completion.tokens)
    text, stopped = text_before_stop([story[: len(generated)]], [stop])
    assert (completion.text, completion.finish_reason) == (text, "stop" if stopped else "length")


def test_stream_split_characters_are_complete(bigram):
    """é and 🙂 consist of two and three tokens; no streamed piece has a part of them."""
    stream = bigram.stream(GenerationRequest("z", temperature=0, max_tokens=STORY_PIECES))
    pieces = [piece.text for piece in stream]
    assert "".join(pieces) == stream.response.responses[0].text == STORY
    assert not any("�" in piece for piece in pieces)


def test_max_tokens_within_character_adds_replacement_character(bigram):
    """If max_tokens ends a sample within a character, U+FFFD replaces the part."""
    (completion,) = complete(bigram, "z", temperature=0, max_tokens=5)
    assert completion.text == "Once upon a caf�"


@pytest.mark.parametrize(
    ("max_input_tokens", "seen"),
    [(0, 6), (6, 6), (100, 6), (5, 5), (2, 2), (1, 1)],
    ids=lambda value: str(value),
)
def test_max_input_tokens_keeps_end_and_bos_token(bigram, max_input_tokens, seen):
    """The last tokens are kept; the BOS token stays first and counts; the prompt is returned as sent."""
    response = bigram.generate(
        GenerationRequest(
            "abcde",
            max_tokens=1,
            temperature=0,
            return_tokens=True,
            max_input_tokens=max_input_tokens,
        )
    )
    assert response.prompt_tokens == seen
    assert response.prompt == "abcde"
    last = BOS if seen == 1 else LETTER_A + 4
    assert response.responses[0].tokens[0] == TABLE[last].argmax()


def test_empty_text_starts_from_bos_token(bigram):
    """A model with a BOS token can continue an empty text."""
    response = bigram.generate(
        GenerationRequest("", max_tokens=1, temperature=0, return_tokens=True)
    )
    assert response.prompt_tokens == 1
    assert response.responses[0].tokens[0] == TABLE[BOS].argmax()


def test_text_of_control_token_becomes_that_token(bigram):
    """Prompts with chat markers need the text of a control token to become that token."""
    assert bigram.generate(GenerationRequest("a<|end|>", max_tokens=1)).prompt_tokens == 3


def test_samples_differ_and_seed_repeats_them(bigram):
    """Without a seed results differ between calls; with a seed they repeat, and the samples still differ."""
    fields = {"num_samples": 6, "max_tokens": 20}
    seeded = [[c.tokens for c in complete(bigram, seed=5, **fields)] for _ in range(2)]
    free = [[c.tokens for c in complete(bigram, **fields)] for _ in range(2)]
    assert seeded[0] == seeded[1]
    assert len(set(seeded[0])) == 6
    assert len({*free[0], *free[1], *seeded[0]}) == 18


def test_samples_are_independent(bigram):
    """The first tokens of 256 samples of a request match the distribution."""
    from scipy.stats import chisquare

    counts = np.zeros(len(TABLE))
    for completion in complete(bigram, num_samples=256, max_tokens=1, top_k=8, seed=3):
        counts[completion.tokens[0]] += 1
    expected = 256 * distribution(TABLE[LETTER_A], GenerationRequest("a", top_k=8))
    assert chisquare(counts[expected > 0], expected[expected > 0]).pvalue > 1e-3


def test_full_context_ends_sample_with_length(bigram):
    """Prompt and generated tokens end at n_ctx, which is 256."""
    (completion,) = complete(bigram, "a" * 199, max_tokens=1000)
    assert (completion.generated_tokens, completion.finish_reason) == (56, "length")


@pytest.mark.parametrize("n_letters", [255, 256, 10_000, 3_000_000])
def test_too_long_prompt_raises_with_remedy(bigram, n_letters):
    """A prompt that leaves no token is refused, and the runner continues."""
    with pytest.raises(
        InvalidRequestError,
        match=r"text is too long: .* > 255 (tokens )?maximum.*max_input_tokens",
    ):
        bigram.generate(GenerationRequest("a" * n_letters))
    assert bigram.alive


def test_max_input_tokens_accepts_huge_text(bigram):
    """max_input_tokens reduces a prompt of three million letters."""
    response = bigram.generate(
        GenerationRequest("b" * 3_000_000 + "a", max_tokens=1, max_input_tokens=10)
    )
    assert response.prompt_tokens == 10


@pytest.mark.parametrize(
    "text", ["\x00", "a\x00b", "\ud800", "é" * 50, "\u202e", " " * 200, "<|begin|>" * 20]
)
def test_any_text_leaves_runner_alive(bigram, text):
    """NUL, lone surrogates, text outside the vocabulary: the runner continues after any text."""
    assert bigram.generate(GenerationRequest(text, max_tokens=2)).responses[0].generated_tokens == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 5e-324},
        {"temperature": 1.7e308},
        {"top_p": 0},
        {"top_k": 10**30},
        {"min_p": 1},
        {"eos_token_ids": [2**31 - 1]},
        {"seed": 10**300},
        {"presence_penalty": -2, "frequency_penalty": -2, "temperature": 1e-9},
        {"stop": ["x" * 60_000]},
        {"max_tokens": 10**30},
    ],
    ids=lambda fields: next(iter(fields)),
)
def test_extreme_valid_values_generate(bigram, fields):
    """The limits of all ranges generate without a warning."""
    assert complete(bigram, **({"max_tokens": 5} | fields))[0].generated_tokens >= 1
