"""Words that are not about the subject: stop words, question frames, and question words of other languages."""

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


def weighted_terms(query: str, *, is_english: bool = True) -> list[str]:
    """Return the words of a query that have a weight."""
    return [
        term.word
        for term in parse(query, inflects=True, is_english=is_english).terms
        if not term.is_stop_word
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
        ("Price of whales? Answer in USD millions.", ["price", "whales"]),
        ("answer in French", ["answer", "french"]),
        ("Please give the ratio rounded to two decimal places", ["give", "ratio"]),
        (
            "Is profit rising? If profit isn't useful, state that and explain why.",
            ["profit", "rising"],
        ),
        ("Based on the information provided, who won?", ["won"]),
        ("using the data loader", ["using", "data", "loader"]),
        ("please", ["please"]),
        ("сколько китов", ["китов"]),
        ("Was ist wo?", ["ist", "wo"]),
    ],
)
def test_words_of_the_question_frame_have_no_weight(query: str, left: list[str]) -> None:
    """Words of a question frame have weight 0, unless they occur elsewhere in the query or are all of it."""
    assert weighted_terms(query) == left


def test_latin_question_words_have_no_weight_for_other_languages() -> None:
    """German question words that are also English words have weight 0 only if the chunks are German."""
    assert weighted_terms("Wie viele Wale", is_english=False) == ["wale"]
    assert weighted_terms("Wie viele Wale") == ["wie", "viele", "wale"]
    assert ranking("Wie viele Wale?", GERMAN)[0] == 1
    shown = ChunkIndex(GERMAN).explain("Wie viele Wale?", 1)
    assert [term.idf > 0 for term in shown.terms] == [False, False, True]


def test_other_question_words_are_terms() -> None:
    """Every word of the list is a term after folding, and omitted names are not in the list."""
    words = other_question_words(latin=True)
    assert {"wie", "cuantos", "сколько", "ποσοι", "متي", "कितने", "nhieu"} <= words
    assert not {"kim", "ai", "co"} & words
    assert other_question_words(latin=False) < words
    for text in OTHER_QUESTION_WORDS:
        assert {
            term.word for term in parse(text, inflects=True).terms
        } <= words | ENGLISH_STOP_WORDS
    assert question_frame(["many"]) == question_frame([]) == set()


def test_stop_word_weight_depends_on_number_of_content_terms() -> None:
    """Stop words have their full idf with one content term that occurs in a chunk, half with two, a quarter with three."""
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


def test_stop_words_break_ties_between_chunks() -> None:
    """If two chunks contain the content terms, the chunk with more of the stop words ranks first."""
    chunks = ["Our segments grew.", "Their segments grew.", "We are on it.", "Ours."]
    assert ranking("their segments", chunks) == [1, 0]
    assert ranking("our segments", chunks) == [0, 1]


def test_chunk_with_only_stop_words_is_not_a_result() -> None:
    """If a content term occurs in any chunk, chunks that share only stop words are not results; otherwise they are."""
    chunks = ["The whale.", "The ship.", "the the the", "A whale, too."]
    assert sorted(ranking("the whale", chunks)) == [0, 3]
    assert sorted(ranking("the zebra", chunks)) == [0, 1, 2]
    assert len(search("the whale", chunks, ALL, where=[1, 2])) == 0
    explained = ChunkIndex(chunks).explain("the whale", 2)
    assert (explained.score, {term.contribution for term in explained.terms}) == (0.0, {0.0})


def test_chunk_equal_to_the_query_scores_one() -> None:
    """A chunk equal to the query has score 1.0, also for short queries with weighted stop words."""
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


def test_instructions_do_not_change_the_order() -> None:
    """A chunk that has the words of an instruction does not rank above the answer."""
    chunks = [
        "State that the answer is useful and explain why in USD millions.",
        "Profit grew to 30 in 2022, and the margin fell.",
    ]
    query = "How did profit develop? Answer in USD millions. If not useful, please state that and explain why."
    assert ranking(query, chunks) == [1]
