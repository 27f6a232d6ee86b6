"""What asking needs of a model before it generates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from relevance_gen.llama.language_model import ChatFormat


class Model(Protocol):
    """What writing a prompt needs of a `Runner`."""

    @property
    def chat_format(self) -> ChatFormat:
        """What the model's file says about conversations, and how long its context is."""

    def count_tokens(self, text: str) -> int:
        """Return how many tokens a prompt has."""

    def count_chat_tokens(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        chat_template: str | None = None,
        template_variables: Mapping[str, Any] | None = None,
    ) -> int:
        """Return how many tokens a conversation has."""
