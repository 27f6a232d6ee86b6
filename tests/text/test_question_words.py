"""Words that say little of what is asked: function words, frames, and question words of other languages."""

from __future__ import annotations

import math

import pytest

from relevance_gen import ChunkIndex, search
from relevance_gen.retrieval.query.parsing import parse
from relevance_gen.text.question_words import (
    OTHER_QUESTION_WORDS,
    other_question_words,
    question_frame,
)
from relevance_gen.text.stop_words import ENGLISH_STOP_WORDS
from tests.retrieval.asking import ALL, ranking

GERMAN = [
    "Der Wal ist groß und nicht klein.",
    "Wie viele Wale gibt es?",
    "Die Bäume sind alt und nicht neu.",
]


def weighing(query: str, *, is_english: bool = True) -> list[str]:
    """Return the words of a query that say what it is about."""
    return [
        term.word
        for term in parse(query, inflects=True, is_english=is_english).terms
        if not term.stop
    ]


@pytest.mark.parametrize(
    ("query", "left"),
    [
        ("How many whales are there?", ["whales"]),
        ("how much does it cost", ["cost"]),
        ("Which kinds of whales are there?", ["whales"]),
        ("Are there any varieties of apples?", ["apples"]),
        ("What kind whales are", ["kind", "whales"]),
        ("a kind of whale", ["kind", "whale"]),
        ("What has happened to the whales?", ["whales"]),
        ("whales happened", ["whales", "happened"]),
        ("How was it done by Émile?", ["emile"]),
        ("Many ask how many whales", ["many", "ask", "whales"]),
        ("How many?", ["many"]),
        ("сколько китов", ["китов"]),
        ("Was ist wo?", ["ist", "wo"]),
    ],
)
def test_the_frame_of_a_question_is_not_its_subject(query: str, left: list[str]) -> None:
    """Words weigh nothing where they are the frame of a question, unless they say more elsewhere, or all there is."""
    assert weighing(query) == left


def test_latin_question_words_are_read_by_the_language_of_the_chunks() -> None:
    """German asks with words that English may have as others, so they weigh nothing beside German chunks only."""
    assert weighing("Wie viele Wale", is_english=False) == ["wale"]
    assert weighing("Wie viele Wale") == ["wie", "viele", "wale"]
    assert ranking("Wie viele Wale?", GERMAN)[0] == 1
    shown = ChunkIndex(GERMAN).explain("Wie viele Wale?", 1)
    assert [term.idf > 0 for term in shown.terms] == [False, False, True]


def test_the_list_holds_terms() -> None:
    """Every word of the list is a term as chunks have it, and none of it is lost to a name that is left out."""
    words = other_question_words(latin=True)
    assert {"wie", "cuantos", "сколько", "ποσοι", "متي", "कितने", "nhieu"} <= words
    assert not {"kim", "ai", "co"} & words
    assert other_question_words(latin=False) < words
    for text in OTHER_QUESTION_WORDS:
        assert {
            term.word for term in parse(text, inflects=True).terms
        } <= words | ENGLISH_STOP_WORDS
    assert question_frame(["many"]) == question_frame([]) == set()


def test_function_words_weigh_by_what_else_is_asked() -> None:
    """Beside one other word that some chunk has they weigh their idf, half of it beside two, a quarter beside three."""
    chunks = ["the red fox ran far", "a dog", "cows moo"]
    index = ChunkIndex(chunks)
    expected = {
        "the fox": 1.0,
        "the red fox": 0.5,
        "the red fox ran": 0.25,
        "the red fox ran far": 0.0,
    }
    for query, share in (expected | {"what the fox zebras": 1.0}).items():
        the = next(term for term in index.explain(query, 0).terms if term.term == "the")
        assert the.idf == pytest.approx(share * math.log(1 + 3 / 1))
    what = index.explain("what fox", 0).terms[0]
    assert (what.idf, what.contribution) == (0.0, 0.0)


def test_function_words_decide_between_chunks_of_the_same_subject() -> None:
    """Of two chunks with the subject the one that says more of the question is the first."""
    chunks = ["Our segments grew.", "Their segments grew.", "We are on it.", "Ours."]
    assert ranking("their segments", chunks) == [1, 0]
    assert ranking("our segments", chunks) == [0, 1]


def test_a_chunk_with_function_words_alone_is_no_result() -> None:
    """Where some chunk has another word, sharing function words is sharing nothing; else they are all there is."""
    chunks = ["The whale.", "The ship.", "the the the", "A whale, too."]
    assert sorted(ranking("the whale", chunks)) == [0, 3]
    assert sorted(ranking("the zebra", chunks)) == [0, 1, 2]
    assert len(search("the whale", chunks, ALL, where=[1, 2])) == 0
    explained = ChunkIndex(chunks).explain("the whale", 2)
    assert (explained.score, {term.contribution for term in explained.terms}) == (0.0, {0.0})


def test_a_chunk_that_says_the_question_scores_one() -> None:
    """The law of 1.0 holds for short questions, whose function words count."""
    for query in (
        "the whale",
        "are there many whales",
        "how many whales are there",
        "of the red whale",
    ):
        assert (
            search(query, [query, "whale", "the ship of the red"], true_order=False)[0].chunk_score
            == 1.0
        )
