"""What is kept of some chunks: sentences as they stand there, in order, within a budget."""

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
def test_what_is_kept_are_sentences_in_order_within_the_budget(
    question: str, chunks: list[str], budget: int
) -> None:
    """Each is a sentence of a chunk, word for word; none is kept twice; the text is theirs and has no more tokens."""
    kept = compress(question, chunks, max_tokens=budget)
    every = [(chunk, *place) for chunk, text in enumerate(chunks) for place in sentences(text)]
    numbers = [every.index((one.original_index, one.start, one.end)) for one in kept]
    assert numbers == sorted(set(numbers))
    assert [one.num_omitted_before for one in kept] == [
        number - before - 1 for before, number in zip([-1, *numbers], numbers, strict=False)
    ]
    assert all(one.text == chunks[one.original_index][one.start : one.end] for one in kept)
    assert kept.num_tokens == COUNTER.count(kept.text) <= budget
    assert kept.num_context_tokens == sum(map(COUNTER.count, chunks))
    place = 0
    for one in kept:
        place = kept.text.index(one.text, place) + len(one.text)


@costly
@given(strategies.queries, chunk_lists)
def test_all_is_kept_where_there_is_room(question: str, chunks: list[str]) -> None:
    """With room for everything, every sentence is kept, whatever is asked, and each chunk stands as it is."""
    kept = compress(
        question,
        chunks,
        max_tokens=10 + sum(len(text.encode("utf-8", "replace")) + 4 for text in chunks),
    )
    assert [(one.original_index, one.start, one.end) for one in kept] == [
        (chunk, *place) for chunk, text in enumerate(chunks) for place in sentences(text)
    ]
    assert kept.text == "\n\n".join(text.strip() for text in chunks)


@costly
@given(strategies.queries, chunk_lists, st.integers(1, 60))
def test_chunks_of_every_kind_are_compressed_alike(
    question: str, chunks: list[str], budget: int
) -> None:
    """Of strings, mappings and `Chunk` objects the same is kept."""
    kept = compress(question, chunks, max_tokens=budget)
    assert compress(question, [{"text": text} for text in chunks], max_tokens=budget) == kept
    assert compress(question, map(Chunk, chunks), max_tokens=budget) == kept


def test_the_sentence_that_answers_is_kept() -> None:
    """Of several sentences the one that the question asks for stays, beside its neighbours if there is room."""
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


def test_the_chunk_of_a_sentence_counts() -> None:
    """Of two sentences that say the same, the one in the chunk that says more about the question is kept."""
    chunks = [
        "It was green. Boats were there.",
        "It was green. The harbour of Lund was full of boats.",
    ]
    kept = compress("What colour had the harbour of Lund? It was green", chunks, max_tokens=20)
    assert [one.original_index for one in kept] == [1, 1]


def test_what_was_left_out_is_marked() -> None:
    """Between two sentences of a chunk stands …, between chunks a blank line, and between neighbours what was there."""
    chunks = ["Cats purr.  Cats hiss. Dogs bark. Cats sleep.", "Tea is hot. Cats eat."]
    room = COUNTER.count("Cats purr.  Cats hiss. … Cats sleep.\n\nCats eat.") + 1
    assert (
        compress("Cats?", chunks, max_tokens=room).text
        == "Cats purr.  Cats hiss. … Cats sleep.\n\nCats eat."
    )


def test_a_title_counts_and_is_not_kept() -> None:
    """A chunk's title is searched with each of its sentences, and no part of what is kept."""
    chunks = [
        Chunk("He was late. He ran.", title="Otters"),
        Chunk("She was late. She sat.", title="Herons"),
    ]
    kept = compress("Was the heron late?", chunks, max_tokens=6)
    assert [one.text for one in kept] == ["She was late."]


def test_where_nothing_has_room_nothing_is_kept() -> None:
    """A budget below every sentence, and no chunks at all, give an empty text and no error."""
    for chunks in (["A sentence of some more words."], []):
        kept = compress("words", chunks, max_tokens=1)
        assert (len(kept), kept.text, kept.num_tokens) == (0, "", 0)


def test_sentences_are_announced_before_they_are_made() -> None:
    """Whoever keeps account of memory hears of all sentences, and may end the work long before the last is found."""
    told: list[int] = []

    def expect(unit: str, number: int) -> None:
        told.append(number * (unit == "sentence"))

    with budget_scope(expect):
        compress("cats", ["Cats purr. " * 600, "Dogs bark."], max_tokens=5)
    assert 601 <= sum(told) <= 601 + 256

    def refuse(unit: str, number: int) -> None:
        told.append(number)
        if unit == "sentence":
            raise TooLargeError("must be less", "chunks", "much")

    told.clear()
    with budget_scope(refuse), pytest.raises(TooLargeError):
        compress("cats", ["Cats purr. " * 600], max_tokens=5)
    assert len(told) == 2


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
def test_what_is_not_allowed_is_named(change: dict[str, object], field: str) -> None:
    """Blank questions and chunks, and budgets that are no positive integers, are refused by name."""
    asked = {"question": "x", "chunks": ["x"], "max_tokens": 5} | change
    with pytest.raises(InvalidRequestError) as refused:
        compress(asked.pop("question"), asked.pop("chunks"), **asked)  # type: ignore[arg-type]
    assert refused.value.field == field
