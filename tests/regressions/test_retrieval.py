"""Regression tests for inputs with wrong results in earlier versions."""

from __future__ import annotations

import unicodedata

import pytest

from relevance_gen import ChunkIndex, search
from tests.retrieval.asking import ranking, scores


@pytest.mark.parametrize(
    "word", ["abcdefghij" * 10, "ж" * 40, "ह" * 22, "donaudampfschifffahrtsgesellschaft" * 2]
)
def test_search_finds_word_above_64_bytes(word: str) -> None:
    """A word of 64 bytes or more was not found, because it was compared with its stored prefix."""
    assert scores(word, [word, word + "x"]) == [1.0, 0.0]


@pytest.mark.parametrize("text", ["чай", "김치", "がく", "ؤلد", "কোন", "கொடி", "ї"])
def test_search_matches_decomposed_text(text: str) -> None:
    """Decomposed letters outside Latin and Greek did not match composed letters."""
    assert scores(text, [unicodedata.normalize("NFD", text)]) == [1.0]


@pytest.mark.parametrize("character", ["\ufa6c", "\ufacf", "\ufad0", "\ufad9"])
def test_search_matches_compatibility_ideographs(character: str) -> None:
    """Characters whose normal form is above U+FFFF raised an OverflowError."""
    assert scores(unicodedata.normalize("NFKC", character), [character, "é"]) == [1.0, 0.0]


def test_search_folds_surrogate_pair() -> None:
    """A character given as two surrogates was not case-folded."""
    assert scores("bold", ["\ud835\udc01\ud835\udc28\ud835\udc25\ud835\udc1d"]) == [1.0]


def test_query_word_with_stem_of_function_word_counts() -> None:
    """The query "Can cans be recycled?" searched only for recycling."""
    assert ranking("Can cans be recycled?", ["cans are made of metal", "plastic things"]) == [0]


@pytest.mark.parametrize("query", ["猫", "ก", "☀"])
def test_search_finds_single_character_inside_word(query: str) -> None:
    """A single character was found only if it was a separate word."""
    assert ranking(query, [f"x{query * 2}y", "x"]) == [0]


def test_unknown_word_keeps_order() -> None:
    """An unknown query word changed the order of a chunk and of its repetition."""
    chunks = ["cats purr", "cats purr cats purr cats purr", "zebra crossing"]
    assert ranking("cats purr", chunks) == ranking("cats purr qqqqx", chunks) == [0, 1]


def test_unknown_function_word_keeps_scores() -> None:
    """A function word that occurs in no chunk raised all scores."""
    assert scores("cats the", ["cats and dogs"]) == scores("cats", ["cats and dogs"])


def test_explanation_without_proximity_has_no_bonus() -> None:
    """Chunks outside the proximity stage were explained with bonuses that they do not have."""
    explained = ChunkIndex(
        [f"cat number {place} " + "pad " * place for place in range(60)]
    ).explain("cat number", 59)
    assert explained.bigrams + explained.coverage == 0.0


def test_matching_query_words_both_count() -> None:
    """Of two inflections of one word in the query, the second did not add coverage."""
    both, one = (
        ChunkIndex([text, "лес"]).explain("столица столицы", 0)
        for text in ("столица столицы", "столица")
    )
    assert both.coverage > 1.5 * one.coverage
    assert both.bigrams > one.bigrams == 0.0


def test_trademark_sign_is_not_part_of_word() -> None:
    """A trademark sign became two letters of the word before it."""
    assert len(search("windows", ["Windows™ 95", "Windows℠ 98"]).results) == 2
