"""Ends of sentences: complete, at sensible positions, in linear time."""

import itertools
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.text import sentences as rules
from relevance_gen.text.sentences import sentence_ends

_SEAMS = (
    ". ",
    "! ",
    "?\n",
    "\n",
    "\n\n",
    "\r\n",
    "Dr. ",
    "A. ",
    "e.g. ",
    "3. ",
    "- ",
    "…",
    "。",
    "」",
    '"',
    ")",
    "।",
    "ก ",
)
pieces = st.lists(st.sampled_from(_SEAMS) | st.text(max_size=4), max_size=60)


def cut(text: str) -> list[str]:
    """Return the sentences of a text without the white space around them."""
    return [text[start:end].strip() for start, end in itertools.pairwise([0, *sentence_ends(text)])]


@given(pieces.map("".join))
def test_sentence_ends_cover_the_text(text: str) -> None:
    """Ends ascend to the end of the text, and every sentence of a text that is not blank is not blank."""
    ends = sentence_ends(text)
    assert ends == sorted(set(ends))
    assert ends[-1:] == ([len(text)] if text else [])
    assert all(cut(text)) or not text.strip()
    assert all(not text[end - 1].isspace() for end in ends[:-1])


@given(
    st.lists(
        st.lists(st.sampled_from(["Cats", "purr", "3.5", "(so)", "Dr. X"]), min_size=1), min_size=1
    )
)
def test_blank_line_ends_a_sentence(paragraphs: list[list[str]]) -> None:
    """Paragraphs are independent: the sentences of a text are the sentences of its paragraphs."""
    texts = [" ".join(words) + " Z" for words in paragraphs]
    assert cut("\n\n".join(texts)) == [sentence for text in texts for sentence in cut(text)]


@given(
    st.lists(st.sampled_from(["One", "two", "Three", "U.S.", "4.5"]), min_size=2, max_size=20),
    st.data(),
)
def test_line_end_in_wrapped_text_does_not_end_a_sentence(
    words: list[str], data: st.DataObject
) -> None:
    """Text with words that fill its lines has the same sentences with and without line ends."""
    text = " ".join(["Long" * 8, *words, "end"] * 6)
    at = data.draw(st.sampled_from([place for place, char in enumerate(text) if char == " "]))
    wrapped = text[:at] + "\n" + text[at + 1 :]
    if len(wrapped[at + 1 :]) < at:  # so that the first line is the longest
        assert [" ".join(one.split()) for one in cut(wrapped)] == cut(text)


@pytest.mark.parametrize(
    "sentences",
    [
        ["He lives in the U.S.", "The country is big."],
        ["The U.S. Army paid 3.5 million to J. K. Rowling, Ph.D. Smith, and Mr. A. Smith."],
        [
            "Apple Inc. sells phones.",
            "See Fig. 3 and No. 5 on pp. 7-9.",
            "Modern art.",
            "No.",
            "It is so.",
        ],
        [
            '"Stop!" he cried.',
            '"Why?"',
            "“He said so.”",
            "(It was.)",
            "Then it left… and came back... so.",
        ],
        [
            "It is so.[12]",
            "It was 1999.",
            "Then 12 came at 3 p.m.",
            "The end is near, e.g. tomorrow.",
            "Visit a.org.",
        ],
        ["Am 3. Oktober 1990 kam z. B. Dr. Müller.", "Der 2. Weltkrieg war lang.", "Es war so."],
        ["Тов. Иванов и т. д. жил в 1990 г. в Москве на ул. Ленина.", "Он работал."],
        ["hello there.", "how are you?", "fine"],
        ["Hello there is one. two who writes so"],
    ],
)
def test_full_stops_end_sentences_except_in_abbreviations(sentences: list[str]) -> None:
    """Abbreviations, initials, decimals, ordinals, ellipses and quotes do not end a sentence; other stops do."""
    assert cut(" ".join(sentences)) == sentences
    assert cut("  " + "  ".join(sentences) + " ") == sentences


