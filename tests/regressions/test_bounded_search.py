"""Regression tests for searches whose time or memory was not proportional to the input."""

from __future__ import annotations

import itertools
import tracemalloc
from collections.abc import Callable

import numpy as np
import pytest

from relevance_gen import ChunkIndex, search
from relevance_gen.index.builder import build
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.lexicon import Lexicon
from relevance_gen.index.segment import POSITION_GAP, TokenSequences
from relevance_gen.retrieval.answer import weight
from relevance_gen.retrieval.query.parsing import MAX_TERMS, parse
from relevance_gen.retrieval.query.term_matching import MAX_INFLECTIONS, Match, live_inflections
from relevance_gen.retrieval.stages.proximity import ProximityFeatures
from relevance_gen.text import word_forms
from relevance_gen.text.normalization import _toned_word


def peak_bytes(job: object) -> int:
    tracemalloc.start()
    try:
        job()  # type: ignore[operator]
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_proximity_of_repeated_words_has_bounded_memory() -> None:
    """Proximity in a chunk of only the 32 query words needs memory linear in its tokens."""
    n_words, n_tokens = 32, 1 << 19
    lexicon = Lexicon(
        np.arange(n_words, dtype=np.uint64),
        np.frombuffer(b"a\n" * n_words, np.uint8),
        np.arange(0, 2 * n_words + 2, 2),
    )
    words = np.full(n_tokens + 2 * POSITION_GAP, n_words, np.uint32)
    words[POSITION_GAP:-POSITION_GAP] = np.arange(n_tokens) % n_words
    reading = TokenSequences(lexicon, words, np.array([POSITION_GAP]), np.array([n_tokens]))
    matches = [Match.in_full(np.array([word], np.uint64), 1) for word in range(n_words)]
    scorer = ProximityFeatures(matches, [1.0] * n_words, list(range(n_words)), 1.0)
    assert peak_bytes(lambda: scorer.measure(reading)) < 60 * n_tokens
    assert scorer.measure(reading).coverage.tolist() == [24 / 32]


def test_common_prefix_words_are_compared_vectorized(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words with a common prefix are compared in arrays, and the matches are limited."""
    letters = "абвгдежз"
    words = ["столица" + "".join(ending) for ending in itertools.product(letters, repeat=4)]
    index = ChunkIndex([" ".join(words[start : start + 64]) for start in range(0, len(words), 64)])
    asked = []
    monkeypatch.setattr(word_forms, "can_inflect", lambda word: asked.append(word) or True)
    plan = weight(parse(" ".join(words[:200]), inflects=True), index._state.segments)
    assert len(asked) <= 2 * 200
    assert sum(match.ids.size for match in plan.terms.matches) <= 200 * MAX_INFLECTIONS


def test_long_query_uses_first_terms() -> None:
    """A query uses its first `MAX_TERMS` distinct words; a chunk equal to it scores 1."""
    words = [f"q{number}" for number in range(2 * MAX_TERMS)]
    query = " ".join(words)
    assert len(parse(query, inflects=True).terms) == MAX_TERMS
    index = ChunkIndex(["q1 q2", words[-1], query])
    found = {result.original_index: result.chunk_score for result in index.search(query).results}
    assert found[2] == 1.0
    assert 1 not in found


def test_live_inflections_stops_at_limit() -> None:
    """A word with thousands of similar words matches one more than the limit, not all."""
    letters = "абвгдежз"
    words = ["столица" + "".join(ending) for ending in itertools.product(letters, repeat=4)]
    segment = build(Chunks([" ".join(words)], {}), np.arange(1))
    term = parse(words[0], inflects=True).terms[0]
    found = live_inflections(segment.postings, term, by_prefix=True)
    assert found.weight is not None
    assert found.term_ords.size == found.weight.size == MAX_INFLECTIONS + 1


ONE_LONG_CHUNK = {
    "a few words again and again": ("word1 word2", "word1 word2 word3 of them ", 80_000),
    "single letters": ("b c", "b c d e f g ", 180_000),
    "letters without spaces": (
        "猫狗",
        "".join(chr(0x4E00 + n * n % 20_000) for n in range(20_000)),
        35,
    ),
    "another alphabet": ("привет", "привет как дела ты где ", 50_000),
    "accents": ("cafe", "é ", 700_000),
    "tones": ("tiếng", "ế ", 350_000),
}
"""A query, and a text with the number of its repetitions."""


@pytest.mark.parametrize("name", ONE_LONG_CHUNK)
def test_search_of_long_chunk_has_linear_memory(name: str) -> None:
    """A search of one chunk of about two megabytes takes at most twelve times its bytes."""
    query, unit, n_units = ONE_LONG_CHUNK[name]
    text = unit * n_units
    search(query, [text[:1000]])  # data that is loaded once is not counted
    assert peak_bytes(lambda: search(query, [text])) <= 12 * len(text.encode())


def test_toned_word_pattern_is_linear() -> None:
    """A long word without a tone before a toned word is scanned once, not from each letter."""
    word = "đ" * 100_000
    assert [match.span() for match in _toned_word().finditer(f"{word} ế")] == [(100_001, 100_002)]


def repeated_words_and_one_chunk() -> tuple[str, str]:
    """Return a query of 200,000 words, 4,096 of them different, and a short chunk."""
    return " ".join(f"{number * 7919 % 4096:x}" for number in range(200_000)), "one chunk"


def different_words_in_both() -> tuple[str, str]:
    """Return a query and an equal chunk of 70,000 different words."""
    text = " ".join(f"w{number:x}" for number in range(70_000))
    return text, text


@pytest.mark.parametrize("make", [repeated_words_and_one_chunk, different_words_in_both])
def test_search_of_many_words_has_linear_memory(make: Callable[[], tuple[str, str]]) -> None:
    """A search of 1 MB of short words takes at most twelve times its bytes plus 24 MiB."""
    query, text = make()
    search(query[:1000], [text[:1000]])  # data that is loaded once is not counted
    assert peak_bytes(lambda: search(query, [text])) <= 12 * len((query + text).encode()) + (
        24 << 20
    )


def many_similar_words(beginning: str, letters: str, n_words: int) -> list[str]:
    """Return distinct words that all have one beginning."""
    endings = itertools.islice(itertools.product(letters, repeat=6), 0, None, 7)
    return [beginning + "".join(ending) for ending in itertools.islice(endings, n_words)]


LATIN = ("inter", "abcdefghijklm", 150_000)
CYRILLIC = ("столица", "абвгдежзий", 70_000)


@pytest.mark.parametrize(
    ("beginning", "letters", "n_words", "is_misspelled", "flat_bytes"),
    [(*LATIN, False, 4 << 20), (*LATIN, True, 4 << 20), (*CYRILLIC, False, 24 << 20)],
    ids=["words of the chunks", "misspelled words", "words in another alphabet"],
)
def test_search_of_similar_words_has_linear_memory(
    beginning: str, letters: str, n_words: int, is_misspelled: bool, flat_bytes: int
) -> None:
    """A search of words with one beginning takes at most twelve times its bytes plus `flat_bytes`."""
    words = many_similar_words(beginning, letters, n_words)
    asked = words[:64]
    if is_misspelled:
        asked = [f"{word[:6]}z{word[7:]}" for word in asked]
    query = " ".join(asked)
    texts = [" ".join(words[start::20]) for start in range(20)]
    n_bytes = len(" ".join([query, *texts]).encode())
    search(query, [texts[0][:1000]])  # data that is loaded once is not counted
    assert peak_bytes(lambda: search(query, texts)) <= 12 * n_bytes + flat_bytes
