"""Spelling correction: an unknown word is replaced by a word at edit distance 1 before the search."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import Chunk, ChunkIndex, InvalidRequestError, search, wire
from relevance_gen.index.builder import build
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.lexicon import Lexicon
from relevance_gen.retrieval.answer import rank, weight
from relevance_gen.retrieval.local_segments import LocalSegments
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.retrieval.ports import MatchRequest, MatchResponse
from relevance_gen.retrieval.query.parsing import parse
from relevance_gen.retrieval.weighting import weighting_named
from tests.profiles import costly
from tests.retrieval.asking import ALL

CHUNKS = [
    "The umbrella covers fire.",
    "An umbrella for cars.",
    "Umbrellas end.",
    "Fire and water.",
    "Die Straßenbahn",
]


def taken(query: str, chunks: list[str] = CHUNKS, **options: object) -> dict[str, str]:
    return dict(search(query, chunks, **options).metadata.corrections)


@pytest.mark.parametrize(
    ("query", "corrections"),
    [
        ("umbrela", {"umbrela": "umbrella"}),
        ("What does the Umbrellla cover?", {"Umbrellla": "umbrella"}),
        ("umbrellas of fire", {}),  # an inflection is a known word
        ("umbrlela", {"umbrlela": "umbrella"}),
        ("umqreia", {}),
        ("ombrella", {}),
        ("umbrella fire", {}),
        ("fier", {}),
        ("umbr3lla", {}),
        ("getUmbrela", {}),
        ("Strassenbaan", {"Strassenbaan": "strassenbahn"}),
        ("Straßenbaan, «umbrela»", {"Straßenbaan": "strassenbahn", "umbrela": "umbrella"}),
        ("戦争保険 umbrela", {"umbrela": "umbrella"}),
    ],
)
def test_only_long_unknown_words_are_corrected(query: str, corrections: dict[str, str]) -> None:
    """Only a long unknown word is corrected, by a single letter, and never its first letter."""
    assert taken(query) == corrections
    assert taken(query, correct_spelling=False) == taken(query, weighting="cosine") == {}


@pytest.mark.parametrize(
    ("query", "text", "corrections"),
    [
        ("FY2022 revenue", "Sales of 2022 grew", {"FY2022": "FY 2022"}),
        ("covid19", "the covid 19 virus", {"covid19": "covid 19"}),
        ("GPT4", "the model GPT-4", {"GPT4": "GPT 4"}),
        ("GPT-4", "uses GPT4", {"GPT-4": "GPT4"}),
        ("10K filing", "The form 10-K", {"10K": "10 K"}),
        ("3164", "a total of 3,164 dollars", {"3164": "3 164"}),
        ("3,164", "a total of 3164 dollars", {"3,164": "3164"}),
        ("email address", "Write an e-mail", {"email": "e mail"}),
        ("e-mail", "Write an email", {"e-mail": "email"}),
        ("dataset", "a big data set", {"dataset": "data set"}),
        ("U.S. economy", "the US economy", {"U.S": "US"}),
        ("VMs", "a VM runs", {"VMs": "VM"}),
        ("VM", "VMs run", {"VM": "VMs"}),
        ("LLMs", "an LLM", {}),
        ("gpu", "some GPUs", {}),
    ],
)
def test_unknown_word_finds_its_other_spelling(
    query: str, text: str, corrections: dict[str, str]
) -> None:
    """A word that no chunk has is replaced by a spelling that occurs, in one-shot search and indexes."""
    chunks = ["Zebras eat grass.", "Trains run.", text]
    response = search(query, chunks, true_order=False)
    assert response[0].original_index == 2
    assert dict(response.metadata.corrections) == corrections
    assert ChunkIndex(chunks).search(query, true_order=False).results == response.results
    assert not corrections or not search(query, chunks, correct_spelling=False).metadata.corrections


def test_known_word_has_no_other_spelling() -> None:
    """A word that any chunk has is not replaced, and neither are words of which a part is unknown."""
    assert taken("dataset", ["a dataset", "a data set"]) == {}
    assert taken("3164 dataset covid19", ["3,165", "datums set", "flu 18"]) == {}


def one_letter_away(word: str, other: str) -> bool:
    """Return whether two words are at edit distance 1, by a slow reference."""
    letters = sorted({*word, *other})
    places = range(len(word) + 1)
    dropped = {word[:at] + word[at + 1 :] for at in places}
    changed = {word[:at] + new + word[at + 1 :] for at in places for new in letters}
    added = {word[:at] + new + word[at:] for at in places for new in letters}
    swapped = {word[:at] + word[at : at + 2][::-1] + word[at + 2 :] for at in places}
    return word != other and word[0] == other[0] and other in dropped | changed | added | swapped


@given(
    st.text("abж", min_size=7, max_size=8),
    st.lists(st.text("abж", min_size=3, max_size=9), min_size=1, max_size=30),
)
def test_near_words_are_those_of_the_slow_rule(word: str, words: list[str]) -> None:
    """A lexicon finds exactly the words at that distance, however they are spelled."""
    lexicon = build(Chunks([" ".join(words)], {}), np.array([0])).postings.lexicon
    assert set(lexicon.decode_terms(lexicon.fuzzy_matches(word))) - {word} == {
        one for one in words if one_letter_away(word, one)
    }


@costly
@given(st.lists(st.text("ab", min_size=7, max_size=8), min_size=1, max_size=12), st.integers(1, 5))
def test_correction_equals_corrected_query(words: list[str], at: int) -> None:
    """Results, scores, spans and explanations equal those of the corrected query, for any segments."""
    word = f"{words[0][:at]}k{words[0][at + 1 :]}"
    chunks = [" ".join(words[at : at + 3]) for at in range(len(words))]
    options = {"spans": True, "true_order": False}
    response = search(f"{word} of", chunks, ALL, **options)
    (best,) = response.metadata.corrections.values()
    assert response.results == search(f"{best} of", chunks, ALL, **options).results
    near = {
        other: sum(other in chunk.split() for chunk in chunks)
        for other in words
        if one_letter_away(word, other)
    }
    assert best == min(near, key=lambda other: (-near[other], other))
    index = ChunkIndex(chunks[:1])
    for chunk in chunks[1:]:
        index.add([chunk])
    assert index.search(f"{word} of", ALL, **options) == response
    reported, other = index.explain(f"{word} of", 0), index.explain(f"{best} of", 0)
    assert (reported.score, reported.terms, reported.corrections) == (
        other.score,
        other.terms,
        {word: best},
    )


def test_most_frequent_word_is_the_correction() -> None:
    """Chunks of all segments are counted; words of removed chunks do not count."""
    index = ChunkIndex(["planets", "planers", "planters", "planers"])
    assert index.search("planeks").metadata.corrections == {"planeks": "planers"}
    index.remove([1])
    assert index.search("planeks").metadata.corrections == {"planeks": "planers"}
    index.remove([3])
    assert index.search("planeks").metadata.corrections == {"planeks": "planets"}
    assert index.search("planeks", correct_spelling=False).results == ()
    assert index.search("planeks").metadata.corrections == {
        "planeks": "planets"
    }  # cached separately


def test_spans_show_the_word_that_was_found() -> None:
    """A span contains the chunk's word, and a repeated misspelled word is corrected each time."""
    response = search("umbrela, umbrela", CHUNKS, spans=True)
    marked = {
        result.chunk_txt[word.start : word.end] for result in response for word in result.words
    }
    assert marked == {"umbrella", "Umbrellas"}
    assert response.results == search("umbrella, umbrella", CHUNKS, spans=True).results


