"""Confidence: a number in [0, 1] that grows with the evidence; and results kept by their share of the best score."""

from __future__ import annotations

import math

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import ChunkIndex, InvalidRequestError, search
from relevance_gen.retrieval.answer import weight
from relevance_gen.retrieval.query.parsing import parse
from relevance_gen.retrieval.ranking.confidence import MIDDLE, STEEPNESS, confidence, evidence
from relevance_gen.retrieval.ranking.stage import WeightedTerms
from relevance_gen.types import WeightingName
from tests import corpus, strategies
from tests.profiles import costly
from tests.retrieval.asking import ALL, WEIGHTINGS

PETS = ["Cats purr and sleep.", "Dogs bark at cats.", "Birds sing.", "A fish swims in the sea."]


def plan_of(query: str, chunks: list[str] = PETS) -> WeightedTerms:
    return weight(parse(query, inflects=True), ChunkIndex(chunks)._state.segments).terms


@costly
@given(
    strategies.queries,
    strategies.chunk_lists,
    st.sampled_from(WEIGHTINGS),
    st.integers(1, 4),
    st.booleans(),
)
def test_confidence_is_equal_for_all_functions(
    query: str, chunks: list[str], weighting: WeightingName, top_n: int, true_order: bool
) -> None:
    """It lies in [0, 1], is 0 exactly where nothing is found, and is the same for any top_n, order and way to ask."""
    response = search(query, chunks, weighting=weighting)
    assert 0.0 <= response.confidence <= 1.0
    assert (response.confidence > 0.0) == bool(response.results)
    assert (
        search(query, chunks, top_n, true_order, weighting=weighting).confidence
        == response.confidence
    )
    index = ChunkIndex(chunks[:2], weighting=weighting)
    index.add(chunks[2:])
    assert index.search(query, top_n).confidence == response.confidence


@given(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))
def test_more_evidence_is_more_confidence(one: float, other: float, same: float) -> None:
    """For the same query a higher best score never lowers the confidence, nor does a higher coverage."""
    plan = plan_of("do cats purr")
    low, high = sorted((one, other))
    assert 0.0 <= confidence(low, same, plan) <= confidence(high, same, plan) <= 1.0
    assert 0.0 <= confidence(same, low, plan) <= confidence(same, high, plan) <= 1.0


@costly
@given(strategies.queries, strategies.chunk_lists.filter(bool), st.data())
def test_confidence_is_independent_of_segments(
    query: str, chunks: list[str], data: st.DataObject
) -> None:
    """The confidence does not depend on how chunks were added, also with a filter."""
    allowed = data.draw(st.lists(st.sampled_from(range(len(chunks))), min_size=1, unique=True))
    index = ChunkIndex(chunks[: data.draw(st.integers(1, len(chunks)))])
    while len(index) < len(chunks):
        index.add(chunks[len(index) :][: data.draw(st.integers(1, len(chunks)))])
    for where in (None, allowed):
        assert (
            index.search(query, where=where).confidence
            == search(query, chunks, where=where).confidence
        )


def test_words_that_stand_together_are_more_than_words_apart() -> None:
    """Chunks with the words in a single passage have a higher confidence than chunks with the words spread out."""
    between = " ".join(corpus.prose(1, 60)[0].split()[:60])
    others = corpus.prose(50, 30)
    apart = search("violet zebra quartz", [f"violet {between} zebra {between} quartz", *others])
    together = search("violet zebra quartz", [f"violet zebra quartz {between} {between}", *others])
    assert apart.best[0].original_index == together.best[0].original_index == 0
    assert apart.confidence < together.confidence


def test_long_query_without_rarest_words_has_low_confidence() -> None:
    """Passages are asked for the rarest words only: chunks that hold none of these have little confidence, not none."""
    rare = [f"rare{'abcdefgh'[number % 8]}{'ijklmnop'[number // 8]}" for number in range(40)]
    chunks = [" ".join(rare), "a common lighthouse", "another lighthouse"]
    found = search(" ".join([*rare, "lighthouse"]), chunks, where=[1, 2])
    assert found.results
    assert 0.0 < found.confidence < 0.01


def test_confidence_equals_formula() -> None:
    """The confidence equals the documented formula of best score, coverage and number of words."""
    response = search("Why do cats purr, Timbuktu?", PETS)
    plan = plan_of("Why do cats purr, Timbuktu?")
    cats, purr, timbuktu = (math.log(1 + 4 / df) for df in (2, 1, 1))
    known = (cats + purr) / (cats + purr + timbuktu)
    score = response.best[0].chunk_score
    seen = score * known * 3
    assert evidence(score, 1.0, plan) == pytest.approx(seen)
    assert response.confidence == pytest.approx(
        seen**STEEPNESS / (seen**STEEPNESS + MIDDLE**STEEPNESS)
    )
    assert evidence(score, 0.5, plan) == pytest.approx(seen / 2)
    assert evidence(score, 1.0, plan_of("cats")) == pytest.approx(3 * score)


def test_unanswerable_question_has_lower_confidence() -> None:
    """A query that the chunks answer has a higher confidence than a query with a chance match, or without a match."""
    chunks = [*PETS, *corpus.prose(100, 30)]
    answered, by_chance, nothing = (
        search(query, chunks).confidence
        for query in (
            "Which birds sing?",
            "Which tax is due on a house by the sea in Spain?",
            "quantum gravity",
        )
    )
    assert answered > 0.9
    assert by_chance < 0.5
    assert nothing == 0.0


def test_confidence_considers_only_filtered_chunks() -> None:
    """Confidence is about the chunks that may be results."""
    assert search("cats purr", PETS, where=[1, 2]).confidence < search("cats purr", PETS).confidence
    assert search("cats purr", PETS, where=[2]).confidence == 0.0


@given(strategies.queries, strategies.chunk_lists, st.floats(0, 1), st.sampled_from(WEIGHTINGS))
def test_min_share_keeps_what_is_close_to_the_best(
    query: str, chunks: list[str], min_relative_score: float, weighting: WeightingName
) -> None:
    """Exactly the results of at least that share of the best score are kept, by `search` and by an index."""
    everything = search(query, chunks, ALL, False, weighting=weighting)
    best = everything.results[0].chunk_score if everything else 0.0
    kept = tuple(result for result in everything if result.chunk_score >= min_relative_score * best)
    expected = evolve(everything, results=kept)
    assert (
        search(
            query, chunks, ALL, False, min_relative_score=min_relative_score, weighting=weighting
        )
        == expected
    )
    assert (
        ChunkIndex(chunks, weighting=weighting).search(
            query, ALL, False, min_relative_score=min_relative_score
        )
        == expected
    )


def test_min_share_of_1_keeps_best_and_ties() -> None:
    """With a share of 1 the best is left, and what scores the same."""
    found = search("cats purr", ["cats purr", "a cat", "cats purr", "dogs"], min_relative_score=1)
    assert [result.original_index for result in found] == [0, 2]


@pytest.mark.parametrize("min_relative_score", [-0.1, 1.1, float("nan"), "0.5", None, True])
def test_min_share_outside_0_to_1_raises(min_relative_score: object) -> None:
    """Anything else is refused by name."""
    index = ChunkIndex(["cat"])
    for ask in (
        lambda: search("cat", ["cat"], min_relative_score=min_relative_score),
        lambda: index.search("cat", min_relative_score=min_relative_score),
    ):
        with pytest.raises(
            InvalidRequestError, match="min_relative_score must be a finite number in"
        ) as caught:
            ask()
        assert caught.value.field == "min_relative_score"
