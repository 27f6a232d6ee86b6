"""Searches that once took memory or time out of all proportion to what was sent."""

from __future__ import annotations

import itertools
import tracemalloc

import numpy as np
import pytest

from relevance_gen import ChunkIndex
from relevance_gen.retrieval import matching
from relevance_gen.retrieval.matching import MAX_FORMS, Match
from relevance_gen.retrieval.proximity import ProximityScorer
from relevance_gen.retrieval.query import MAX_TERMS, parse
from relevance_gen.retrieval.segment import BETWEEN, Reading
from relevance_gen.retrieval.vocabulary import Vocabulary
from relevance_gen.retrieval.weighting import weighting_named


def peak_bytes(job: object) -> int:
    tracemalloc.start()
    try:
        job()  # type: ignore[operator]
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_chunk_that_repeats_many_words_takes_no_array_of_words_times_occurrences() -> None:
    """Proximity in a chunk of nothing but the query's 32 words takes memory by its tokens, not that times words."""
    n_words, n_tokens = 32, 1 << 19
    vocabulary = Vocabulary(
        np.arange(n_words, dtype=np.uint64), np.frombuffer(b"a\n" * n_words, np.uint8), np.arange(0, 2 * n_words + 2, 2)
    )
    words = np.full(n_tokens + 2 * BETWEEN, n_words, np.uint32)
    words[BETWEEN:-BETWEEN] = np.arange(n_tokens) % n_words
    reading = Reading(vocabulary, words, np.array([BETWEEN]), np.array([n_tokens]))
    matches = [Match.exact(word) for word in range(n_words)]
    scorer = ProximityScorer(matches, [1.0] * n_words, list(range(n_words)))
    assert peak_bytes(lambda: scorer.score(reading)) < 60 * n_tokens
    assert scorer.score(reading).coverage.tolist() == [24 / 32]


def test_words_of_one_beginning_are_compared_as_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many words begin as the query's do, none is compared with them one by one, and matches are bounded."""
    letters = "абвгдежз"
    vocabulary = ["столица" + "".join(ending) for ending in itertools.product(letters, repeat=4)]
    index = ChunkIndex([" ".join(vocabulary[start : start + 64]) for start in range(0, len(vocabulary), 64)])
    asked = []
    monkeypatch.setattr(matching, "is_inflected", lambda word: asked.append(word) or True)
    plan = index._state.collection.plan(" ".join(vocabulary[:200]))
    assert len(asked) <= 2 * 200
    assert sum(match.ids.size for match in plan.matches) <= 200 * MAX_FORMS


def test_a_question_of_very_many_words_is_cut_to_its_first() -> None:
    """Of a question with more different words than anybody asks, the first count, and a chunk that says it scores 1."""
    words = [f"q{number}" for number in range(2 * MAX_TERMS)]
    query = " ".join(words)
    assert len(parse(query, weighting_named("pivoted")).terms) == MAX_TERMS
    index = ChunkIndex(["q1 q2", words[-1], query])
    found = {result.original_index: result.chunk_score for result in index.search(query).results}
    assert found[2] == 1.0
    assert 1 not in found
