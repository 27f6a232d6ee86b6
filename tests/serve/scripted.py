"""A server whose two halves are scripted: slow, obvious, and obedient to what the prompt says.

Run as a script it takes the flags of ``python -m relevance_gen.serve``.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from attrs import define, field

from relevance_gen.errors import InvalidRequestError, OverloadedError, RunnerClosedError
from relevance_gen.generation.chat.chat_rendering import RenderedChat
from relevance_gen.generation.chat.conversation import Conversation
from relevance_gen.generation.output_parsing.output_parser import OutputFormat
from relevance_gen.generation.queue.request import DEFAULT_CONTEXT, RequestContext
from relevance_gen.index.chunks import Chunks
from relevance_gen.llama.language_model import ChatFormat
from relevance_gen.retrieval.params import NO_MODELS, SearchModels, SearchParams
from relevance_gen.retrieval.query.filters import Filter
from relevance_gen.serve.processes import process
from relevance_gen.serve.processes.command import main
from relevance_gen.serve.processes.process import ProcessSpec
from relevance_gen.serve.services.search import Searcher
from relevance_gen.serve.settings import NamedModel, Settings
from relevance_gen.types import (
    Completion,
    ContentPart,
    Explanation,
    GenerationRequest,
    GenerationResponse,
    SearchMetadata,
    SearchResponse,
    SearchResult,
    Span,
    Stats,
    TermContribution,
    TokenLogprob,
    TokenTexts,
)

OnText = Callable[[int, str], None]


def begin(text: str) -> None:
    """Report to a test with the query ``hold FILE`` that the work has begun: see `harness.Held`."""
    Path(f"{text.split()[1]}.begun").touch()


def is_held(text: str) -> bool:
    """Return whether `text` is ``hold FILE`` and the file exists."""
    words = text.split()
    return words[:1] == ["hold"] and Path(words[1]).exists()


class ObviousIndex:
    """Scores a chunk by the share of the query's words that it has, and filters chunks as a real index does."""

    def __init__(self, chunks: Chunks) -> None:
        self._chunks = chunks
        self._texts = chunks.texts
        self.nbytes = sum(map(len, chunks.texts))

    def answer_all(
        self, searches: Sequence[SearchParams], models: SearchModels = NO_MODELS
    ) -> list[SearchResponse]:
        """Rank the chunks for each query."""
        responses = []
        for params in searches:
            models.rerank_stages(params)  # raises an error if a model is missing
            responses.append(self._answer(params))
        return responses

    def _answer(self, params: SearchParams) -> SearchResponse:
        """Rank the chunks; the query ``"hold FILE"`` takes until the file is deleted, and ``"crash"`` is a bug."""
        query, n_chunks = params.query, len(self._texts)
        chunk_filter = Filter.read(params.where, n_chunks)
        words = query.lower().split()
        if is_held(query):
            begin(query)
        while is_held(query):
            time.sleep(0.005)
        if words[0] == "crash":
            raise ZeroDivisionError("secret internals")
        allowed = chunk_filter.flags(np.arange(n_chunks), self._chunks).tolist()
        scores = []
        for text, is_allowed in zip(self._texts, allowed, strict=True):
            n_words = sum(word in text.lower().split() for word in words)
            scores.append(n_words / len(words) if is_allowed else 0.0)
        min_score = params.min_relative_score * max(scores, default=0.0)
        positions = [i for i, score in enumerate(scores) if score and score >= min_score]
        best = sorted(positions, key=lambda i: (-scores[i], i))[: params.top_n]
        spans = (Span(0, 1, 1.0),) if params.spans else None
        results = tuple(
            SearchResult(k, self._texts[i], scores[i], {}, i, spans)
            for k, i in enumerate(sorted(best) if params.true_order else best)
        )
        counts = SearchMetadata(len(words), sum(len(text.split()) for text in self._texts))
        return SearchResponse(results, counts, 0.5)

    def explain_one(self, params: SearchParams, chunk: int, *_: object) -> Explanation:
        """Give each word of the query that the chunk has the same contribution."""
        words, chunk_words = params.query.lower().split(), self._texts[chunk].lower().split()
        share = 1 / len(words)
        terms = []
        for word in words:
            tf = chunk_words.count(word)
            terms.append(TermContribution(word, (word,), tf, 1, 1.0, share if tf else 0.0))
        score = sum(term.contribution for term in terms)
        return Explanation(score, tuple(terms), 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)


