"""Proximity: words side by side, and words within a short passage."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.retrieval.matching import Match
from relevance_gen.retrieval.proximity import WINDOW, ProximityScorer

chunk_lists = st.lists(st.lists(st.integers(0, 5), max_size=70), max_size=4)


def match(*ids: int) -> Match:
    return Match(np.array(ids, np.uint64), np.ones(len(ids)), tuple(map(str, ids)))


def score(scorer: ProximityScorer, chunks: list[list[int]]) -> tuple[list[float], list[float]]:
    ids = np.array([term_id for chunk in chunks for term_id in chunk], np.uint64)
    near = scorer.score(ids, np.array([len(chunk) for chunk in chunks], np.int64))
    return near.pairs.tolist(), near.coverage.tolist()


@given(chunk_lists, st.lists(st.floats(0.1, 9.0), min_size=3, max_size=3), st.lists(st.integers(0, 2), max_size=6))
def test_bonuses_are_those_of_a_walk_along_the_tokens(
    chunks: list[list[int]], idf: list[float], query: list[int]
) -> None:
    """Pairs and coverage are what reading each chunk token by token finds."""
    pairs = Counter(itertools.pairwise(query))
    scorer = ProximityScorer([match(0), match(1, 4), match(2)], idf, pairs)
    word = {0: 0, 1: 1, 4: 1, 2: 2}
    expected_pairs, expected_coverage = [], []
    for chunk in chunks:
        read = [word.get(term_id) for term_id in chunk]
        seen = Counter(itertools.pairwise(read))
        expected_pairs.append(
            math.fsum(
                (1 + math.log(times)) * (idf[a] + idf[b]) / 2 * seen[a, b] / (seen[a, b] + 1.6)
                for (a, b), times in pairs.items()
            )
        )
        windows = [set(read[at : at + WINDOW]) - {None} for at in range(len(read))]
        covered = [math.fsum(idf[number] for number in window) for window in windows]
        expected_coverage.append(max(covered, default=0.0) / math.fsum(idf))
    found_pairs, found_coverage = score(scorer, chunks)
    assert found_pairs == pytest.approx(expected_pairs)
    assert found_coverage == pytest.approx(expected_coverage)


def test_nothing_reaches_from_one_chunk_into_the_next() -> None:
    """Words at the end of one chunk and the beginning of the next are neither a pair nor one passage."""
    scorer = ProximityScorer([match(0), match(1)], [1.0, 1.0], {(0, 1): 1})
    assert score(scorer, [[0], [1], [0, 1], []]) == ([0.0, 0.0, 1 / 2.6, 0.0], [0.5, 0.5, 1.0, 0.0])


@pytest.mark.parametrize(("gap", "covered"), [(WINDOW - 2, 1.0), (WINDOW - 1, 0.5)])
def test_a_passage_is_24_tokens(gap: int, covered: float) -> None:
    """Two words count together when both are among 24 tokens, and alone otherwise."""
    scorer = ProximityScorer([match(0), match(1)], [1.0, 1.0], {})
    assert score(scorer, [[0, *[9] * gap, 1]])[1] == [covered]


def test_function_words_count_in_pairs_alone() -> None:
    """A word without idf takes part in pairs, with half of its neighbour's, and covers nothing."""
    scorer = ProximityScorer([match(0), match(1)], [0.0, 3.0], {(0, 1): 1})
    assert score(scorer, [[0, 1], [0], [1]]) == (pytest.approx([1.5 / 2.6, 0.0, 0.0]), [1.0, 0.0, 1.0])


def test_a_word_is_read_as_what_it_matches_best() -> None:
    """Where a chunk's word matches two words of the query, the better match counts."""
    weak = Match(np.array([0, 1], np.uint64), np.array([1.0, 0.5]), ("0", "1"))
    strong = Match(np.array([0, 1], np.uint64), np.array([0.5, 1.0]), ("0", "1"))
    scorer = ProximityScorer([weak, strong], [1.0, 1.0], {(0, 1): 1})
    assert score(scorer, [[0, 1], [1, 0], [0, 0]]) == (pytest.approx([1 / 2.6, 0.0, 0.0]), [1.0, 1.0, 0.5])


def test_a_query_without_words_finds_nothing() -> None:
    """Without words there are no bonuses, and without chunks no scores."""
    scorer = ProximityScorer([], [], {})
    assert score(scorer, [[0, 1], []]) == ([0.0, 0.0], [0.0, 0.0])
    assert score(scorer, []) == ([], [])
    assert scorer.pairs_of_query() == 0.0
