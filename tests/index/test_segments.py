"""Results are bit-identical for any division of the chunks into segments."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
import random
import threading
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import ChunkIndex, InvalidRequestError, SearchResponse, search
from relevance_gen.index.builder import build, merge, remove_chunks
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.segment import Segment
from relevance_gen.retrieval.answer import rank, weight
from relevance_gen.retrieval.base_index import chunks_at
from relevance_gen.retrieval.explanation import explain
from relevance_gen.retrieval.local_segments import LocalSegments
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.retrieval.query.parsing import Query
from relevance_gen.retrieval.query.term_matching import TermPostings
from relevance_gen.retrieval.weighting import weighting_named
from relevance_gen.types import WeightingName
from tests import corpus, strategies
from tests.profiles import costly
from tests.retrieval.asking import ALL, WEIGHTINGS

weightings = st.sampled_from(WEIGHTINGS)


@st.composite
def cut_chunks(draw: st.DrawFn) -> tuple[str, list[str], list[list[int]]]:
    """Draw a query, chunks with ties, duplicates and the query itself, and a division of their positions."""
    query = draw(strategies.queries)
    chunks = draw(strategies.chunk_lists) + draw(
        st.lists(st.sampled_from([query, f"{query} {query}"]), max_size=2)
    )
    chunks += draw(st.lists(st.sampled_from(chunks), max_size=3)) if chunks else []
    owner = draw(st.lists(st.integers(0, 3), min_size=len(chunks), max_size=len(chunks)))
    parts = [[place for place, part in enumerate(owner) if part == number] for number in range(4)]
    return (
        query,
        chunks,
        draw(st.permutations([part for part in parts if part or draw(st.booleans())])),
    )


def segments_of(chunks: list[str], parts: list[list[int]]) -> list[Segment]:
    return [
        build(Chunks([chunks[at] for at in part], {}), np.array(part, np.int64)) for part in parts
    ]


def parsed(collection: LocalSegments, text: str) -> Query:
    is_english = collection.statistics.is_english
    return SearchParams(text).parse(inflects=collection.weighting.inflects, is_english=is_english)


def bits(collection: LocalSegments, query: str, top_n: int) -> tuple[list[int], bytes]:
    ranking = rank(parsed(collection, query), top_n, collection)
    return ranking.positions.tolist(), ranking.scores.tobytes()


@given(cut_chunks(), weightings, st.integers(1, 60))
def test_results_do_not_depend_on_the_segments(
    drawn: tuple[str, list[str], list[list[int]]], name: WeightingName, top_n: int
) -> None:
    """Any division of the chunks into segments, in any order, gives the same ranking and explanations."""
    query, chunks, parts = drawn
    weighting = weighting_named(name)
    whole = LocalSegments(segments_of(chunks, [list(range(len(chunks)))]), weighting)
    cut = LocalSegments(segments_of(chunks, parts), weighting)
    assert bits(cut, query, top_n) == bits(whole, query, top_n)
    for position in range(len(chunks)):
        assert explain(SearchParams(query), position, cut) == explain(
            SearchParams(query), position, whole
        )


@given(cut_chunks(), weightings, st.booleans())
def test_postings_of_merged_match_equal_postings_of_word(
    drawn: tuple[str, list[str], list[list[int]]], name: WeightingName, removes: bool
) -> None:
    """A segment finds the same postings by the inflections in all segments as by the word."""
    query, chunks, parts = drawn
    segments = segments_of(chunks, parts)
    if removes:
        segments = remove_chunks(segments, np.arange(0, len(chunks), 2)).segments
    collection = LocalSegments(segments, weighting_named(name))
    terms = weight(parsed(collection, query), collection).terms
    asked = [
        pair for pair in zip(terms.query.terms, terms.matches, strict=True) if pair[0].is_inflected
    ]
    words, matches = [term for term, _ in asked], [match for _, match in asked]
    for scorer in collection.scorers:
        scorer.postings_cache.clear()
        by_word = [*scorer.postings_of(words, [None] * len(words))]
        scorer.postings_cache.clear()
        for one, other in zip(by_word, scorer.postings_of(words, matches), strict=True):
            assert fields_of(one) == fields_of(other)


def fields_of(found: TermPostings) -> list[object]:
    match = found.matched
    return [
        found.matched.df,
        *(one.tolist() for one in (match.ids, match.weight, found.chunk, found.tf, found.weight)),
    ]


@costly
@given(cut_chunks(), weightings)
def test_merge_equals_segment_of_all_chunks(
    drawn: tuple[str, list[str], list[list[int]]], name: WeightingName
) -> None:
    """Merged segments equal one segment of the same chunks without the removed chunks."""
    query, chunks, parts = drawn
    weighting = weighting_named(name)
    segments = segments_of(chunks, parts)
    merged = merge(segments) if segments else None
    if merged is None:
        return
    whole = LocalSegments(segments_of(chunks, [list(range(len(chunks)))]), weighting)
    assert bits(LocalSegments([merged], weighting), query, ALL) == bits(whole, query, ALL)
    halved = [segment.without(np.arange(segment.size)[::2]) for segment in segments]
    left = LocalSegments([merge(halved)], weighting)
    assert bits(left, query, ALL) == bits(LocalSegments(halved, weighting), query, ALL)
    assert list(left.segments[0].chunks.texts) == [
        chunks[at] for at in left.segments[0].positions.tolist()
    ]


def test_results_of_many_matches_do_not_depend_on_the_segments() -> None:
    """The results are also equal with many ties and more matches than the proximity stage scores."""
    rng = random.Random(5)  # noqa: S311
    chunks = [text for text in corpus.prose(240, 12) for _ in range(rng.choice([1, 1, 3]))]
    queries = [
        chunks[3],
        " ".join(chunks[7].split()[:5]),
        "ba",
        chunks[5].split()[0],
        "ba de ko ba",
    ]
    whole = LocalSegments(
        segments_of(chunks, [list(range(len(chunks)))]), weighting_named("pivoted")
    )
    for n_parts in (2, 3, 7):
        parts = [list(range(start, len(chunks), n_parts)) for start in range(n_parts)]
        cut = LocalSegments(segments_of(chunks, parts), weighting_named("pivoted"))
        for query in queries:
            for top_n in (1, 10, 50, 51, ALL):
                assert bits(cut, query, top_n) == bits(whole, query, top_n)


def test_inflections_above_the_limit_in_all_segments_are_dropped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A word matches only itself if all segments together have too many distinct inflections."""
    monkeypatch.setattr("relevance_gen.retrieval.query.term_matching.MAX_INFLECTIONS", 5)
    weighting = weighting_named("pivoted")
    few = [
        "connect connects connected",
        "connecting connection connect",
        "connects connected connection",
    ]
    many = [*few, "connective connectives"]
    for chunks, forms in ((few, 5), (many, 1)):
        whole = LocalSegments(segments_of(chunks, [list(range(len(chunks)))]), weighting)
        cut = LocalSegments(segments_of(chunks, [[at] for at in range(len(chunks))]), weighting)
        assert (
            len(weight(parsed(whole, "connect"), whole).terms.matches[0].ids)
            == len(weight(parsed(cut, "connect"), cut).terms.matches[0].ids)
            == forms
        )
        assert bits(cut, "connect", ALL) == bits(whole, "connect", ALL)


