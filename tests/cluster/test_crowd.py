"""Small segments of a host are merged when they were asked often enough, and tell the same bits then as before."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from relevance_gen.cluster.crowd import Crowd
from relevance_gen.index.builder import build, merge, remove_chunks
from relevance_gen.index.records.validation import read_chunks
from relevance_gen.index.segment import Segment
from relevance_gen.retrieval.collection import Collection
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.retrieval.scorer import SegmentScorer
from relevance_gen.retrieval.scorers import Scorers
from relevance_gen.retrieval.weighting import weighting_named
from tests.cluster.shared import QUERIES, texts


def segment(first: int, n: int = 9) -> Segment:
    return build(read_chunks(texts(n, seed=first)), np.arange(first, first + n))


def merged() -> None:
    """Wait until what is being merged is merged."""
    for thread in threading.enumerate():
        if thread.name == "merge-segments":
            thread.join()


@pytest.mark.parametrize("weighting", ["pivoted", "cosine"])
def test_a_crowd_tells_what_its_segments_tell(weighting: Any) -> None:
    """Whatever is added, removed and asked between, few scorers tell the bits that one for each segment tells."""
    crowd, segments, sizes = Crowd(weighting), [segment(10 * number) for number in range(12)], []
    for step in range(12):
        if step in (3, 4, 5, 6, 7, 10):
            segments = [*segments, segment(200 + 10 * step, 3)]
        elif step == 8:
            segments = remove_chunks(segments, np.array([0, 35])).segments
        collection = Collection(segments, weighting_named(weighting))
        scorers = [
            SegmentScorer(one, collection.weighting, collection.statistics) for one in segments
        ]
        for query in QUERIES:
            fewer = crowd.fewer(scorers)
            merged()
            assert all(one.statistics is collection.statistics for one in fewer)
            plan = collection.plan(collection.read(SearchParams(query))[0])
            found, expected = (
                Scorers(some).leaders(plan, 5, None, everyone=False) for some in (fewer, scorers)
            )
            for name in ("positions", "cosines", "is_verbatim"):
                ours, theirs = (getattr(one.candidates, name) for one in (found, expected))
                assert ours.tobytes() == theirs.tobytes()
        sizes.append(len(fewer))
    assert sizes == [1, 1, 1, 2, 3, 4, 5, 1, 1, 1, 2, 2]


def test_no_question_waits_for_a_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments are asked apart while they are merged; one that is let go of meanwhile does not come back."""
    collection = Collection(
        [segment(10 * number) for number in range(6)], weighting_named("pivoted")
    )
    scorers = [
        SegmentScorer(one, collection.weighting, collection.statistics)
        for one in collection.segments
    ]
    crowd, may_end = Crowd("pivoted"), threading.Event()

    def merge_late(segments: Any) -> Segment:
        may_end.wait(60)
        return merge(segments)

    monkeypatch.setattr("relevance_gen.cluster.crowd.merge", merge_late)
    assert [len(crowd.fewer(scorers)) for _ in range(3)] == [6, 6, 6]
    crowd.forget()
    assert len(crowd.fewer(scorers)) == 6
    may_end.set()
    merged()
    assert len(crowd.fewer(scorers)) == 6
    merged()
    assert [one.segment.size for one in crowd.fewer(scorers)] == [6 * 9]


def test_a_merge_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where memory is short, say, questions are answered by segments apart, until there is some."""
    collection = Collection(
        [segment(10 * number) for number in range(6)], weighting_named("pivoted")
    )
    scorers = [
        SegmentScorer(one, collection.weighting, collection.statistics)
        for one in collection.segments
    ]
    crowd, failures = Crowd("pivoted"), []

    def fail(_: Any) -> Segment:
        raise MemoryError

    monkeypatch.setattr(threading, "excepthook", failures.append)
    with monkeypatch.context() as without_memory:
        without_memory.setattr("relevance_gen.cluster.crowd.merge", fail)
        assert len(crowd.fewer(scorers)) == 6
        merged()
    assert [failure.exc_type for failure in failures] == [MemoryError]
    assert len(crowd.fewer(scorers)) == 6
    merged()
    assert len(crowd.fewer(scorers)) == 1


def test_segments_that_are_large_or_asked_seldom_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Merging waits until asking has cost as much, and leaves large segments alone."""
    collection = Collection(
        [segment(10 * number) for number in range(6)], weighting_named("pivoted")
    )
    scorers = [
        SegmentScorer(one, collection.weighting, collection.statistics)
        for one in collection.segments
    ]
    n_postings = sum(one.segment.postings.chunk.size for one in scorers)
    monkeypatch.setattr("relevance_gen.cluster.crowd._POSTINGS_OF_A_CALL", -(-n_postings // 18))
    crowd = Crowd("pivoted")

    def sizes() -> list[int]:
        return [(len(crowd.fewer(scorers)), merged())[0] for _ in range(5)]

    assert sizes() == [6, 6, 6, 1, 1]
    crowd.forget()
    assert len(crowd.fewer(scorers)) == 6
    monkeypatch.setattr("relevance_gen.cluster.crowd._SMALL", 1)
    assert sizes() == [6] * 5
