"""Proximity: words side by side, and words within a short passage."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relevance_gen.index.lexicon import Lexicon
from relevance_gen.index.segment import POSITION_GAP, TokenSequences
from relevance_gen.retrieval.query.term_matching import Match
from relevance_gen.retrieval.ranking.stage import SelfMatch
from relevance_gen.retrieval.stages import proximity as module
from relevance_gen.retrieval.stages.proximity import (
    LEAD,
    WINDOW,
    Measures,
    Proximity,
    ProximityFeatures,
)

chunk_lists = st.lists(st.lists(st.integers(0, 5), max_size=70), max_size=4)


def match(*ids: int) -> Match:
    return Match(np.array(ids, np.uint64), np.ones(len(ids)))


# Terms 2 and 5 are numbers.
VOCABULARY = Lexicon(
    np.arange(10, dtype=np.uint64),
    np.frombuffer(b"a\na\n7\na\na\n7\na\na\na\na\n", np.uint8),
    np.arange(0, 22, 2),
)
BETWEEN_CHUNKS = [VOCABULARY.size] * POSITION_GAP


def proximity(scorer: ProximityFeatures, chunks: list[list[int]]) -> Measures:
    counts = np.array([len(chunk) for chunk in chunks], np.int64)
    words = BETWEEN_CHUNKS + [word for chunk in chunks for word in chunk + BETWEEN_CHUNKS]
    starts = np.cumsum(counts + POSITION_GAP) - counts
    return scorer.measure(TokenSequences(VOCABULARY, np.array(words, np.uint32), starts, counts))


def score(scorer: ProximityFeatures, chunks: list[list[int]]) -> tuple[list[float], list[float]]:
    near = proximity(scorer, chunks)
    return near.bigrams.tolist(), near.coverage.tolist()


@pytest.mark.parametrize("step", [1, 7, 1 << 16])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    chunk_lists,
    st.lists(st.floats(0.1, 9.0), min_size=3, max_size=3),
    st.lists(st.integers(0, 2), max_size=6),
)
def test_bonuses_are_those_of_a_walk_along_the_tokens(
    monkeypatch: pytest.MonkeyPatch,
    step: int,
    chunks: list[list[int]],
    idf: list[float],
    query: list[int],
) -> None:
    """Every part is what reading each chunk token by token finds, however many tokens are looked at together."""
    monkeypatch.setattr(module, "_BATCH_TOKENS", step)
    pairs = Counter(itertools.pairwise(query))
    scorer = ProximityFeatures([match(0), match(1, 4), match(2)], idf, query, 1.0)
    word = {0: 0, 1: 1, 4: 1, 2: 2}
    found = proximity(scorer, chunks)
    total = math.fsum(idf)
    for number, chunk in enumerate(chunks):
        read = [word.get(term_id) for term_id in chunk]
        seen = Counter(itertools.pairwise(read))
        assert found.bigrams[number] == pytest.approx(
            math.fsum(
                (1 + math.log(times)) * (idf[a] + idf[b]) / 2 * seen[a, b] / (seen[a, b] + 1.6)
                for (a, b), times in pairs.items()
            )
        )
        counted = [word.get(term_id) for term_id in chunk if term_id != 5]  # 5 is a number
        windows = [set(counted[at : at + WINDOW]) - {None} for at in range(len(counted))]
        covered = [math.fsum(idf[one] for one in window) for window in windows]
        assert found.coverage[number] == pytest.approx(max(covered, default=0.0) / total)
        assert found.lead[number] == pytest.approx(
            math.fsum(idf[one] for one in set(counted[:LEAD]) - {None}) / total
        )
        longest = 0.0
        for start, end in itertools.combinations(range(len(read) + 1), 2):
            if end - start > 1 and all(
                pair in pairs for pair in itertools.pairwise(read[start:end])
            ):
                longest = max(longest, math.fsum(max(idf[one], 0.3) for one in read[start:end]))
        whole = math.fsum(max(idf[one], 0.3) for one in query) or 1.0
        assert found.phrase[number] == pytest.approx(min(longest / whole, 1.0))


def test_more_than_eight_words_are_distinguished() -> None:
    """Coverage is right for any number of words: a mask has a bit for each."""
    for n_words in (1, 8, 9, 16, 17, 32):
        idf = [1.0 + word for word in range(n_words)]
        lexicon = Lexicon(
            np.arange(n_words, dtype=np.uint64),
            np.frombuffer(b"a\n" * n_words, np.uint8),
            np.arange(0, 2 * n_words + 2, 2),
        )
        words = [n_words] * POSITION_GAP + [n_words - 1, 0] + [n_words] * POSITION_GAP
        reading = TokenSequences(
            lexicon, np.array(words, np.uint32), np.array([POSITION_GAP]), np.array([2])
        )
        near = ProximityFeatures([match(word) for word in range(n_words)], idf, [], 1.0).measure(
            reading
        )
        assert near.coverage[0] == near.lead[0] == (n_words + (n_words > 1)) / sum(idf)


def test_run_is_adjacent_words_in_query_order() -> None:
    """Adjacent words in the query's order are a run; the run with the highest weight counts."""
    scorer = ProximityFeatures([match(0), match(1), match(2)], [2.0, 1.0, 0.0], [0, 1, 2], 1.0)
    chunks = [[0, 1, 2], [0, 1, 9, 1, 2], [1, 0, 2], [2, 1], [0], [0, 1, 9, 2]]
    assert proximity(scorer, chunks).phrase.tolist() == pytest.approx(
        [1.0, 3.0 / 3.3, 0.0, 0.0, 0.0, 3.0 / 3.3]
    )


