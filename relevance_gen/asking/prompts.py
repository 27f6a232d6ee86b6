"""Write the prompt: a question, and the sources to answer it from."""

from __future__ import annotations

from collections.abc import Sequence

from relevance_gen.asking.answer import Source
from relevance_gen.llama.language_model import ChatFormat

INSTRUCTIONS = (
    "Answer the question in a few sentences, from the sources below and nothing else. If the sources do not answer the "
    "question, say that they do not."
)
COPYING_INSTRUCTIONS = (
    "Answer the question with the one sentence of the sources below that answers it, word for word."
)
"""In place of those, where the answer is to be copied."""


def follows_instructions(model: ChatFormat) -> bool:
    """Tell whether a model is to be asked by `chat_message`, as far as its file says; else by `completion_prompt`.

    The embedded model has a chat template, and was trained on no instructions.
    """
    return model.template is not None and not model.copies_only


def chat_message(
    question: str, sources: Sequence[Source], instructions: str = INSTRUCTIONS
) -> dict[str, str]:
    """Return the one message that asks a chat model; some templates know no role but the user's and the model's own."""
    numbered = [f"[{number}] {source.text.strip()}" for number, source in enumerate(sources, 1)]
    return {
        "role": "user",
        "content": "\n\n".join([instructions, *numbered, f"Question: {question.strip()}"]),
    }


def completion_prompt(question: str, sources: Sequence[Source]) -> str:
    """Return the text that a model continues with an answer, in the form that the embedded one was trained on.

    The sources stand in one line, and so does the question.
    """
    context = " ".join(source.reference for source in sources)
    return f"Context: {context}\nQuestion: {' '.join(question.split())}\nAnswer:"
