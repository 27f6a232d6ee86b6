"""The prompt for what a search has found, written with the model's help within a time."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from attrs import frozen

from relevance_gen.asking.preparation import Model, prepare
from relevance_gen.errors import TimedOutError
from relevance_gen.request_scope import cancel_scope
from relevance_gen.types import MIN_CONFIDENCE, PromptResponse, PromptSource, SearchResponse

_AT_ONCE = 4
"""Prompts written at once. Their threads mostly wait for the model's, which counts tokens between its steps."""


@frozen
class PromptOptions:
    """Options of a prompt.

    Attributes:
        copy: whether answers must be sentences of the sources, verbatim; None uses the setting in the model file.
        min_confidence: minimum confidence of the search for an answer, in [0, 1].
    """

    copy: bool | None = None
    min_confidence: float = MIN_CONFIDENCE


class Prompter:
    """Writes prompts, each in a thread; one may take `timeout_s`, waiting included."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(_AT_ONCE, "prompt")

    async def write(
        self,
        question: str,
        options: PromptOptions,
        found: SearchResponse,
        model: Model,
        name: str | None = None,
    ) -> PromptResponse:
        """Write what `model`, which was asked for by `name`, is to be asked, from what a search with spans has found.

        Raises:
            InvalidRequestError: there is no room for a source.
            RelevanceGenError: what the model raises; a `TimedOutError` if it was not done in time.
        """
        is_over = threading.Event()

        def write() -> PromptResponse:
            with cancel_scope(lambda: not is_over.is_set()):  # a thread cannot be stopped otherwise
                return _write(question, options, found, model, name)

        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, write)
        except TimeoutError:
            raise TimedOutError(
                f"the prompt was not written within {self._timeout_s:g} seconds"
            ) from None
        finally:
            is_over.set()


def _write(
    question: str, options: PromptOptions, found: SearchResponse, model: Model, name: str | None
) -> PromptResponse:
    sources, fields = prepare(question, found, model, copy=options.copy)
    named = {} if name is None else {"model": name}
    is_chat = "messages" in fields
    kept = ("messages", "max_tokens", "temperature", "choice") if is_chat else tuple(fields)
    return PromptResponse(
        tuple(
            PromptSource(source.result.original_index, source.start, source.end)
            for source in sources
        ),
        "/v1/chat/completions" if is_chat else "/generate",
        {name: fields[name] for name in kept if name in fields} | named,
        bool(found.results) and found.confidence >= options.min_confidence,
    )
