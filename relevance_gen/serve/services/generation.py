"""Generations: requests into the runner of a model, its text out as it comes."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from typing import Any, Protocol, TypeAlias

import attrs
from attrs import field, frozen

from relevance_gen import types
from relevance_gen.asking.citations import Attributor
from relevance_gen.asking.preparation import Model
from relevance_gen.errors import (
    InvalidRequestError,
    OverloadedError,
    RequestCancelledError,
    TimedOutError,
)
from relevance_gen.generation.chat.conversation import Conversation
from relevance_gen.generation.output_parsing.output_parser import OutputFormat
from relevance_gen.generation.queue.pending_request import OnText
from relevance_gen.generation.queue.request import DEFAULT_CONTEXT, RequestContext
from relevance_gen.llama.options import MAX_SLOTS
from relevance_gen.quota import Quota
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.services.model_registry import ModelRegistry
from relevance_gen.serve.services.prompts import Prompter, PromptOptions
from relevance_gen.serve.services.stream_buffer import Piece, Pieces, StreamBuffer
from relevance_gen.serve.settings import NamedModel, Settings

AS_MUCH_AS_FITS = 1 << 30
"""A limit of tokens for a turn that ends by itself, or where the context is full."""
_MOST_REQUESTS = 1024
"""Of one client to one model, in work or waiting for it to be loaded; more where more may wait in its queue."""
_LONGEST_SILENCE_S = 15.0
"""A stream yields at least this often, so that its reader can show that it lives: proxies cut silent connections."""

Responses: TypeAlias = tuple[types.GenerationResponse, ...]


class Backend(Model, Protocol):
    """What the server needs of `relevance_gen.generation.runner.Runner`."""

    def submit(
        self,
        request: types.GenerationRequest,
        *,
        on_text: OnText | None = None,
        context: RequestContext = DEFAULT_CONTEXT,
    ) -> Future[types.GenerationResponse]:
        """Queue `request` without waiting; `on_text(sample, piece)` is called in the runner's thread."""

    def write_chat(
        self,
        conversation: Conversation,
        request: types.GenerationRequest,
        *,
        client: str | None = None,
    ) -> tuple[types.GenerationRequest, OutputFormat]:
        """Return a request that continues a conversation as the model's template has it, and how its answer is read."""

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests, because it was closed or has died."""

    def stats(self) -> types.Stats:
        """Return the backlog and the runners that take work."""

    def close(self) -> None:
        """Finish what was accepted, and end the thread."""


def load_backend(settings: Settings, model: NamedModel) -> Backend:
    """Load one of the models that `settings` name; raise what `Runner` and `ClusterRunner` raise."""
    given: dict[str, Any] = attrs.asdict(
        settings.model_options, filter=lambda one, value: value != one.default
    )
    given |= {"max_queue": settings.max_queue, "prefix_cache_bytes": settings.prefix_cache_bytes}
    given = {name: value for name, value in given.items() if value is not None}
    if settings.cluster is None:
        from relevance_gen.generation.runner import Runner

        return Runner(model.file, **given)
    from relevance_gen.cluster import ClusterRunner

    # Servers of one model share its runners.
    name = f"of servers: {model.file or 'the embedded model'}"
    return ClusterRunner(
        model.file, address=settings.cluster, n_runners=settings.cluster_runners, name=name, **given
    )


@frozen
class GenerationTask:
    """Prompts to continue together.

    Attributes:
        requests: one for each prompt; their samples are numbered through.
        prompts: the tokens of each, where they are given as these.
        conversation: what the one request continues, whose text is not written yet.
        context: what the model is told beside the requests; its client is the id of the key of who asks.
        names: what the client calls a field, for errors, where that is not the request's own name.
        echoes: whether the answer has each prompt before each of its samples.
        model: which model is asked; None for the first.
        citer: what the answer is cited from.
        backend: what runs it, while that is lent.
    """

    requests: tuple[types.GenerationRequest, ...]
    prompts: tuple[tuple[int, ...], ...] = ()
    conversation: Conversation | None = None
    context: RequestContext = DEFAULT_CONTEXT
    names: Mapping[str, str] = field(factory=dict)
    echoes: bool = False
    model: str | None = None
    citer: Attributor | None = None
    backend: Any = None


class Generator:
    """Runs generations, each in the coroutine that asks for it."""

    def __init__(self, registry: ModelRegistry, settings: Settings, metrics: Metrics) -> None:
        self._registry = registry
        self._metrics = metrics
        self._timeout_s = settings.generation_timeout_s
        most_requests = max(_MOST_REQUESTS, (settings.max_queue or 0) + MAX_SLOTS)
        names = [model.name for model in settings.models["generate"]]
        self._places = {name: Quota(client_limit=most_requests) for name in names}
        self._prompters = {
            name: Prompter(self._timeout_s) for name in names
        }  # none waits for another model's

    async def stats(self) -> types.Stats:
        """Return the backlog and the runners that take work, those that are unloaded until they are asked included."""
        loaded = self._registry.loaded("generate")
        each = [types.Stats(0, 1) if backend is None else backend.stats() for backend in loaded]
        return types.Stats(
            sum(one.backlog for one in each), sum(one.num_total_runners for one in each)
        )

    @asynccontextmanager
    async def lent(
        self, model: str | None, client: str, n_bytes: int = 0
    ) -> AsyncIterator[Backend]:
        """Give what runs a model, once it is loaded, until the end of the context; a request holds bytes meanwhile.

        Raises:
            OverloadedError: this client has too many requests for it.
            RelevanceGenError: what the registry raises.
        """
        name = self._registry.name_of("generate", model)
        refusal = partial(OverloadedError, "too many requests for this model")
        with (
            self._places[name].acquired(1, client, refusal=refusal),
            self._registry.lent("generate", name, client=client, n_bytes=n_bytes) as loading,
        ):
            try:
                async with asyncio.timeout(self._timeout_s):
                    backend = await asyncio.wrap_future(loading)
            except TimeoutError:
                raise TimedOutError(
                    f"the model was not loaded within {self._timeout_s:g} seconds"
                ) from None
            yield backend

    async def prompt(
        self,
        question: str,
        options: PromptOptions,
        found: types.SearchResponse,
        model: str | None,
        on: Backend,
    ) -> types.PromptResponse:
        """Write what a model is to be asked: see `Prompter.write`."""
        return await self._prompters[self._registry.name_of("generate", model)].write(
            question, options, found, on, model
        )

    def written(self, task: GenerationTask) -> GenerationTask:
        """Return `task` with its conversation written, which takes milliseconds, and with a bad template seconds.

        Raises:
            InvalidRequestError: the model has no template for these messages.
            RunnerClosedError: there is no runner.
        """
        if (asked := task.conversation) is None:
            return task
        try:
            request, answer = task.backend.write_chat(
                asked, *task.requests, client=task.context.client
            )
        except InvalidRequestError as error:
            raise error.with_field_names(task.names) from None
        context = attrs.evolve(task.context, is_chat=True, output_format=answer)
        return attrs.evolve(task, requests=(request,), conversation=None, context=context)

    async def complete(self, task: GenerationTask) -> Responses:
        """Return the whole response to each prompt. Cancelling this coroutine frees their slots.

        Raises:
            RelevanceGenError: what the runner raises; a `TimedOutError` if it was not done in time.
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
        `hold` is called with the bytes that pieces take which wait to be yielded, and with as many less once they are
        dealt with; what it raises ends the stream.

        Raises:
            RelevanceGenError: what the runner raises; a `TimedOutError` if it was not done in time.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._timeout_s
        arrivals = StreamBuffer(hold)

        def post(item: Piece | None) -> None:
            with suppress(RuntimeError):  # the loop is closed, so nobody waits any more
                loop.call_soon_threadsafe(arrivals.add, item)

        with (
            self._running(task, lambda sample, piece: post((sample, piece))) as future,
            closing(arrivals),
        ):
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
    def _running(
        self, task: GenerationTask, on_text: OnText | None = None
    ) -> Iterator[Future[Responses]]:
        """Submit the requests of `task`; at the end cancel what is not done, and count what was."""
        started_s = time.perf_counter()
        first_s: list[float] = []

        def note(first_sample: int, sample: int, piece: Any) -> None:
            if not first_s:
                first_s.append(time.perf_counter() - started_s)
            if on_text is not None:
                on_text(first_sample + sample, piece)

        futures: list[Future[types.GenerationResponse]] = []
        n_samples = 0
        try:
            for request, prompt in zip(
                task.requests, task.prompts or ((),) * len(task.requests), strict=True
            ):
                context = attrs.evolve(task.context, prompt=prompt)
                futures.append(
                    task.backend.submit(request, on_text=partial(note, n_samples), context=context)
                )
                n_samples += request.num_samples
            yield _joined(futures)
        except InvalidRequestError as error:
            raise error.with_field_names(task.names) from None
        finally:
            for future in futures:
                if not future.done():
                    future.cancel()
                if not future.done() or future.cancelled():
                    self._metrics.add("generation_cancelled_total")
                elif future.exception() is None:
                    self._count(future.result(), time.perf_counter() - started_s, first_s)

    def _count(
        self, response: types.GenerationResponse, seconds: float, first_s: list[float]
    ) -> None:
        self._metrics.observe("generation_seconds", seconds)
        self._metrics.observe("time_to_first_token_seconds", first_s[0] if first_s else seconds)
        self._metrics.add("prompt_tokens_total", response.prompt_tokens)
        self._metrics.add(
            "generated_tokens_total", sum(c.generated_tokens for c in response.responses)
        )

    def _timed_out(self) -> TimedOutError:
        return TimedOutError(f"the generation was not done within {self._timeout_s:g} seconds")


def _joined(futures: Sequence[Future[types.GenerationResponse]]) -> Future[Responses]:
    """Return a future of all their results, in order; it ends as soon as one of them fails or is cancelled."""
    joined: Future[Responses] = Future()
    lock = threading.Lock()

    def note(future: Future[types.GenerationResponse]) -> None:
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
