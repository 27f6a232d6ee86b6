"""Tests of `compress`: it keeps sentences of chunks in order, within a token budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import Chunk, InvalidRequestError, TooLargeError, compress, token_counter
from relevance_gen.request_scope import budget_scope
from relevance_gen.text.chunking import sentences
from tests import strategies
from tests.profiles import costly

prose = st.lists(strategies.chunk_texts, min_size=1, max_size=6).map(". ".join)
chunk_lists = st.lists(prose.filter(lambda text: not text.isspace()), max_size=5)
COUNTER = token_counter()


@costly
@given(strategies.queries, chunk_lists, st.integers(1, 60))
def test_compress_keeps_sentences_in_order_within_budget(
    question: str, chunks: list[str], budget: int
) -> None:
    """Each sentence is a literal excerpt, occurs once, and the joined text is within the budget."""
    kept = compress(question, chunks, max_tokens=budget)
    every = [(chunk, *place) for chunk, text in enumerate(chunks) for place in sentences(text)]
    numbers = [
        every.index((sentence.original_index, sentence.start, sentence.end)) for sentence in kept
    ]
    assert numbers == sorted(set(numbers))
    assert [one.num_omitted_before for one in kept] == [
        number - before - 1 for before, number in zip([-1, *numbers], numbers, strict=False)
    ]
    assert all(
        sentence.text == chunks[sentence.original_index][sentence.start : sentence.end]
        for sentence in kept
    )
    assert kept.num_tokens == COUNTER.count(kept.text) <= budget
    assert kept.num_context_tokens == sum(map(COUNTER.count, chunks))
    place = 0
    for one in kept:
        place = kept.text.index(one.text, place) + len(one.text)


@costly
@given(strategies.queries, chunk_lists)
def test_compress_with_large_budget_keeps_all_sentences(question: str, chunks: list[str]) -> None:
    """If all chunks fit the budget, every sentence is kept and each chunk is unchanged."""
    kept = compress(
        question,
        chunks,
        max_tokens=10 + sum(len(text.encode("utf-8", "replace")) + 4 for text in chunks),
    )
    assert [(sentence.original_index, sentence.start, sentence.end) for sentence in kept] == [
        (chunk, *sentence) for chunk, text in enumerate(chunks) for sentence in sentences(text)
    ]
    assert kept.text == "\n\n".join(text.strip() for text in chunks)


@costly
@given(strategies.queries, chunk_lists, st.integers(1, 60))
def test_compress_accepts_all_chunk_types(question: str, chunks: list[str], budget: int) -> None:
    """Strings, mappings and `Chunk` objects give equal results."""
    kept = compress(question, chunks, max_tokens=budget)
    assert compress(question, [{"text": text} for text in chunks], max_tokens=budget) == kept
    assert compress(question, map(Chunk, chunks), max_tokens=budget) == kept


def test_compress_keeps_answer_and_then_neighbors() -> None:
    """The sentence that answers the question is kept first, its neighbors if the budget allows."""
    rain = "It rained all day in the north. " * 3
    chunks = [
        f"{rain}The heron hunted at dawn. It caught a frog. {rain}",
        "Nothing else happened here at all.",
    ]
    assert (
        compress("When did the heron hunt?", chunks, max_tokens=8).text
        == "The heron hunted at dawn."
    )
    kept = compress("When did the heron hunt?", chunks, max_tokens=16)
    assert kept.text == "The heron hunted at dawn. It caught a frog."
    assert repr(kept).splitlines()[1:] == [
        "  [0]  … The heron hunted at dawn.",
        "  [0]  It caught a frog.",
    ]


def test_compress_prefers_sentence_of_relevant_chunk() -> None:
    """Of two equal sentences, `compress` keeps the sentence in the more relevant chunk."""
    chunks = [
        "It was green. Boats were there.",
        "It was green. The harbour of Lund was full of boats.",
    ]
    kept = compress("What colour had the harbour of Lund? It was green", chunks, max_tokens=20)
    assert [sentence.original_index for sentence in kept] == [1, 1]


def test_compress_marks_omissions() -> None:
    """An ellipsis replaces omitted sentences, a blank line separates chunks."""
    chunks = ["Cats purr.  Cats hiss. Dogs bark. Cats sleep.", "Tea is hot. Cats eat."]
    room = COUNTER.count("Cats purr.  Cats hiss. … Cats sleep.\n\nCats eat.") + 1
    assert (
        compress("Cats?", chunks, max_tokens=room).text
        == "Cats purr.  Cats hiss. … Cats sleep.\n\nCats eat."
    )


def test_compress_scores_title_without_output() -> None:
    """The title of a chunk influences the scores of its sentences but is not in the output."""
    chunks = [
        Chunk("He was late. He ran.", title="Otters"),
        Chunk("She was late. She sat.", title="Herons"),
    ]
    kept = compress("Was the heron late?", chunks, max_tokens=6)
    assert [one.text for one in kept] == ["She was late."]


def test_compress_with_tiny_budget_returns_empty_text() -> None:
    """A budget below every sentence, or an empty list of chunks, gives an empty text."""
    for chunks in (["A sentence of some more words."], []):
        kept = compress("words", chunks, max_tokens=1)
        assert (len(kept), kept.text, kept.num_tokens) == (0, "", 0)


def test_compress_reserves_sentences_before_work() -> None:
    """`compress` reserves memory for all sentences; a refused reservation stops it early."""
    reported: list[int] = []

    def expect(unit: str, number: int) -> None:
        reported.append(number * (unit == "sentence"))

    with budget_scope(expect):
        compress("cats", ["Cats purr. " * 600, "Dogs bark."], max_tokens=5)
    assert 601 <= sum(reported) <= 601 + 256

    def refuse(unit: str, number: int) -> None:
        reported.append(number)
        if unit == "sentence":
            raise TooLargeError("must be less", "chunks", "much")

    reported.clear()
    with budget_scope(refuse), pytest.raises(TooLargeError):
        compress("cats", ["Cats purr. " * 600], max_tokens=5)
    assert len(reported) == 2


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"question": " "}, "question"),
        ({"question": 3}, "question"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 2.0}, "max_tokens"),
        ({"chunks": ["a", " "]}, "chunks[1].text"),
        ({"chunks": "a text"}, "chunks"),
    ],
)
def test_compress_with_invalid_argument_raises(change: dict[str, object], field: str) -> None:
    """Blank questions, blank chunks and invalid budgets raise an error with the field name."""
    asked = {"question": "x", "chunks": ["x"], "max_tokens": 5} | change
    with pytest.raises(InvalidRequestError) as refused:
        compress(asked.pop("question"), asked.pop("chunks"), **asked)  # type: ignore[arg-type]
    assert refused.value.field == field
