"""Titles: their words are words of the chunk, and a stage scores titles; the text is unchanged."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import Chunk, ChunkIndex, InvalidRequestError, search
from relevance_gen.index.builder import build, merge
from relevance_gen.index.records.validation import read_chunks
from relevance_gen.retrieval.answer import rank
from relevance_gen.retrieval.explanation import explain
from relevance_gen.retrieval.local_segments import LocalSegments
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.retrieval.weighting import weighting_named
from relevance_gen.text.tokenization import tokenize
from relevance_gen.types import WeightingName
from tests import corpus, reference, strategies
from tests.profiles import costly
from tests.retrieval.asking import ALL, WEIGHTINGS, spread

titles = st.sampled_from(["", " ", "\n"]) | strategies.queries | strategies.chunk_texts
titled = st.lists(st.builds(Chunk, strategies.chunk_texts, title=titles), max_size=8).map(
    lambda some: some + some[:2]
)


@costly
@given(strategies.queries, titled, st.sampled_from(WEIGHTINGS))
def test_scores_are_those_of_the_reference(
    query: str, chunks: list[Chunk], weighting: WeightingName
) -> None:
    """Scores equal the formulas and are in [0, 1], in `search` and in an index."""
    response = search(query, chunks, ALL, weighting=weighting, correct_spelling=False)
    texts, names = [chunk.text for chunk in chunks], [chunk.title for chunk in chunks]
    assert spread(response, len(chunks)) == pytest.approx(
        reference.scores(query, texts, weighting, names), abs=1e-9
    )
    assert all(0.0 < result.chunk_score <= 1.0 for result in response)
    assert (
        ChunkIndex(chunks, weighting=weighting).search(query, ALL, correct_spelling=False)
        == response
    )


@costly
@given(strategies.queries, titled, st.lists(st.integers(0, 2), min_size=10, max_size=10))
def test_titled_results_are_independent_of_segments(
    query: str, chunks: list[Chunk], owner: list[int]
) -> None:
    """However titled chunks are cut into segments, merged or taken out, results and explanations have the same bits."""
    every, positions = read_chunks(chunks), np.arange(len(chunks))
    parts = [positions[np.array(owner[: len(chunks)], int) == number] for number in range(3)]
    segments = [build(every.take(part.tolist()), part) for part in parts]
    left = [segment.without(np.flatnonzero(segment.positions % 2)) for segment in segments]
    evens = build(every.take(positions[::2].tolist()), positions[::2])
    for whole, cut in (
        ([build(every, positions)], segments),
        ([merge(segments)], segments),
        ([evens], left),
    ):
        one, other = (LocalSegments(each, weighting_named("pivoted")) for each in (whole, cut))
        rankings = [
            rank(
                SearchParams(query).parse(inflects=True, is_english=each.statistics.is_english),
                ALL,
                each,
            )
            for each in (one, other)
        ]
        assert rankings[0].positions.tolist() == rankings[1].positions.tolist()
        assert rankings[0].scores.tobytes() == rankings[1].scores.tobytes()
        for position in whole[0].positions.tolist():
            assert explain(SearchParams(query), position, one) == explain(
                SearchParams(query), position, other
            )


@given(strategies.queries, titled)
def test_shares_add_up_to_the_score(query: str, chunks: list[Chunk]) -> None:
    """The contribution of the title is a part of the score, and at least 0."""
    index = ChunkIndex(chunks)
    scores = spread(index.search(query, ALL), len(chunks))
    for position, score in enumerate(scores):
        explanation = index.explain(query, position)
        shares = [term.contribution for term in explanation.terms]
        shares += [
            explanation.bigrams,
            explanation.coverage,
            explanation.lead,
            explanation.phrase,
            explanation.title,
            explanation.char_ngrams,
            explanation.top_similarity,
        ]
        assert sum(shares) == pytest.approx(score, abs=1e-9)
        assert explanation.title >= 0.0


@given(strategies.queries, st.lists(strategies.chunk_texts, max_size=6))
def test_blank_titles_are_none(query: str, texts: list[str]) -> None:
    """If all titles are blank, results have the same bits as without titles."""
    blank = [Chunk(text, title=" " * number) for number, text in enumerate(texts)]
    assert ChunkIndex(blank).search(query, ALL) == ChunkIndex(texts).search(query, ALL)


@given(strategies.chunk_texts, strategies.chunk_texts)
def test_title_words_precede_text_words(title: str, text: str) -> None:
    """A chunk's words are the words of its title and its text, and a segment stores the number of title words."""
    segment = build(read_chunks([Chunk(text, title=title)]), np.arange(1))
    own, rest = tokenize([title]), tokenize([text])
    reading = segment.token_sequences(np.arange(1))
    ids = reading.lexicon.ids.take(reading.terms[reading.terms < reading.lexicon.size])
    assert ids.tolist() == [*own.ids.tolist(), *rest.ids.tolist()]
    assert segment.title_sizes.tolist() == [own.ids.size]


