"""Tests of `cite`: the source spans that support each sentence of a text."""

from __future__ import annotations

import json
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import Chunk, CitedSentence, InvalidRequestError, TooLargeError, cite
from relevance_gen.asking import citations as citing
from relevance_gen.asking.agreement import agrees, read_statement
from relevance_gen.asking.citations import Attributor, StreamingAttributor
from relevance_gen.request_scope import budget_scope
from relevance_gen.text.chunking import sentences
from relevance_gen.wire import serialize
from tests import strategies

prose = st.lists(strategies.chunk_texts, min_size=1, max_size=6).map(". ".join)
chunk_lists = st.lists(prose.filter(lambda text: not text.isspace()), min_size=1, max_size=5)
CHUNKS = [
    "It rained all day.",
    "Dogs bark. Cats purr while they sleep.",
    "The harbour freezes in January.",
]


@given(chunk_lists, st.data())
def test_cite_of_source_sentence_scores_one(chunks, data):
    """A literal source sentence is cited with score 1.0 at its first occurrence, in any script."""
    source = data.draw(st.integers(0, len(chunks) - 1))
    start, end = data.draw(st.sampled_from(list(sentences(chunks[source]))))
    for one in cite(chunks[source][start:end], chunks):
        first = one.spans[0]
        assert first.score == 1.0
        assert len(one.spans) == 1
        assert (first.source, first.start) <= (source, start)


