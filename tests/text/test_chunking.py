"""Split texts: complete, within the limits, at sensible positions, in linear time."""

import itertools
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relevance_gen.errors import InvalidRequestError
from relevance_gen.text.chunking import sentences, spans, split
from relevance_gen.text.token_counting import token_counter
from relevance_gen.text.token_counting.encodings import EMBEDDED

_SEAMS = (
    "\n",
    "\n\n",
    " \n\t\n",
    "    ",
    ". ",
    "。",
    '?" ',
    "word ",
    "e\u0301",
    "👩\u200d👧",
    "\r\n",
    "\u3000",
)
_seams = st.sampled_from(_SEAMS)
texts = st.lists(_seams | st.text(max_size=5) | st.characters(), max_size=80).map("".join)


@given(texts, st.integers(1, 60))
@example("\n" + " " * 50 + "x", 10)
@example(" " * 5 + "e" + "\u0301" * 40, 10)
def test_split_drops_only_white_space(text: str, max_chars: int) -> None:
    """Chunks are in order, disjoint, not blank and within the limit, and only white space is between them."""
    end = 0
    for start, stop in spans(text, max_chars):
        assert start >= end
        assert not text[end:start].strip()
        assert text[start:stop].strip()
        assert stop - start <= max_chars
        assert text[stop - 1] == text[start:stop].rstrip()[-1]
        end = stop
    assert not text[end:].strip()


@given(texts, st.integers(1, 60))
def test_split_returns_the_text_of_each_span(text: str, max_chars: int) -> None:
    """`split` returns the text of each span."""
    assert split(text, max_chars) == [text[start:stop] for start, stop in spans(text, max_chars)]


@given(texts, st.integers(1, 60))
def test_short_text_gives_one_chunk(text: str, more: int) -> None:
    """A text within the limit is one chunk; a blank text gives none."""
    assert len(split(text, len(text) + more)) == bool(text.strip())


@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        pytest.param(
            "One two three.\n\nFour\nfive. Six",
            ["One two three.", "Four\nfive. Six"],
            id="paragraph",
        ),
        pytest.param(
            "One two\nthree. Four five six", ["One two\nthree.", "Four five six"], id="no line"
        ),
        pytest.param(
            "one two three\nfour five six seven",
            ["one two three", "four five six seven"],
            id="line",
        ),
        pytest.param(
            "One! two three four five six", ["One! two three four", "five six"], id="small letter"
        ),
        pytest.param(
            "One two. Three four five six", ["One two.", "Three four five six"], id="first half"
        ),
        pytest.param(
            'He said "one two." Then he left us.',
            ['He said "one two."', "Then he left us."],
            id="sentence",
        ),
        pytest.param(
            "今天天气很好我们一起出去玩吧。明天再说好不好啊",
            ["今天天气很好我们一起出去玩吧。", "明天再说好不好啊"],
            id="Chinese",
        ),
        pytest.param("one two three four five six", ["one two three four", "five six"], id="word"),
        pytest.param("a" * 45, ["a" * 20, "a" * 20, "a" * 5], id="hard"),
        pytest.param(
            "def function():\n    return 1\n\n  # x",
            ["def function():", "    return 1\n\n  # x"],
            id="code",
        ),
        pytest.param("e\u0301" * 15, ["e\u0301" * 10, "e\u0301" * 5], id="accents"),
        pytest.param(
            "ab" + "👩\u200d👧" * 7, ["ab" + "👩\u200d👧" * 6, "👩\u200d👧"], id="joined emoji"
        ),
        pytest.param(" \n\t ", [], id="blank"),
        pytest.param("", [], id="empty"),
    ],
)
def test_split_ends_chunks_at_the_best_break(text: str, chunks: list[str]) -> None:
    """With 20 characters per chunk, chunks end at the best break within the limit."""
    assert split(text, max_chars=20) == chunks


@given(texts, st.integers(1, 60), st.integers(0, 40), st.none() | st.integers(1, 12))
@example("a" * 50, 10, 9, None)
@example("one two three  \n   four", 13, 6, 3)
def test_split_with_overlap_keeps_all_text(
    text: str, max_chars: int, overlap: int, tokens: int | None
) -> None:
    """Starts and ends increase, chunks share at most `overlap` characters, and only white space is dropped."""
    before = (-1, 0)
    for start, end in spans(text, max_chars, overlap=overlap, tokens=tokens):
        assert start > before[0]
        assert end > before[1]
        assert before[1] - start <= overlap
        assert not text[before[1] : start].strip()
        assert end - start <= max_chars
        assert text[start:end].strip()
        before = start, end
    assert not text[before[1] :].strip()


