"""The prompt for what a search has found, written with the model's help within a time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from attrs import field, frozen

from relevance_gen.asking.model import Model
from relevance_gen.asking.preparation import prepare
from relevance_gen.errors import RequestCancelledError, TimedOutError
from relevance_gen.llama.language_model import ChatFormat
from relevance_gen.types import PromptRequest, PromptResponse, PromptSource, SearchResponse

_AT_ONCE = 4
"""Prompts written at once. Their threads mostly wait for the model's, which counts tokens between its steps."""


class Prompter:
    """Writes prompts, each in a thread; one may take `timeout_s`, waiting included."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(_AT_ONCE, "prompt")

    async def write(
        self, asked: PromptRequest, found: SearchResponse, model: Model, name: str | None = None
    ) -> PromptResponse:
        """Write what `model`, which was asked for by `name`, is to be asked, from what a search with spans has found.

        Raises:
            InvalidRequestError: there is no room for a source.
            TimedOutError: it was not done in time.
            RelevanceGenError: what the model raises.
        """
        impatient = _Impatient(model)
        try:
            async with asyncio.timeout(self._timeout_s):
                loop = asyncio.get_running_loop()
                return await loop.run_in_executor(self._threads, _write, asked, found, impatient, name)
        except TimeoutError:
            raise TimedOutError(f"the prompt was not written within {self._timeout_s:g} seconds") from None
        finally:
            impatient.is_over.set()


@frozen
class _Impatient:
    """A model that answers until nobody waits for the prompt any more: a thread cannot be stopped otherwise."""

    model: Model
    is_over: threading.Event = field(factory=threading.Event)

    @property
    def chat_format(self) -> ChatFormat:
        return self.model.chat_format

    def count_tokens(self, text: str) -> int:
        self._check()
        return self.model.count_tokens(text)

    def count_chat_tokens(self, messages: Sequence[Mapping[str, Any]], **rendering: Any) -> int:
        self._check()
        return self.model.count_chat_tokens(messages, **rendering)

    def _check(self) -> None:
        if self.is_over.is_set():
            raise RequestCancelledError("nobody waits for this prompt any more")


def _write(asked: PromptRequest, found: SearchResponse, model: Model, name: str | None) -> PromptResponse:
    sources, fields = prepare(asked.question, found, model, copy=asked.copy)
    named = {} if name is None else {"model": name}
    is_chat = "messages" in fields
    kept = ("messages", "max_tokens", "temperature", "choice") if is_chat else tuple(fields)
    return PromptResponse(
        tuple(PromptSource(source.result.original_index, source.start, source.end) for source in sources),
        "/v1/chat/completions" if is_chat else "/generate",
        {name: fields[name] for name in kept if name in fields} | named,
        bool(found.results) and found.confidence >= asked.min_confidence,
    )
