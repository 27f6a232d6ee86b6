"""The embedded model: small, writes English words, ends, and copies the requested sentence."""

import re
from collections.abc import Iterator
from difflib import SequenceMatcher
from importlib import resources
from pathlib import Path

import pytest

from relevance_gen.generation.runner import Runner
from relevance_gen.types import GenerationRequest, GenerationResponse

MODEL = Path(str(resources.files("relevance_gen") / "assets" / "embedded.gguf"))
END = 1
PARAGRAPHS = (
    (
        "The lighthouse was built in 1831 by a family of masons.",
        "Its lamp burned whale oil until the keeper bought a generator.",
        "Every autumn thousands of geese rest on the northern meadow.",
        "The ferry to the island leaves at seven in the morning.",
    ),
    (
        "A compiler turns the source text into machine instructions.",
        "The cache holds the pages that were read most recently.",
        "Users can change their password in the account settings.",
        "When the disk is full, the server refuses new connections.",
    ),
    (
        "Copper is a good conductor of heat and electricity.",
        "The orchestra will play a new symphony on Sunday evening.",
        "Bees tell each other where the flowers are by dancing.",
        "The treaty was signed after three months of talks.",
    ),
)
QUESTIONS = (
    (
        "Who built the lighthouse?",
        "What oil did the lamp burn?",
        "Where do the geese rest in autumn?",
        "When does the ferry leave?",
    ),
    (
        "What does a compiler do?",
        "What pages does the cache hold?",
        "How can users change a password?",
        "What if the disk is full?",
    ),
    (
        "Is copper a conductor of heat?",
        "When will the orchestra play?",
        "How do bees find flowers?",
        "When was the treaty signed?",
    ),
)

MARKED = (
    "| ferry | 7:00 | harbour |",
    'The guide calls the lighthouse "the old lady of the bay".',
    "Run `make install` before you start the server.",
    "The keeper (born in 1802) kept bees, geese and a “talking” raven.",
    "| generator | 1931 | 400 W |",
)
MARKED_QUESTIONS = (
    "When does the ferry leave the harbour?",
    "What does the guide call the lighthouse?",
    "What to run before the server starts?",
    "Which keeper kept geese and bees?",
    "How many W has the generator?",
)


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    with Runner(MODEL, n_slots=12, n_threads=1) as loaded:
        yield loaded


def answer(runner: Runner, context: tuple[str, ...], question: str) -> GenerationResponse:
    text = f"Context: {' '.join(context)}\nQuestion: {question}\nAnswer:"
    return runner.generate(
        GenerationRequest(text=text, max_tokens=60, eos_token_ids=(END,), temperature=0.0)
    )


def test_file_is_at_most_12_mb() -> None:
    """The size limit of the wheel."""
    assert MODEL.stat().st_size <= 12_000_000


def test_samples_are_english_words_and_end(runner: Runner) -> None:
    """Most samples of an empty prompt end with the end token, and consist of words and ordinary punctuation."""
    request = GenerationRequest(
        text=" ", max_tokens=200, num_samples=12, eos_token_ids=(END,), temperature=0.8, seed=1
    )
    responses = runner.generate(request).responses
    assert sum(response.finish_reason == "eos" for response in responses) >= 8
    words = [word for response in responses for word in response.text.split()]
    assert len(words) >= 60
    assert sum(
        bool(re.fullmatch(r"[\"'(]?[A-Za-z][A-Za-z'-]*[\"').,;:?!]*", word)) for word in words
    ) >= 0.85 * len(words)


def test_copies_the_requested_sentence(runner: Runner) -> None:
    """With the documented prompt it copies the right sentence of four in most cases; by chance it would be 3 of 12."""
    closest = word_for_word = 0
    for context, questions in zip(PARAGRAPHS, QUESTIONS, strict=True):
        for sentence, question in zip(context, questions, strict=True):
            response = answer(runner, context, question).responses[0]
            assert response.finish_reason == "eos"
            text = response.text.strip()
            closest += (
                max(context, key=lambda other: SequenceMatcher(None, text, other, False).ratio())
                == sentence
            )
            word_for_word += text == sentence
    assert closest >= 11
    assert word_for_word >= 11


def test_copies_punctuation_unchanged(runner: Runner) -> None:
    """Quotation marks, backticks, brackets and table rows are copied."""
    copied = 0
    for sentence, question in zip(MARKED, MARKED_QUESTIONS, strict=True):
        response = answer(runner, MARKED, question).responses[0]
        text = response.text.strip()
        assert response.finish_reason == "eos"
        assert max(SequenceMatcher(None, text, other, False).ratio() for other in MARKED) > 0.8
        copied += text == sentence
    assert copied >= 4


def test_chat_template_renders_the_documented_prompt(runner: Runner) -> None:
    """The system message is the context and the user message the question."""
    context, question = " ".join(PARAGRAPHS[2]), QUESTIONS[2][2]
    messages = [{"role": "system", "content": context}, {"role": "user", "content": question}]
    response = runner.chat(messages, temperature=0.0, max_tokens=60)
    assert response.responses[0].text.strip() == PARAGRAPHS[2][2]
    assert response.prompt == f"<|begin|>Context: {context}\nQuestion: {question}\nAnswer:"