@pytest.mark.parametrize(
    "sentences",
    [
        ["你好。", "再见！？", "“是吗？”", "他说３．５。", "他说「はい。」と言った。", "終わり"],
        ["वह आया।", "वह गया॥"],
        ["هل جئت؟", "نعم۔", "لا"],
        ["สวัสดีครับ", "ผมชื่อ John อายุ 5 ปี"],
        ["እሱ መጣ።", "ሄደ"],
    ],
)
def test_stops_of_other_scripts_end_sentences(sentences: list[str]) -> None:
    """Stops of other scripts end a sentence before any character; so does a space between Thai letters."""
    assert cut(" ".join(sentences)) == sentences
    if "ส" not in sentences[0]:
        assert cut("".join(sentences)) == sentences


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("The cat sat\non the mat. It\nslept.", ["The cat sat\non the mat.", "It\nslept."]),
        (
            "He saw the King of\nFrance. Then he\nwent.",
            ["He saw the King of\nFrance.", "Then he\nwent."],
        ),
        (
            "Tea:\n- hot\n- iced\n\n1. Red. Yes.\n2. The blue",
            ["Tea:", "- hot", "- iced", "1. Red.", "Yes.", "2. The blue"],
        ),
        (
            "a) one\nb) two\n• three\n# Title\nwords",
            ["a) one", "b) two", "• three", "# Title", "words"],
        ),
        ("Cats\nThe cat sat on the mat and slept.", ["Cats", "The cat sat on the mat and slept."]),
        ("name\tcost\nant\t3\nbee\t4", ["name\tcost", "ant\t3", "bee\t4"]),
        ("| a | b |\n|---|---|\n| 1 | 2 |", ["| a | b |", "|---|---|", "| 1 | 2 |"]),
        ("for x in y:\n    f(x)\n    z = 3", ["for x in y:", "f(x)", "z = 3"]),
        (
            "Tyger, burning bright,\nIn the forests of the night;\nWhat immortal hand or eye,\nCould frame it?",
            [
                "Tyger, burning bright,",
                "In the forests of the night;",
                "What immortal hand or eye,",
                "Could frame it?",
            ],
        ),
        ("One.\r\n \r\nTwo\r\nthree", ["One.", "Two\r\nthree"]),
    ],
)
def test_line_ends_of_lists_tables_code_and_verse_end_sentences(
    text: str, sentences: list[str]
) -> None:
    """Line ends end a sentence in lists, tables, code, verse and after a title, but not in running text."""
    assert cut(text) == sentences


_UNITS = (
    "a",
    " ",
    "\n",
    " \n",
    ".",
    '..."',
    "x. ",
    '."',
    "\n" + " " * 3000 + "x",
    "1. ",
    "กก ",
    "。",
    "a\n",
    "= \n",
    ". (",
)


