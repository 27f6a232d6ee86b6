"""Generations: requests into the runner, its text out as it comes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import Any, Protocol, TypeAlias

import attrs
from attrs import frozen

from relevance_gen.asking.model import Model
from relevance_gen.errors import RequestCancelledError, RunnerClosedError, TimedOutError
from relevance_gen.llama.language_model import ChatFormat
from relevance_gen.llama.source import NO_MODEL
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.settings import Settings
from relevance_gen.serve.work.arrivals import Arrivals, Pieces
from relevance_gen.serve.work.loading import load_in_thread
from relevance_gen.types import (
    GenerationRequest,
    GenerationResponse,
    PromptResponse,
    PromptSource,
    SearchResponse,
    Stats,
)

_CLOSE_S = 5.0
"""For the runner's thread to end its current step."""

_LONGEST_SILENCE_S = 15.0
"""A stream yields at least this often, so that its reader can show that it lives: proxies cut silent connections."""

Responses: TypeAlias = tuple[GenerationResponse, ...]
OnText: TypeAlias = Callable[[int, str], None]


@frozen
class GenerationTask:
    """Prompts to continue together.

    Attributes:
        requests: one for each prompt; their samples are numbered through.
        messages: the conversation that the one request continues, whose text is not written yet; or ``None``.
        is_chat: whether the one request's text is a conversation, written.
        stops_itself: whether the model's own end tokens end a sample.
        spells: whether responses are to say how their tokens are written.
    """

    requests: tuple[GenerationRequest, ...]
    messages: Sequence[Mapping[str, Any]] | None = None
    is_chat: bool = False
    stops_itself: bool = False
    spells: bool = False

    @property
    def n_samples(self) -> int:
        """Samples of all prompts."""
        return sum(request.num_samples for request in self.requests)


