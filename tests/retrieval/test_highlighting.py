"""Highlights: spans are ranges of the original text that contain the matched words."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import ChunkIndex, SearchResult, Span, search
from relevance_gen.errors import TooLargeError
from relevance_gen.retrieval import highlighting
from relevance_gen.retrieval.answer import weight as weight_query
from relevance_gen.retrieval.highlighting import WINDOW
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.retrieval.ranking.stage import WeightedQuery
from relevance_gen.text.tokenization import tokenize
from tests import corpus, strategies


def plan_of(query: str, chunks: list[str]) -> WeightedQuery:
    segments = ChunkIndex(chunks)._state.segments
    return weight_query(
        SearchParams(query).parse(inflects=True, is_english=segments.statistics.is_english),
        segments,
    )


def search_results(query: str, chunks: list[str]) -> tuple[SearchResult, ...]:
    return search(query, chunks, 10, spans=True).results


def weights(plan: WeightedQuery) -> dict[int, list[tuple[int, float]]]:
    """Return for each term's id the query's terms that match it, with its share of the query's idf."""
    is_found = any(
        df and not term.is_stop_word
        for df, term in zip(plan.terms.df, plan.terms.query.terms, strict=True)
    )
    idfs = [
        0.0 if is_found and term.is_stop_word else idf
        for idf, term in zip(plan.terms.idf, plan.terms.query.terms, strict=True)
    ]
    total = math.fsum(idfs)
    meant: dict[int, list[tuple[int, float, float]]] = {}
    for number, (idf, match) in enumerate(zip(idfs, plan.terms.matches, strict=True)):
        for term_id, weight in zip(match.ids.tolist(), match.weight.tolist(), strict=True):
            if idf:
                meant.setdefault(term_id, []).append((number, weight, weight * idf / total))
    best = {
        term_id: max(some, key=lambda one: (one[1], -one[0])) for term_id, some in meant.items()
    }
    return {term_id: (number, share) for term_id, (number, _, share) in best.items()}


def weigh(some: list[tuple[int, float]]) -> float:
    """Return what some hits weigh together: each term once, at its best."""
    best: dict[int, float] = {}
    for number, share in some:
        best[number] = max(best.get(number, 0.0), share)
    return math.fsum(best.values())


texts = st.lists(strategies.chunk_texts, min_size=1, max_size=4)


@given(strategies.queries, texts)
def test_spans_are_parts_of_the_text(query: str, chunks: list[str]) -> None:
    """Spans lie within the text and have weights; words ascend and are disjoint; the passage begins and ends with words."""
    for result in search_results(query, chunks):
        passage, *words = result.spans
        for span in result.spans:
            assert 0 <= span.start < span.end <= len(result.chunk_txt)
            assert 0.0 < span.score <= 1.0
        assert all(before.end <= behind.start for before, behind in itertools.pairwise(words))
        assert any(word.start == passage.start for word in words) or any(
            word.start < passage.start < word.end for word in words
        )
        assert any(word.start < passage.end <= word.end for word in words)


@given(strategies.queries, texts)
def test_span_text_contains_matched_words(query: str, chunks: list[str]) -> None:
    """The text of every span, tokenized by itself, has terms with the weight of the span.

    And the words hold all the terms that the whole text has.
    """
    meant = weights(plan_of(query, chunks))
    for result in search_results(query, chunks):
        everything: set[int] = set()
        for span in result.words:
            ids = tokenize([result.chunk_txt[span.start : span.end]]).ids.tolist()
            assert weigh([meant[id_] for id_ in ids if id_ in meant]) >= span.score - 1e-9
            everything.update(ids)
        assert set(tokenize([result.chunk_txt]).ids.tolist()) & set(meant) == everything & set(
            meant
        )


@given(
    st.lists(st.sampled_from("cat dog cats x y run".split()), min_size=1, max_size=200),
    st.integers(1, 3),
)
def test_passage_is_window_with_highest_weight(words: list[str], n_queried: int) -> None:
    """The passage is the window with the highest weight, and the shortest of these."""
    query = " ".join("cat dog run".split()[:n_queried])
    text = " ".join(words)
    chunks = [text, "cat", "a dog", "zebra", "a dog"]
    meant = weights(plan_of(query, chunks))
    result = next((one for one in search_results(query, chunks) if one.original_index == 0), None)
    hits = [
        (place, meant[one])
        for place, one in enumerate(tokenize([text]).ids.tolist())
        if one in meant
    ]
    if result is None:
        assert not hits
        return
    tried = []
    for at, to in itertools.combinations_with_replacement(range(len(hits)), 2):
        place, end = hits[at][0], hits[to][0]
        if end < place + WINDOW:
            tried.append(
                (round(weigh([hit for _, hit in hits[at : to + 1]]), 9), place - end, -place)
            )
    weight, extent, first = max(tried)
    starts = [0, *itertools.accumulate(len(word) + 1 for word in words)]
    assert result.passage.score == pytest.approx(weight, abs=1e-8)
    assert result.passage.start == starts[-first]
    assert result.passage.end == starts[-first - extent] + len(words[-first - extent])