@pytest.mark.parametrize("unit", _UNITS)
def test_sentence_ends_takes_linear_time(unit: str) -> None:
    """Eight times the text takes about eight times the CPU time; quadratic time would take 64 times."""

    def seconds(n_chars: int) -> float:
        text, taken = unit * (n_chars // len(unit)) + "x", []
        for _ in range(3):
            started = time.process_time()
            sentence_ends(text)
            taken.append(time.process_time() - started)
        return min(taken)

    assert seconds(400_000) < 30 * seconds(50_000) + 0.05


_REFERENCE_CODE = re.compile(r"[{}=<>_\\|\t]|\w\(|;$|,[^\s\d]")


def reference_ends(text: str) -> list[int]:
    """Return the ends of sentences: each match and each line is checked separately, without shortcuts."""
    ends = set(reference_ends_of_lines(text))
    is_lower_case = text.islower()  # where nobody writes capitals, a sentence begins without one
    ends.update(
        stop.end()
        for stop in rules._STOP.finditer(text)
        if _reference_is_end(text, stop, is_lower_case=is_lower_case)
    )
    if not text.isascii():
        ends.update(
            match.end()
            for mark in (rules._WIDE_STOP, rules._THAI_OR_LAO)
            for match in mark.finditer(text)
        )
    found = sorted(ends)
    if found and not text[found[-1] :].strip():
        found.pop()
    return [*found, len(text)] if text else []


def _reference_is_end(text: str, stop: re.Match[str], *, is_lower_case: bool) -> bool:
    """Return whether a stop before white space ends a sentence."""
    more, following = stop.groups()
    if not following or (following.islower() and not is_lower_case):
        return not following
    start = stop.start()
    if more or text[start] != ".":
        return True
    before = text[max(start - rules._MAX_ABBREVIATION_CHARS, 0) : start]
    word = before.split()[-1].lstrip(rules._OPENING) if before and not before[-1].isspace() else ""
    if (
        len(word) <= rules._MAX_ITEM_NUMBER_DIGITS
        and word.isdecimal()
        and before.rpartition("\n")[2].strip(rules._OPENING) == word
    ):
        return False  # the number of a list's item
    is_doubtful = (
        rules._INITIALS.fullmatch(word) is not None
        or (small := word.lower()) in rules._ABBREVIATIONS
        or (small in rules._BEFORE_NUMBERS and following.isdecimal())
    )
    return not is_doubtful or rules._STARTERS.match(text, stop.start(2)) is not None


def reference_ends_of_lines(text: str) -> Iterator[int]:
    """Yield the ends of lines that end a sentence."""
    start = 0
    for blank in rules._BLANK.finditer(text):
        yield from _reference_within(text[start : blank.start()], start)
        start = blank.end()
    yield from _reference_within(text[start:], start)


def _reference_within(paragraph: str, start: int) -> Iterator[int]:
    """Yield the end of a paragraph that begins at `start`, and of each of its lines that ends a sentence."""
    lines = paragraph.split("\n")
    widest = sorted(map(len, lines))[
        9 * len(lines) // 10
    ]  # not one long line that stands out, such as an address
    is_set_in_lines = len(lines) > 1 and (
        2 * sum(_REFERENCE_CODE.search(line) is not None for line in lines) >= len(lines)
        or (
            len(lines) >= rules._MIN_VERSE_LINES
            and all(line.lstrip(rules._OPENING)[:1].isupper() for line in lines)
        )
    )
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        is_end = (
            is_set_in_lines or not following or line.startswith("#") or rules._ITEM.match(following)
        )
        if (is_end or _reference_had_room(line, following, widest)) and line and not line.isspace():
            yield start + len(line.rstrip())
        start += len(line) + 1


def _reference_had_room(line: str, following: str, widest: int) -> bool:
    """Return whether the first word of the next line would fit in a line, if the text was wrapped."""
    word = rules._FIRST_WORD.match(following)
    n_chars = len(line) + 1 + (word.end() if word else 0)
    filled = (
        rules._MAX_BROKEN_RATIO / 2 if following.lstrip()[:1].islower() else rules._MAX_BROKEN_RATIO
    )
    return n_chars <= filled * widest


_TOKENS = (
    "Dr",
    "The",
    "the",
    " (",
    "e.g",
    "No. 5",
    "Fig. 3",
    "\t",
    "f(x);",
    "a,b",
    "=",
    "12. ",
    "#",
    "“",
    "...",
    " ",
)


@given(
    st.lists(st.sampled_from((*_SEAMS, *_UNITS, *_TOKENS)) | st.text(max_size=4), max_size=60).map(
        "".join
    )
)
def test_sentence_ends_equal_reference(text: str) -> None:
    """The ends equal the result of applying the rules to each stop and each line separately."""
    assert sentence_ends(text) == reference_ends(text)


@pytest.mark.parametrize(
    "name",
    ["CHANGELOG.md", "docs/ranking.md", "relevance_gen/text/chunking.py", "pyproject.toml"],
)
def test_sentence_ends_equal_reference_for_real_texts(name: str) -> None:
    """The ends equal the reference for prose, lists, tables and code."""
    text = (Path(__file__).parents[2] / name).read_text(encoding="utf-8")
    for variant in (text, text.lower(), text.replace("\n", "\r\n"), text.replace(". ", "。")):
        assert sentence_ends(variant) == reference_ends(variant)
