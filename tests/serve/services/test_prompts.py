"""Prompts without HTTP: for a model with a chat template, without a template, and without a model."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from relevance_gen import search
from relevance_gen.errors import TimedOutError
from relevance_gen.llama.language_model import ChatFormat
from relevance_gen.serve.services.prompts import Prompter, PromptOptions
from relevance_gen.types import PromptResponse

CHUNKS = [
    "The lighthouse was built in 1831.",
    "Bees tell each other where the flowers are by dancing.",
    "It rained.",
]
QUESTION = "How do bees find flowers?"


class Worded:
    """A model that counts words."""

    def __init__(self, chat_format: ChatFormat) -> None:
        self._chat_format = chat_format

    @property
    def chat_format(self) -> ChatFormat:
        """Return the configured value."""
        return self._chat_format

    def count_tokens(self, text: str) -> int:
        """Count the words."""
        return len(text.split())

    def count_chat_tokens(self, messages: Sequence[Mapping[str, Any]], **rendering: Any) -> int:  # noqa: ARG002
        """Count the words."""
        return sum(len(message["content"].split()) for message in messages)


class Slow(Worded):
    """A model that counts slowly, and for which everything is too long."""

    def __init__(self) -> None:
        super().__init__(ChatFormat(n_ctx=512))
        self.n_counted = 0

    def count_tokens(self, text: str) -> int:  # noqa: ARG002
        """Take a while."""
        self.n_counted += 1
        time.sleep(0.1)
        return 10_000


def prompt(backend: Worded, timeout_s: float = 10.0, **options: Any) -> PromptResponse:
    """Ask about the chunks."""

    async def asked() -> PromptResponse:
        prompter = Prompter(timeout_s)
        try:
            response = search(QUESTION, CHUNKS, 5, true_order=False, spans=True)
            return await prompter.write(PromptOptions(QUESTION, **options), response, backend)
        finally:
            prompter._threads.shutdown()

    return asyncio.run(asked())


def test_prompt_for_model_without_template_is_a_completion() -> None:
    """What to post to /generate, with the sentences shown and the tokens and lines that end an answer."""
    written = prompt(Worded(ChatFormat(n_ctx=512, eos_token_ids=(1, 7))))
    (source,) = written.sources
    assert CHUNKS[source.original_index][source.start : source.end] == CHUNKS[1]
    assert written.path == "/generate"
    assert written.request == {
        "text": f"Context: {CHUNKS[1]}\nQuestion: {QUESTION}\nAnswer:",
        "eos_token_ids": (1, 7),
        "stop": ["\n"],
        "max_tokens": 128,
        "temperature": 0.0,
    }


def test_prompt_for_chat_model_is_a_conversation() -> None:
    """What to post to /v1/chat/completions: fields of that interface, and the sources numbered."""
    written = prompt(Worded(ChatFormat(template="{{ messages }}", n_ctx=4096)))
    assert written.path == "/v1/chat/completions"
    assert list(written.request) == ["messages", "max_tokens", "temperature"]
    (message,) = written.request["messages"]
    assert message["role"] == "user"
    assert f"[1] {CHUNKS[1]}\n\nQuestion: {QUESTION}" in message["content"]


def test_copied_answer_is_constrained_to_sentences() -> None:
    """By the model's file or by the request: of the best passage, or in a conversation of all sentences shown."""
    by_file = prompt(Worded(ChatFormat(n_ctx=512, is_extractive=True)))
    assert by_file.request["choice"] == [f" {CHUNKS[1]}"]
    assert prompt(Worded(ChatFormat(n_ctx=512)), copy=True).request == by_file.request
    assert (
        "choice"
        not in prompt(Worded(ChatFormat(n_ctx=512, is_extractive=True)), copy=False).request
    )
    in_chat = prompt(Worded(ChatFormat(template="{{ messages }}", n_ctx=4096)), copy=True)
    assert in_chat.request["choice"] == [CHUNKS[1], f" {CHUNKS[1]}"]


def test_prompt_reports_whether_an_answer_was_found() -> None:
    """The confidence of the search is compared with the request's minimum; the prompt is written in both cases."""
    for bound, found in ((0.0, True), (0.99, False)):
        written = prompt(Worded(ChatFormat(n_ctx=512)), min_confidence=bound)
        assert (written.found, len(written.sources)) == (found, 1)


def test_prompt_times_out_in_token_counting() -> None:
    """The request ends in time, and its thread ends after the current token count."""
    slow = Slow()
    with pytest.raises(TimedOutError, match="prompt was not written within"):
        prompt(slow, 0.05)  # it waits for the thread
    assert slow.n_counted == 1


class Held(Worded):
    """A model that blocks in counting tokens until it is released, and counts the threads that call it."""

    def __init__(self) -> None:
        super().__init__(ChatFormat(n_ctx=512))
        self.let_go = threading.Event()
        self.lock = threading.Lock()
        self.n_asking = 0

    def count_tokens(self, text: str) -> int:
        """Wait."""
        with self.lock:
            self.n_asking += 1
        self.let_go.wait(60)
        return super().count_tokens(text)


def test_cancelled_prompt_keeps_its_thread_until_it_ends() -> None:
    """However many callers leave, no more prompts are written at once than may be."""
    held = Held()

    async def asked() -> None:
        prompter = Prompter(60)
        response = search(QUESTION, CHUNKS, 5, true_order=False, spans=True)
        options = PromptOptions(QUESTION)
        gone = [asyncio.create_task(prompter.write(options, response, held)) for _ in range(4)]
        while held.n_asking < 4:
            await asyncio.sleep(0.001)
        for task in gone:
            task.cancel()
        await asyncio.wait(gone)
        last = asyncio.create_task(prompter.write(options, response, held))
        for _ in range(100):  # it would begin at once
            await asyncio.sleep(0.001)
        n_asking = held.n_asking
        held.let_go.set()
        assert (await last).path == "/generate"
        assert n_asking == 4

    asyncio.run(asked())