@pytest.mark.parametrize(
    ("query", "text", "words"),
    [
        ("cats", "The cat sat on a catalogue.", ["cat"]),
        ("name", "def getUserName(id): ...", ["Name"]),
        ("user name", "def get_user_name(id): ...", ["user", "name"]),
        ("getUserName", "x = getUserName(id)", ["getUserName"]),
        ("cafe", "Im Cafe\u0301 Café", ["Cafe\u0301", "Café"]),
        ("finden", "Er will es ﬁnden.", ["ﬁnden"]),
        ("strasse", "Die Straße, STRASSE", ["Straße", "STRASSE"]),
        ("cat", "ca\u00adt and c\u200dat", ["ca\u00adt", "c\u200dat"]),
        ("😀", "so 😀 it \ud83d\ude00 is", ["😀", "\ud83d\ude00"]),
        ("☀", "a ☀\ufe0f b", ["☀\ufe0f"]),
        ("猫", "私は黒猫が好き", ["黒猫が"]),
        ("東京都", "これは東京都です", ["東京都"]),
        ("ガ", "カ\u3099 ｶﾞ", ["カ\u3099", "ｶﾞ"]),
        ("สวัสดี", "พูดว่าสวัสดีครับ", ["สวัสดี"]),
        ("2", "about ½ of it", ["½"]),
        ("esop", "Æsop wrote", ["Æsop"]),
        ("vii", "chapter Ⅷa", ["Ⅷa"]),
        ("столица", "В столице, столицы", ["столице", "столицы"]),
        ("محمد", "قال مُحَمَّد نعم", ["مُحَمَّد"]),
        ("한국", "대한민국 한국어", ["한국"]),
    ],
)
def test_words_are_found_as_they_are_written(query: str, text: str, words: list[str]) -> None:
    """A word that is folded, composed, split or cut into n-grams is highlighted in its original form."""
    result = next(
        one for one in search_results(query, ["zebra", text, "x"]) if one.original_index == 1
    )
    assert [text[word.start : word.end] for word in result.words] == words


def test_passage_contains_answer() -> None:
    """The passage is the occurrence where the words of the query are close together."""
    filler = (
        "the threads of this story are many and they run far apart from one another as stories do. "
        * 3
    )
    text = f"A number of pages. {filler} Set the number of threads with --jobs. {filler}"
    result = search_results("How do I set the number of threads?", [text, "pages", "set"])[0]
    assert text[result.passage.start : result.passage.end] == "Set the number of threads"
    assert result.passage.score == 1.0


def test_spans_are_optional() -> None:
    """Without `spans` a result has none, and everything else is the same; an index gives the same spans."""
    chunks = corpus.prose(30, 60)
    index = ChunkIndex(chunks)
    plain, marked = (search(chunks[3][:40], chunks, spans=spans) for spans in (False, True))
    assert [result.spans for result in plain] == [None] * len(plain)
    for name in ("passage", "words"):
        with pytest.raises(AttributeError, match="search with spans=True"):
            getattr(plain[0], name)
    assert [result.chunk_score for result in plain] == [result.chunk_score for result in marked]
    assert index.search(chunks[3][:40], spans=True) == marked
    assert index.search([chunks[3][:40]] * 2, spans=True) == [marked, marked]


def test_spans_are_the_same_however_chunks_are_cut_into_segments() -> None:
    """An index that grew returns the same spans as an index that was built at once."""
    chunks = corpus.prose(40, 40)
    grown = ChunkIndex(chunks[:35])
    for chunk in chunks[35:]:
        grown.add([chunk])
    for query in (chunks[2][:30], chunks[38][:50], "ba de"):
        assert grown.search(query, spans=True) == ChunkIndex(chunks).search(query, spans=True)


@pytest.mark.parametrize("word", ["cat", "猫", "é", "😀", "ก"])
def test_chunk_of_one_repeated_word_is_highlighted_in_linear_time(word: str) -> None:
    """A chunk that is nothing but the word is marked, in time that is linear in its length."""
    text = f"{word} " * 40_000
    result = search_results(word, [text, "x"])[0]
    assert result.passage == Span(0, len(word), 1.0)
    assert len(result.words) == 40_000


@pytest.mark.parametrize("name", corpus.WITHOUT_SPACE)
def test_long_texts_without_a_space_are_marked(name: str) -> None:
    """A long text without a space, searched for by itself, is marked from end to end."""
    text = corpus.without_space(name, 60_000)
    for result in search_results(text, [text, "hello"]):
        assert result.words[0].start <= 1
        assert result.words[-1].end >= len(text) - 1


@pytest.mark.parametrize("query", ["tiếng việt", "tieng viet", "TIE\u0302\u0301NG"])
def test_vietnamese_words_are_highlighted_with_and_without_tones(query: str) -> None:
    """Words with tone marks are highlighted whole for any spelling in the query, and so are the words after them."""
    text = "Ở đây người ta nói tiếng Việt: tiếng mẹ đẻ, và straße"
    (result,) = search(f"{query} strasse", [text], spans=True)
    words = [text[word.start : word.end] for word in result.words]
    assert words == [
        word for word in ("tiếng", "Việt", "tiếng", "straße") if word != "Việt" or "v" in query
    ]


def test_too_many_spans_raise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The maximum number of spans is returned; a span more raises an error with a remedy."""
    monkeypatch.setattr(highlighting, "MAX_SPANS", 4)
    assert len(search_results("cat", ["cat cat cat"])[0].spans or ()) == 4
    with pytest.raises(
        TooLargeError, match=r"^spans must be at most 4 in one answer, got 5; lower top_n"
    ):
        search_results("cat", ["cat cat cat cat"])
