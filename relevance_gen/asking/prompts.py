"""Write the prompt: a question and numbered sources."""

from __future__ import annotations

from collections.abc import Sequence

from relevance_gen.asking.answer import Source
from relevance_gen.llama.language_model import ChatFormat

INSTRUCTIONS = (
    "Answer the question in a few sentences, from the sources below and nothing else. If the sources do not answer the "
    "question, say that they do not."
)


def follows_instructions(model: ChatFormat) -> bool:
    """Return whether a model needs `chat_message`, by its file; otherwise `completion_prompt`.

    The embedded model has a chat template, but was not trained on instructions.
    """
    return model.template is not None and not model.is_extractive


def chat_message(
    question: str, sources: Sequence[Source], instructions: str = INSTRUCTIONS
) -> dict[str, str]:
    """Return a chat message that contains the instructions, the numbered sources and the question.

    Its role is ``user``, because some chat templates do not support the role ``system``.
    """
    numbered = [f"[{number}] {source.text.strip()}" for number, source in enumerate(sources, 1)]
    return {
        "role": "user",
        "content": "\n\n".join([instructions, *numbered, f"Question: {question.strip()}"]),
    }


def completion_prompt(question: str, sources: Sequence[Source]) -> str:
    """Return the prompt that a model continues with an answer, as the embedded model was trained.

    The sources are on one line, and the question is on the next.
    """
    context = " ".join(source.reference for source in sources)
    return f"Context: {context}\nQuestion: {' '.join(question.split())}\nAnswer:"
