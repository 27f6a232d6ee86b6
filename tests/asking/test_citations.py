"""Which places of sources say what the sentences of a text say."""

from __future__ import annotations

import json
import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import Chunk, CitedSentence, InvalidRequestError, TooLargeError, cite
from relevance_gen.asking import citations as citing
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
def test_a_sentence_of_a_source_has_there_a_share_of_one(chunks, data):
    """Word for word it is in its place, or in an equal one before that, in any script and however it is cut anew."""
    source = data.draw(st.integers(0, len(chunks) - 1))
    start, end = data.draw(st.sampled_from(list(sentences(chunks[source]))))
    for one in cite(chunks[source][start:end], chunks):
        first = one.spans[0]
        assert first.score == 1.0
        assert len(one.spans) == 1
        assert (first.source, first.start) <= (source, start)


@given(prose, chunk_lists)
def test_citations_name_sentences_with_shares_that_are_so(text, chunks):
    """Each is a sentence of the text with different places, sentences of the sources; each place adds enough."""
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
            best = max(sum(map(weigh, left & words(a))) / whole for a in every(chunks))
            assert added == pytest.approx(best, abs=1e-5)
            assert added >= (0.2 if number else 0.35) - 1e-5
            all_there = sum(map(weigh, words(text[one.start : one.end]) & there)) / whole
            assert place.score == pytest.approx(all_there, abs=1e-5)
            left -= there
        best = max(sum(map(weigh, left & words(a))) / whole for a in every(chunks))
        assert best < (0.2 if one.spans else 0.35) + 1e-5


def words(text):
    """Return the different words of a text, as the module tells them apart."""
    return set(citing._words([citing._NUMBERS.sub(" ", text)])[0].tolist())


def every(chunks):
    return [text[start:end] for text in chunks for start, end in sentences(text)]


def weights(chunks):
    of_sentences = [words(text) for text in every(chunks)]
    df = {word: sum(word in one for one in of_sentences) for word in set().union(*of_sentences)}
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
def test_words_are_found_in_any_script_and_form(sentence, source):
    """Forms of a word that begin alike are one; what is nowhere has no place."""
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


def test_a_sentence_of_two_has_two_places():
    """Where the words of a sentence stand in two places, both are named, the larger share first, and each once."""
    (one,) = cite("Cats purr while they sleep, and in January the harbour freezes.", CHUNKS)
    assert [place.source for place in one.spans] == [1, 2]
    assert one.citation_marker == "[2][3]"
    assert 1 > one.spans[0].score >= one.spans[1].score >= 0.2


def test_numbers_are_alike_only_as_a_whole():
    """A number that only begins like another is another."""
    (wrong,) = cite("100001", ["100002 and much else"])
    assert wrong.spans == ()


def test_numbers_of_sources_are_no_words():
    """What a model writes in brackets behind a sentence takes nothing from its share; what has no words is left out."""
    marked, plain = (
        "Dogs bark [1]. Cats purr while they sleep [2, 3].",
        "Dogs bark. Cats purr while they sleep.",
    )
    assert [one.spans for one in cite(marked, CHUNKS)] == [one.spans for one in cite(plain, CHUNKS)]
    assert cite("[1] *** –", CHUNKS) == cite("", CHUNKS) == ()


def test_without_sources_nothing_is_supported():
    """No chunks, or none with words, support nothing."""
    for chunks in ([], ["***"]):
        assert cite("Cats purr.", chunks) == (CitedSentence(0, 10, ()),)
    assert cite("Cats purr.", [])[0].citation_marker == "[not found in the sources]"


def test_chunks_of_every_kind_are_cited_alike():
    """Strings, mappings and `Chunk` objects; and what comes of it can be pickled and written."""
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
def test_a_wrong_argument_is_refused_by_its_name(text, chunks, field):
    """The error names it."""
    with pytest.raises(InvalidRequestError) as raised:
        cite(text, chunks)
    assert raised.value.field == field


def test_too_much_to_compare_is_refused(monkeypatch):
    """The work is bounded by what is compared, and memory is announced before it is taken."""
    monkeypatch.setattr(citing, "_MOST_COMPARED", 5 * citing._OF_SENTENCE)
    with pytest.raises(TooLargeError):
        cite("Cats purr. " * 1000, CHUNKS)
    announced = []
    with budget_scope(lambda *units: announced.append(units)):
        cite("Cats purr. Dogs bark.", CHUNKS)
    texts = [("sentence_char", 21), ("sentence", 64), ("sentence_char", sum(map(len, CHUNKS)))]
    assert announced == [*texts, *[("sentence", 64)] * len(CHUNKS)]


def test_sentences_are_announced_while_they_are_made():
    """A text of very many sentences is refused before they are all made, and given up when nobody waits for it."""
    announced = []

    def refuse(unit, number):
        announced.append(number)
        if unit == "sentence" and len(announced) > 3:
            raise TooLargeError("takes too much", "text")

    with budget_scope(refuse), pytest.raises(TooLargeError, match="takes too much"):
        cite("a. " * 100_000, CHUNKS)
    assert sum(announced[1:]) < 1000


def streamed(pieces, chunks):
    """Return what a stream tells of a text in pieces, and what of that is cited."""
    stream, told, cited = StreamingAttributor(Attributor(chunks)), "", []
    for part in [part for piece in pieces for part in stream.add(piece)] + stream.add(
        "", is_last=True
    ):
        if isinstance(part, str):
            told += part
        else:
            assert part.end <= len(told)
            cited.append(part)
    return told, tuple(cited)


FRAGMENTS = """
U.S.| "Yes."|He left. |The |the | However,| Ho|- |# |1. |e.g. | Dr. |。|」|ข | ข|...|[1]|*|{|;|def f():|A |Fig. |3 |"
| word word word word word word word word word word word word""".split("|")
cuttable = st.lists(
    prose | st.sampled_from([*FRAGMENTS, "\n", "\n\n", "\n \n", "| a |"]), max_size=12
).map("".join)


@given(cuttable, chunk_lists, st.integers(1, 40))
def test_a_stream_is_cited_like_the_whole_text(text, chunks, size):
    """However it is cut: the parts are the text, and its sentences and their places are those of all of it."""
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
def test_what_follows_may_tell_where_a_sentence_ends(text):
    """A name, a capital far behind, and lines that are short beside later ones."""
    assert streamed(text, CHUNKS) == (text, cite(text, CHUNKS))


def test_a_sentence_of_a_stream_is_cited_before_the_next_is_told():
    """In ordinary prose: only a few characters wait."""
    text = "Cats purr. Do dogs bark? It rained all day!\n\nThe harbour freezes. He said no. 猫が寝る。犬も。"
    stream, told = StreamingAttributor(Attributor(CHUNKS)), ""
    for character in text:
        for part in stream.add(character):
            told += part if isinstance(part, str) else "|"
    assert told.startswith(
        "Cats purr.| Do dogs bark?| It rained all day!|\n\nThe harbour freezes.| He said no"
    )


def test_a_stream_without_an_end_is_looked_at_now_and_then(monkeypatch):
    """So that looking for an end takes no longer and longer."""
    looked = []
    monkeypatch.setattr(
        citing, "sentence_ends", lambda text, **_: looked.append(len(text)) or [len(text)]
    )
    stream = StreamingAttributor(Attributor(CHUNKS))
    for _ in range(5000):
        stream.add("cats purr ")
    assert sum(looked) < 100 * 50_000