def test_lead_is_first_16_tokens() -> None:
    """Words at a chunk's beginning count for its head, later ones do not."""
    scorer = ProximityFeatures([match(0), match(1)], [3.0, 1.0], [], 1.0)
    chunks = [[0, *[9] * (LEAD - 2), 1], [0, *[9] * (LEAD - 1), 1], [], [9, 1]]
    assert proximity(scorer, chunks).lead.tolist() == [1.0, 0.75, 0.0, 0.25]


def test_numbers_do_not_separate_labels_of_a_table() -> None:
    """Labels of a table's rows are in one window, whatever the number of numbers between them."""
    scorer = ProximityFeatures([match(0), match(1)], [1.0, 1.0], [], 1.0)
    n_between = 2 * WINDOW
    chunks = [[5, 0, *[5] * n_between, 1], [9, 0, *[9] * n_between, 1]]
    near = proximity(scorer, chunks)
    assert near.coverage.tolist() == [1.0, 0.5]
    assert near.lead.tolist() == [1.0, 0.5]


def test_nothing_reaches_from_one_chunk_into_the_next() -> None:
    """Words at the end of one chunk and the beginning of the next are neither a pair nor one passage."""
    scorer = ProximityFeatures([match(0), match(1)], [1.0, 1.0], [0, 1], 1.0)
    assert score(scorer, [[0], [1], [0, 1], []]) == ([0.0, 0.0, 1 / 2.6, 0.0], [0.5, 0.5, 1.0, 0.0])


@pytest.mark.parametrize(("gap", "covered"), [(WINDOW - 2, 1.0), (WINDOW - 1, 0.5)])
def test_passage_has_24_tokens(gap: int, covered: float) -> None:
    """Two words count together when both are among 24 tokens, and alone otherwise."""
    scorer = ProximityFeatures([match(0), match(1)], [1.0, 1.0], [], 1.0)
    assert score(scorer, [[0, *[9] * gap, 1]])[1] == [covered]


def test_function_words_count_in_pairs_alone() -> None:
    """A word without idf takes part in pairs, with half of its neighbor's, and covers nothing."""
    scorer = ProximityFeatures([match(0), match(1)], [3.0, 0.0], [1, 0], 1.0)
    assert score(scorer, [[1, 0], [1], [0]]) == (
        pytest.approx([1.5 / 2.6, 0.0, 0.0]),
        [1.0, 0.0, 1.0],
    )


def test_better_match_of_a_word_counts() -> None:
    """If a word of a chunk matches two words of the query, the better match counts."""
    weak = Match(np.array([0, 1], np.uint64), np.array([1.0, 0.5]))
    strong = Match(np.array([0, 1], np.uint64), np.array([0.5, 1.0]))
    scorer = ProximityFeatures([weak, strong], [1.0, 1.0], [0, 1], 1.0)
    assert score(scorer, [[0, 1], [1, 0], [0, 0]]) == (
        pytest.approx([1 / 2.6, 0.0, 0.0]),
        [1.0, 1.0, 0.5],
    )


def test_query_without_words_has_zero_features() -> None:
    """Without words all parts are 0, and without chunks the arrays are empty."""
    scorer = ProximityFeatures([], [], [], 1.0)
    stage = Proximity(scorer)
    assert score(scorer, [[0, 1], []]) == ([0.0, 0.0], [0.0, 0.0])
    assert score(scorer, []) == ([], [])
    assert stage.self_score(1.0, SelfMatch(1.0, 1.0, 0.0)) == 1.25
