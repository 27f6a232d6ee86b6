"""Operators: words that a chunk must contain or must not contain."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import relevance_gen.retrieval.query.operators as signs_module
from relevance_gen import ChunkIndex, InvalidRequestError, search
from relevance_gen.index.builder import build
from relevance_gen.index.chunks import Chunks
from relevance_gen.retrieval.answer import rank
from relevance_gen.retrieval.local_segments import LocalSegments
from relevance_gen.retrieval.query.filters import Filter
from relevance_gen.retrieval.query.operators import (
    MAX_OPERATOR_WORDS,
    find_prefixes,
    parse_operators,
)
from relevance_gen.retrieval.query.parsing import parse
from relevance_gen.retrieval.query.term_matching import MAX_INFLECTIONS
from relevance_gen.retrieval.weighting import weighting_named
from relevance_gen.text.blocks import BLOCK_CHARS
from relevance_gen.text.tokenization import tokenize
from tests import strategies
from tests.profiles import costly
from tests.retrieval.asking import ALL

CHUNKS = [
    "The JavaScript engine runs fast.",
    "A black cat sleeps.",
    "Black cats and dogs.",
    "The cat is black.",
    "我喜欢黑色的猫",
    "黑猫在这里",
    "Tom's rock'n'roll in C++ -1 a - b",
    "e-mail me",
    "email me",
    "get_user_name works",
]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ('"javascript  engine"', [0]),  # in any case and with any characters between words
        ('"black cat"', [1]),
        ("“black cat”", [1]),
        ('"black cats"', [2]),
        ('cats "cat"', [1, 3]),  # a single word in quotes matches only itself
        ("+cats black", [1, 2, 3]),
        ("cat -dogs", [1, 3]),
        ('cat -"black cat"', [2, 3]),
        ('"the cat" cats', [3]),
        ("cat -black +zebra", []),
        ('"cat black"', []),
        ('"黑色的猫"', [4]),
        ("+黑色的猫", [4]),
        ('我要"黑猫"', [5]),
        ('"猫"', [4, 5]),
        ("猫 -黑色", [5]),
        ("+e-mail", [7]),
        ('"user name"', [9]),
        ("works -get_user_name", []),
    ],
)
def test_results_satisfy_operators(query: str, expected: list[int]) -> None:
    """Every result contains a phrase in quotes and a word with +, and lacks a word with -; in `search` and an index."""
    response = search(query, CHUNKS, syntax="operators")
    assert [result.original_index for result in response] == expected
    assert ChunkIndex(CHUNKS).search(query, syntax="operators") == response


@pytest.mark.parametrize(
    "query",
    [
        *(
            "C++",
            "-1 rock",
            "rock'n'roll",
            "a - b",
            "e-mail",
            '"black cat',
            'a 5" pipe and a 6" cat',
        ),
        *("-cats", '-"black cat"', '"" cat', "cat +", "+! cat"),
    ],
)
def test_text_without_operator_is_unchanged(query: str) -> None:
    """Text that is not an operator, or excludes every word, is searched unchanged."""
    assert search(query, CHUNKS, syntax="operators") == search(query, CHUNKS)


def test_plain_syntax_is_default() -> None:
    """Without `syntax`, quotes and signs have no effect."""
    assert search('"black" -cat', CHUNKS).results == search("black cat", CHUNKS).results


def obviously_stands(phrase: list[str], chunk: list[str]) -> bool:
    return any(chunk[at : at + len(phrase)] == phrase for at in range(len(chunk)))


few_words = st.lists(st.sampled_from("cat dog The runs x1 naïve".split()), min_size=1, max_size=8)


@costly
@given(st.lists(few_words, max_size=8), few_words, few_words, few_words, st.booleans())
def test_quotes_keep_what_a_slow_search_keeps(
    chunks: list[list[str]],
    asked: list[str],
    wanted: list[str],
    unwanted: list[str],
    is_wanted: bool,
) -> None:
    """Results and scores equal the search without excluded words, except chunks that violate an operator."""
    texts = [", ".join(words) for words in chunks]
    quoted = f'"{" ".join(wanted)}"'
    query = f'{" ".join(asked)} {quoted * is_wanted} -"{" ".join(unwanted)}"'
    expected = [
        (result.original_index, result.chunk_score)
        for result in search(f"{' '.join(asked)} {quoted * is_wanted}", texts, ALL)
        if (not is_wanted or obviously_stands(wanted, chunks[result.original_index]))
        and not obviously_stands(unwanted, chunks[result.original_index])
    ]
    assert [
        (one.original_index, one.chunk_score)
        for one in search(query, texts, ALL, syntax="operators")
    ] == expected


signs = st.builds(
    "{}{}".format,
    st.sampled_from(["+", "-"]),
    strategies.words | strategies.word_texts(max_words=3).map('"{}"'.format),
) | strategies.word_texts(max_words=3).map('"{}"'.format)


@given(strategies.chunk_lists, strategies.queries, st.lists(signs, max_size=3), st.data())
def test_operators_are_independent_of_segments(
    chunks: list[str], query: str, said: list[str], data: st.DataObject
) -> None:
    """Operators allow and explain the same chunks for any division into segments."""
    parsed = parse_operators(f"{query} {' '.join(said)}", inflects=True)
    owner = data.draw(st.lists(st.integers(0, 2), min_size=len(chunks), max_size=len(chunks)))
    parts = [[place for place, part in enumerate(owner) if part == number] for number in range(3)]
    rankings = []
    for cut in ([[*range(len(chunks))]], parts):
        segments = [
            build(Chunks([chunks[at] for at in part], {}), np.array(part, np.int64))
            for part in cut
            if part
        ]
        chosen = pickle.loads(pickle.dumps(Filter.read(None, len(chunks), parsed.operators)))
        local = LocalSegments(segments, weighting_named("pivoted"))
        ranking = rank(parse(parsed.text, inflects=True), 50, local, chosen)
        rankings.append((ranking.positions.tolist(), ranking.scores.tobytes()))
    assert rankings[0] == rankings[1]


@costly
@given(strategies.chunk_lists, strategies.queries, st.lists(signs, max_size=3))
def test_explanation_lists_violated_operators(
    chunks: list[str], query: str, said: list[str]
) -> None:
    """A chunk is a result if its score is above 0 and it satisfies all operators; its score does not change."""
    asked = f"{query} {' '.join(said)}"
    index = ChunkIndex(chunks)
    found = {
        result.original_index: result.chunk_score
        for result in index.search(asked, ALL, syntax="operators")
    }
    for position in range(len(chunks)):
        explanation = index.explain(asked, position, syntax="operators")
        assert (position in found) == (explanation.score > 0 and not explanation.violated_operators)
        assert found.get(position, explanation.score) == explanation.score
        assert all(
            sign in asked and "left out by" in repr(explanation)
            for sign in explanation.violated_operators
        )


def test_signs_go_with_where_and_changes() -> None:
    """A filter and signs both hold, and chunks that were removed stay away."""
    index = ChunkIndex(CHUNKS)
    assert [
        result.original_index
        for result in index.search("black -dogs", where=[1, 2], syntax="operators")
    ] == [1]
    index.remove([1])
    index.add(["a black cat again"])
    assert [
        result.original_index for result in index.search('"black cat"', syntax="operators")
    ] == [10]


def test_phrase_can_occur_in_title() -> None:
    """A phrase can occur in a chunk's title, but not across the title and the text of a different chunk."""
    chunks = [
        {"text": "It sleeps.", "title": "The black cat"},
        {"text": "cat", "title": "black dogs"},
    ]
    assert [
        result.original_index for result in search('sleeps "black cat"', chunks, syntax="operators")
    ] == [0]