# ── An index that changes ─────────────────────────────────────────────────────────────────────────


def as_rebuilt(response: SearchResponse, positions: list[int]) -> SearchResponse:
    """Return the response of an index of the remaining chunks, with their original positions."""
    results = (
        evolve(result, original_index=positions[result.original_index])
        for result in response.results
    )
    return evolve(response, results=tuple(results))


@costly
@given(strategies.queries, st.data(), weightings, st.integers(1, 8))
def test_changed_index_answers_like_a_rebuilt_index(
    query: str, data: st.DataObject, weighting: WeightingName, top_n: int
) -> None:
    """After any additions and removals, answers of the index and its copies equal answers of a rebuilt index."""
    texts: list[str] = data.draw(strategies.chunk_lists)
    index = ChunkIndex(texts, weighting=weighting)
    left = list(range(len(texts)))
    for _ in range(data.draw(st.integers(1, 4))):
        if data.draw(st.booleans()):
            more = data.draw(
                st.lists(st.one_of(strategies.chunk_texts, st.just(query)), max_size=4)
            )
            assert list(index.add(more)) == list(range(len(texts), len(texts) + len(more)))
            left += range(len(texts), len(texts) + len(more))
            texts += more
        else:
            gone = data.draw(st.lists(st.sampled_from(left), max_size=4)) if left else []
            index.remove(gone)
            left = [position for position in left if position not in gone]
        rebuilt = ChunkIndex([texts[position] for position in left], weighting=weighting)
        assert len(index) == len(left)
        assert index.search(query, top_n) == as_rebuilt(rebuilt.search(query, top_n), left)
        for place, position in enumerate(left):
            assert index.explain(query, position) == rebuilt.explain(query, place)
    copied = pickle.loads(pickle.dumps(index))
    assert (
        copied.search(query, top_n)
        == copy.deepcopy(index).search(query, top_n)
        == index.search(query, top_n)
    )
    assert list(copied.add(["one more"])) == [len(texts)]


