"""Functions for asyncio: `generate`, `chat` and `ask` as coroutines, text streams, and `asearch`.

The models run in their own threads, so these functions only wait and do not block the event loop.
Cancelling a task cancels its request: before the model computes its next batch of tokens, the
generation ends, and its place among the concurrent generations becomes free.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Protocol, Self, TypeVar, Unpack

from relevance_gen.asking.answer import Answer
from relevance_gen.asking.api import ask_stream
from relevance_gen.errors import RequestCancelledError
from relevance_gen.generation.api import refuse_fields_of_runner, runner_or_default
from relevance_gen.generation.queue.pending_request import OnText
from relevance_gen.generation.queue.request import Request, RequestFields
from relevance_gen.generation.runner import ChatOptions, Runner
from relevance_gen.generation.stream import TextPiece, text_piece
from relevance_gen.retrieval.api import search
from relevance_gen.retrieval.base_index import BaseIndex
from relevance_gen.retrieval.params import SearchOptions
from relevance_gen.types import Chunk, ContentPart, GenerationResponse, Metadata, SearchResponse

_CANCELLED = "the request was cancelled"


class _Cancellable(Protocol):
    def cancel(self) -> object: ...


_Started = TypeVar("_Started", bound=_Cancellable)


async def generate(
    request: Request | None = None, *, runner: Runner | None = None, **fields: Unpack[RequestFields]
) -> GenerationResponse:
    """Continue a text with a language model, as `relevance_gen.generate` does.

    Args:
        request: the text, a `GenerationRequest`, or a mapping of its fields.
        runner: by default the runner of `relevance_gen.generate`; the first call loads its model in
            a thread.
        fields: fields of a `GenerationRequest`; they override the fields of `request`.

    Returns:
        The completions, with token counts and times.

    Raises:
        RequestCancelledError: the request was cancelled, but not the task.
        RelevanceGenError: as `relevance_gen.generate` raises.
    """
    refuse_fields_of_runner(fields)
    return await _response(lambda: runner_or_default(runner).submit(request, **fields))


async def chat(
    messages: Sequence[Mapping[str, Any]],
    *,
    runner: Runner | None = None,
    **options: Unpack[ChatOptions],
) -> GenerationResponse:
    """Generate the next turn of a conversation, as `relevance_gen.chat` does.

    Args:
        messages: objects with ``role`` and ``content``, as in `relevance_gen.chat`.
        runner: as in `generate`.
        options: the options of `Runner.submit_chat`.

    Returns:
        The next turn; ``prompt`` is the rendered conversation.

    Raises:
        RequestCancelledError: the request was cancelled, but not the task.
        RelevanceGenError: as `relevance_gen.chat` raises.
    """
    refuse_fields_of_runner(options)
    return await _response(lambda: runner_or_default(runner).submit_chat(messages, **options))


def stream(
    request: Request | None = None, *, runner: Runner | None = None, **fields: Unpack[RequestFields]
) -> AsyncTextStream:
    """Return a stream of the text that continues a text. Arguments and errors: see `generate`."""
    refuse_fields_of_runner(fields)

    def submit(on_text: OnText) -> Future[GenerationResponse]:
        return runner_or_default(runner).submit(request, on_text=on_text, **fields)

    return AsyncTextStream(submit)


def stream_chat(
    messages: Sequence[Mapping[str, Any]],
    *,
    runner: Runner | None = None,
    **options: Unpack[ChatOptions],
) -> AsyncTextStream:
    """Return a stream of the next turn of a conversation. Arguments and errors: see `chat`."""
    refuse_fields_of_runner(options)

    def submit(on_part: OnText) -> Future[GenerationResponse]:
        return runner_or_default(runner).submit_chat(messages, on_part=on_part, **options)

    return AsyncTextStream(submit)


async def ask(
    question: str,
    chunks: BaseIndex | Iterable[str | Metadata | Chunk],
    *,
    runner: Runner | None = None,
    **options: Any,
) -> Answer:
    """Answer a question from chunks, as `relevance_gen.ask` does; return the answer.

    Args:
        question: not blank.
        chunks: a `ChunkIndex`, a `FolderIndex`, or chunks as in `search`.
        runner: as in `generate`.
        options: the options of `relevance_gen.ask`.

    Raises:
        RelevanceGenError: as `relevance_gen.ask` raises.
    """
    answer_stream = await _in_thread(
        partial(ask_stream, question, chunks, runner=runner, **options)
    )
    try:
        return await asyncio.to_thread(answer_stream.result)
    finally:
        answer_stream.cancel()


async def asearch(
    query: str,
    chunks: BaseIndex | Iterable[str | Metadata | Chunk],
    top_n: int = 10,
    true_order: bool = True,
    **options: Unpack[SearchOptions],
) -> SearchResponse:
    """Search chunks or an index in a thread.

    A search cannot be interrupted: if the task is cancelled, the thread finishes the search, and
    its response is dropped.

    Args:
        query: the question, as in `relevance_gen.search`.
        chunks: chunks as in `relevance_gen.search`, or an index such as a `ChunkIndex`.
        top_n: maximum number of results, at least 1.
        true_order: return results in the order of the chunks (true) or best first (false).
        options: see `SearchParams`.

    Raises:
        RelevanceGenError: as `relevance_gen.search` raises.
    """

    def search_in_thread() -> SearchResponse:
        if isinstance(chunks, BaseIndex):
            return chunks.search(query, top_n, true_order, **options)
        return search(query, chunks, top_n, true_order, **options)

    return await asyncio.to_thread(search_in_thread)


class AsyncTextStream(AsyncIterator[TextPiece]):
    """An asynchronous iterator over the pieces of text of all samples of a request.

    The pieces are in order of arrival. After the last piece, the attribute `response` is set. The
    request is submitted by the first step of the iteration. Iteration raises the error that the
    request failed with, or `RequestCancelledError` after `cancel`. Use it as a context manager
    (``async with``) to cancel the request if the loop is left early.

    Attributes:
        response: the response; ``None`` until iteration has ended.
    """

    def __init__(self, submit: Callable[[OnText], Future[GenerationResponse]]) -> None:
        self.response: GenerationResponse | None = None
        self._submit = submit
        self._pieces: asyncio.Queue[TextPiece | None] = asyncio.Queue()
        self._future: Future[GenerationResponse] | None = None
        self._is_cancelled = False

    async def __anext__(self) -> TextPiece:
        if self.response is not None:
            raise StopAsyncIteration
        if self._is_cancelled:
            raise RequestCancelledError(_CANCELLED)
        future = self._future
        if future is None:
            future = await self._start()
        piece = await self._pieces.get()
        if piece is not None:
            return piece
        self._pieces.put_nowait(None)  # If the request failed, further calls raise the same error.
        self.response = await _result(future)
        raise StopAsyncIteration

    async def _start(self) -> Future[GenerationResponse]:
        """Submit the request in a thread, and return its future.

        Each piece of text that the model's thread generates is put into the queue `_pieces` by the
        event loop. None is put into the queue when the request has ended.
        """
        loop = asyncio.get_running_loop()
        pieces = self._pieces

        def put(piece: TextPiece | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(pieces.put_nowait, piece)

        def on_text(sample: int, text: str | ContentPart) -> None:
            put(text_piece(sample, text))

        future = await _in_thread(lambda: self._submit(on_text))
        future.add_done_callback(lambda _: put(None))
        self._future = future
        return future

    def cancel(self) -> None:
        """Cancel the request unless it has ended.

        A running generation ends before the model computes its next batch of tokens.
        """
        self._is_cancelled = True
        if self._future is not None:
            self._future.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        if self._future is not None:
            self._future.cancel()


async def _response(submit: Callable[[], Future[GenerationResponse]]) -> GenerationResponse:
    """Submit a request in a thread, because this can load a model, and return its response."""
    return await _result(await _in_thread(submit))


async def _in_thread(start: Callable[[], _Started]) -> _Started:
    """Call `start` in a thread and return its result, which must have a method ``cancel``.

    If the task is cancelled during the call, the result is cancelled when the call has ended.
    """
    started = asyncio.get_running_loop().run_in_executor(None, start)
    try:
        return await asyncio.shield(started)
    except asyncio.CancelledError:
        started.add_done_callback(_cancel_started)
        raise


def _cancel_started(started: asyncio.Future[_Started]) -> None:
    if not started.cancelled() and started.exception() is None:
        started.result().cancel()


async def _result(future: Future[GenerationResponse]) -> GenerationResponse:
    """Wait for a future and return its result; if the task is cancelled, cancel the future.

    Raises:
        RequestCancelledError: the future was cancelled, but not the task.
    """
    try:
        return await asyncio.wrap_future(future)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        is_task_cancelled = task is not None and task.cancelling() > 0
        if is_task_cancelled:
            raise
        raise RequestCancelledError(_CANCELLED) from None
