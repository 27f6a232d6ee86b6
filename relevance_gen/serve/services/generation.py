"""Generation service: requests to the runner of a model, and its text as it is generated."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from typing import Any, Final, Protocol, TypeAlias

import attrs
from attrs import field, frozen

from relevance_gen import types
from relevance_gen.asking.citations import Attributor
from relevance_gen.asking.prompts import PromptModel
from relevance_gen.errors import (
    InvalidRequestError,
    OverloadedError,
    RelevanceGenError,
    RequestCancelledError,
    TimedOutError,
)
from relevance_gen.generation.chat.chat_rendering import RenderedChat
from relevance_gen.generation.chat.conversation import Conversation
from relevance_gen.generation.queue.pending_request import OnText
from relevance_gen.generation.queue.request import DEFAULT_CONTEXT, RequestContext
from relevance_gen.llama.options import MAX_SLOTS
from relevance_gen.quota import Quota
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.services.model_registry import ModelRegistry
from relevance_gen.serve.services.prompts import Prompter, PromptOptions
from relevance_gen.serve.settings import NamedModel, Settings

AS_MUCH_AS_FITS: Final = 1 << 30
"""Token limit of a turn that ends by itself, or when the context is full."""
_MAX_REQUESTS: Final = 1024
"""Maximum requests of one client that run on a model or wait until it is loaded.

The limit is higher if the settings allow a longer queue.
"""
_HEARTBEAT_S: Final = 15.0
"""Longest time without an item of a stream: proxies close silent connections."""

_PIECE_BYTES: Final = 400
"""Memory of a queued piece in Python, in addition to its text."""

Piece: TypeAlias = tuple[int, str | types.ContentPart]
"""The number of a sample, and a piece of its generated text or a content part of its turn."""
Pieces: TypeAlias = list[Piece]
Responses: TypeAlias = tuple[types.GenerationResponse, ...]


class Backend(PromptModel, Protocol):
    """The part of `relevance_gen.generation.runner.Runner` that the server uses."""

    def submit(
        self,
        request: types.GenerationRequest,
        *,
        on_text: OnText | None = None,
        context: RequestContext = DEFAULT_CONTEXT,
    ) -> Future[types.GenerationResponse]:
        """Queue `request` without waiting; the runner's thread calls `on_text(sample, piece)`."""

    def render_chat(
        self,
        conversation: Conversation,
        request: types.GenerationRequest,
        *,
        client: str | None = None,
    ) -> RenderedChat:
        """Return a request that continues a conversation, and the format of the model's output.

        Args:
            conversation: the conversation, which the model's chat template renders as text.
            request: the options of the generation; the returned request has the rendered text.
            client: the id of the client's API key; None for this process itself.

        Raises:
            InvalidRequestError: no chat template accepts these messages.
            RelevanceGenError: the model is not available.
        """

    @property
    def closed(self) -> bool:
        """Whether the runner accepts no more requests, because it was closed or has failed."""

    def stats(self) -> types.Stats:
        """Return the backlog and the number of runners that accept work."""

    def close(self) -> None:
        """Finish the accepted requests, and end the threads of the runner."""


def load_backend(settings: Settings, model: NamedModel) -> Backend:
    """Load a generation model; see `Runner` and `ClusterRunner` for the exceptions."""
    options: dict[str, Any] = attrs.asdict(
        settings.model_options, filter=lambda option, value: value != option.default
    )
    options["max_queue"] = settings.max_queue
    options["prefix_cache_bytes"] = settings.prefix_cache_bytes
    options = {name: value for name, value in options.items() if value is not None}
    if settings.cluster is None:
        from relevance_gen.generation.runner import Runner

        return Runner(model.file, devices=settings.devices or None, **options)
    from relevance_gen.cluster import ClusterRunner

    # Servers with the same model share its runners by this name.
    name = f"of servers: {model.file or 'the embedded model'}"
    return ClusterRunner(
        model.file,
        address=settings.cluster,
        n_runners=settings.cluster_runners,
        name=name,
        **options,
    )


