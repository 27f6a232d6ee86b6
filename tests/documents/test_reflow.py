"""Tests of `reflow`: lines are joined, hyphenated words completed, page headers removed."""

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.documents.extraction import extract
from relevance_gen.documents.reflow import reflow
from relevance_gen.text.chunking import split
from tests.cli.documents import pdf

LONG = "It leaves each morning at seven from the old pier\nand comes back in the evening, as long as the sea\nis calm."


def test_reflow_removes_headers_and_page_numbers() -> None:
    """Text that repeats at the top or bottom of three or more pages is removed."""
    pages = [
        f"{['The Ferry', 'Part 2'][n % 2]}\nTimes\nPage {'abcdef'[n]} says so.\n{n}"
        for n in range(6)
    ]
    assert reflow(pages) == [f"Page {letter} says so." for letter in "abcdef"]
    assert [text.split() for text in reflow(pages[:2])] == [
        page.split() for page in pages[:2]
    ]  # none repeats


def test_reflow_keeps_number_rows_and_equal_pages() -> None:
    """Table rows of numbers, and pages with equal text, are kept."""
    rows = ["1 2 3\nFour five", "4 5 6\nSix seven", "7 8 9\nEight nine"]
    assert [text[:5] for text in reflow(rows)] == ["1 2 3", "4 5 6", "7 8 9"]
    assert reflow(["So.\nSo."] * 3) == ["So. So."] * 3


def test_reflow_joins_lines_to_paragraphs() -> None:
    """Lines of prose are joined, list items are kept, a sentence moves to its first page."""
    assert reflow([LONG + "\n- tea\n- milk"]) == [LONG.replace("\n", " ") + "\n- tea\n- milk"]
    assert reflow([LONG[:-9], "is calm. Then not."]) == [
        LONG[:-9].replace("\n", " ") + " is calm.",
        "Then not.",
    ]


def test_reflow_joins_hyphenated_words() -> None:
    """A hyphen at a line end is removed unless the same word has it inside a line."""
    text = "The ferry leaves in the morn-\ning, and a long-term plan for its long-\nterm use is made here."
    whole = (
        "The ferry leaves in the morning, and a long-term plan for its long-term use is made here."
    )
    assert reflow([text]) == [whole]
    assert reflow([text.replace("-\n", "\ufffe")]) == [whole]
    assert extract(pdf(text), "PDF").parts == [({"page": 1}, whole)]


def report(n_pages: int) -> bytes:
    """Make a PDF of pages of dense text in the form of an annual report: two running heads, page numbers, hyphens."""
    rng = np.random.default_rng(7)
    words = "the a of in segment quarter revenue management liabilities approximately operations Uber U.S. 4.5".split()
    lines = [""]
    for _ in range(45 * n_pages):
        sentence = " ".join(rng.choice(words, rng.integers(8, 40))).capitalize() + ". "
        for word in sentence.split():
            room = 100 - len(lines[-1])
            if len(word) > 9 and 5 < room <= len(word):
                lines[-1] += f"{word[: room - 3]}-"
                lines.append(word[room - 3 :] + " ")
            elif len(word) > room:
                lines.append(f"{word} ")
            else:
                lines[-1] += f"{word} "
        if rng.random() < 0.2:
            lines.append("")
    heads = ("Annual Report", "Item 7. Management's Discussion")
    return pdf(
        *(
            "\n".join([heads[n % 2], *lines[60 * n : 60 * n + 60], str(n + 1)])
            for n in range(min(n_pages, len(lines) // 60))
        )
    )


def test_reflow_of_long_report_starts_chunks_at_sentences() -> None:
    """At most 5 % of the chunks begin within a sentence, and no page header remains."""
    found = extract(report(191), "PDF")
    assert (len(found.parts), found.warning) == (191, None)
    chunks = [chunk for _, text in found.parts for chunk in split(text)]
    assert sum(chunk[0].islower() for chunk in chunks) <= 0.05 * len(chunks)
    assert not any("Annual Report" in chunk or "liabili-" in chunk for chunk in chunks)


@given(st.lists(st.text(alphabet="ab .-\n1語", max_size=40), max_size=6))
def test_reflow_keeps_all_letters(pages: list[str]) -> None:
    """Each page has a text, and for two pages all letters are kept in order."""
    texts = reflow(pages)
    assert len(texts) == len(pages)
    letters = "".join(texts).replace(" ", "").replace("\n", "").replace("-", "")
    if len(pages) < 3:  # no line is at an edge of three
        assert letters == "".join("".join(pages).split()).replace("-", "")


@pytest.mark.parametrize("unit", ["a", "a-", "-\n", "\ufffe", "a\ufffe", "\n", "1\n", "a\nB"])
def test_reflow_time_is_linear(unit: str) -> None:
    """Eight times the text takes about eight times the processor time, not 64 times."""

    def seconds(n_chars: int) -> float:
        started = time.process_time()
        reflow([unit * (n_chars // len(unit))])
        return time.process_time() - started

    assert seconds(400_000) < 30 * seconds(50_000) + 0.1
