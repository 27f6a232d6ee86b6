"""Dense fusion: the chunks whose scores an encoder raises, by how much, and unchanged properties."""

from __future__ import annotations

import copy
import hashlib
import itertools
import math
import pickle
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from attrs import astuple, define, field
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import (
    Chunk,
    ChunkIndex,
    Encoder,
    IndexFormatError,
    InvalidRequestError,
    SearchResponse,
    search,
)
from relevance_gen.index.passages import Passages, query_vector
from relevance_gen.retrieval.stages import dense_fusion as meaning
from relevance_gen.text.stop_words import ENGLISH_STOP_WORDS
from small_models import ENCODER
from tests import strategies
from tests.profiles import costly
from tests.retrieval.asking import ALL, spread

DIMS = 8


@define
class LetterEncoder:
    """Encodes every text by its letters, and counts the encoded texts."""

    name: str = "letters"
    encoded: list[str] = field(factory=list)
    fails: bool = False

    @property
    def fingerprint(self) -> str:
        """Its name."""
        return self.name

    def encode(self, texts: Sequence[str], *, kind: str) -> npt.NDArray[np.float32]:
        """Return a vector for each text."""
        if self.fails:
            raise ZeroDivisionError
        if kind == "passage":
            self.encoded += texts
        return np.array([vector_of(text) for text in texts], np.float32)


def vector_of(text: str) -> npt.NDArray[np.float32]:
    digests = [
        hashlib.sha256(letter.encode(errors="replace")).digest()[:DIMS] for letter in sorted(text)
    ]
    sums = (
        np.frombuffer(b"".join(digests), np.uint8).reshape(-1, DIMS).astype(np.float32).sum(axis=0)
        - 100.0
    )
    return np.asarray(sums / np.linalg.norm(sums), np.float32)


def words_apart(text: str) -> str:
    """Return a text with a space before every capital inside a word that two small letters follow, slowly."""
    cuts = [
        at
        for at in range(1, len(text))
        if text[at - 1 : at + 3].isascii()
        and text[at - 1].isalnum()
        and text[at].isupper()
        and len(text[at + 1 : at + 3]) == 2
        and text[at + 1 : at + 3].islower()
        and text[at + 1 : at + 3].isalpha()
    ]
    return " ".join(text[start:end] for start, end in itertools.pairwise([0, *cuts, len(text)]))


def cosine(question: str, chunk: str) -> float:
    """Return the cosine of the nearest passage by a slow reference: half floats, multiplied and added exactly."""
    passages = Passages.encode([chunk], LetterEncoder())
    of_question = [float(part) for part in vector_of(words_apart(question)).astype(np.float16)]
    nearest = -1.0
    for start, end in zip(passages.starts, passages.ends, strict=True):
        of_passage = [
            float(part) for part in vector_of(words_apart(chunk[start:end])).astype(np.float16)
        ]
        nearest = max(
            nearest,
            math.fsum(one * other for one, other in zip(of_question, of_passage, strict=True)),
        )
    return nearest


def fused(words: float, nearness: float) -> float:
    return 1.0 - (1.0 - words ** (5 / 7)) * (1.0 - min(max(nearness, 0.0), 1.0) ** 2)


def by_function_words(query: str, chunks: list[str]) -> bool:
    """Return whether a query has content words, and all chunks lack them."""
    terms = ChunkIndex(chunks).explain(query, 0).terms if chunks else ()
    is_stop = [term.term in ENGLISH_STOP_WORDS for term in terms]
    return not all(is_stop) and all(
        stop or not term.df for stop, term in zip(is_stop, terms, strict=True)
    )


scores = st.floats(0, 1)
candidates = st.sampled_from([1, 3, 50, None])


# ── The formula ───────────────────────────────────────────────────────────────────────────────────


