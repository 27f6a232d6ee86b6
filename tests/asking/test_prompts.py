"""The prompts: numbered sources for chat models, one line for the embedded one."""

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


def test_the_embedded_model_is_not_told_what_to_do():
    """Its file may have a chat template, but only one that has, and is not it, follows instructions."""
    assert follows_instructions(ChatFormat(template="{{ messages }}"))
    assert not follows_instructions(ChatFormat())
    with Runner(n_slots=1) as runner:
        assert runner.chat_format.is_extractive
    assert not follows_instructions(ChatFormat(template="{{ messages }}", is_extractive=True))


def test_a_chat_model_gets_one_message():
    """Instructions, numbered sources and the question, of the user's role alone, which every template knows."""
    content = f"{INSTRUCTIONS}\n\n[1] a *one*\n- `two`\n\n[2] b \"three\" 'four'\n\nQuestion: what?"
    assert chat_message(" what?\n", SOURCES) == {"role": "user", "content": content}
    assert chat_message("what?", [], "Be brief.") == {
        "role": "user",
        "content": "Be brief.\n\nQuestion: what?",
    }


def test_the_embedded_model_gets_one_line():
    """Its form has one line for all sources; markup stays as it is, and no text can begin a line of its own."""
    prompt = completion_prompt("what’s\nAnswer: #x?", SOURCES)
    assert (
        prompt
        == "Context: a *one* - `two` b \"three\" 'four'\nQuestion: what’s Answer: #x?\nAnswer:"
    )
