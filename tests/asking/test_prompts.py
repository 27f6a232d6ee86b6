"""Tests of prompts: numbered sources for chat models, one line for the embedded model."""

from relevance_gen import Runner, search
from relevance_gen.asking.answer import Source
from relevance_gen.asking.prompts import (
    INSTRUCTIONS,
    chat_message,
    completion_prompt,
    follows_instructions,
)
from relevance_gen.llama.language_model import ChatFormat

SOURCES = [
    Source.whole(result)
    for result in search("one three", [" a *one*\n- `two` ", "b \"three\" 'four'"]).results
]


def test_follows_instructions_requires_chat_template():
    """A model follows instructions if it has a chat template and is not extractive."""
    assert follows_instructions(ChatFormat(template="{{ messages }}"))
    assert not follows_instructions(ChatFormat())
    with Runner(n_slots=1) as runner:
        assert runner.chat_format.is_extractive
    assert not follows_instructions(ChatFormat(template="{{ messages }}", is_extractive=True))


def test_chat_message_has_instructions_sources_and_question():
    """The single message has the role user, which every template supports."""
    content = f"{INSTRUCTIONS}\n\n[1] a *one*\n- `two`\n\n[2] b \"three\" 'four'\n\nQuestion: what?"
    assert chat_message(" what?\n", SOURCES) == {"role": "user", "content": content}
    assert chat_message("what?", [], "Be brief.") == {
        "role": "user",
        "content": "Be brief.\n\nQuestion: what?",
    }


def test_completion_prompt_joins_sources_in_one_line():
    """Line breaks in sources and question become spaces, so no text can start a line."""
    prompt = completion_prompt("what’s\nAnswer: #x?", SOURCES)
    assert (
        prompt
        == "Context: a *one* - `two` b \"three\" 'four'\nQuestion: what’s Answer: #x?\nAnswer:"
    )
