"""The choice constraint: each sample equals a text of the list."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.constraints.choices import Choices, TokenPrefixIndex
from relevance_gen.generation.constraints.token_constraint import MaskTimeBudget
from relevance_gen.generation.runner import Runner
from relevance_gen.types import GenerationRequest
from small_models import LETTER_A, bigram_table
from tests.profiles import costly

some_bytes = st.lists(st.sampled_from([b"a", b"b", b"\xc3", b"\xa9"]), max_size=5).map(b"".join)
texts = st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=6)


@pytest.fixture(scope="module")
def embedded():
    """A runner with the embedded model, whose vocabulary has all bytes."""
    with Runner(n_slots=4, n_ctx=512, n_threads=1) as runner:
        yield runner


def samples_of(runner, **fields):
    """Return the completions of a request without top_k, so that all tokens can be sampled."""
    return runner.generate(
        {"text": "a", "max_tokens": 120, "top_k": 0, "return_tokens": True, **fields}
    ).responses


def bits(mask, n):
    return set(np.flatnonzero(np.unpackbits(mask, bitorder="little")[:n]))


@given(vocabulary=st.lists(some_bytes, max_size=12), text=some_bytes, start=st.integers(0, 3))
def test_tokens_at_equals_a_scan_of_the_vocabulary(vocabulary, text, start):
    """Vocabularies may have duplicates, empty tokens and tokens that are prefixes."""
    slow = {
        token for token, piece in enumerate(vocabulary) if piece and text[start:].startswith(piece)
    }
    found = TokenPrefixIndex(vocabulary).tokens_at(text, start)
    assert len(found) == len(set(found))
    assert set(found) == slow


@given(
    vocabulary=st.lists(some_bytes, min_size=1, max_size=12),
    some=st.lists(some_bytes, min_size=1),
    data=st.data(),
)
def test_mask_allows_tokens_that_continue_a_text(vocabulary, some, data):
    """After any allowed tokens the mask allows continuations of texts, and end tokens after a complete text."""
    vocabulary = [*vocabulary, b"|"]
    end, some = len(vocabulary) - 1, sorted({*some, b"a"} - {b""})
    constraint = Choices(some, TokenPrefixIndex(vocabulary)).begin([end], MaskTimeBudget())
    said = b""
    for _ in range(8):
        going_on = {
            token
            for token, piece in enumerate(vocabulary)
            if piece and any(text.startswith(said + piece) for text in some)
        }
        ends = {end} if said in some else set()
        assert bits(constraint.mask(may_end=True), len(vocabulary)) == going_on | ends
        assert bits(constraint.mask(may_end=False), len(vocabulary)) == going_on or ends
        if not going_on:
            break
        token = data.draw(st.sampled_from(sorted(going_on)))
        constraint.accept(token)
        said += vocabulary[token]
        assert constraint.is_complete == (
            said in some and not any(t != said and t.startswith(said) for t in some)
        )


@costly
@given(choice=texts, seed=st.integers(0, 99))
def test_sample_equals_a_text_of_the_list(embedded, choice, seed):
    """For any characters and any temperature."""
    wanted = {text.encode(errors="replace").decode() for text in choice}
    for fields in ({}, {"temperature": 0}):
        for sample in samples_of(embedded, choice=choice, seed=seed, num_samples=2, **fields):
            assert (sample.text in wanted, sample.finish_reason) == (True, "eos"), sample


def test_text_and_its_extension_are_both_sampled(embedded):
    """The shorter text ends with an end token, the longer text by itself; min_tokens delays the end token."""
    samples = samples_of(
        embedded, choice=["Yes", "Yes, it is"], num_samples=60, seed=1, temperature=3
    )
    assert {sample.text for sample in samples} == {"Yes", "Yes, it is"}
    assert {sample.finish_reason for sample in samples} == {"eos"}
    longer = samples_of(
        embedded, choice=["Yes", "Yes, it is"], num_samples=9, seed=1, temperature=3, min_tokens=9
    )
    assert {sample.text for sample in longer} == {"Yes, it is"}


def test_choice_with_stop_strings_and_max_tokens_truncates(embedded):
    """The streamed text equals the text of the sample."""
    choice = ["one two three", "four"]
    (cut,) = samples_of(embedded, choice=choice[:1], stop=[" three"])
    assert (cut.text, cut.finish_reason) == ("one two", "stop")
    assert samples_of(embedded, choice=choice[:1], max_tokens=1)[0].finish_reason == "length"
    request = GenerationRequest("a", choice=choice, seed=1)
    with embedded.stream(request) as stream:
        assert "".join(piece.text for piece in stream) == stream.response.responses[0].text


def test_logprobs_with_choice_are_unconstrained(bigram):
    """Log probabilities are those of the model without the mask."""
    (sample,) = samples_of(bigram, choice=["zebra"], logprobs=True)
    logits = bigram_table()[[LETTER_A, *sample.tokens[:-1]]].astype(np.float64)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    expected = logits[np.arange(len(sample.tokens)), list(sample.tokens)]
    np.testing.assert_allclose(sample.logprobs, expected, atol=1e-5)


def test_choice_does_not_change_concurrent_requests(embedded):
    """A concurrent request without choice has the same result as alone."""
    asked = GenerationRequest("Once upon a time", seed=5, max_tokens=30)
    alone = embedded.generate(asked).responses[0].text
    futures = [
        embedded.submit(asked),
        embedded.submit(GenerationRequest("a", choice=["so it is"] * 2)),
    ]
    assert [future.result().responses[0].text for future in futures] == [alone, "so it is"]


def test_choice_without_tokens_for_a_text_is_an_error(bigram):
    """If the vocabulary lacks a letter, the request fails with an error that names its field."""
    with pytest.raises(
        InvalidRequestError, match="choice allows no token of this model at this position"
    ):
        samples_of(bigram, choice=["語"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"choice": []}, "choice must be a list of at least one string, none of them empty"),
        ({"choice": "abc"}, "choice must be a list of at least one string, none of them empty"),
        ({"choice": ["a", ""]}, "choice must be a list of at least one string, none of them empty"),
        ({"choice": ["a"], "regex": "a"}, "choice cannot be combined with regex"),
        ({"choice": ["a"], "grammar": 'start: "a"'}, "choice cannot be combined with grammar"),
        (
            {"choice": [str(n) for n in range(5000)]},
            "choice must hold at most 4,096 texts, got 5000",
        ),
        ({"choice": ["a" * 300_000]}, "choice must hold at most 262,144 characters"),
    ],
)
def test_invalid_choice_is_rejected(embedded, fields, message):
    """The error names the field and the allowed values."""
    with pytest.raises(InvalidRequestError, match=message):
        embedded.generate({"text": "a", **fields})
