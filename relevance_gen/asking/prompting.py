"""Write the prompt: a question, and the sources to answer it from."""

from __future__ import annotations

import re
from collections.abc import Sequence

from relevance_gen.asking.answer import Source

INSTRUCTIONS = (
    "Answer the question in a few sentences, from the sources below and nothing else. Behind what you take from a "
    "source put its number, as in [1]. If the sources do not answer the question, say that they do not."
)
_NOT_PLAIN = re.compile(r"[^\w\s,;:'()/.?!-]|--+|_+")


def chat_message(question: str, sources: Sequence[Source], instructions: str = INSTRUCTIONS) -> dict[str, str]:
    """Return the one message that asks a chat model; some templates know no role but the user's and the model's own."""
    numbered = [f"[{number}] {source.text.strip()}" for number, source in enumerate(sources, 1)]
    return {"role": "user", "content": "\n\n".join([instructions, *numbered, f"Question: {question.strip()}"])}


def completion_prompt(question: str, sources: Sequence[Source]) -> str:
    """Return the text that a model continues with an answer, in the form that the embedded one was trained on.

    Markup is left out, for it derails small models, and the sources stand in one line.
    """
    context = " ".join(_plain(source.text) for source in sources)
    return f"Context: {context}\nQuestion: {_plain(question)}\nAnswer:"


def _plain(text: str) -> str:
    return " ".join(_NOT_PLAIN.sub("", text).split())