def test_phrase_is_found_anywhere_in_long_chunk() -> None:
    """A phrase is found at any position in a chunk of any length, and not across two chunks."""
    filler = "lorem ipsum " * (BLOCK_CHARS // 12)
    long, ends = f"{filler}black cat {filler}", [f"{filler}black", f"cat {filler}"]
    for chunks, expected in (([long, *ends], [0]), (ends, [])):
        assert [
            result.original_index for result in search('"black cat"', chunks, syntax="operators")
        ] == expected


def test_number_of_passes_is_independent_of_phrase_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Texts and phrases that repeat themselves are looked through once, however many words the phrase has."""
    looked_at: list[int] = []
    find = signs_module.find
    monkeypatch.setattr(
        signs_module, "find", lambda words, ids: looked_at.append(ids.size) or find(words, ids)
    )
    texts, costs = ["a " * 300, "a " * 40 + "b " + "a " * 40, "a " * 63 + "b"], []
    for phrase, expected in (
        ("a a", [0, 1, 2]),
        ("a " * 64, [0]),
        ("a " * 40 + "b " + "a " * 23, [1]),
    ):
        looked_at.clear()
        response = search(f'"{phrase}"', texts, syntax="operators")
        assert [result.original_index for result in response] == expected
        costs.append(sum(looked_at))
    assert costs == [
        300 + 81 + 64,
        300 + 81 + 64,
        81 + 64,
    ]  # the last phrase has a word that the first text has not


def test_too_many_words_after_operators_are_refused() -> None:
    """The work for each chunk is bounded; the error names a remedy."""
    many = " ".join(f"-word{number}x" for number in range(MAX_OPERATOR_WORDS + 1))
    with pytest.raises(
        InvalidRequestError, match=f"at most {MAX_OPERATOR_WORDS} words after"
    ) as caught:
        search(f"cat {many}", CHUNKS, syntax="operators")
    assert caught.value.field == "query"
    with pytest.raises(InvalidRequestError, match='syntax must be "plain" or "operators"'):
        search("cat", CHUNKS, syntax="lucene")  # type: ignore[arg-type]


def test_texts_are_read_once_for_all_phrases(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every phrase is tested, and each text is tokenized once for any number of phrases."""
    texts = [
        "black cat and red dog",
        "red dog and cat black",
        "black cat",
        "red dog black cat",
        "a cat",
    ]
    cut: list[int] = []
    monkeypatch.setattr(
        signs_module,
        "tokenize",
        lambda some, **reported: cut.append(len(some)) or tokenize(some, **reported),
    )
    for query, kept in (
        ('"black cat" "red dog"', {0, 3}),
        ('"red dog" -"black cat" -"dog black"', {1}),
        ('cat -"black cat" -"cat black" -"red cat"', {4}),
        ('+cat "red dog" -and', {3}),
    ):
        cut.clear()
        assert {
            result.original_index for result in search(query, texts, syntax="operators")
        } == kept
        assert sum(n > 1 for n in cut) <= 1


PREFIXED = ["The bridge is old.", "Bridging a gap.", "A brid.", "Bridgehead", "Мосты и мостик", "x"]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("bridg*", [0, 1, 3]),
        ("Bridge*", [0, 3]),
        ("+bridg* gap brid", [0, 1, 3]),
        ("brid gap -bridge*", [1, 2]),
        ("brid gap -bridg*", [2]),
        ("(bridgeh*)", [3]),
        ("мост*", [4]),
        ("br*", []),
        ("bridgeh**", []),
        ("bridgeh*x", [5]),
        ('"bridg*"', []),
    ],
)
@pytest.mark.parametrize("weighting", ["pivoted", "cosine"])
def test_prefix_matches_all_words_that_begin_so(
    query: str, expected: list[int], weighting: Any
) -> None:
    """A word of three letters with an asterisk matches every word that begins with it."""
    options: dict[str, Any] = {"syntax": "operators", "correct_spelling": False}
    results = search(query, PREFIXED, ALL, weighting=weighting, **options).results
    assert [result.original_index for result in results] == expected
    index = ChunkIndex(PREFIXED[:2], weighting=weighting)
    index.add(PREFIXED[2:])
    assert index.search(query, ALL, **options).results == results
    for result in results:
        explanation = index.explain(query, result.original_index, **options)
        assert explanation.score == result.chunk_score


