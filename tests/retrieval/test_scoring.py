"""Scores equal the formulas, and have the documented properties."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from relevance_gen import ChunkIndex, search
from relevance_gen.types import Explanation, WeightingName
from tests import reference, strategies
from tests.profiles import costly
from tests.retrieval.asking import ALL, WEIGHTINGS, ranking, scores

weightings = st.sampled_from(WEIGHTINGS)
KNEE = 1.0 - 5e-7
UNKNOWN = "qqqqx"
"""A word that all chunks lack in any inflection."""


@given(strategies.queries, strategies.chunk_lists, weightings)
@example("cats purr", ["cats purr", "cats purr cats purr", "zebra"], "pivoted")
@example("Can cans will", ["can cans", "will willing", "the can"], "pivoted")
@example("the", ["the cat", "a cat"], "pivoted")
@example("столица столицы", ["столица столицы", "столица", "столицы в"], "pivoted")
@example("猫 cat", ["我喜欢猫。", "黒猫", "cat 猫"], "pivoted")
@example("Haus Haustür", ["das Haus und die Haustür", "Haus", "der Häuser"], "pivoted")
@example(
    " ".join(f"w{n}" for n in range(40)),
    [" ".join(f"w{n}" for n in range(0, 40, 2)), "w1 w2", "w38 w39"],
    "pivoted",
)
def test_scores_are_those_of_the_reference(
    query: str, chunks: list[str], weighting: WeightingName
) -> None:
    """Every chunk's score is that of the formulas, computed one word at a time."""
    assert scores(query, chunks, weighting) == pytest.approx(
        reference.scores(query, chunks, weighting), abs=1e-9
    )


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_scores_of_many_chunks_are_those_of_the_reference(weighting: WeightingName) -> None:
    """With more chunks than the stages score, scores equal the formulas."""
    rng = random.Random(7)  # noqa: S311
    words = [f"w{number}" for number in range(30)] + [
        "the",
        "of",
        "can",
        "cans",
        "connect",
        "connected",
    ]
    chunks = [" ".join(rng.choices(words, k=rng.randint(1, 30))) for _ in range(150)]
    for query in ("w1 w2 w3", "the connected cans of w7", "w9 w9 w10 unknown", chunks[77]):
        assert scores(query, chunks, weighting) == pytest.approx(
            reference.scores(query, chunks, weighting), abs=1e-9
        )


@given(strategies.plain_texts, st.lists(strategies.plain_texts, min_size=1, max_size=8))
def test_textbook_cosine_equals_scikit_learn(query: str, chunks: list[str]) -> None:
    """For equal terms the cosine equals that of TfidfVectorizer, also with unknown words in the query."""
    from sklearn.feature_extraction.text import TfidfVectorizer  # takes long

    vectorizer = TfidfVectorizer(sublinear_tf=True)
    matrix = vectorizer.fit_transform(chunks)
    expected = (matrix @ vectorizer.transform([query]).T).toarray().ravel()
    assert scores(query, chunks, "cosine") == pytest.approx(expected.tolist(), abs=1e-9)


def test_textbook_cosine_of_prose_equals_scikit_learn() -> None:
    """The same holds for many chunks of prose-like text, with one-letter words enabled in TfidfVectorizer."""
    rng = random.Random(1)  # noqa: S311
    words = [f"{a}{b}" for a in "bcdfgh" for b in ("a", "e", "ile", "ound", "x")] + ["a", "i"]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    chunks = [" ".join(rng.choices(words, weights, k=rng.randint(1, 200))) for _ in range(400)]
    from sklearn.feature_extraction.text import TfidfVectorizer  # takes long

    vectorizer = TfidfVectorizer(sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")  # noqa: S106
    matrix = vectorizer.fit_transform(chunks)
    index = ChunkIndex(chunks, weighting="cosine")
    for query in ("a bile cound", "ga he i", "nothing of this", chunks[3]):
        expected = (matrix @ vectorizer.transform([query]).T).toarray().ravel()
        found = np.zeros(len(chunks))
        for result in index.search(query, ALL).results:
            found[result.original_index] = result.chunk_score
        assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-9)


@given(strategies.queries, strategies.chunk_lists, weightings)
def test_scores_lie_between_0_and_1(
    query: str, chunks: list[str], weighting: WeightingName
) -> None:
    """A result's score is above 0 and at most 1."""
    found = search(query, chunks, ALL, weighting=weighting).results
    assert all(0.0 < result.chunk_score <= 1.0 for result in found)


@given(strategies.chunk_texts, strategies.chunk_lists, st.integers(0, 8), weightings)
def test_chunk_equal_to_query_scores_1(
    query: str, chunks: list[str], place: int, weighting: WeightingName
) -> None:
    """A chunk that is the query scores exactly 1.0, and none scores higher; only a text without terms is not found."""
    chunks.insert(place, query)
    found = scores(query, chunks, weighting)
    assert found[chunks.index(query)] == (1.0 if reference.terms(query) else 0.0)
    assert max(found) <= 1.0


@given(strategies.queries, strategies.chunk_lists, weightings)
def test_saying_it_again_and_again_is_not_better_than_saying_it(
    query: str, chunks: list[str], weighting: WeightingName
) -> None:
    """A chunk that repeats the query scores at most as high as a chunk equal to the query."""
    found = scores(query, [query, " ".join([query] * 5), *chunks], weighting)
    assert found[0] >= found[1]


