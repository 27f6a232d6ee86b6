"""Prompts from search results, fitted to a model's context within a time limit."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from attrs import frozen

from relevance_gen.asking.prompts import PromptModel, prepare
from relevance_gen.errors import TimedOutError
from relevance_gen.request_scope import cancel_scope
from relevance_gen.types import MIN_CONFIDENCE, PromptResponse, PromptSource, SearchResponse

_MAX_CONCURRENCY = 4
"""Maximum number of prompts that are written at once.

Their threads mostly wait for the model, which counts tokens between its decoding steps.
"""
_CHAT_FIELDS = ("messages", "max_tokens", "temperature", "choice")


@frozen
class PromptOptions:
    """A prompt to write.

    Attributes:
        question: the question to answer.
        copy: whether answers must be sentences of the sources, verbatim; None uses the setting in
            the model file.
        fill: whether filled results, which share nothing with the question, can be sources; None
            decides as `prepare` does.
        min_confidence: the `PromptResponse` has ``found=True`` only if the confidence of the search
            is at least this value, in [0, 1].
        model: the name by which the client selected the model; None for the first.
    """

    question: str
    copy: bool | None = None
    fill: bool | None = None
    min_confidence: float = MIN_CONFIDENCE
    model: str | None = None


class Prompter:
    """Writes prompts in threads; each prompt may take `timeout_s`, with its time in the queue."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._threads = ThreadPoolExecutor(_MAX_CONCURRENCY, "prompt")

    async def write(
        self, options: PromptOptions, response: SearchResponse, model: PromptModel
    ) -> PromptResponse:
        """Write a prompt for `model` from the results of a search.

        The model counts tokens and provides the chat template.

        Args:
            options: the question and the options of the prompt.
            response: the response of a search with ``spans=True``; its results must be sorted best
                first.
            model: the model for which the prompt is written.

        Raises:
            InvalidRequestError: the context is too small for a sentence of one source.
            RelevanceGenError: the exceptions of the model; a `TimedOutError` after `timeout_s`.
        """
        is_over = threading.Event()

        def write() -> PromptResponse:
            # A running thread cannot be stopped: it checks the scope.
            with cancel_scope(lambda: not is_over.is_set()):
                return _write(options, response, model)

        try:
            async with asyncio.timeout(self._timeout_s):
                return await asyncio.get_running_loop().run_in_executor(self._threads, write)
        except TimeoutError:
            raise TimedOutError(
                f"the prompt was not written within {self._timeout_s:g} seconds"
            ) from None
        finally:
            is_over.set()


def _write(options: PromptOptions, response: SearchResponse, model: PromptModel) -> PromptResponse:
    sources, fields = prepare(
        options.question, response, model, copy=options.copy, fill=options.fill
    )
    is_chat = "messages" in fields
    if is_chat:
        fields = {name: fields[name] for name in _CHAT_FIELDS if name in fields}
    if options.model is not None:
        fields = {**fields, "model": options.model}
    return PromptResponse(
        tuple(
            PromptSource(source.result.original_index, source.start, source.end)
            for source in sources
        ),
        "/v1/chat/completions" if is_chat else "/generate",
        fields,
        bool(sources) and response.confidence >= options.min_confidence,
    )