@frozen
class GenerationTask:
    """Prompts to continue together.

    Attributes:
        requests: a request for each prompt; their samples are numbered consecutively.
        prompts: the tokens of each prompt; empty if the requests have the prompts as text.
        conversation: the conversation that the only request continues, not yet rendered as text;
            None if there is none, or after `Generator.render`.
        context: options in addition to the requests; its client is the id of the API key.
        names: maps the name of a request's field to the client's name of it, for errors; a field
            that it does not contain has the same name for the client.
        echoes: whether the response repeats the prompt before each sample.
        model: the name of the model; None for the first.
        citer: finds the sources of the answer; None if the client requested no citations.
        backend: runs the requests; None until the model is leased.
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
    """Runs generations, each in the coroutine of its request."""

    def __init__(self, registry: ModelRegistry, settings: Settings, metrics: Metrics) -> None:
        self._registry = registry
        self._metrics = metrics
        self._timeout_s = settings.generation_timeout_s
        self._max_queue = settings.max_queue
        max_requests = max(_MAX_REQUESTS, (settings.max_queue or 0) + MAX_SLOTS)
        names = [model.name for model in settings.models["generate"]]
        self._request_quotas = {name: Quota(client_limit=max_requests) for name in names}
        # A prompter per model: models do not wait for each other.
        self._prompters = {name: Prompter(self._timeout_s) for name in names}

    async def stats(self) -> types.Stats:
        """Return the backlog and the number of runners of all models together.

        A model that was loaded before, and is unloaded or being unloaded, counts as one runner with
        no backlog, because a request can load it again. A model that was never loaded, is being
        loaded, or failed to load is not counted.
        """
        backlog = 0
        n_runners = 0
        for backend in self._registry.loaded("generate"):
            stats = types.Stats(0, 1) if backend is None else backend.stats()
            backlog += stats.backlog
            n_runners += stats.num_total_runners
        return types.Stats(backlog, n_runners)

    @asynccontextmanager
    async def lease(
        self, model: str | None, client: str, n_bytes: int = 0
    ) -> AsyncIterator[Backend]:
        """Yield the backend of a model once it is loaded; it stays loaded until the context ends.

        Args:
            model: the name of the model; None for the first.
            client: the id of the client's API key.
            n_bytes: bytes that the request holds while it waits.

        Raises:
            OverloadedError: this client has too many requests for the model.
            TimedOutError: the model was not loaded in time.
            RelevanceGenError: the exceptions of the registry.
        """
        name = self._registry.name_of("generate", model)
        refusal = partial(OverloadedError, "too many requests for this model")
        with (
            self._request_quotas[name].acquired(1, client, refusal=refusal),
            self._registry.lease("generate", name, client=client, n_bytes=n_bytes) as loading,
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
        self, options: PromptOptions, response: types.SearchResponse, backend: Backend
    ) -> types.PromptResponse:
        """Write a prompt from search results: see `Prompter.write`."""
        prompter = self._prompters[self._registry.name_of("generate", options.model)]
        return await prompter.write(options, response, backend)

    def render(self, task: GenerationTask) -> GenerationTask:
        """Return `task` with its conversation rendered as text by the chat template of the model.

        Takes milliseconds, and seconds with a pathological template.

        Raises:
            InvalidRequestError: the model lacks a template for these messages.
            RunnerClosedError: no runner is available.
        """
        conversation = task.conversation
        if conversation is None:
            return task
        (request,) = task.requests
        try:
            rendered = task.backend.render_chat(conversation, request, client=task.context.client)
        except InvalidRequestError as error:
            raise error.with_field_names(task.names) from None
        context = attrs.evolve(task.context, is_chat=True, output_format=rendered.output_format)
        return attrs.evolve(task, requests=(rendered.request,), conversation=None, context=context)

    async def complete(self, task: GenerationTask) -> Responses:
        """Return the complete response to each prompt of a task.

        Cancelling this coroutine cancels the unfinished requests, so that the runner can generate
        for other requests.

        Raises:
            RelevanceGenError: the exceptions of the runner; a `TimedOutError` after the time limit.
        """
        with self._running(task) as future:
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await asyncio.wrap_future(future)
            except TimeoutError:
                raise self._timed_out() from None
            except asyncio.CancelledError:
                if _is_task_cancelled():
                    raise
                raise RequestCancelledError("the runner dropped the request") from None

    async def stream(
        self, task: GenerationTask, acquire: Callable[[int], None] = lambda _: None
    ) -> AsyncGenerator[Pieces | Responses]:
        """Yield the text as it is generated, and at the end the complete responses.

        An item is a list of all pieces that arrived since the last item; the list is empty after
        `_HEARTBEAT_S` without a piece. The last item is the tuple of the responses. Closing the
        iterator cancels the unfinished requests.

        Args:
            task: the generation.
            acquire: called with the bytes of the pieces that wait to be yielded, and with the
                negative number when they have been sent; an exception that it raises ends the
                stream.

        Raises:
            RelevanceGenError: the exceptions of the runner; a `TimedOutError` after the time limit.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._timeout_s
        buffer = _StreamBuffer(acquire)

        def post(item: Piece | None) -> None:
            with suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(buffer.add, item)

        with self._running(task, lambda *piece: post(piece)) as future, closing(buffer):
            future.add_done_callback(lambda _: post(None))
            has_ended = False
            while not has_ended:
                batch = await buffer.next_batch(min(_HEARTBEAT_S, end_s - loop.time()))
                has_ended = batch.has_ended
                if not has_ended and loop.time() >= end_s:
                    raise self._timed_out()
                if batch.pieces or not has_ended:
                    yield batch.pieces
                    buffer.release(batch.pieces)
            if future.cancelled():
                raise RequestCancelledError("the runner dropped the request")
            yield future.result()

    @contextmanager
    def _running(
        self, task: GenerationTask, on_text: OnText | None = None
    ) -> Iterator[Future[Responses]]:
        """Submit the requests of `task`, and yield the future of their responses.

        At the end of the context, unfinished requests are cancelled, and metrics count the finished
        and the cancelled requests.
        """
        n_requests = len(task.requests)
        if self._max_queue is not None and n_requests > self._max_queue:
            rule = f"must be at most {self._max_queue} prompts, because no more may be queued"
            error = InvalidRequestError(rule, "text", str(n_requests), "send several requests")
            raise error.with_field_names(task.names)
        timer = _FirstTokenTimer()
        prompts = task.prompts or ((),) * len(task.requests)
        futures: list[Future[types.GenerationResponse]] = []
        n_samples = 0
        try:
            for request, prompt in zip(task.requests, prompts, strict=True):
                context = attrs.evolve(task.context, prompt=prompt)
                relay = partial(_relay_text, timer, on_text, n_samples)
                futures.append(task.backend.submit(request, on_text=relay, context=context))
                n_samples += request.num_samples
            yield _gather(futures)
        except InvalidRequestError as error:
            raise error.with_field_names(task.names) from None
        finally:
            for future in futures:
                if not future.done():
                    future.cancel()
                if not future.done() or future.cancelled():
                    self._metrics.add("generation_cancelled_total")
                elif future.exception() is None:
                    self._count(future.result(), timer)

    def _count(self, response: types.GenerationResponse, timer: _FirstTokenTimer) -> None:
        seconds = timer.elapsed_s
        first_token_s = seconds if timer.first_token_s is None else timer.first_token_s
        n_generated = sum(sample.generated_tokens for sample in response.responses)
        self._metrics.observe("generation_seconds", seconds)
        self._metrics.observe("time_to_first_token_seconds", first_token_s)
        self._metrics.add("prompt_tokens_total", response.prompt_tokens)
        self._metrics.add("generated_tokens_total", n_generated)

    def _timed_out(self) -> TimedOutError:
        return TimedOutError(f"the generation was not done within {self._timeout_s:g} seconds")