def test_long_title_is_counted_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    """A title of several blocks is counted piece by piece."""
    monkeypatch.setattr("relevance_gen.text.blocks.BLOCK_CHARS", 64)
    title = " ".join(map(str, range(100)))
    segment = build(
        read_chunks([Chunk("Cats purr.", title=title), Chunk("Dogs.", title="猫" * 90)]),
        np.arange(2),
    )
    assert segment.title_sizes.tolist() == [100, tokenize(["猫" * 90]).ids.size]


def test_titles_find_and_order() -> None:
    """A chunk is found by its title; a title equal to the query raises the score, and a title of all chunks does not."""
    texts = ["It has a long tail.", "It has a long tail.", "It has a long tail, as cats do."]
    response = search(
        "cats",
        [Chunk(texts[0], title="Dogs"), Chunk(texts[1], title="Cats"), texts[2]],
        true_order=False,
    )
    assert [result.original_index for result in response] == [1, 2]
    assert [(result.title, result.chunk_txt) for result in response] == [
        ("Cats", texts[1]),
        ("", texts[2]),
    ]
    index = ChunkIndex([Chunk(text, title="On cats") for text in texts])
    assert (
        index.explain("cats", 0).title
        < ChunkIndex([Chunk(texts[0], title="On cats")]).explain("cats", 0).title
    )


def test_title_is_excluded_from_spans_and_tokens() -> None:
    """Spans point into the text, and tokens are counted of the text alone."""
    text = "They purr when cats are stroked."
    (with_title,) = search("cats", [Chunk(text, title="All that is known of cats")], spans=True)
    (without,) = search("cats", [text], spans=True)
    assert with_title.spans == without.spans
    assert with_title.chunk_txt == text
    by_title = search("cats", [Chunk("They purr.", title="Cats")], spans=True)
    assert by_title[0].spans == ()
    assert by_title.metadata == search("cats", ["They purr."]).metadata


def test_titles_are_kept(tmp_path: Path) -> None:
    """Titles live through adding, removing, saving, loading, pickling and listing."""
    chunks = [
        Chunk(text, title=f"Title {number % 7}") for number, text in enumerate(corpus.prose(60, 20))
    ]
    index = ChunkIndex(chunks[:40])
    index.add(chunks[40:])
    index.remove(range(5))
    index.save(tmp_path / "saved")
    fresh = ChunkIndex([{"text": chunk.text, "title": chunk.title} for chunk in chunks])
    fresh.remove(range(5))
    query = f"title 3 {chunks[9].text[:20]}"
    for one in (ChunkIndex.load(tmp_path / "saved"), pickle.loads(pickle.dumps(index)), fresh):
        assert one.search(query, ALL) == index.search(query, ALL)
        assert [chunk.title for chunk in one.chunks] == [chunk.title for chunk in chunks[5:]]
        assert chunks[9] in one
        assert Chunk(chunks[9].text) not in one


@pytest.mark.parametrize("title", [None, 3, ["a"]])
def test_title_of_other_type_raises(title: object) -> None:
    """A title of another type is refused in any kind of chunk."""
    with pytest.raises(InvalidRequestError, match=r"chunks\[1\].title"):
        search("cats", ["cats", {"text": "cats", "title": title}])
    with pytest.raises(InvalidRequestError, match="title"):
        Chunk("cats", title=title)  # type: ignore[arg-type]
