"""Reranking: the chunks that a reranker reads, the order of all scores, and unchanged properties."""

from __future__ import annotations

import hashlib
import math
import pickle
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import (
    Chunk,
    ChunkIndex,
    InvalidRequestError,
    Reranker,
    RerankerError,
    SearchResponse,
    search,
)
from relevance_gen.errors import RequestCancelledError
from relevance_gen.request_scope import cancel_scope
from small_models import RERANKER
from tests import strategies
from tests.profiles import costly
from tests.retrieval.asking import ALL, WEIGHTINGS, spread
from tests.retrieval.test_dense_fusion import LetterEncoder, many_chunks


@define
class HashReranker:
    """Scores a text by a hash of text and query, or by a given function, and records the texts it read."""

    scores_by_text: Mapping[str, float] = field(factory=dict)
    read: list[str] = field(factory=list)
    answer: Any = "scores"

    def score(self, query: str, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """Return how relevant each text is."""
        self.read += texts
        scores = np.array(
            [self.scores_by_text.get(text, relevance(query, text)) for text in texts], np.float32
        )
        return scores if isinstance(self.answer, str) else self.answer


def relevance(query: str, text: str) -> float:
    """Return a number in [0, 1], from a small set, so that chunks tie, and sometimes 0 or 1."""
    digest = hashlib.sha256(f"{query}\0{text}".encode(errors="replace")).digest()
    return digest[1] / 255 if digest[0] % 2 else digest[1] % 4 / 3


def reread(before: list[float], relevances: list[float], n: int | None) -> list[float]:
    """Return the scores after reranking by a slow reference of the documented formula."""
    below_one = [at for at, score in enumerate(before) if score < 1.0]
    best = sorted((at for at in below_one if before[at]), key=lambda at: (-before[at], at))
    some = below_one if n is None else best[:n]
    if not some:
        return before
    tiny, nearly_one = float(np.finfo(np.float32).smallest_subnormal), math.nextafter(1.0, 0.0)
    reported = {at: min(max(float(np.float32(relevances[at])), tiny), nearly_one) for at in some}
    least = min(reported.values())
    return [
        score if score == 1.0 else reported.get(at, least * score)
        for at, score in enumerate(before)
    ]


numbers = st.sampled_from([0, 1, 2, 5, 20, None])
encoders = st.sampled_from([None, LetterEncoder()])


# ── The law of scores ─────────────────────────────────────────────────────────────────────────────


@costly
@given(strategies.queries, strategies.chunk_lists, numbers, encoders, st.sampled_from(WEIGHTINGS))
def test_scores_are_those_of_the_law(
    query: str, chunks: list[str], n: int | None, encoder: LetterEncoder | None, weighting: Any
) -> None:
    """The best chunks are read and have the reranker's scores, and other chunks a share; with and without an encoder."""
    # The reranker reads a corrected query.
    options = {"encoder": encoder, "weighting": weighting, "correct_spelling": False}
    ask = partial(search, query, chunks, ALL, **options)
    before = spread(ask(), len(chunks))
    found = ask(reranker=HashReranker(), rerank_top_n=n)
    expected = reread(before, [relevance(query, chunk) for chunk in chunks], n)
    assert spread(found, len(chunks)) == expected
    assert found.confidence == ask(encoder=None).confidence


@costly
@given(
    strategies.queries,
    strategies.chunk_lists,
    st.sampled_from([1, 2, 5, 20]),
    encoders,
    st.randoms(),
)
def test_reranked_chunks_precede_others(
    query: str, chunks: list[str], n: int, encoder: LetterEncoder | None, chance: Any
) -> None:
    """Chunks that were read precede other chunks, which keep their order; a chunk equal to the query is first."""
    chunks = [*chunks, query]
    chance.shuffle(chunks)
    ask = partial(search, query, chunks, ALL, encoder=encoder)
    before, reranker = ask(), HashReranker()
    after = ask(reranker=reranker, rerank_top_n=n, true_order=False)
    assert {result.original_index for result in before} == {
        result.original_index for result in after
    }
    assert all(0.0 < result.chunk_score <= 1.0 for result in after)
    verbatim = [result.original_index for result in before.best if result.chunk_score == 1.0]
    best = [result.original_index for result in before.best][len(verbatim) :]
    order = [result.original_index for result in after]
    assert order[: len(verbatim)] == verbatim
    assert [result.chunk_score == 1.0 for result in after] == [True] * len(verbatim) + [
        False
    ] * len(best)
    n_read = len(best[:n])
    assert set(order[len(verbatim) :][:n_read]) == set(best[:n])
    assert order[len(verbatim) + n_read :] == best[n:]
    assert set(reranker.read) == {chunks[at] for at in best[:n]}


@costly
@given(
    strategies.queries,
    strategies.chunk_lists.filter(bool),
    st.sampled_from([1, 3, 20, 60]),
    st.booleans(),
    st.data(),
)
def test_other_options_apply_to_reranked_order(
    query: str, chunks: list[str], top_n: int, true_order: bool, data: st.DataObject
) -> None:
    """`top_n`, order, filter, minimum score and `distinct` select from the same ranking."""
    where = data.draw(st.none() | st.sets(st.sampled_from(range(len(chunks)))).map(sorted))
    records = [Chunk(chunk, {"of": place % 3}) for place, chunk in enumerate(chunks)]
    ask = partial(search, query, records, reranker=HashReranker(), rerank_top_n=4, where=where)
    every = ask(ALL, False)
    assert ask(top_n, False).results == every.results[:top_n]
    response = ask(top_n, true_order, spans=True)
    assert [(result.original_index, result.chunk_score) for result in response.by_score()] == [
        (result.original_index, result.chunk_score) for result in every[:top_n]
    ]
    plain = search(query, records, ALL, where=where, spans=True)
    spans = {result.original_index: result.spans for result in plain}
    assert all(result.spans == spans[result.original_index] for result in response)
    least = 0.5 * every[0].chunk_score if len(every) else 0.0
    assert [result.original_index for result in ask(ALL, False, min_relative_score=0.5)] == [
        result.original_index for result in every if result.chunk_score >= least
    ]
    firsts = {result.metadata["of"]: result.original_index for result in reversed(every.results)}
    assert {result.original_index for result in ask(ALL, distinct="of")} == set(firsts.values())


def scores_by_chunk(response: SearchResponse) -> list[tuple[int, float]]:
    return [(result.original_index, result.chunk_score) for result in response.by_score()]


def test_best_twenty_are_reranked_and_ties_by_position() -> None:
    """However many tie, exactly the first of them are read, each different text once."""
    reranker = HashReranker()
    chunks = ["cat cat", *(f"cat {n:04d}" for n in range(500))]
    found = search("cat", chunks, ALL, reranker=reranker)
    assert reranker.read == chunks[:20]
    order = [position for position, _ in scores_by_chunk(found)]
    assert sorted(order[:20]) == list(range(20))
    assert order[20:] == list(range(20, 501))
    twice = HashReranker()
    search("cat", ["a cat", "one cat"] * 10, reranker=twice)
    assert sorted(twice.read) == ["a cat", "one cat"]


def test_chunk_without_shared_word_is_reranked_only_if_all_are() -> None:
    """By default such a chunk is not a result; if every chunk is read, it has the reranker's score."""
    chunks, reranker = ["Cats purr.", "zebra"], HashReranker({"zebra": 0.75, "Cats purr.": 0.25})
    assert scores_by_chunk(search("cats", chunks, reranker=reranker)) == [(0, 0.25)]
    assert scores_by_chunk(search("cats", chunks, reranker=reranker, rerank_top_n=None)) == [
        (1, 0.75),
        (0, 0.25),
    ]
    assert scores_by_chunk(search("stripes", chunks, reranker=reranker)) == []
    assert len(search("stripes", chunks, reranker=reranker, rerank_top_n=None)) == 2


def test_scores_of_read_texts_are_never_zero_or_one() -> None:
    """A chunk with relevance 0 remains a result, and only a chunk equal to the query scores 1."""
    reranker = HashReranker({"Cats purr.": 0.0, "A cat.": 1.0})
    chunks = ["Cats purr.", "A cat.", "what cats", "A cat sat."]
    scores = dict(scores_by_chunk(search("what cats", chunks, reranker=reranker, rerank_top_n=2)))
    assert scores[2] == 1.0 > scores[1] > 0.999_999
    assert 0.0 < min(scores.values()) < 1e-40


def test_titles_are_read_before_texts() -> None:
    """A chunk that has a title is read with it."""
    reranker = HashReranker()
    search("cats", [Chunk("Cats purr.", title="Pets"), "Cats sleep."], reranker=reranker)
    assert reranker.read == ["Pets\nCats purr.", "Cats sleep."]


def test_reranker_returning_none_keeps_scores() -> None:
    """If the reranker returns None, scores are unchanged."""
    chunks = many_chunks()
    assert search("purring cats", chunks, reranker=HashReranker(answer=None)) == search(
        "purring cats", chunks
    )


def test_plain_searches_of_an_index_stay_remembered_apart() -> None:
    """The cached ranking of a query never has the scores of a reranker."""
    index = ChunkIndex(many_chunks())
    words = index.search("purring cats")
    assert index.search("purring cats", reranker=HashReranker()) != words
    assert (
        index.search("purring cats")
        == words
        == index.search("purring cats", reranker=HashReranker(), rerank_top_n=0)
    )


# ── An index ──────────────────────────────────────────────────────────────────────────────────────


@costly
@given(
    strategies.queries,
    st.lists(strategies.chunk_lists, min_size=1, max_size=4),
    numbers,
    st.booleans(),
)
def test_however_an_index_came_about_it_answers_the_same(
    query: str, parts: list[list[str]], n: int | None, with_encoder: bool
) -> None:
    """`search`, an index built at once and an index that grew return the same bits, for a single query or several."""
    chunks = [chunk for part in parts for chunk in part]
    encoder = LetterEncoder() if with_encoder else None
    index = ChunkIndex(parts[0], encoder=encoder)
    for part in parts[1:]:
        index.add(part)
    once = search(query, chunks, ALL, encoder=encoder, reranker=HashReranker(), rerank_top_n=n)
    assert index.search(query, ALL, reranker=HashReranker(), rerank_top_n=n) == once
    copied = pickle.loads(pickle.dumps(index))
    assert copied.search([query, "x"], ALL, reranker=HashReranker(), rerank_top_n=n)[0] == once


@given(strategies.queries, strategies.chunk_lists.filter(bool), numbers, encoders)
def test_contributions_sum_to_score(
    query: str, chunks: list[str], n: int | None, encoder: LetterEncoder | None
) -> None:
    """All contributions, including the reranker's, sum to the score; a chunk that was read has its relevance."""
    index, reranker = ChunkIndex(chunks, encoder=encoder), HashReranker()
    options = {"reranker": reranker, "rerank_top_n": n, "correct_spelling": False}
    found = spread(index.search(query, ALL, **options), len(chunks))
    read = set(reranker.read)
    for at, chunk in enumerate(chunks):
        explained = index.explain(query, at, **options)
        assert explained.score == found[at]
        assert sum_of(explained) == pytest.approx(explained.score, abs=1e-9)
        if explained.relevance is not None:
            assert chunk in read
            assert (
                explained.relevance
                == explained.score
                == pytest.approx(relevance(query, chunk), abs=1e-7)
            )


def sum_of(explained: Any) -> float:
    """Return the sum of all shares."""
    names = (
        "bigrams",
        "coverage",
        "lead",
        "phrase",
        "title",
        "char_ngrams",
        "top_similarity",
        "semantic",
        "reranker",
    )
    names += ("other_chunks", "file_name", "defined_names", "exact_identifiers")
    return math.fsum(
        [
            *(term.contribution for term in explained.terms),
            *(getattr(explained, name) for name in names),
        ]
    )


def test_explanation_shows_loss_by_reranker() -> None:
    """A chunk that words put first and the reranker last has less for it, and that is printed."""
    index = ChunkIndex(["small cats purr", "a cat is a cat"])
    reranker = HashReranker({"small cats purr": 0.125, "a cat is a cat": 0.5})
    explained = index.explain("do cats purr", 0, reranker=reranker)
    assert explained.score == explained.relevance == 0.125
    assert explained.reranker < 0.0
    assert f"  {explained.reranker:.3f}  reranker" in repr(explained).split("\n")


# ── Arguments and failures ────────────────────────────────────────────────────────────────────────


def test_invalid_argument_raises() -> None:
    """The error about an invalid reranker, an invalid count or a missing reranker names the argument."""
    index = ChunkIndex(["Cats purr."])
    for ask in (
        partial(search, "cats", ["Cats purr."]),
        partial(index.search, "cats"),
        partial(index.explain, "cats", 0),
    ):
        with pytest.raises(
            InvalidRequestError,
            match=r"reranker must be a Reranker or None, got 'model\.gguf'; make one",
        ):
            ask(reranker="model.gguf")
        with pytest.raises(
            InvalidRequestError,
            match="rerank_top_n must be an integer of at least 0 or None, got -1",
        ):
            ask(rerank_top_n=-1)
        with pytest.raises(
            InvalidRequestError,
            match="rerank_top_n must be an integer unless reranker is passed, got None",
        ):
            ask(rerank_top_n=None)


@pytest.mark.parametrize(
    "answer",
    [
        [0.5],
        np.array([[0.5]], np.float32),
        np.array([0.5, 0.5]),
        np.array([1]),
        np.array([np.nan]),
        np.array([1.5]),
    ],
    ids=["list", "shape", "number", "integers", "nan", "range"],
)
def test_invalid_reranker_scores_raise(answer: Any) -> None:
    """Anything except a score in [0, 1] for each text, in an array or a list, is an error."""
    if isinstance(answer, list):
        assert scores_by_chunk(
            search("cats", ["Cats purr."], reranker=HashReranker(answer=answer))
        ) == [(0, 0.5)]
        return
    with pytest.raises(RerankerError, match=r"the reranker must return 1 floats in \[0, 1\]"):
        search("cats", ["Cats purr."], reranker=HashReranker(answer=answer))


def test_rows_of_several_lengths_are_no_scores() -> None:
    """A value that numpy cannot convert to an array raises the same error."""
    with pytest.raises(RerankerError, match="the reranker must return 2 floats"):
        search(
            "cats", ["Cats purr.", "Cats sleep."], reranker=HashReranker(answer=[[0.1], [0.2, 0.3]])
        )


def test_nothing_is_read_for_who_has_left() -> None:
    """A canceled search ends before the reranker is called."""
    reranker = HashReranker()
    with pytest.raises(RequestCancelledError), cancel_scope(lambda: False):
        search("cats", ["Cats purr."], reranker=reranker)
    assert not reranker.read


def test_real_reranker_equals_scripted_reranker() -> None:
    """A real model behaves as the scripted model, in `search` and in an index, also for long chunks."""
    chunks = ["cats purr", "a dog barks", "the cat sat", "a cat " * 2000]
    with Reranker(RERANKER) as reranker:
        found = search("a cat", chunks, reranker=reranker)
        assert found == ChunkIndex(chunks).search("a cat", reranker=reranker)
        scores = dict(zip(chunks, reranker.score("a cat", chunks).tolist(), strict=True))
        assert [result.chunk_score for result in found] == [
            scores[result.chunk_txt] for result in found
        ]
        every = search("a cat", chunks, reranker=reranker, rerank_top_n=None)
        assert [result.chunk_score for result in every] == list(scores.values())
    with pytest.raises(RerankerError, match="closed"):
        search("a cat", chunks, reranker=reranker)
