"""Matching: a word of the query matches its inflections among the chunks' words."""

from __future__ import annotations

import itertools
import pickle

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relevance_gen import ChunkIndex
from relevance_gen.index.postings import Postings, PostingsBuilder, count_terms
from relevance_gen.retrieval.query.parsing import parse
from relevance_gen.retrieval.query.term_matching import MAX_INFLECTIONS, live_inflections
from relevance_gen.text.tokenization import tokenize
from relevance_gen.text.word_forms import can_inflect, is_partial_ngram, stem
from tests import reference, strategies


def vocabulary(text: str) -> Postings:
    tokens = tokenize([text])
    builder = PostingsBuilder(4)
    builder.add(tokens, count_terms(tokens.ids, tokens.counts), np.array([0]))
    return builder.build()[0]


def matches(word: str, text: str, *, by_prefix: bool = False) -> dict[str, float]:
    term = parse(word, inflects=True).terms[0]
    postings = vocabulary(text)
    found = live_inflections(postings, term, by_prefix=by_prefix).match(postings.lexicon, 1)
    spellings = postings.lexicon.decode_terms(postings.lexicon.find(found.ids))
    return dict(zip(spellings, found.weight.tolist(), strict=True))


@pytest.mark.parametrize(
    ("word", "text", "expected"),
    [
        (
            "connections",
            "connect connected connecting connection",
            "connect connected connecting connection",
        ),
        ("fly", "flies flying flew", "flies flying"),
        ("using", "use used uses user us", "use used uses"),
        ("dying", "die died dies day", "die died dies"),
        ("ponies", "pony ponies", "pony ponies"),
        ("relational", "relate relation relative", "relate relation relative"),
        ("cat", "cats category", "cats"),
        ("us", "us use user", "us"),
        ("v2", "v2 v20", "v2"),
        ("Straße", "strassen STRASSE", "strasse"),
        ("get_user", "get_user get_users", "get_user"),
    ],
)
def test_english_words_match_their_inflections(word: str, text: str, expected: str) -> None:
    """Words of one stem match in full; numbers, identifiers and short words match themselves."""
    assert matches(word, text) == dict.fromkeys(expected.split(), 1.0)


def test_cached_matches_are_not_pickled() -> None:
    """Searches do not change the pickle of an index, because cached stems are valid in this process only."""
    postings, term = vocabulary("connect connected"), parse("connections", inflects=True).terms[0]
    before = pickle.dumps(postings)
    assert live_inflections(postings, term, by_prefix=False).term_ords.size == 2
    assert pickle.dumps(postings) == before


def test_words_of_other_alphabets_match_by_their_beginning() -> None:
    """An inflected word matches by the share of it that is the same."""
    assert matches("столица", "столица столицы столицей стол сто") == pytest.approx(
        {"столица": 1.0, "столицы": 6 / 7, "столицей": 6 / 8, "стол": 4 / 7}
    )


def test_other_latin_words_match_by_prefix_on_request() -> None:
    """In chunks that are not English, Latin words match as other alphabets' words do."""
    assert matches("Hausen", "haus häuser hausen haut") == {"hausen": 1.0}
    assert matches("Hausen", "haus häuser hausen haut", by_prefix=True) == pytest.approx(
        {"haus": 4 / 6, "hausen": 1.0, "hauser": 5 / 6}
    )


def test_three_letters_do_outside_latin_where_they_are_most_of_a_word() -> None:
    """Short words in other alphabets match by three letters, Latin words by four."""
    assert matches("кота", "кот коты которые") == pytest.approx({"кот": 3 / 4, "коты": 3 / 4})
    assert matches("kota", "kot koty kotare kota", by_prefix=True) == pytest.approx(
        {"kota": 1.0, "kotare": 4 / 6}
    )


def test_words_that_begin_with_the_arabic_article_are_distinguished() -> None:
    """A word is matched by the letters after the article."""
    assert matches("الكتاب", "والكتاب المدرسة كتاب") == {"كتاب": 1.0}
    assert matches("الكتاب", "كتابة الكتب الولد") == pytest.approx({"كتابه": 4 / 5})


