"""Score regularization, and the similarity of character 4-grams."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import ChunkIndex
from relevance_gen.retrieval.ranking.sparse_vectors import MAX_CHUNKS, Sample, SparseVector
from relevance_gen.retrieval.stages.char_ngrams import ngram_similarity
from relevance_gen.retrieval.stages.score_regularization import top_similarity
from tests import reference
from tests.profiles import costly
from tests.retrieval.asking import ranking, scores

bags = st.lists(st.lists(st.integers(0, 6), max_size=9), min_size=1, max_size=7)
shares = st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.5, 1.0]), min_size=7, max_size=7)


def bag_of(chunks: list[list[int]]) -> SparseVector:
    return SparseVector(
        np.array([one for chunk in chunks for one in chunk], np.uint32),
        np.array([*map(len, chunks)], np.int64),
    )


def named(chunks: list[list[int]]) -> list[list[str]]:
    """Return chunks of words for the reference; 0 is a function word."""
    return [["the" if one == 0 else f"w{one}" for one in chunk] for chunk in chunks]


@given(bags, shares, bags)
def test_likeness_is_that_of_the_reference(
    chunks: list[list[int]], own: list[float], others: list[list[int]]
) -> None:
    """What chunks are given is what comparing each with each of the best gives, and at most the best score."""
    own = own[: len(chunks)]
    if any(own):
        everything = chunks + others
        found = top_similarity(
            bag_of(chunks), np.array(own), Sample.of(bag_of(everything))
        ).tolist()
        assert found == pytest.approx(
            reference.top_similarity(named(chunks), own, named(everything))
        )
        assert max(found) <= max(own)


@given(bags, shares, st.randoms(use_true_random=False))
def test_likeness_has_the_same_bits_in_any_order(
    chunks: list[list[int]], own: list[float], rng: object
) -> None:
    """The similarity of each chunk has the same bits for any order of chunks."""
    own = own[: len(chunks)]
    order = list(range(len(chunks)))
    rng.shuffle(order)  # type: ignore[attr-defined]
    if any(own):
        sample = Sample.of(bag_of(chunks))
        found = top_similarity(bag_of(chunks), np.array(own), sample).tolist()
        shuffled = top_similarity(
            bag_of([chunks[at] for at in order]), np.array([own[at] for at in order]), sample
        )
        assert shuffled.tolist() == [found[at] for at in order]


@given(bags, st.lists(st.integers(1, 6), min_size=1, max_size=9))
def test_letters_are_those_of_the_reference(chunks: list[list[int]], asked: list[int]) -> None:
    """The similarity of 4-grams equals the formula."""
    chunks = [[one + 1 for one in chunk] for chunk in chunks]
    found = ngram_similarity(np.array(asked, np.uint32), bag_of(chunks)).tolist()
    expected = reference.letter_shares([f"w{one}" for one in asked], named(chunks))
    assert found == pytest.approx(expected)


@costly
@given(
    st.lists(st.text("abžстคक猫1_ .", max_size=12), min_size=1, max_size=5),
    st.text("abžстคक猫1 ", min_size=1),
)
def test_letters_in_a_row_are_cut_as_in_the_reference(texts: list[str], query: str) -> None:
    """The 4-grams that a segment returns for chunks equal the 4-grams of their words."""
    texts = [f"der und ist {text}" for text in texts]
    assert scores(f"x {query}", texts) == pytest.approx(
        reference.scores(f"x {query}", texts), abs=1e-9
    )


def test_chunks_like_the_best_are_lifted() -> None:
    """If two chunks match the query equally, the chunk that is similar to the best chunk scores higher."""
    chunks = [
        "whales swim: the whale is a mammal of the sea that swims in herds",
        "a whale, said the lawyer of the bank about his client",
        "a whale, a mammal of the sea in herds, and so on",
    ]
    assert ranking("do whales swim", chunks) == [0, 2, 1]


def test_forms_and_compounds_share_letters() -> None:
    """In other languages, a chunk with a compound of the query's word is better than one without."""
    chunks = [
        "die Katze und der Hund auf dem Dach",
        "die Katze und das Lastkraftwagendach auf dem Dach",
    ]
    assert ranking("Kraftwagen auf dem Dach", chunks) == [1, 0]


def test_large_tie_is_not_compared() -> None:
    """If more chunks tie than can be compared, they have equal scores and are not compared."""
    chunks = [
        f"cat{chr(97 + a)}{chr(97 + b)} purr" for a, b in itertools.product(range(26), range(26))
    ]
    assert len(chunks) > MAX_CHUNKS
    index = ChunkIndex(chunks)
    assert len(set(scores("purr", chunks))) == 1
    assert index.explain("purr", 0).top_similarity == 0.0
