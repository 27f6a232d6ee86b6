"""Inputs that search once got wrong."""

from __future__ import annotations

import unicodedata

import pytest

from relevance_gen import ChunkIndex, search
from tests.retrieval.asking import ranking, scores


@pytest.mark.parametrize(
    "word", ["abcdefghij" * 10, "ж" * 40, "ह" * 22, "donaudampfschifffahrtsgesellschaft" * 2]
)
def test_a_word_longer_than_its_kept_spelling(word: str) -> None:
    """A word of 64 bytes and more was not found: it was compared with its kept beginning."""
    assert scores(word, [word, word + "x"]) == [1.0, 0.0]


@pytest.mark.parametrize("text", ["чай", "김치", "がく", "ؤلد", "কোন", "கொடி", "ї"])
def test_decomposed_text(text: str) -> None:
    """Decomposed letters outside Latin and Greek were other letters than composed ones."""
    assert scores(text, [unicodedata.normalize("NFD", text)]) == [1.0]


@pytest.mark.parametrize("character", ["\ufa6c", "\ufacf", "\ufad0", "\ufad9"])
def test_compatibility_ideographs_beyond_the_basic_plane(character: str) -> None:
    """Characters whose plain form lies beyond the basic plane ended in an OverflowError."""
    assert scores(unicodedata.normalize("NFKC", character), [character, "é"]) == [1.0, 0.0]


def test_a_surrogate_pair_in_two_halves() -> None:
    """The halves of a pair, given apart, were one character that was not folded."""
    assert scores("bold", ["\ud835\udc01\ud835\udc28\ud835\udc25\ud835\udc1d"]) == [1.0]


def test_a_query_word_with_the_stem_of_a_function_word() -> None:
    """The question whether cans can be recycled asked for nothing but recycling."""
    assert ranking("Can cans be recycled?", ["cans are made of metal", "plastic things"]) == [0]


@pytest.mark.parametrize("query", ["猫", "ก", "☀"])
def test_one_character_of_a_script_without_spaces(query: str) -> None:
    """One character was found only where it stood alone."""
    assert ranking(query, [f"x{query * 2}y", "x"]) == [0]


def test_an_unknown_word_and_a_chunk_that_repeats_the_query() -> None:
    """An unknown word in the query changed the order of a chunk that is its rest and one that repeats it."""
    chunks = ["cats purr", "cats purr cats purr cats purr", "zebra crossing"]
    assert ranking("cats purr", chunks) == ranking("cats purr qqqqx", chunks) == [0, 1]


def test_an_unknown_function_word() -> None:
    """A function word that no chunk has raised all scores."""
    assert scores("cats the", ["cats and dogs"]) == scores("cats", ["cats and dogs"])


def test_an_explanation_of_a_chunk_without_bonus() -> None:
    """Chunks that proximity is not looked at for were shown with pairs and coverage that their score does not have."""
    explained = ChunkIndex(
        [f"cat number {place} " + "pad " * place for place in range(60)]
    ).explain("cat number", 59)
    assert explained.bigrams + explained.coverage == 0.0


def test_two_words_of_the_query_that_match_each_other() -> None:
    """Of two forms of one word in the query, the second covered nothing."""
    both, one = (
        ChunkIndex([text, "лес"]).explain("столица столицы", 0)
        for text in ("столица столицы", "столица")
    )
    assert both.coverage > 1.5 * one.coverage
    assert both.bigrams > one.bigrams == 0.0


def test_trademarks() -> None:
    """A trademark sign became two letters of the word before it."""
    assert len(search("windows", ["Windows™ 95", "Windows℠ 98"]).results) == 2