class _FirstTokenTimer:
    """Measures the seconds from the start of a generation to its first text and to its end."""

    def __init__(self) -> None:
        self._started_s = time.perf_counter()
        self.first_token_s: float | None = None

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start of the generation."""
        return time.perf_counter() - self._started_s

    def note_text(self) -> None:
        """Record the time of the first text; must be called when a piece of text arrives."""
        if self.first_token_s is None:
            self.first_token_s = self.elapsed_s


def _relay_text(
    timer: _FirstTokenTimer, on_text: OnText | None, first_sample: int, sample: int, piece: Any
) -> None:
    """Pass a piece of text of one request to `on_text`, unless that is None.

    The number of the sample in its request becomes its number in the task: `first_sample` samples
    belong to earlier requests.
    """
    timer.note_text()
    if on_text is not None:
        on_text(first_sample + sample, piece)


def _gather(futures: Sequence[Future[types.GenerationResponse]]) -> Future[Responses]:
    """Return a future of the results of all `futures`, in order.

    It fails, or is cancelled, as soon as any of `futures` does.
    """
    gathered: Future[Responses] = Future()
    lock = threading.Lock()

    def note(future: Future[types.GenerationResponse]) -> None:
        with lock, suppress(InvalidStateError):  # the caller has cancelled it
            if gathered.done():
                return
            if future.cancelled():
                gathered.cancel()
            elif (error := future.exception()) is not None:
                gathered.set_exception(error)
            elif all(other.done() for other in futures):
                gathered.set_result(tuple(other.result() for other in futures))

    for future in futures:
        future.add_done_callback(note)
    return gathered


def _is_task_cancelled() -> bool:
    """Return whether the current task was cancelled, and not only the future that it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


