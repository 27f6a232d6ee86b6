"""Make a request of a conversation: its prompt, what its answer must be, and how that is read."""

from __future__ import annotations

import re

import attrs

from relevance_gen.errors import InvalidRequestError, did_you_mean
from relevance_gen.generation.conversation import prompt_of, renderer_for
from relevance_gen.generation.reading import AnswerFormat
from relevance_gen.generation.turns import Conversation
from relevance_gen.llama.language_model import ChatFormat
from relevance_gen.types import GenerationRequest


def write(
    conversation: Conversation,
    request: GenerationRequest,
    model: ChatFormat,
    chat_template: str | None = None,
    client: str | None = None,
) -> tuple[GenerationRequest, AnswerFormat]:
    """Return `request` with the conversation for its text, and how a model writes the turn that is to come.

    Args:
        conversation: what is to be continued.
        request: what else is asked for.
        model: what its file says about conversations.
        chat_template: instead of the one in the file.
        client: who asks, as in a `Manner`.

    Raises:
        InvalidRequestError: there is no template for these messages, or it does not know what it must.
    """
    template = model.template if chat_template is None else chat_template
    words = set(re.findall(r"\w+", template if isinstance(template, str) else ""))
    for name, called in conversation.required.items():
        if name not in words:
            remedy = did_you_mean(name, words, "leave it out")
            raise InvalidRequestError("is not known to the chat template of this model", called, remedy=remedy)
    variables = conversation.variables
    if conversation.tools:
        variables = {**variables, "tools": [tool.as_told() for tool in conversation.tools]}
    text = prompt_of(
        *(conversation.messages, model, chat_template, variables),
        continues=conversation.continues,
        renderer=renderer_for(client),
    )
    return attrs.evolve(request, text=text), AnswerFormat()