def test_small_segments_are_merged() -> None:
    """After any number of additions there are few segments, each several times smaller than the segment before."""
    index = ChunkIndex(corpus.prose(300, 10))
    for text in corpus.prose(200, 10):
        index.add([text])
        sizes = [segment.size for segment in index._state.segments.segments]
        assert len(sizes) <= 6
        assert all(one > 4 * next_one for one, next_one in itertools.pairwise(sizes))
    index.remove(range(10, 490))
    assert sum(segment.size for segment in index._state.segments.segments) < 2 * len(index) + 10


@pytest.mark.parametrize("positions", [[3], [-1], [True], ["0"], [0, 1.0], [0, 2], [None]])
def test_remove_of_missing_position_raises_an_error(positions: list[object]) -> None:
    """The error names the position without a chunk, and the index is unchanged."""
    index = ChunkIndex(["a cat", "a dog", "a cow"])
    index.remove([2])
    with pytest.raises(
        InvalidRequestError, match=r"positions\[\d\] must be (an integer|the position)"
    ) as caught:
        index.remove(positions)  # type: ignore[arg-type]
    assert caught.value.field == f"positions[{len(positions) - 1}]"
    assert len(index) == 2
    with pytest.raises(
        InvalidRequestError,
        match="positions must be a list of positions, got 1; put a single one in",
    ):
        index.remove(1)  # type: ignore[arg-type]
    with pytest.raises(
        InvalidRequestError, match="chunk must be the position of a chunk that was not removed"
    ):
        index.explain("cow", 2)


@pytest.mark.parametrize("positions", [1, "01", b"01", np.int64(1), np.array(1)])
def test_remove_with_invalid_positions_raises_an_error(positions: object) -> None:
    """An argument other than a list of positions is refused by name, and the index is unchanged."""
    index = ChunkIndex(["a cat", "a dog"])
    with pytest.raises(
        InvalidRequestError, match="positions must be a list of positions, got"
    ) as caught:
        index.remove(positions)  # type: ignore[arg-type]
    assert (caught.value.field, len(index)) == ("positions", 2)


def test_add_of_invalid_chunk_raises_an_error() -> None:
    """The error names the invalid chunk, and the index is unchanged."""
    index = ChunkIndex(["a cat"])
    with pytest.raises(
        InvalidRequestError, match=r"chunks\[1\]\.text must be a string that is not blank"
    ):
        index.add(["a dog", " "])
    assert (len(index), list(index.add(["a cow"]))) == (1, [1])