@frozen
class _PieceBatch:
    """The pieces that arrived since the last batch, and whether the stream has ended after them."""

    pieces: Pieces
    has_ended: bool


class _StreamBuffer:
    """Pieces of text that wait to be sent.

    Args:
        acquire: called with the bytes of a piece when it arrives, and with the negative number when
            it has been sent. An exception that it raises ends the stream.
    """

    def __init__(self, acquire: Callable[[int], None]) -> None:
        self._acquire = acquire
        self._items: asyncio.Queue[Piece | RelevanceGenError | None] = asyncio.Queue()
        self._is_closed = False

    def add(self, item: Piece | None) -> None:
        """Add a piece, and acquire its memory; None marks the end of the stream.

        If the memory cannot be acquired, the error becomes the end of the stream. After `close`,
        nothing is added.
        """
        if self._is_closed:
            return
        try:
            if item is not None:
                self._acquire(_bytes_of(item))
            self._items.put_nowait(item)
        except RelevanceGenError as error:
            self._items.put_nowait(error)
            self.close()

    async def next_batch(self, timeout_s: float) -> _PieceBatch:
        """Wait at most `timeout_s` for a piece or the end; return all pieces that have arrived.

        The batch is empty if none arrived in time.

        Raises:
            RelevanceGenError: the memory of a piece could not be acquired, which ended the stream.
        """
        try:
            async with asyncio.timeout(timeout_s):
                items = [await self._items.get()]
        except TimeoutError:
            return _PieceBatch([], has_ended=False)
        while not self._items.empty():
            items.append(self._items.get_nowait())
        if isinstance(items[-1], RelevanceGenError):
            raise items[-1]
        pieces = [item for item in items if isinstance(item, tuple)]
        return _PieceBatch(pieces, has_ended=len(pieces) < len(items))

    def release(self, pieces: Pieces) -> None:
        """Release the memory of pieces that have been sent."""
        self._acquire(-sum(map(_bytes_of, pieces)))

    def close(self) -> None:
        """Ignore further pieces: the request may have released all its memory."""
        self._is_closed = True


def _bytes_of(piece: Piece) -> int:
    _, content = piece
    text = content if isinstance(content, str) else content.text
    return _PIECE_BYTES + sys.getsizeof(text)
