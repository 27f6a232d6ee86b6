"""Tests of repetition: answers end before it, and text that repeats itself has no citation."""

from collections.abc import Iterator

import pytest

from relevance_gen import Runner, ask, ask_stream, cite
from relevance_gen.asking.repetition import is_loop, until_repetition
from relevance_gen.types import CitedSentence
from small_models import BIGRAM, STORY
from tests.asking.test_api import CHUNKS, TEMPLATE

CLAUSE = "it burned whale oil; "
SENTENCE = CitedSentence(0, 1, ())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"The lamp: {CLAUSE * 3}", True),
        (f"The lamp: {CLAUSE * 3}".strip()[:-3], True),
        (f"The lamp: {CLAUSE * 2}", False),
        (f"{CLAUSE * 3}and more.", False),
        ("no " * 20, True),
        ("no " * 5, False),
        ("--- | " * 20, False),
        ("x" * 170 + "y", False),
        ("", False),
    ],
)
def test_is_loop_needs_two_and_a_half_copies_at_the_end(text: str, expected: bool) -> None:
    """Short runs and rulers without letters are no loops."""
    assert is_loop(text) is expected


FIRST = ["A cat purrs very loudly.", SENTENCE]


@pytest.mark.parametrize(
    ("later", "shown", "is_repeated"),
    [
        ([" A cat", " sleeps.", SENTENCE], [" A cat sleeps.", SENTENCE], False),
        ([" A cat", " purrs very loudly.", SENTENCE, " It sleeps."], [], True),
        ([" A cat purrs very loudly", SENTENCE], [], True),
        ([" Yes.", SENTENCE, " Yes.", SENTENCE], [" Yes.", SENTENCE] * 2, False),
        ([" A cat"], [" A cat"], False),
    ],
)
def test_until_repetition_stops_before_repeated_sentence(
    later: list[str | CitedSentence], shown: list[str | CitedSentence], is_repeated: bool
) -> None:
    """Text is held back while it may repeat a sentence; short sentences may be repeated."""
    returned = []

    def collect() -> Iterator[str | CitedSentence]:
        returned.append((yield from until_repetition([*FIRST, *later])))

    assert [part for part in collect() if part] == [*FIRST, *shown]
    assert returned == [is_repeated]


def test_repeating_answer_ends_after_first_sentence() -> None:
    """The model repeats one sentence until its token limit; the generation is cancelled."""
    with Runner(BIGRAM, n_slots=1, n_ctx=1024, n_threads=1) as runner:
        options = {"runner": runner, "chat_template": TEMPLATE, "max_tokens": 500}
        with ask_stream("treaty?", CHUNKS, **options) as stream:
            assert "".join(stream) == STORY.strip()
        answer = ask("treaty?", CHUNKS, **options)
    assert stream.answer == answer
    assert (answer.text, answer.found) == (STORY.strip(), True)
    assert (answer.response, answer.finish_reason) == (None, None)
    assert stream.citations == answer.citations


def test_looping_sentence_has_no_citation() -> None:
    """All of its words are in the source; a source with the same loop supports it."""
    loop = f"The lamp, {CLAUSE * 4}"
    (once, looping) = cite(f"It burned whale oil. {loop}", ["The lamp: it burned whale oil."])
    assert (len(once.spans), looping.spans) == (1, ())
    (copied,) = cite(loop, [loop])
    assert copied.spans


def test_ask_without_model_copies_and_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only fields of a generation, or `copy=False`, need the embedded model."""
    monkeypatch.delenv("RELEVANCE_GEN_MODEL", raising=False)

    def refuse() -> Runner:
        raise MemoryError

    monkeypatch.setattr("relevance_gen.asking.api.default_runner", refuse)
    question = "How do bees find flowers?"
    for options in ({}, {"copy": True}, {"top_n": 1}):
        answer = ask(question, CHUNKS, **options)
        assert answer.text == "Bees tell each other where the flowers are by dancing."
        assert (answer.found, answer.response, answer.prompt) == (True, None, "")
        assert answer.text_with_citations == f"{answer.text} [1]"
        assert answer.to_dict()["found"]
    for options in ({"copy": False}, {"max_tokens": 9}, {"chat_template": TEMPLATE}):
        with pytest.raises(MemoryError):
            ask(question, CHUNKS, **options)


def test_ask_without_model_equals_copying_model() -> None:
    """The embedded model with `copy` generates the same text."""
    with Runner(n_slots=1) as runner:
        for question in ("How do bees find flowers?", "When does the ferry leave?"):
            copied = ask(question, CHUNKS, runner=runner)
            assert copied.response is not None
            assert ask(question, CHUNKS).text == copied.text