@given(texts, st.integers(1, 30), st.integers(0, 10))
def test_split_by_tokens_stays_within_the_limit(text: str, tokens: int, overlap: int) -> None:
    """A chunk, counted separately, has at most `tokens` tokens, except a single character with more tokens."""
    for chunk in split(text, tokens=tokens, overlap=overlap):
        assert token_counter().count(chunk) <= tokens or len(chunk) == 1


def test_split_by_tokens_uses_most_of_the_limit() -> None:
    """If a text can be split at every word, chunks have nearly `tokens` tokens in any encoding."""
    text = "some words that say nothing at all, " * 400
    for encoding in (None, EMBEDDED):
        counts = [
            token_counter().count(chunk) for chunk in split(text, tokens=200, encoding=encoding)
        ]
        assert min(counts[:-1]) > 180
        assert max(counts) <= 200


def test_overlap_begins_at_a_sentence_or_word() -> None:
    """The repeated part begins at a sentence, otherwise at a word, otherwise `overlap` characters before the end."""
    assert split("one two three four five", 13, overlap=5) == [
        "one two three",
        "three four",
        "four five",
    ]
    assert split("One two three. Four. Five six seven.", 21, overlap=12) == [
        "One two three. Four.",
        "Four. Five six seven.",
    ]
    assert split("abcdefghij", 4, overlap=2) == ["abcd", "cdef", "efgh", "ghij"]
    assert split("e\u0301" * 6, 4, overlap=1) == ["e\u0301" * 2] * 3


def test_split_with_overlap_0_and_many_tokens_equals_default() -> None:
    """An overlap of 0 and a token limit above the text's tokens do not change the chunks."""
    text = "A paragraph of words.\n\n    An indented line.\nAnother, longer line. " * 30
    assert split(text, 100, overlap=0, tokens=10_000) == split(text, 100)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"overlap": -1}, "overlap"),
        ({"tokens": 0}, "tokens"),
        ({"tokens": "9"}, "tokens"),
        ({"overlap": 1.5}, "overlap"),
    ],
)
def test_invalid_overlap_or_tokens_raises_an_error(arguments: dict[str, Any], field: str) -> None:
    """An invalid `overlap` or `tokens` is refused by name."""
    with pytest.raises(InvalidRequestError) as caught:
        split("text", **arguments)
    assert caught.value.field == field


def test_split_accepts_numpy_integers() -> None:
    """Sizes can be numpy integers, and positions are Python integers."""
    found = list(spans("one two three", np.int64(4), overlap=np.int32(1)))
    assert found == list(spans("one two three", 4, overlap=1))
    assert all(type(place) is int for span in found for place in span)


@pytest.mark.parametrize(
    "unit", ["a", " ", "\n", " \n", "\u0301", "word ", "x. ", "\n" + " " * 3000 + "x"]
)
def test_split_takes_linear_time(unit: str) -> None:
    """Two million characters of any kind are split in a few seconds of CPU time; quadratic time would take hours."""
    text = unit * (2_000_000 // len(unit)) + "x"
    started = time.process_time()
    split(text)
    assert time.process_time() - started < 5


@pytest.mark.parametrize("unit", ["a", " ", "word ", "\n" + " " * 3000 + "x", "x. " + " " * 500])
def test_split_by_tokens_with_overlap_takes_linear_time(unit: str) -> None:
    """The same holds for half a million characters split by tokens with an overlap."""
    text = unit * (500_000 // len(unit)) + "x"
    started = time.process_time()
    split(text, tokens=256, overlap=100)
    assert time.process_time() - started < 10


@pytest.mark.parametrize("max_chars", [0, -1, True, 1.5, "9", [3]])
def test_invalid_max_chars_raises_an_error(max_chars: object) -> None:
    """A `max_chars` other than a positive integer is refused."""
    with pytest.raises(InvalidRequestError, match="max_chars must be"):
        spans("text", max_chars)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", [b"bytes", None, ["text"]])
def test_split_of_other_types_raises_an_error(text: object) -> None:
    """A text that is not a string is refused."""
    with pytest.raises(InvalidRequestError, match="text must be"):
        split(text)  # type: ignore[arg-type]


@given(st.text(alphabet="ab .!?\n。 ", max_size=60))
def test_sentences_cover_the_text_except_white_space(text: str) -> None:
    """Sentences are in order, disjoint and without white space at either end, and only white space is dropped."""
    places = list(sentences(text))
    parts = [text[start:end] for start, end in places]
    assert all(part and part == part.strip() for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(places))


def test_sentences_end_at_marks_and_paragraphs() -> None:
    """Marks of other scripts end sentences, marks in words do not, and very long sentences are split."""
    text = "See v1.2 now! (Or not.) 你好。再见\n\nA title\n\nend"
    assert [text[start:end] for start, end in sentences(text)] == [
        "See v1.2 now!",
        "(Or not.)",
        "你好。",
        "再见",
        "A title",
        "end",
    ]
    assert max(end - start for start, end in sentences("word " * 1000)) <= 500