@pytest.mark.parametrize(
    ("word", "text", "expected"),
    [
        ("猫", "我喜欢猫。猫! 黒猫が犬", {"欢猫": 1 / 2, "猫": 1.0, "黒猫": 1 / 2, "猫が": 1 / 2}),
        ("猫が", "黒猫が 猫", {"猫が": 1.0}),
        ("한", "한국 대한 한", {"한국": 1 / 2, "대한": 1 / 2, "한": 1.0}),
        ("ไป", "ไปบ้าน ไป", {"ไปบ": 1 / 2, "ไป": 1.0}),
        ("บ", "ไปบ้าน", {"ไปบ": 1 / 3, "ปบ้": 1 / 3, "บ้า": 1 / 3}),
    ],
)
def test_fragments_match_what_they_are_part_of(
    word: str, text: str, expected: dict[str, float]
) -> None:
    """A run shorter than its script's n-grams matches all n-grams that hold it, and counts each occurrence once."""
    as_moved = {tokenize([term]).decode_term(0): weight for term, weight in expected.items()}
    assert is_partial_ngram(tokenize([word]).decode_term(0)) == (expected != {"猫が": 1.0})
    assert matches(word, text) == as_moved


@given(strategies.word_texts(), strategies.words, st.booleans())
def test_matches_are_those_of_the_reference(text: str, word: str, by_prefix: bool) -> None:
    """A word matches what comparing it with every word of the vocabulary finds."""
    words, vocabulary_words = reference.terms(word), set(reference.terms(text))
    postings = vocabulary(text)
    query = parse(word, inflects=True)
    for index, term in enumerate(query.terms):
        if term.is_stop_word:
            continue
        first_token = int(np.flatnonzero(query.term_of_token == index)[0])
        found = live_inflections(postings, term, by_prefix=by_prefix).match(postings.lexicon, 1)
        expected = reference.forms(
            words[first_token], vocabulary_words, stop=False, english=not by_prefix
        )
        assert sorted(found.weight.tolist()) == pytest.approx(sorted(expected.values()))
        assert found.ids.tolist() == sorted(int(tokenize([other]).ids[0]) for other in expected)


@pytest.mark.parametrize("letter", ["a", "ж", "ह"])
@pytest.mark.parametrize("n_bytes", [62, 63, 64, 65, 66, 200])
def test_long_words_are_found(letter: str, n_bytes: int) -> None:
    """A word of any length matches itself, and none that only begins as it does."""
    size = -(-n_bytes // len(letter.encode()))
    longer = letter * (2 * size)
    assert list(matches(letter * size, f"{letter * size} {longer}").values()) in (
        [1.0],
        [1.0, 0.5],
        [0.5, 1.0],
    )
    assert list(matches(longer, f"{letter * size} {longer}").values()) in (
        [1.0],
        [1.0, 0.5],
        [0.5, 1.0],
    )


@example("жaж", "жaжa")
@given(st.text("abжह", min_size=3, max_size=8), st.text("abжह", min_size=3, max_size=8))
def test_words_match_by_their_beginning_as_in_the_reference(word: str, other: str) -> None:
    """How far two words match does not depend on which of them is asked for, and is 1 only for one word or stem."""
    if stem(word) != stem(other):
        expected = {reference.terms(other)[0]: reference.similarity(word, other)}
        assert matches(word, other, by_prefix=True) == pytest.approx(
            {w: n for w, n in expected.items() if n}
        )
        assert reference.similarity(word, other) == reference.similarity(other, word) < 1.0


def test_stems_are_prefixes_but_for_their_last_letter() -> None:
    """Looking only at words that begin as the stem does, but for its last letter, finds all words of that stem."""
    words = """
        abilities able absolutely accordance agencies ambitious analogies analysing babies beautiful bodily carried
        certainly changing communities conditional decisive democracies dependencies differently easily education
        electricity eyes fancy feudalism flies formality generalization goodness happily hesitancy hopefulness hoping
        idly operation operator organization possibly predication rationality relational sensibility skies sky stabilize
        traditionally triplicate ugly vietnamization valency vileness woolly yearly yes
    """.split()
    assert [word for word in words if not word.startswith(stem(word)[:-1])] == []


def test_made_up_words_match_themselves_alone() -> None:
    """A word with more inflections than the limit matches only itself."""
    endings = ["".join(letters) for letters in itertools.product("abcdefgh", repeat=4)]
    for n_forms in (MAX_INFLECTIONS - 1, MAX_INFLECTIONS):
        forms = [f"столица{ending}" for ending in endings[:n_forms]]
        (share,) = ChunkIndex([" ".join([*forms, "столица"])]).explain("столица", 0).terms
        assert len(share.matches) == (n_forms + 1 if n_forms < MAX_INFLECTIONS else 1)


def test_numbers_and_identifiers_are_not_inflected() -> None:
    """Only words of three letters or more, without digits and underscores, have other forms."""
    assert [
        word
        for word in ["abc", "ab", "a1c", "a_c", "жж", "ждж", "猫猫猫", ""[:0] or "x" * 64]
        if can_inflect(word)
    ] == [
        "abc",
        "ждж",
    ]
