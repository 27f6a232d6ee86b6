"""Chunking: nothing lost, nothing too long, cut where a reader would cut, in linear time."""

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relevance_gen.chunking import spans, split
from relevance_gen.errors import InvalidRequestError

_SEAMS = ("\n", "\n\n", " \n\t\n", "    ", ". ", "。", '?" ', "word ", "e\u0301", "👩\u200d👧", "\r\n", "\u3000")
_seams = st.sampled_from(_SEAMS)
texts = st.lists(_seams | st.text(max_size=5) | st.characters(), max_size=80).map("".join)


@given(texts, st.integers(1, 60))
@example("\n" + " " * 50 + "x", 10)
@example(" " * 5 + "e" + "\u0301" * 40, 10)
def test_only_white_space_is_lost(text: str, max_chars: int) -> None:
    """Chunks stand in order, apart, not blank, not too long, and what is between them is white space."""
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
def test_split_is_the_text_at_the_spans(text: str, max_chars: int) -> None:
    """`split` gives the text of each span."""
    assert split(text, max_chars) == [text[start:stop] for start, stop in spans(text, max_chars)]


@given(texts, st.integers(1, 60))
def test_short_text_is_one_chunk(text: str, more: int) -> None:
    """A text that fits is one chunk, or none if it is blank."""
    assert len(split(text, len(text) + more)) == bool(text.strip())


@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        pytest.param("One two three.\n\nFour\nfive. Six", ["One two three.", "Four\nfive. Six"], id="paragraph"),
        pytest.param("One two three.\nFour five six", ["One two three.", "Four five six"], id="line"),
        pytest.param('He said "one two." Then he left us.', ['He said "one two."', "Then he left us."], id="sentence"),
        pytest.param(
            "今天天气很好我们一起出去玩吧。明天再说好不好啊",
            ["今天天气很好我们一起出去玩吧。", "明天再说好不好啊"],
            id="Chinese",
        ),
        pytest.param("one two three four five six", ["one two three four", "five six"], id="word"),
        pytest.param("a" * 45, ["a" * 20, "a" * 20, "a" * 5], id="hard"),
        pytest.param("def function():\n    return 1\n\n  # x", ["def function():", "    return 1\n\n  # x"], id="code"),
        pytest.param("e\u0301" * 15, ["e\u0301" * 10, "e\u0301" * 5], id="accents"),
        pytest.param("ab" + "👩\u200d👧" * 7, ["ab" + "👩\u200d👧" * 6, "👩\u200d👧"], id="joined emoji"),
        pytest.param(" \n\t ", [], id="blank"),
        pytest.param("", [], id="empty"),
    ],
)
def test_cuts_where_a_reader_would(text: str, chunks: list[str]) -> None:
    """With 20 characters to a chunk, cuts fall at the best break in reach."""
    assert split(text, max_chars=20) == chunks


@pytest.mark.parametrize("unit", ["a", " ", "\n", " \n", "\u0301", "word ", "x. ", "\n" + " " * 3000 + "x"])
def test_takes_linear_time(unit: str) -> None:
    """Two million characters of anything are cut in a few seconds at most, where quadratic time would take hours."""
    text = unit * (2_000_000 // len(unit)) + "x"
    started = time.perf_counter()
    split(text)
    assert time.perf_counter() - started < 5


@pytest.mark.parametrize("max_chars", [0, -1, True, 1.5, "9", None])
def test_refuses_nonsense_length(max_chars: object) -> None:
    """A length that is no positive integer is refused before anything is cut."""
    with pytest.raises(InvalidRequestError, match="max_chars must be"):
        spans("text", max_chars)  # type: ignore[arg-type]


@pytest.mark.parametrize("text", [b"bytes", None, ["text"]])
def test_refuses_what_is_no_text(text: object) -> None:
    """A text that is no string is refused."""
    with pytest.raises(InvalidRequestError, match="text must be"):
        split(text)  # type: ignore[arg-type]