def test_titles_have_words_too() -> None:
    """A title's words are words of its chunk."""
    assert search("umbrela", [Chunk("Fire.", title="Umbrella")]).metadata.corrections == {
        "umbrela": "umbrella"
    }


def test_query_with_operators_is_not_corrected() -> None:
    """Queries with operators are not corrected."""
    assert (
        taken("umbrela -fire", syntax="operators")
        == taken('"umbrela" fire', syntax="operators")
        == {}
    )
    assert taken("umbrela", syntax="operators") == {"umbrela": "umbrella"}


def test_number_of_corrections_is_bounded() -> None:
    """At most eight words of a query are corrected, and a query of more than 64 words is unchanged."""
    words = [
        "".join(letters) for letters in itertools.islice(itertools.product("bcdf", repeat=4), 12)
    ]
    chunks = [f"meant{word}s" for word in words]
    assert len(taken(" ".join(f"meant{word}k" for word in words), chunks)) == 8
    assert taken(" ".join([*["of"] * 64, "umbrela"])) == {}


def test_words_that_begin_alike_are_few_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Letter by letter only those are looked at that begin and end as a word does, but for two letters."""
    looked_at: list[int] = []
    decode_terms = Lexicon.decode_terms
    monkeypatch.setattr(
        Lexicon,
        "decode_terms",
        lambda self, numbers: looked_at.append(numbers.size) or decode_terms(self, numbers),
    )
    words = ["meant" + "".join(letters) for letters in itertools.product("bcdf", repeat=5)]
    lexicon = build(Chunks([" ".join(words)], {}), np.arange(1)).postings.lexicon
    assert lexicon.fuzzy_matches("meantkkkkk").size == 0
    assert sum(looked_at) == 0
    assert lexicon.fuzzy_matches("meantbbbkb").size == 4
    assert sum(looked_at) <= 2 * 4**2


def test_empty_index_corrects_nothing() -> None:
    """A collection without segments leaves unknown words unchanged."""
    collection = LocalSegments([], weighting_named("pivoted"))
    ranking = rank(parse("umbrela", inflects=True), 5, collection)
    assert (ranking.positions.size, ranking.terms.query.corrections) == (0, {})


def test_known_words_cost_no_round() -> None:
    """Segments are asked for near words only where a long word is unknown."""
    local = LocalSegments(
        [build(Chunks(CHUNKS, {}), np.arange(len(CHUNKS)))], weighting_named("pivoted")
    )
    asked: list[object] = []
    match_terms = local.match_terms

    def record(request: MatchRequest) -> MatchResponse:
        asked.append("near" if request.misspelled else "match")
        return match_terms(request)

    local.match_terms = record
    weight(SearchParams("umbrella of fire zzz").parse(inflects=True), local)
    assert asked == ["match"]
    weight(SearchParams("umbrela of fire").parse(inflects=True), local)
    assert asked[1:] == ["match", "near", "match"]


def test_corrections_are_written_where_there_are_any() -> None:
    """The documented interface is as it was where nothing was corrected."""
    assert wire.unstructure(search("umbrela", CHUNKS))["metadata"]["corrections"] == {
        "umbrela": "umbrella"
    }
    assert "corrections" not in wire.unstructure(search("umbrella", CHUNKS))["metadata"]
    shown = ChunkIndex(CHUNKS).explain("umbrela", 0)
    assert "'umbrela' taken for 'umbrella'" in repr(shown)
    assert wire.unstructure(shown)["corrections"] == {"umbrela": "umbrella"}


@pytest.mark.parametrize("value", [0, 1, None, "no"])
def test_correct_of_other_type_raises(value: object) -> None:
    """Anything else is refused by name."""
    with pytest.raises(InvalidRequestError, match="correct_spelling must be True or False"):
        search("cat", ["cat"], correct_spelling=value)