def test_add_in_two_threads_builds_concurrently(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that adds chunks does not wait for another thread that builds."""
    index = ChunkIndex(["a cat"])
    both = threading.Barrier(2, timeout=30)

    def build_together(*args: object, **options: object) -> Segment:
        both.wait()
        return build(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr("relevance_gen.retrieval.chunk_index.build", build_together)
    with ThreadPoolExecutor(2) as pool:
        added = list(pool.map(index.add, (["a dog"], ["a cow", "a pig"])))
    assert sorted(place for places in added for place in places) == [1, 2, 3]
    assert [index[places[0]].text for places in added] == ["a dog", "a cow"]


def test_add_after_removing_all_chunks_continues_positions() -> None:
    """All chunks can be removed; new positions follow the old positions."""
    index = ChunkIndex(["a cat", "a dog"])
    index.remove([1, 0])
    assert (len(index), index.search("cat").results) == (0, ())
    assert pickle.loads(pickle.dumps(index)).search("cat").results == ()
    assert list(index.add(["a cat"])) == [2]
    assert [result.original_index for result in index.search("cat").results] == [2]


def test_collection_without_segments_is_empty() -> None:
    """A collection without segments lacks terms and returns empty results."""
    collection = LocalSegments([], weighting_named("pivoted"))
    assert (collection.n_terms, bits(collection, "cat", 10)[0]) == (0, [])


@pytest.mark.parametrize("gone", [[0], [0, 2], [0, 1, 2]])
def test_request_for_a_removed_chunk_raises_an_error(gone: list[int]) -> None:
    """A request for a chunk that is absent from all segments raises an error and returns no other chunk."""
    index = ChunkIndex(["a cat", "a dog", "a cow"])
    index.remove(gone)
    with pytest.raises(LookupError, match="no segment has"):
        chunks_at(index._state.segments, np.arange(3))


def test_search_during_changes_is_atomic() -> None:
    """While one thread adds and removes pairs of chunks, other threads find either both chunks of a pair or neither."""
    index = ChunkIndex(corpus.prose(50, 10))
    stop = threading.Event()

    def ask() -> int:
        n = 0
        while not stop.is_set():
            found = index.search("zebra okapi", 10)
            assert len(found.results) in (0, 2)
            assert found.metadata.num_context_tokens in tokens
            n += 1
        return n

    before = index.search("zebra").metadata.num_context_tokens
    pair = index.add(["a zebra", "an okapi"])
    tokens = {before, index.search("zebra").metadata.num_context_tokens}
    with ThreadPoolExecutor(3) as pool:
        asked = [pool.submit(ask) for _ in range(3)]
        for _ in range(60):
            index.remove(pair)
            pair = index.add(["a zebra", "an okapi"])
        stop.set()
    assert all(future.result() > 0 for future in asked)


# ── Memory ────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def without_collector() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def test_index_is_freed_without_garbage_collector() -> None:
    """When the last reference to an index is dropped, its arrays and caches are freed immediately."""
    index = ChunkIndex(corpus.prose(50, 10))
    index.add(["a cat and a dog"])
    index.search("cat")
    index.explain("cat", 50)
    gc.collect()
    with without_collector():
        held = [weakref.ref(segment.norms) for segment in index._state.segments.segments]
        held += [
            weakref.ref(found)
            for scorer in index._state.segments.scorers
            for found in words_of(scorer)
        ]
        del index
        assert len(held) > 2
        assert [one() for one in held] == [None] * len(held)


def words_of(scorer: object) -> list[object]:
    return [value for value, _ in scorer.postings_cache._entries.values()]  # type: ignore[attr-defined]


def test_postings_cache_is_bounded_and_part_of_nbytes() -> None:
    """For any number of distinct query terms the cache stays within its limit, and `nbytes` includes it."""
    index = ChunkIndex([f"wapiti{number % 50} common words here" for number in range(4000)])
    before = index.nbytes
    for number in range(400):
        index.search(f"common words here wapiti{number}")
    (scorer,) = index._state.segments.scorers
    assert 0 < scorer.postings_cache.nbytes <= (2 << 20) + scorer.segment.array_bytes // 4
    assert before < index.nbytes <= before + (3 << 20) + scorer.segment.array_bytes // 4


def test_weighted_query_does_not_reference_postings() -> None:
    """The memory of a weighted query does not depend on the number of matching chunks."""
    sizes = []
    for n_chunks in (100, 10_000):
        collection = ChunkIndex(["a common text"] * n_chunks)._state.segments
        sizes.append(len(pickle.dumps(weight(parsed(collection, "common text"), collection))))
    assert sizes[0] == pytest.approx(sizes[1], abs=40)


# ── Pickling ──────────────────────────────────────────────────────────────────────────────────────


@costly
@given(strategies.queries, st.lists(strategies.chunk_texts, min_size=1, max_size=5))
def test_pickle_and_copy_of_public_values_are_equal(query: str, chunks: list[str]) -> None:
    """Pickles and copies of responses, explanations and an index are equal to the original."""
    index = ChunkIndex(
        [{"text": text, "metadata": {"place": place}} for place, text in enumerate(chunks)]
    )
    for value in (index.search(query), index.explain(query, 0), search(query, chunks)):
        assert pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == value
    assert pickle.loads(pickle.dumps(index)).search(query) == index.search(query)


def test_pickle_of_an_index_has_the_bytes_of_its_file(tmp_path: Path) -> None:
    """A pickled index contains the bytes of a saved file and little more."""
    index = ChunkIndex(corpus.prose(50, 10))
    index.save(tmp_path / "index")
    content = (tmp_path / "index").read_bytes()
    assert content in pickle.dumps(index)
    assert len(pickle.dumps(index)) < len(content) + 300