@given(prose, chunk_lists)
def test_citations_are_sentences_with_recomputed_scores(text, chunks):
    """Without the check of agreement, spans are source sentences with independently computed scores."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(citing, "agrees", lambda *_: True)
        cited = cite(text, chunks)
    assert [(one.start, one.end) for one in cited] == [
        place for place in sentences(text) if words(text[slice(*place)])
    ]
    weigh = weights(chunks)
    for one in cited:
        left = words(text[one.start : one.end])
        whole = sum(map(weigh, left))
        for number, place in enumerate(one.spans):
            there = words(chunks[place.source][place.start : place.end])
            assert (place.start, place.end) in list(sentences(chunks[place.source]))
            added = sum(map(weigh, left & there)) / whole
            best = max(sum(map(weigh, left & words(a))) / whole for a in all_sentences(chunks))
            assert added == pytest.approx(best, abs=1e-5)
            assert added >= (0.2 if number else 0.35) - 1e-5
            all_there = sum(map(weigh, words(text[one.start : one.end]) & there)) / whole
            assert place.score == pytest.approx(all_there, abs=1e-5)
            left -= there
        best = max(sum(map(weigh, left & words(a))) / whole for a in all_sentences(chunks))
        assert best < (0.2 if one.spans else 0.35) + 1e-5


def words(text):
    """Return the distinct words of a text, tokenized like the module under test."""
    return set(citing._distinct_words([citing._SOURCE_NUMBERS.sub(" ", text)]).ids.tolist())


def all_sentences(chunks):
    return [text[start:end] for text in chunks for start, end in sentences(text)]


def weights(chunks):
    of_sentences = [words(text) for text in all_sentences(chunks)]
    df = {
        word: sum(word in of_sentence for of_sentence in of_sentences)
        for word in set().union(*of_sentences)
    }
    return lambda word: math.log(1 + len(of_sentences) / df.get(word, 1))


@pytest.mark.parametrize(
    ("sentence", "source"),
    [
        ("Cats purr while sleeping", 1),
        ("Der Hafen friert im Januar zu.", 3),
        ("黑色的猫喜欢睡觉。", 4),
        ("Гавань замерзает в январе.", 5),
        ("แมวชอบนอนกลางวัน", 6),
        ("การเดินทาง", None),
        ("Sharks hunt at night.", None),
        ("In 1831 it was built of 34,567 stones.", 7),
    ],
)
def test_cite_matches_words_of_any_script_and_inflection(sentence, source):
    """Inflections with a common prefix match; a sentence without matching words has zero spans."""
    chunks = [
        *CHUNKS,
        "Im Januar fror der Hafen zu.",
        "我家有一只黑色的猫。它喜欢睡觉。",
        "В январе гавань замёрзла, а гавань мелка.",
    ]
    chunks += [
        "แมวชอบนอนกลางวัน",
        "It was built in 1831 of 34,567 stones. It was built in 1999 of 34,568 stones.",
    ]
    (one,) = cite(sentence, chunks)
    assert (one.spans[0].source if one.spans else None) == source


def test_cite_of_combined_sentence_returns_two_spans():
    """A sentence built from two sources cites each source once, larger score first."""
    (one,) = cite("Cats purr while they sleep, and in January the harbour freezes.", CHUNKS)
    assert [span.source for span in one.spans] == [1, 2]
    assert one.citation_marker == "[2][3]"
    assert 1 > one.spans[0].score >= one.spans[1].score >= 0.2


def test_cite_matches_numbers_exactly():
    """Two numbers with a common prefix do not match."""
    (wrong,) = cite("100001", ["100002 and much else"])
    assert wrong.spans == ()


@pytest.mark.parametrize(
    ("sentence", "source"),
    [
        ("Cats do not purr at night.", "Cats purr at night."),
        ("Cats purr at night.", "Cats don't purr at night."),
        ("Die Brücke wurde nicht gebaut.", "Die Brücke wurde 1931 gebaut."),
        ("Мост не построили в городе.", "Мост построили в городе."),
        ("我家的猫不喜欢睡觉。", "我家的猫喜欢睡觉。"),
        ("The lighthouse was built in 1831.", "The lighthouse was built in 1931."),
        ("The tower has 1,200 steps.", "The tower has 1,300 steps."),
        ("The bridge was designed by Mary Jones.", "The bridge was designed by Mary Smith."),
    ],
)
def test_contradicting_sentence_has_no_citation(sentence, source):
    """A negation, a number or a name that the source does not have leaves a sentence without spans."""
    (cited,) = cite(sentence, [source])
    assert cited.spans == ()


@pytest.mark.parametrize(
    ("sentence", "source"),
    [
        ("Cats purr.", "Cats purr and do not bark."),
        ("Cats do not bark.", "Cats purr and do not bark."),
        ("1. The tower has 1200 steps.", "The tower has 1,200 steps."),
        ("The tower has 3 bells.", "The tower has three bells."),
        ("The bridge was designed by Smith's office.", "Mary Smith's office designed the bridge."),
        ("Wer zählt, zählt die Schritte nicht.", "Wer zählt, zählt die Schritte nicht."),
    ],
)
def test_agreeing_sentence_is_cited(sentence, source):
    """Parts of a source, list markers, separators of thousands and number words keep the citation."""
    cited = cite(sentence, [source])
    assert all(one.spans for one in cited)
    assert cited


@given(
    st.lists(st.text("Ab1 .,不n't not 是", max_size=12), max_size=3),
    st.text("Ab1 .,不not 是", max_size=20),
)
def test_text_agrees_with_itself(sources, text):
    """A statement agrees with its own text together with texts that negate no word of it."""
    statement = read_statement(text)
    assert agrees(statement, [statement])
    others = [read_statement(source) for source in sources]
    if not any(other.negated & statement.words for other in others):
        assert agrees(statement, [statement, *others])


def test_cite_ignores_citation_markers():
    """Bracketed source numbers do not change scores; a text without words has no citations."""
    marked, plain = (
        "Dogs bark [1]. Cats purr while they sleep [2, 3].",
        "Dogs bark. Cats purr while they sleep.",
    )
    assert [one.spans for one in cite(marked, CHUNKS)] == [one.spans for one in cite(plain, CHUNKS)]
    assert cite("[1] *** –", CHUNKS) == cite("", CHUNKS) == ()


def test_cite_without_sources_returns_no_spans():
    """Without chunks, or with chunks without words, no sentence has spans."""
    for chunks in ([], ["***"]):
        assert cite("Cats purr.", chunks) == (CitedSentence(0, 10, ()),)
    assert cite("Cats purr.", [])[0].citation_marker == "[not found in the sources]"


def test_cite_accepts_all_chunk_types():
    """Strings, mappings and `Chunk` objects give equal citations, which pickle and serialize."""
    text = "Cats purr while they sleep."
    cited = cite(text, CHUNKS)
    assert (
        cited == cite(text, [{"text": chunk} for chunk in CHUNKS]) == cite(text, map(Chunk, CHUNKS))
    )
    assert pickle.loads(pickle.dumps(cited)) == cited
    place = {"start": 11, "end": 38, "score": 1.0, "source": 1}
    assert json.loads(serialize(cited)) == [{"start": 0, "end": 27, "spans": [place]}]


@pytest.mark.parametrize(
    ("text", "chunks", "field"),
    [(5, CHUNKS, "text"), ("a", 5, "chunks"), ("a", ["b", ""], "chunks[1].text")],
)
def test_cite_with_invalid_argument_raises(text, chunks, field):
    """The error names the invalid argument."""
    with pytest.raises(InvalidRequestError) as raised:
        cite(text, chunks)
    assert raised.value.field == field


def test_cite_above_comparison_limit_raises(monkeypatch):
    """The number of comparisons is limited, and memory is reserved before it is allocated."""
    monkeypatch.setattr(citing, "_MAX_COMPARED_WORDS", 5 * citing._SENTENCE_COST)
    with pytest.raises(TooLargeError):
        cite("Cats purr. " * 1000, CHUNKS)
    announced = []
    with budget_scope(lambda *units: announced.append(units)):
        cite("Cats purr. Dogs bark.", CHUNKS)
    texts = [("sentence_char", 21), ("sentence", 64), ("sentence_char", sum(map(len, CHUNKS)))]
    n_before = len(texts) + len(CHUNKS)
    assert announced[:n_before] == [*texts, *[("sentence", 64)] * len(CHUNKS)]
    assert {unit for unit, _ in announced[n_before:]} == {"sentence_char"}  # of cited spans


def test_cite_reserves_sentences_incrementally():
    """A text with too many sentences is rejected early, and a cancelled request stops the work."""
    announced = []

    def refuse(unit, number):
        announced.append(number)
        if unit == "sentence" and len(announced) > 3:
            raise TooLargeError("takes too much", "text")

    with budget_scope(refuse), pytest.raises(TooLargeError, match="takes too much"):
        cite("a. " * 100_000, CHUNKS)
    assert sum(announced[1:]) < 1000


def streamed(pieces, chunks):
    """Return the text and the citations that a stream yields for a text in pieces."""
    stream, reported, cited = StreamingAttributor(Attributor(chunks)), "", []
    for part in [part for piece in pieces for part in stream.add(piece)] + stream.add(
        "", is_last=True
    ):
        if isinstance(part, str):
            reported += part
        else:
            assert part.end <= len(reported)
            cited.append(part)
    return reported, tuple(cited)


FRAGMENTS = """
U.S.| "Yes."|He left. |The |the | However,| Ho|- |# |1. |e.g. | Dr. |。|」|ข | ข|...|[1]|*|{|;|def f():|A |Fig. |3 |"
| word word word word word word word word word word word word""".split("|")
cuttable = st.lists(
    prose | st.sampled_from([*FRAGMENTS, "\n", "\n\n", "\n \n", "| a |"]), max_size=12
).map("".join)


@given(cuttable, chunk_lists, st.integers(1, 40))
def test_streaming_attributor_equals_cite(text, chunks, size):
    """For any split into pieces, the stream yields the text and the citations of `cite`."""
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert streamed(pieces, chunks) == (text, cite(text, chunks))


@pytest.mark.parametrize(
    "text",
    [
        'He is from the U.S. "Yes," he said. Cats purr.',
        "cats purr. dogs bark. It rained.",
        "a\nb\n" * 9,
    ],
)
def test_streaming_attributor_waits_for_ambiguous_sentence_end(text):
    """Abbreviations, late capitals and short lines get the sentence ends of the complete text."""
    assert streamed(text, CHUNKS) == (text, cite(text, CHUNKS))


def test_streaming_attributor_cites_with_short_delay():
    """In ordinary prose the attributor withholds only a few characters."""
    text = "Cats purr. Do dogs bark? It rained all day!\n\nThe harbour freezes. He said no. 猫が寝る。犬も。"
    stream, reported = StreamingAttributor(Attributor(CHUNKS)), ""
    for character in text:
        for part in stream.add(character):
            reported += part if isinstance(part, str) else "|"
    assert reported.startswith(
        "Cats purr.| Do dogs bark?| It rained all day!|\n\nThe harbour freezes.| He said no"
    )


def test_streaming_attributor_without_sentence_end_is_linear(monkeypatch):
    """The search for sentence ends examines less than 100 times the length of the text."""
    looked = []
    monkeypatch.setattr(
        citing, "sentence_ends", lambda text, **_: looked.append(len(text)) or [len(text)]
    )
    stream = StreamingAttributor(Attributor(CHUNKS))
    for _ in range(5000):
        stream.add("cats purr ")
    assert sum(looked) < 100 * 50_000