def test_prefix_is_not_cached_as_word() -> None:
    """The same text finds words with `syntax="plain"` and prefixes with operators, in any order."""
    index = ChunkIndex(PREFIXED)
    for _ in range(2):
        assert len(index.search("bridg*", correct_spelling=False)) == 2
        assert len(index.search("bridg*", correct_spelling=False, syntax="operators")) == 3


def test_prefix_of_too_many_words_is_refused() -> None:
    """Words beyond the limit are not left out silently."""
    chunks = [" ".join(f"pre{n}" for n in range(MAX_INFLECTIONS + 1))]
    with pytest.raises(InvalidRequestError, match="prefixes that match at most 1,024 words"):
        search("pre*", chunks, syntax="operators")
    results = search("cat -pre*", [*chunks, "cat"], syntax="operators").results
    assert [result.chunk_txt for result in results] == ["cat"]


@given(strategies.chunk_lists, strategies.words, st.integers(3, 5))
def test_prefix_is_found_in_chunks_with_its_words(
    chunks: list[str], word: str, n_letters: int
) -> None:
    """Exactly the chunks with a term that begins with the prefix are results."""
    prefix = word[:n_letters]
    if not find_prefixes(f"{prefix}*"):
        return
    (folded,) = find_prefixes(f"{prefix}*")
    expected = []
    for position, chunk in enumerate(chunks):
        tokens = tokenize([chunk])
        terms = [tokens.decode_term(token) for token in range(tokens.ids.size)]
        if any(term.startswith(folded) for term in terms):
            expected.append(position)
    results = search(f"{prefix}*", chunks, ALL, syntax="operators").results
    assert [result.original_index for result in results] == expected
