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
    """Return whether the prompt of a model is written by `chat_message`.

    This is the case if the model file has a chat template and does not mark the model as one that
    copies its answers. Otherwise the prompt is written by `completion_prompt`. The embedded model
    has a chat template, but is marked, because it was not trained on instructions.
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
    """Return a prompt for a model without instructions; its continuation is the answer.

    The prompt has the format of the prompts on which the embedded model was trained: the sources on
    one line, the question on the next line, and the beginning of the answer's line.
    """
    context = " ".join(source.reference for source in sources)
    return f"Context: {context}\nQuestion: {' '.join(question.split())}\nAnswer:"