@given(strategies.queries, strategies.chunk_lists, st.randoms(use_true_random=False), weightings)
def test_permuting_chunks_permutes_scores(
    query: str, chunks: list[str], rng: random.Random, weighting: WeightingName
) -> None:
    """A chunk's score has the same bits at any position."""
    order = list(range(len(chunks)))
    rng.shuffle(order)
    shuffled = scores(query, [chunks[place] for place in order], weighting)
    original = scores(query, chunks, weighting)
    assert shuffled == [original[place] for place in order]


@costly
@given(strategies.word_texts(max_words=5), strategies.chunk_lists, st.booleans(), weightings)
@example("cats purr", ["cats purr", "cats purr cats purr", "zebra"], True, "pivoted")
def test_unknown_query_word_keeps_order(
    query: str, chunks: list[str], first: bool, weighting: WeightingName
) -> None:
    """An unrelated word in the query lowers every score by one factor, and so changes no order."""
    assume(not any(UNKNOWN in text for text in chunks))
    more = f"{UNKNOWN} {query}" if first else f"{query} {UNKNOWN}"
    before, after = scores(query, chunks, weighting), scores(more, chunks, weighting)
    assert ranking(query, chunks, weighting) == ranking(more, chunks, weighting)
    if any(before):
        factor = max(after) / max(before)
        assert factor < 1.0 if weighting == "pivoted" else factor == 1.0
        assert after == pytest.approx([factor * score for score in before], rel=1e-12)


@costly
@given(strategies.word_texts(max_words=5), strategies.chunk_lists)
def test_function_words_that_no_chunk_has_change_nothing(query: str, chunks: list[str]) -> None:
    """A stop word of the query that all chunks lack does not change scores."""
    chunks = ["zebra", *(text for text in chunks if "ourselves" not in reference.terms(text))]
    before = scores(f"zebra {query}", chunks)
    assert scores(f"zebra {query} ourselves", chunks) == pytest.approx(before, rel=1e-12)


@given(strategies.queries, strategies.chunk_lists, weightings)
def test_shares_add_up_to_the_score(
    query: str, chunks: list[str], weighting: WeightingName
) -> None:
    """The contributions of terms and parts sum to the score, also if it is compressed below 1."""
    index = ChunkIndex(chunks, weighting=weighting)
    found = scores(query, chunks, weighting)
    for place, score in enumerate(found):
        explained = index.explain(query, place)
        total = sum_of_shares(explained)
        assert explained.score == score
        assert [term.term for term in explained.terms] == list(
            dict.fromkeys(term.term for term in explained.terms)
        )
        assert total == pytest.approx(score, abs=1e-9)


def sum_of_shares(explained: Explanation) -> float:
    parts = (
        explained.bigrams,
        explained.coverage,
        explained.lead,
        explained.phrase,
        explained.char_ngrams,
        explained.top_similarity,
    )
    return math.fsum([*(term.contribution for term in explained.terms), *parts])


def test_shares_add_up_where_proximity_is_not_looked_at() -> None:
    """A chunk that is not among the best by cosine is given no bonus, and none is shown."""
    chunks = [f"cat number {place} " + "pad " * place for place in range(120)]
    index = ChunkIndex(chunks)
    last = index.explain("cat number", 119)
    assert last.bigrams == last.coverage == last.lead == last.phrase == last.top_similarity == 0.0
    assert math.fsum(term.contribution for term in last.terms) == pytest.approx(
        last.score, abs=1e-12
    )
    first = index.explain("cat number", 0)
    assert min(first.bigrams, first.coverage, first.lead, first.phrase, first.top_similarity) > 0.0
    assert first.char_ngrams == 0.0
    assert ChunkIndex(["Katze und Maus", "der Hund"]).explain("Katzen", 0).char_ngrams > 0.0


def test_words_that_only_look_like_function_words_count() -> None:
    """A word with the stem of a stop word is searched."""
    assert ranking("Can cans be recycled?", ["cans are made of metal", "can be"])[0] == 0
    assert ranking("How does a doe sleep?", ["a doe in the forest", "how does it"])[0] == 0


def test_function_words_count_where_nothing_else_is_found() -> None:
    """A query of function words finds the chunks that have them."""
    assert ranking(
        "to be or not to be", ["To be, or not to be: that is the question.", "Words, words, words."]
    ) == [0]
    assert ranking("who are you zzz", ["who are you", "they are"])[0] == 0


def test_words_together_beat_words_apart() -> None:
    """If two chunks have the same words, the chunk with adjacent words scores higher."""
    apart = "green is the colour of the door and the apple lay on a big table in the white house behind our hill"
    together = "the green apple lay on a big table and white is the colour of the door in our house behind the hill"
    assert ranking("green apple", [apart, together]) == [1, 0]


def test_table_of_numbers_ranks_above_longer_prose() -> None:
    """Numbers that are not years hardly count as length."""
    table = "Net income by quarter " + " ".join(f"{n} 1{n}" for n in range(310, 370))
    prose = "Net income by quarter " + " ".join(f"word{n}x" for n in range(20))
    best, other = search("net income by quarter", [prose, table], true_order=False)
    assert (best.original_index, other.original_index) == (1, 0)


def test_long_queries_cost_no_more_than_their_length() -> None:
    """A query of many words is answered, its repetition too."""
    query = " ".join(f"word{number}" for number in range(5000))
    chunks = [f"word{number} word{number + 1} here" for number in range(0, 5000, 100)]
    assert len(search(query, chunks, ALL).results) == len(chunks)