@given(scores, scores, st.floats(-1.01, 1.01), st.floats(-1.01, 1.01))
def test_fused_score_has_documented_properties(
    less: float, more: float, far: float, near: float
) -> None:
    """The fused score is between the lexical score and 1, is 1 only if the lexical score is, and grows with both."""
    (less, more), (far, near) = sorted((less, more)), sorted((far, near))
    low, by_words, by_meaning, both = meaning.fuse(
        np.array([less, more, less, more]), np.array([far, far, near, near])
    ).tolist()
    assert less <= low <= min(by_words, by_meaning) <= max(by_words, by_meaning) <= both <= 1.0
    assert (low == 1.0) == (less == 1.0)
    assert (both == 1.0) == (more == 1.0)
    assert meaning.fuse(np.array([more]), np.array([-1.0]))[0] == pytest.approx(
        more ** (5 / 7), abs=1e-12
    )


@costly
@given(strategies.queries, strategies.chunk_lists, candidates)
def test_scores_are_those_of_the_formula(query: str, chunks: list[str], n: int | None) -> None:
    """Every candidate has the score of the formula, and other chunks keep their scores."""
    find = partial(search, query, chunks, ALL, correct_spelling=False)
    words = spread(find(), len(chunks))
    found = spread(find(encoder=LetterEncoder(), num_candidates=n), len(chunks))
    least = (
        0.0
        if n is None
        else sorted([score for score in words if score], reverse=True)[:n][-1:] or [2.0]
    )
    least = least if isinstance(least, float) else least[0]
    if n is None and by_function_words(query, chunks):
        words = [0.0] * len(chunks)
    expected = [
        fused(score, cosine(query, chunk)) if score >= least else score
        for score, chunk in zip(words, chunks, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@costly
@given(strategies.queries, strategies.chunk_lists, candidates, st.randoms())
def test_chunk_equal_to_query_is_first(
    query: str, chunks: list[str], n: int | None, chance: Any
) -> None:
    """It scores 1, no chunk that does not score 1 by its words does, and so it is first."""
    chunks = [*chunks, query]
    chance.shuffle(chunks)
    by_words = spread(search(query, chunks, ALL), len(chunks))
    response = search(
        query, chunks, ALL, true_order=False, encoder=LetterEncoder(), num_candidates=n
    )
    found = spread(response, len(chunks))
    assert [score == 1.0 for score in found] == [score == 1.0 for score in by_words]
    if by_words[chunks.index(query)]:
        assert response.results[0].chunk_score == 1.0


def many_chunks() -> list[str]:
    return [f"the cat number {n} {'purrs ' * (n % 7)}{'and sleeps ' * (n % 3)}" for n in range(80)]


def test_order_outside_candidates_is_unchanged() -> None:
    """Beyond the candidates chunks keep scores and order, and every candidate is at least as good as they."""
    chunks = many_chunks()
    words = search("purring cats sleep", chunks, ALL, true_order=False)
    lifted = search(
        "purring cats sleep",
        chunks,
        ALL,
        true_order=False,
        encoder=LetterEncoder(),
        num_candidates=10,
    )
    bar = words.results[9].chunk_score
    n = sum(result.chunk_score >= bar for result in words.results)
    assert 10 <= n < len(words.results)

    def scores_by_chunk(response: SearchResponse) -> list[tuple[int, float]]:
        return [(result.original_index, result.chunk_score) for result in response.results]

    assert scores_by_chunk(lifted)[n:] == scores_by_chunk(words)[n:]
    assert {at for at, _ in scores_by_chunk(lifted)[:n]} == {
        at for at, _ in scores_by_chunk(words)[:n]
    }
    assert lifted.confidence == words.confidence


def test_chunk_without_shared_word_is_a_result_if_all_are_encoded() -> None:
    """By default the chunk is not a result; if all chunks are compared, its score is the square of its cosine."""
    chunks = ["Cats purr.", "zebra", "Dogs bark loudly."]
    assert spread(search("cats", chunks, encoder=LetterEncoder()), 3)[1:] == [0.0, 0.0]
    found = spread(search("cats", chunks, encoder=LetterEncoder(), num_candidates=None), 3)
    assert found[1] == max(cosine("cats", "zebra"), 0.0) ** 2 > 0.0


def test_shared_stop_word_scores_nothing_if_all_are_encoded() -> None:
    """If chunks share at most "the" with a question that has other words, all score c², and are explained so."""
    chunks, encoder = ["the zebra", "a zebra", "the the the"], LetterEncoder()
    index = ChunkIndex(chunks, encoder=encoder)
    words = spread(index.search("heal the sick", num_candidates=0), 3)
    assert [score > 0.0 for score in words] == [True, False, True]
    found = spread(index.search("heal the sick", num_candidates=None), 3)
    assert found == [max(cosine("heal the sick", chunk), 0.0) ** 2 for chunk in chunks]
    explanation = index.explain("heal the sick", 0, num_candidates=None)
    assert explanation.score == explanation.semantic == found[0]
    assert not any(term.contribution for term in explanation.terms)


def test_function_words_count_where_the_question_has_no_others() -> None:
    """A chunk that holds the words of "to be or not to be" is found by them, also where all are compared."""
    chunks, encoder = ["to be or not to be", "zebra", "not to be"], LetterEncoder()
    found = spread(search("to be or not to be", chunks, encoder=encoder, num_candidates=None), 3)
    by_words = spread(search("to be or not to be", chunks), 3)
    assert found[0] == 1.0
    assert found[2] == pytest.approx(fused(by_words[2], cosine("to be or not to be", chunks[2])))
    assert found[2] > max(cosine("to be or not to be", chunks[2]), 0.0) ** 2


def test_spans_of_a_chunk_found_by_its_meaning_alone_are_none() -> None:
    """A result without words of the query is without spans, and other results have spans."""
    response = search(
        "cats", ["Cats purr.", "zebra"], encoder=LetterEncoder(), num_candidates=None, spans=True
    )
    assert [bool(result.spans) for result in response.results] == [True, False]


def test_only_filtered_chunks_are_candidates() -> None:
    """With `where` the best of the chosen chunks are lifted, and no other is encoded."""
    chunks, encoder = many_chunks(), LetterEncoder()
    some = [3, 30, 77]
    found = search("purring cats", chunks, ALL, where=some, encoder=encoder, num_candidates=2)
    assert {result.original_index for result in found.results} == set(some)
    assert set(encoder.encoded) <= {chunks[at] for at in some}
    everywhere = search(
        "purring cats", chunks, ALL, where=[3, 77], encoder=encoder, num_candidates=None
    )
    assert {result.original_index for result in everywhere.results} == {3, 77}


def test_search_encodes_distinct_candidate_passages_once() -> None:
    """A search of new chunks encodes a bounded number of texts, for any number of chunks."""
    encoder = LetterEncoder()
    chunks = [*many_chunks(), *many_chunks()]
    search("purring cats", chunks, encoder=encoder, num_candidates=5)
    assert len(encoder.encoded) == len(set(encoder.encoded)) <= 8


def test_large_tie_is_not_encoded() -> None:
    """If hundreds of chunks tie for the last place among the candidates, their scores do not change."""
    encoder = LetterEncoder()
    chunks = ["cat cat", *(f"cat {n:04d}" for n in range(1000))]
    response = search("cat", chunks, 5, true_order=False, encoder=encoder)
    assert encoder.encoded == ["cat cat"]
    assert response.results[0].original_index == 0


# ── An index ──────────────────────────────────────────────────────────────────────────────────────


@costly
@given(
    strategies.queries,
    st.lists(strategies.chunk_lists, min_size=1, max_size=4),
    candidates,
    st.data(),
)
def test_however_an_index_came_about_it_answers_the_same(
    query: str, parts: list[list[str]], n: int | None, data: st.DataObject
) -> None:
    """`search`, an index built at once and an index with changes return the same bits and explanations."""
    chunks = [chunk for part in parts for chunk in part]
    gone = data.draw(st.sets(st.sampled_from(range(len(chunks))))) if chunks else set()
    encoder = LetterEncoder()
    index = ChunkIndex(parts[0], encoder=encoder)
    for part in parts[1:]:
        index.add(part)
    index.remove(gone)
    left = [at for at in range(len(chunks)) if at not in gone]
    kept = [chunks[at] for at in left]
    whole = ChunkIndex(kept, encoder=encoder)
    by_index = whole.search(query, ALL, num_candidates=n)
    assert by_index == search(query, kept, ALL, encoder=encoder, num_candidates=n)
    changed = index.search(query, ALL, num_candidates=n)
    assert [(result.original_index, result.chunk_score) for result in changed.results] == [
        (left[result.original_index], result.chunk_score) for result in by_index.results
    ]
    for number, at in enumerate(left):
        assert index.explain(query, at, num_candidates=n) == whole.explain(
            query, number, num_candidates=n
        )


@costly
@given(strategies.queries, strategies.chunk_lists.filter(bool), candidates)
def test_contributions_sum_to_score(query: str, chunks: list[str], n: int | None) -> None:
    """The words' shares and the meaning's are the score that search returns, and the passage is the nearest."""
    index = ChunkIndex(chunks, encoder=LetterEncoder())
    found = spread(index.search(query, ALL, num_candidates=n), len(chunks))
    for at, chunk in enumerate(chunks):
        explanation = index.explain(query, at, num_candidates=n)
        parts = [
            *(term.contribution for term in explanation.terms),
            explanation.bigrams,
            explanation.coverage,
            explanation.lead,
            explanation.phrase,
            explanation.char_ngrams,
        ]
        assert explanation.score == found[at]
        assert math.fsum(
            [*parts, explanation.top_similarity, explanation.semantic]
        ) == pytest.approx(explanation.score, abs=1e-9)
        if explanation.passage is None:
            assert explanation.semantic == 0.0
        else:
            assert (explanation.passage.start, explanation.passage.end) == (0, len(chunk))
            assert explanation.passage.cosine == cosine(query, chunk)


def test_identifiers_are_encoded_with_their_words_apart() -> None:
    """The encoder sees "get User Name" for getUserName, in chunks and questions; abbreviations stay whole."""
    encoder = LetterEncoder()
    search(
        "HTTPServer",
        ["getUserName(HTTPServer)", "mRNA of nCoV2 get_user_name McDonald"],
        encoder=encoder,
        num_candidates=None,
    )
    assert encoder.encoded == [
        "get User Name(HTTP Server)",
        "mRNA of nCoV2 get_user_name Mc Donald",
    ]
    np.testing.assert_array_equal(
        query_vector("HTTPServer", encoder), vector_of("HTTP Server").astype(np.float16)
    )


def test_nearest_passage_counts_and_is_explained() -> None:
    """A long chunk is as near as its nearest passage, which `explain` names."""
    paragraphs = ["b" * 700 + " cats", "zq" * 300 + " purr", "d" * 800]
    index = ChunkIndex(["\n\n".join(paragraphs), "cats"], encoder=LetterEncoder())
    explanation = index.explain("zq" * 300 + " purr", 0)
    assert explanation.passage is not None
    assert (
        "\n\n".join(paragraphs)[explanation.passage.start : explanation.passage.end]
        == paragraphs[1]
    )
    assert explanation.passage.cosine == pytest.approx(1.0, abs=1e-3)


@costly
@given(strategies.queries, strategies.chunk_lists.filter(bool), candidates)
def test_search_with_encoder_equals_index_with_vectors(
    query: str, chunks: list[str], n: int | None
) -> None:
    """With an encoder, an index without vectors returns the same results and explanations as an index with vectors."""
    encoder = LetterEncoder()
    words, vectors = ChunkIndex(chunks), ChunkIndex(chunks, encoder=encoder)
    brought = words.search(query, ALL, encoder=encoder, num_candidates=n)
    assert (
        brought
        == vectors.search(query, ALL, num_candidates=n)
        == vectors.search(query, ALL, encoder=encoder, num_candidates=n)
    )
    assert words.explain(query, 0, encoder=encoder, num_candidates=n) == vectors.explain(
        query, 0, num_candidates=n
    )
    with pytest.raises(
        InvalidRequestError, match="encoder must be the encoder that the index was built with"
    ):
        vectors.search(query, encoder=LetterEncoder("others"))


def test_zero_candidates_equal_lexical_search() -> None:
    """With 0 candidates results and explanations equal those without an encoder, and nothing is encoded."""
    encoder, words = LetterEncoder(), ChunkIndex(many_chunks())
    index = ChunkIndex(many_chunks(), encoder=encoder)
    encoder.fails = True
    assert index.search("purring cats", num_candidates=0) == words.search("purring cats")
    assert index.explain("purring cats", 3, num_candidates=0) == words.explain("purring cats", 3)


def test_adding_encodes_what_is_added() -> None:
    """Existing chunks are not encoded again by adding, removing or merging."""
    encoder = LetterEncoder()
    index = ChunkIndex(["one cat", "two cats"], encoder=encoder)
    index.add(["three dogs"])
    index.remove([0])
    assert encoder.encoded == ["one cat", "two cats", "three dogs"]


def test_failing_encoder_leaves_index_unchanged() -> None:
    """If an encoder fails, `add` raises and the index is as before."""
    encoder = LetterEncoder()
    index = ChunkIndex(["one cat"], encoder=encoder)
    encoder.fails = True
    with pytest.raises(ZeroDivisionError):
        index.add(["two cats"])
    encoder.fails = False
    assert len(index) == 1
    assert list(index.add(["three cats"])) == [1]


def test_features_are_not_shared_between_queries() -> None:
    """Features of a query are never used for a different query."""
    one, other = (
        meaning.NearestPassages(query_vector(text, LetterEncoder())) for text in ("cats", "dogs")
    )
    assert one != other


def test_progress_counts_chunks_while_they_are_encoded() -> None:
    """Progress ascends, and ends with all chunks."""
    reported: list[tuple[int, int]] = []
    chunks = [f"chunk {n} " + "x" * (n % 3 * 900) for n in range(700)]
    ChunkIndex(chunks, encoder=LetterEncoder(), progress=lambda *both: reported.append(both))
    assert [done for done, _ in reported] == sorted(done for done, _ in reported)
    assert len(reported) > 2
    assert reported[-1] == (700, 700)


# ── Saving ────────────────────────────────────────────────────────────────────────────────────────


@costly
@given(st.lists(strategies.chunk_texts, max_size=6), strategies.queries, candidates)
def test_saved_index_keeps_vectors(chunks: list[str], query: str, n: int | None) -> None:
    """Loaded with the same encoder, pickled or copied, it answers the same and encodes no passage again."""
    encoder = LetterEncoder()
    index = ChunkIndex(chunks, encoder=encoder)
    encoder.encoded.clear()
    answer = index.search(query, ALL, num_candidates=n)
    for again in (pickle.loads(pickle.dumps(index)), copy.deepcopy(index)):
        assert again.search(query, ALL, num_candidates=n) == answer
        assert again._encoder.encoded == []
    assert index.nbytes >= ChunkIndex(chunks).nbytes + 2 * DIMS * len(chunks)


def test_index_loads_with_its_encoder_or_none(tmp_path: Path) -> None:
    """A saved index refuses a different encoder, or any if it has no vectors; without an encoder it ranks by words."""
    encoder, chunks = LetterEncoder(), ["Cats purr.", "Dogs bark."]
    ChunkIndex(chunks, encoder=encoder).save(tmp_path / "vectors")
    ChunkIndex(chunks).save(tmp_path / "words")
    answer = ChunkIndex(chunks, encoder=encoder).search("cats")
    assert ChunkIndex.load(tmp_path / "vectors", encoder=LetterEncoder()).search("cats") == answer
    without = ChunkIndex.load(tmp_path / "vectors")
    assert without.search("cats") == ChunkIndex(chunks).search("cats")
    without.add(["More cats."])
    without.save(tmp_path / "again")
    with pytest.raises(
        InvalidRequestError, match=r"encoder must be .* holds the vectors of another model"
    ):
        ChunkIndex.load(tmp_path / "vectors", encoder=LetterEncoder("others"))
    for name in ("words", "again"):
        with pytest.raises(InvalidRequestError, match=r"encoder must be .* holds no vectors"):
            ChunkIndex.load(tmp_path / name, encoder=encoder)


@pytest.mark.parametrize("name", ["first_passage", "passage_starts", "passage_ends", "vectors"])
def test_vectors_that_lie_are_refused(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file whose passages do not fit its chunks, checksum and all, is refused when it is opened."""
    lie = {"first_passage": -1, "passage_starts": -1, "passage_ends": 0, "vectors": float("nan")}[
        name
    ]
    index = ChunkIndex(["Cats purr.", "Dogs bark."], encoder=LetterEncoder())
    segment = index._state.segments.segments[0]
    assert segment.passages is not None
    dict(
        zip(
            ("first_passage", "passage_starts", "passage_ends", "vectors"),
            astuple(segment.passages),
            strict=True,
        )
    )[name].flat[-1] = lie
    index.save(tmp_path / "lying")
    with pytest.raises(IndexFormatError, match="lying"):
        ChunkIndex.load(tmp_path / "lying", encoder=LetterEncoder())


# ── Arguments ─────────────────────────────────────────────────────────────────────────────────────


def test_invalid_argument_raises() -> None:
    """The error about an invalid encoder, an invalid count or a missing encoder names the argument."""
    with pytest.raises(
        InvalidRequestError,
        match=r"encoder must be an Encoder or None, got 'model\.gguf'; make one",
    ):
        search("cats", ["Cats purr."], encoder="model.gguf")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="encoder must be an Encoder or None"):
        ChunkIndex(["Cats purr."], encoder=3)  # type: ignore[arg-type]
    index = ChunkIndex(["Cats purr."])
    needs_encoder = "num_candidates must be an integer unless encoder is passed, got None; pass encoder, or leave it out"
    for ask in (
        partial(search, "cats", ["Cats purr."]),
        partial(index.search, "cats"),
        partial(index.explain, "cats", 0),
    ):
        with pytest.raises(
            InvalidRequestError,
            match="num_candidates must be an integer of at least 0 or None, got -1",
        ):
            ask(num_candidates=-1)
        with pytest.raises(InvalidRequestError, match=needs_encoder):
            ask(num_candidates=None)


def test_real_encoder_equals_scripted_encoder() -> None:
    """A real model behaves as the scripted model, in `search` and in an index."""
    chunks = ["cats purr", "a dog barks", "the cat sat"]
    with Encoder(ENCODER) as encoder:
        index = ChunkIndex(chunks, encoder=encoder)
        assert index.search("cat", num_candidates=None) == search(
            "cat", chunks, encoder=encoder, num_candidates=None
        )
        assert index.search("cat") != search("cat", chunks)


def test_titles_are_read_wherever_the_vectors_come_from() -> None:
    """`search`, an index and an index that grew encode the same titles, which change the scores."""
    chunks = [
        Chunk(f"It does this {n}.", title=title)
        for n, title in enumerate(("Cats", "", "Dogs", "Cats"))
    ]
    encoder = LetterEncoder()
    grown = ChunkIndex(chunks[:2], encoder=encoder)
    grown.add(chunks[2:])
    found = search("what does it do", chunks, encoder=encoder)
    assert (
        found
        == ChunkIndex(chunks, encoder=encoder).search("what does it do")
        == grown.search("what does it do")
    )
    assert "Cats\nIt does this 3." in encoder.encoded
    assert "It does this 1." in encoder.encoded
