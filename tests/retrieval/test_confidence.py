"""Confidence: a number in [0, 1] that grows with the evidence; and results kept by their share of the best score."""

from __future__ import annotations

import math

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import ChunkIndex, InvalidRequestError, search
from relevance_gen.retrieval.question.confidence import MIDDLE, STEEPNESS, confidence, evidence
from relevance_gen.retrieval.question.query import parse
from relevance_gen.retrieval.question.stage import Plan
from relevance_gen.types import WeightingName
from tests import corpus, strategies
from tests.retrieval.asking import ALL, WEIGHTINGS

PETS = ["Cats purr and sleep.", "Dogs bark at cats.", "Birds sing.", "A fish swims in the sea."]


def plan_of(query: str, chunks: list[str] = PETS) -> Plan:
    return ChunkIndex(chunks)._state.collection.plan(parse(query, inflects=True))


@given(strategies.queries, strategies.chunk_lists, st.sampled_from(WEIGHTINGS), st.integers(1, 4), st.booleans())
def test_confidence_is_one_number_for_all_ways_to_ask(
    query: str, chunks: list[str], weighting: WeightingName, top_n: int, true_order: bool
) -> None:
    """It lies in [0, 1], is 0 exactly where nothing is found, and is the same for any top_n, order and way to ask."""
    response = search(query, chunks, weighting=weighting)
    assert 0.0 <= response.confidence <= 1.0
    assert (response.confidence > 0.0) == bool(response.results)
    assert search(query, chunks, top_n, true_order, weighting=weighting).confidence == response.confidence
    index = ChunkIndex(chunks[:2], weighting=weighting)
    index.add(chunks[2:])
    assert index.search(query, top_n).confidence == response.confidence


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_better_score_is_more_confidence(one: float, other: float) -> None:
    """Of the same question a higher best score never has less confidence."""
    plan = plan_of("do cats purr")
    low, high = sorted((one, other))
    assert confidence(low, plan) <= confidence(high, plan)


def test_the_formula() -> None:
    """It is what the documentation says: the best score, the known share of the idf, and the number of words."""
    response = search("Why do cats purr in Timbuktu?", PETS)
    plan = plan_of("Why do cats purr in Timbuktu?")
    cats, purr, timbuktu = (math.log(1 + 4 / df) for df in (2, 1, 1))
    known = (cats + purr) / (cats + purr + timbuktu)
    seen = response.best[0].chunk_score * known * 3**0.25
    assert evidence(response.best[0].chunk_score, plan) == pytest.approx(seen)
    assert response.confidence == pytest.approx(seen**STEEPNESS / (seen**STEEPNESS + MIDDLE**STEEPNESS))


def test_a_question_about_something_else_has_less() -> None:
    """A question that the chunks answer has more confidence than one that meets a word by chance, or nothing."""
    chunks = [*PETS, *corpus.prose(100, 30)]
    answered, by_chance, nothing = (
        search(query, chunks).confidence
        for query in ("Which birds sing?", "Which tax is due on a house by the sea in Spain?", "quantum gravity")
    )
    assert answered > 0.9
    assert by_chance < 0.5
    assert nothing == 0.0


def test_a_filter_is_asked_for_its_own_answer() -> None:
    """Confidence is about the chunks that may be results."""
    assert search("cats purr", PETS, where=[1, 2]).confidence < search("cats purr", PETS).confidence
    assert search("cats purr", PETS, where=[2]).confidence == 0.0


@given(strategies.queries, strategies.chunk_lists, st.floats(0, 1), st.sampled_from(WEIGHTINGS))
def test_min_share_keeps_what_is_close_to_the_best(
    query: str, chunks: list[str], min_share: float, weighting: WeightingName
) -> None:
    """Exactly the results of at least that share of the best score are kept, by `search` and by an index."""
    everything = search(query, chunks, ALL, False, weighting=weighting)
    best = everything.results[0].chunk_score if everything else 0.0
    kept = tuple(result for result in everything if result.chunk_score >= min_share * best)
    expected = evolve(everything, results=kept)
    assert search(query, chunks, ALL, False, min_share=min_share, weighting=weighting) == expected
    assert ChunkIndex(chunks, weighting=weighting).search(query, ALL, False, min_share=min_share) == expected


def test_a_share_of_one_keeps_the_best_and_its_equals() -> None:
    """With a share of 1 the best is left, and what scores the same."""
    found = search("cats purr", ["cats purr", "a cat", "cats purr", "dogs"], min_share=1)
    assert [result.original_index for result in found] == [0, 2]


@pytest.mark.parametrize("min_share", [-0.1, 1.1, float("nan"), "0.5", None, True])
def test_a_share_is_a_number_from_0_to_1(min_share: object) -> None:
    """Anything else is refused by name."""
    index = ChunkIndex(["cat"])
    for ask in (lambda: search("cat", ["cat"], min_share=min_share), lambda: index.search("cat", min_share=min_share)):
        with pytest.raises(InvalidRequestError, match="min_share must be a finite number in") as caught:
            ask()
        assert caught.value.field == "min_share"