class Backend(Model, Protocol):
    """What the server needs of `relevance_gen.generation.runner.Runner`."""

    def submit(
        self,
        request: GenerationRequest,
        *,
        on_text: OnText | None = None,
        is_chat: bool = False,
        stops_itself: bool = False,
        spells: bool = False,
    ) -> Future[GenerationResponse]:
        """Queue `request` without waiting; `on_text(sample, piece)` is called in the runner's thread."""

    def write_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """Return a conversation as the model's template has it."""

    def stats(self) -> Stats:
        """Return the backlog and the runners that take work."""

    def close(self, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """Finish (`drain`) or abort what runs, and end the thread."""


class NoBackend:
    """The backend of a server without a model."""

    @property
    def chat_format(self) -> ChatFormat:
        """Refuse: there is no runner."""
        raise RunnerClosedError("this server has no model")

    def count_tokens(self, text: str) -> int:  # noqa: ARG002
        """Refuse: there is no runner."""
        raise RunnerClosedError("this server has no model")

    def count_chat_tokens(self, messages: Sequence[Mapping[str, Any]], **rendering: Any) -> int:  # noqa: ARG002
        """Refuse: there is no runner."""
        raise RunnerClosedError("this server has no model")

    def submit(self, request: GenerationRequest, **options: Any) -> Future[GenerationResponse]:  # noqa: ARG002
        """Refuse: there is no runner."""
        raise RunnerClosedError("this server has no model")

    def write_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:  # noqa: ARG002
        """Refuse: there is no runner."""
        raise RunnerClosedError("this server has no model")

    def stats(self) -> Stats:
        """Return zeros."""
        return Stats(backlog=0, num_total_runners=0)

    def close(self, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """Do nothing."""


def load_backend(settings: Settings) -> Backend:
    """Load the model that `settings` name.

    Raises:
        ModelLoadError: it cannot be loaded.
        ClusterError: the settings name a cluster, and it does not answer as it must.
    """
    if settings.model == NO_MODEL:
        return NoBackend()
    given: dict[str, Any] = attrs.asdict(settings.model_options, filter=lambda one, value: value != one.default)
    given |= {"max_queue": settings.max_queue, "prefix_cache_bytes": settings.prefix_cache_bytes}
    given = {name: value for name, value in given.items() if value is not None}
    if settings.cluster is None:
        from relevance_gen.generation.runner import Runner

        return Runner(settings.model, **given)
    from relevance_gen.cluster import ClusterRunner

    # Servers of one model share its runners.
    name = f"of servers: {settings.model or 'the embedded model'}"
    return ClusterRunner(
        settings.model, address=settings.cluster, n_runners=settings.cluster_runners, name=name, **given
    )


class Generator:
    """Runs generations, each in the coroutine that asks for it."""

    def __init__(self, metrics: Metrics, timeout_s: float) -> None:
        self._backend: Backend = NoBackend()
        self._metrics = metrics
        self._timeout_s = timeout_s
        self.is_loading = False

    def start_loading(self, load: Callable[[], Backend]) -> None:
        """Load the backend in a thread. Until that is done there are no runners, and none if it fails."""
        self.is_loading = True

        def adopt(backend: Backend | None) -> None:
            self._backend = backend or NoBackend()
            self.is_loading = False

        load_in_thread(load, adopt, "the model")

    async def stats(self) -> Stats:
        """Return the backlog and the runners that take work."""
        return self._backend.stats()

    async def close(self) -> None:
        """Abort what still runs."""
        await asyncio.to_thread(self._backend.close, drain=False, timeout_s=_CLOSE_S)

    async def prompt(self, question: str, found: SearchResponse) -> PromptResponse:
        """Write what the model is to be asked, from what a search with spans has found.

        Raises:
            InvalidRequestError: there is no room for a source.
            RelevanceGenError: what the runner raises.
        """
        from relevance_gen.asking.api import prepare

        # Tokens are counted by the model's thread, between two of its steps.
        sources, fields = await asyncio.to_thread(prepare, question, found, self._backend)
        is_chat = "messages" in fields
        kept = ("messages", "max_tokens", "temperature") if is_chat else tuple(fields)
        return PromptResponse(
            tuple(PromptSource(source.result.original_index, source.start, source.end) for source in sources),
            "/v1/chat/completions" if is_chat else "/generate",
            {name: fields[name] for name in kept},
        )

    def written(self, task: GenerationTask) -> GenerationTask:
        """Return `task` with its conversation written, which takes milliseconds, and with a bad template seconds.

        Raises:
            InvalidRequestError: the model has no template for these messages.
            RunnerClosedError: there is no runner.
        """
        if task.messages is None:
            return task
        (request,) = task.requests
        text = self._backend.write_chat(task.messages)
        return attrs.evolve(task, requests=(attrs.evolve(request, text=text),), messages=None, is_chat=True)

    async def complete(self, task: GenerationTask) -> Responses:
        """Return the whole response to each prompt. Cancelling this coroutine frees their slots.

        Raises:
            RelevanceGenError: what the runner raises.
            TimedOutError: it was not done in time.
        """
        with self._running(task) as future:
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await asyncio.wrap_future(future)
            except TimeoutError:
                raise self._timed_out() from None
            except asyncio.CancelledError:
                if _is_cancelled_from_outside():
                    raise
                raise RequestCancelledError("the runner dropped the request") from None

    async def stream(
        self, task: GenerationTask, hold: Callable[[int], None] = lambda _: None
    ) -> AsyncGenerator[Pieces | Responses]:
        """Yield the text as it comes and at the end the whole responses. Closing the iterator frees the slots.

        All pieces that came since the last look are yielded together; an empty list is yielded when none came for long.

        Args:
            task: what to generate.
            hold: called with the bytes that pieces take which wait to be yielded, and with as many less once they are
                dealt with; what it raises ends the stream.

        Raises:
            RelevanceGenError: what the runner raises.
            TimedOutError: it was not done in time.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._timeout_s
        arrivals = Arrivals(hold)

        def post(item: tuple[int, str] | None) -> None:
            with suppress(RuntimeError):  # the loop is closed, so nobody waits any more
                loop.call_soon_threadsafe(arrivals.add, item)

        with self._running(task, lambda sample, piece: post((sample, piece))) as future, closing(arrivals):
            future.add_done_callback(lambda _: post(None))
            while True:
                pieces, ended = await arrivals.next(min(_LONGEST_SILENCE_S, end_s - loop.time()))
                if not ended and loop.time() >= end_s:
                    raise self._timed_out()
                if pieces or not ended:
                    yield pieces
                    arrivals.dealt_with(pieces)
                if ended:
                    break
            if future.cancelled():
                raise RequestCancelledError("the runner dropped the request")
            yield future.result()

    @contextmanager
    def _running(self, task: GenerationTask, on_text: OnText | None = None) -> Iterator[Future[Responses]]:
        """Submit the requests of `task`; at the end cancel what is not done, and count what was."""
        started_s = time.perf_counter()
        first_s: list[float] = []

        def note(first_sample: int, sample: int, piece: str) -> None:
            if not first_s:
                first_s.append(time.perf_counter() - started_s)
            if on_text is not None:
                on_text(first_sample + sample, piece)

        options = {"is_chat": task.is_chat, "stops_itself": task.stops_itself, "spells": task.spells}
        futures: list[Future[GenerationResponse]] = []
        n_samples = 0
        try:
            for request in task.requests:
                futures.append(self._backend.submit(request, on_text=partial(note, n_samples), **options))
                n_samples += request.num_samples
            yield _joined(futures)
        finally:
            for future in futures:
                if not future.done():
                    future.cancel()
                if not future.done() or future.cancelled():
                    self._metrics.add("generation_cancelled_total")
                elif future.exception() is None:
                    self._count(future.result(), time.perf_counter() - started_s, first_s)

    def _count(self, response: GenerationResponse, seconds: float, first_s: list[float]) -> None:
        self._metrics.observe("generation_seconds", seconds)
        self._metrics.observe("time_to_first_token_seconds", first_s[0] if first_s else seconds)
        self._metrics.add("prompt_tokens_total", response.prompt_tokens)
        self._metrics.add("generated_tokens_total", sum(c.generated_tokens for c in response.responses))

    def _timed_out(self) -> TimedOutError:
        return TimedOutError(f"the generation was not done within {self._timeout_s:g} seconds")


def _joined(futures: Sequence[Future[GenerationResponse]]) -> Future[Responses]:
    """Return a future of all their results, in order; it ends as soon as one of them fails or is cancelled."""
    joined: Future[Responses] = Future()
    lock = threading.Lock()

    def note(future: Future[GenerationResponse]) -> None:
        with lock, suppress(InvalidStateError):  # whoever waited has left
            if joined.done():
                return
            if future.cancelled():
                joined.cancel()
            elif (error := future.exception()) is not None:
                joined.set_exception(error)
            elif all(one.done() for one in futures):
                joined.set_result(tuple(one.result() for one in futures))

    for future in futures:
        future.add_done_callback(note)
    return joined


def _is_cancelled_from_outside() -> bool:
    """Tell whether the current task was cancelled, and not merely the runner's future that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