class ScriptedSearcher(Searcher):
    """A searcher that ranks with an `ObviousIndex`."""

    def rank_once(
        self, params: SearchParams, chunks: Chunks, models: SearchModels = NO_MODELS
    ) -> SearchResponse:
        """Rank `chunks`."""
        return ObviousIndex(chunks).answer_all([params], models)[0]

    def build_index(self, chunks: Chunks, encoder: object = None) -> Any:  # noqa: ARG002
        """Index `chunks`."""
        return ObviousIndex(chunks)


@define(eq=False)
class _Job:
    request: GenerationRequest
    on_text: OnText | None
    return_token_texts: bool
    is_turn: bool = False
    created: float = field(factory=time.time)
    future: Future[GenerationResponse] = field(factory=Future)
    words: list[str] = field(factory=list)


def _written(messages: Sequence[Mapping[str, Any]]) -> str:
    if any(message["content"] == "no template" for message in messages):
        raise InvalidRequestError("is required: the file has none", "chat_template")
    return "\n".join(f"{message['role']}: {message['content']}" for message in messages)


class ScriptedBackend:
    """One thread that says ``word0 word1 …`` in each sample, one word of every job in each step.

    The prompt ``"die"`` is an exception in that thread, and ``"hold FILE"`` gets its first word
    alone while the file is there.
    """

    slots = 4
    backlog = 8

    def __init__(
        self, step_s: float = 0.005, *, is_chat: bool = False, max_words: int | None = None
    ) -> None:
        self._step_s = step_s
        self._is_chat = is_chat
        self._max_words = max_words
        self._jobs: list[_Job] = []
        self._wake = threading.Condition()
        self._open = True
        threading.Thread(target=self._run, daemon=True).start()

    def submit(
        self,
        request: GenerationRequest,
        *,
        on_text: OnText | None = None,
        context: RequestContext = DEFAULT_CONTEXT,
    ) -> Future[GenerationResponse]:
        """Queue a request; cancelling its future ends it, also while it runs. The prompt ``"long"`` is too long."""
        if request.text == "long":
            failed: Future[GenerationResponse] = Future()
            failed.set_exception(InvalidRequestError("must hold fewer tokens", "text"))
            return failed
        if context.count_only:
            counted: Future[GenerationResponse] = Future()
            counted.set_result(
                GenerationResponse(0.0, 0.0, 0, request.text, len(request.text.split()), ())
            )
            return counted
        with self._wake:
            if not self._open:
                raise RunnerClosedError("closed")
            if (
                sum(job.request.num_samples for job in self._jobs) + request.num_samples
                > self.slots + self.backlog
            ):
                raise OverloadedError("the backlog is full", retry_after_s=3)
            is_turn = context.output_format is not None
            if on_text is not None and is_turn:
                tell = on_text
                job = _Job(
                    request,
                    lambda sample, text: tell(sample, ContentPart("text", text)),
                    context.return_token_texts,
                    is_turn,
                )
            else:
                job = _Job(request, on_text, context.return_token_texts, is_turn)
            self._jobs.append(job)
            self._wake.notify()
        return job.future

    @property
    def chat_format(self) -> ChatFormat:
        """Return a context of a few pages, and a template if this is a chat model."""
        return ChatFormat(template="{{ messages }}" if self._is_chat else None, n_ctx=4096)

    def count_tokens(self, text: str) -> int:
        """Count the words."""
        return len(text.split())

    def count_chat_tokens(self, messages: Sequence[Mapping[str, Any]], **rendering: Any) -> int:  # noqa: ARG002
        """Count the words of all messages."""
        return self.count_tokens(_written(messages))

    def render_chat(
        self, conversation: Conversation, request: GenerationRequest, **_: object
    ) -> RenderedChat:
        """Write a line for each message; the content ``"no template"`` finds none."""
        for called in conversation.required.values():
            raise InvalidRequestError("must be a variable of this model's chat template", called)
        rendered = attrs.evolve(request, text=_written(conversation.messages))
        return RenderedChat(rendered, OutputFormat())

    def stats(self) -> Stats:
        """Count the samples beyond the slots."""
        with self._wake:
            samples = sum(job.request.num_samples for job in self._jobs)
            return Stats(backlog=max(0, samples - self.slots), num_total_runners=int(self._open))

    @property
    def closed(self) -> bool:
        """Return whether the thread has ended."""
        return not self._open

    def close(self) -> None:
        """End the thread."""
        with self._wake:
            self._open = False
            self._wake.notify()

    def _run(self) -> None:
        try:
            while self._open:
                with self._wake:
                    self._jobs = [job for job in self._jobs if not job.future.done()]
                    self._wake.wait_for(lambda: bool(self._jobs) or not self._open)
                    jobs = list(self._jobs)
                time.sleep(self._step_s)
                for job in jobs:
                    self._step(job)
        except BaseException as error:
            self._open = False
            for job in self._jobs:
                if not job.future.done():
                    job.future.set_exception(RunnerClosedError(str(error)))

    def _step(self, job: _Job) -> None:
        request = job.request
        if request.text == "die":
            raise RuntimeError("scripted death")
        if job.words and is_held(request.text):
            return
        word = f"word{len(job.words)} "
        job.words.append(word)
        if job.on_text is not None:
            for sample in range(request.num_samples):
                job.on_text(sample, word)
        if is_held(request.text):
            begin(request.text)
        n_words = len(job.words)
        is_complete = n_words in (request.max_tokens, self._max_words)
        if is_complete and not job.future.done():
            job.future.set_result(_response(job))


