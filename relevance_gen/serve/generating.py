"""``POST /generate`` and ``/generate_stream``: requests into the runner, its text out as it comes."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import Protocol, TypeAlias, TypeVar

from relevance_gen import wire
from relevance_gen.errors import RelevanceGenError, RequestCancelledError, RunnerClosedError
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.problems import HTTPError, body_of
from relevance_gen.types import GenerationRequest, GenerationResponse, Stats

_log = logging.getLogger(__name__)

_CLOSE_S = 5.0
"""For the runner's thread to end its current step."""

_HEARTBEAT_S = 15.0
"""A stream that has nothing to say says so this often: proxies cut silent connections, mostly after 60 s."""

_WRITE_ON_LOOP_BYTES = 64 << 10
"""A response up to about this size is written in less time than handing it to a thread takes."""

_BYTES_PER_TOKEN = 32
"""Text, id and log probability of one token, as JSON."""

T = TypeVar("T")
Pieces: TypeAlias = list[tuple[int, str]]
OnText: TypeAlias = Callable[[int, str], None]


class Backend(Protocol):
    """What the server needs of `relevance_gen.generation.runner.Runner` or ``RunnerPool``."""

    def submit(self, request: GenerationRequest, *, on_text: OnText | None = None) -> Future[GenerationResponse]:
        """Queue `request` without waiting; `on_text(sample, piece)` is called in the runner's thread."""

    def stats(self) -> Stats:
        """Tell the backlog and the runners that take work."""

    def close(self, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """Finish (`drain`) or abort what runs, and end the thread."""


class NoBackend:
    """The backend of a server without a model."""

    def submit(self, request: GenerationRequest, *, on_text: OnText | None = None) -> Future[GenerationResponse]:  # noqa: ARG002
        """Refuse: there is no runner."""
        raise RunnerClosedError("this server has no model")

    def stats(self) -> Stats:
        """Tell that there is nothing."""
        return Stats(backlog=0, num_total_runners=0)

    def close(self, *, drain: bool = True, timeout_s: float | None = None) -> None:
        """Do nothing."""


class Generator:
    """Runs generation requests, each in the coroutine of its handler."""

    def __init__(self, metrics: Metrics, timeout_s: float) -> None:
        self._backend: Backend = NoBackend()
        self._metrics = metrics
        self._timeout_s = timeout_s
        self.is_loading = False

    def load(self, load_backend: Callable[[], Backend]) -> None:
        """Load the backend in a thread; until it is there, and if it never is, there are no runners."""
        loop = asyncio.get_running_loop()
        self.is_loading = True

        def adopt(backend: Backend) -> None:
            self._backend = backend
            self.is_loading = False

        def work() -> None:
            backend: Backend = NoBackend()
            try:
                backend = load_backend()
            except RelevanceGenError as error:
                _log.error("the model could not be loaded: %s", error)
            except Exception:
                _log.exception("the model could not be loaded")
            with suppress(RuntimeError):  # the loop is closed: the server ended meanwhile
                loop.call_soon_threadsafe(adopt, backend)

        threading.Thread(target=work, name="load-model", daemon=True).start()

    async def state(self) -> Stats:
        """Tell the backlog and the runners that take work."""
        return self._backend.stats()

    async def close(self) -> None:
        """Abort what still runs."""
        await asyncio.to_thread(self._backend.close, drain=False, timeout_s=_CLOSE_S)

    async def complete(self, request: GenerationRequest) -> GenerationResponse:
        """Return the whole response. Cancelling this coroutine frees the request's slots.

        Raises:
            RelevanceGenError: what the runner raises.
            HTTPError: 503, not done in time.
        """
        with self._running(request) as future:
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await asyncio.wrap_future(future)
            except TimeoutError:
                raise self._too_slow() from None
            except asyncio.CancelledError:
                if _is_cancelled_from_outside():
                    raise
                raise RequestCancelledError("the runner dropped the request") from None

    async def stream(self, request: GenerationRequest) -> AsyncGenerator[Pieces | GenerationResponse]:
        """Yield the text as it comes and the whole response at the end. Closing the iterator frees the slots.

        What has come since the last look is yielded together; nothing at all is yielded as a heartbeat.

        Raises:
            RelevanceGenError: what the runner raises.
            HTTPError: 503, not done in time.
        """
        loop = asyncio.get_running_loop()
        end_s = loop.time() + self._timeout_s
        arrived: asyncio.Queue[tuple[int, str] | None] = asyncio.Queue()

        def post(item: tuple[int, str] | None) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(arrived.put_nowait, item)

        with self._running(request, lambda sample, piece: post((sample, piece))) as future:
            future.add_done_callback(lambda _: post(None))
            while True:
                pieces, ended = await _next(arrived, min(_HEARTBEAT_S, end_s - loop.time()))
                if not ended and loop.time() >= end_s:
                    raise self._too_slow()
                if pieces or not ended:
                    yield pieces
                if ended:
                    break
            if future.cancelled():
                raise RequestCancelledError("the runner dropped the request")
            yield future.result()

    @contextmanager
    def _running(
        self, request: GenerationRequest, on_text: OnText | None = None
    ) -> Iterator[Future[GenerationResponse]]:
        """Submit `request`; cancel it if it is not done at the end; count what it did."""
        started_s = time.perf_counter()
        first_s: list[float] = []

        def note(sample: int, piece: str) -> None:
            if not first_s:
                first_s.append(time.perf_counter() - started_s)
            if on_text is not None:
                on_text(sample, piece)

        future = self._backend.submit(request, on_text=note)
        try:
            yield future
        finally:
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

    def _too_slow(self) -> HTTPError:
        message = f"the generation was not done within {self._timeout_s:g} seconds"
        return HTTPError(503, "timeout", message, headers={"Retry-After": "1"})


async def _next(arrived: asyncio.Queue[tuple[int, str] | None], timeout_s: float) -> tuple[Pieces, bool]:
    """Wait for what comes next; return all pieces that are there, and whether that was the end."""
    try:
        async with asyncio.timeout(timeout_s):
            items = [await arrived.get()]
    except TimeoutError:
        return [], False
    while not arrived.empty():
        items.append(arrived.get_nowait())
    pieces = [item for item in items if item is not None]
    return pieces, len(pieces) < len(items)


def _is_cancelled_from_outside() -> bool:
    """Tell a handler whose client left from a future that the runner cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def made_of(response: GenerationResponse, make: Callable[[GenerationResponse], T]) -> T:
    """Return ``make(response)``, called in a thread where it takes longer than getting there."""
    n_bytes = len(response.prompt) + _BYTES_PER_TOKEN * sum(one.generated_tokens for one in response.responses)
    return make(response) if n_bytes <= _WRITE_ON_LOOP_BYTES else await asyncio.to_thread(make, response)


async def events_of(item: Pieces | GenerationResponse) -> bytes:
    """Write server-sent events: one ``text`` for each piece, or the ``response``; a comment for no pieces."""
    if isinstance(item, GenerationResponse):
        return _event("response", await made_of(item, wire.serialize))
    if not item:
        return b": waiting\n\n"
    return b"".join(_event("text", wire.serialize({"sample": sample, "text": piece})) for sample, piece in item)


def error_event_of(problem: HTTPError) -> bytes:
    """Write the server-sent event of a failure after the first event."""
    return _event("error", body_of(problem))


def _event(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"