def _response(job: _Job) -> GenerationResponse:
    now, n_words = time.time(), len(job.words)
    text = "".join(job.words)
    one = Completion(
        text,
        n_words,
        now,
        "length",
        parts=(ContentPart("text", text),) if job.is_turn else None,
        tokens=tuple(range(n_words)) if job.request.return_tokens else None,
        logprobs=(0.0,) * n_words if job.request.logprobs else None,
        top_logprobs=tuple((TokenLogprob(word, 0.0),) for word in range(n_words))
        if job.request.top_logprobs
        else None,
    )
    prompt = job.request.text
    words = prompt.split()
    pieces = {n: f"word{n} ".encode() for n in range(max(n_words, len(words)))}
    token_texts = TokenTexts(tuple(range(len(words))), pieces) if job.return_token_texts else None
    prompt_logprobs = (None, *(-1.0 for _ in words[1:])) if job.request.prompt_logprobs else None
    n_samples = job.request.num_samples
    counts = n_samples, prompt, len(words)
    return GenerationResponse(
        job.created, now, *counts, (one,) * n_samples, prompt_logprobs, token_texts
    )


def load(_: Settings, model: NamedModel) -> ScriptedBackend:
    """Load nothing.

    The file ``hold FILE`` loads while the file is there, ``fast`` takes no time for a step,
    ``slow`` ten times the usual, ``chat`` has a template, and ``brief`` writes 48 words at most.
    """
    file = model.file or ""
    while is_held(file):
        time.sleep(0.005)
    step_s = {"fast": 0.0, "slow": 0.05}.get(file, 0.005)
    max_words = 48 if file == "brief" else None
    return ScriptedBackend(step_s, is_chat=file == "chat", max_words=max_words)


def run(spec: ProcessSpec) -> None:
    """Be one process of a scripted server; the model ``"exit"`` is a process that cannot live."""
    if [model.file for model in spec.settings.model] == ["exit"]:
        sys.exit(3)
    process.run(spec, load, ScriptedSearcher)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ, run))
