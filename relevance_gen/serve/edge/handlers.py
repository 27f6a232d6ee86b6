"""What each path does: for each kind of work, a function that makes the handler for a dialect of it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import aclosing
from typing import Protocol, TypeAlias, TypeVar

from aiohttp import web
from attrs import frozen

from relevance_gen import wire
from relevance_gen.serve.edge import codings
from relevance_gen.serve.edge.bodies import receive
from relevance_gen.serve.edge.budget import Account
from relevance_gen.serve.edge.connection import until_read
from relevance_gen.serve.edge.exchange import common_headers
from relevance_gen.serve.edge.problems import WriteError, empty, problem_of
from relevance_gen.serve.edge.route import Handler
from relevance_gen.serve.edge.service import KEY_ID, LANE, SERVICE, WRITE_ERROR
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.work.embedding import Embedder
from relevance_gen.serve.work.generating import Generator, Pieces
from relevance_gen.serve.work.searching import ExplanationTask, Searcher, SearchTask
from relevance_gen.types import Explanation, GenerationRequest, GenerationResponse, PromptResponse, SearchResponse

GENERATOR = web.AppKey("GENERATOR", Generator)
EMBEDDER = web.AppKey("EMBEDDER", Embedder)

_STREAM_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_HEARTBEAT = b": waiting\n\n"
"""A comment in an event stream, which every reader skips."""

_WRITE_ON_LOOP_BYTES = 64 << 10
"""A response up to about this size is written in less time than handing it to a thread takes."""
_BYTES_PER_TOKEN = 32
"""Text, id and log probability of one token, as JSON."""

_SEARCH_FACTOR = 9
_BYTES_PER_CHUNK = 320
"""What a search needs for each byte of its body and for each chunk, beside the chunks: arrays, and then the answer."""

T = TypeVar("T")
Task = TypeVar("Task", SearchTask, ExplanationTask)


class Events(Protocol):
    """How a dialect words one stream."""

    def text(self, sample: int, piece: str) -> bytes:
        """Return what is sent for a piece of text."""

    def response(self, response: GenerationResponse) -> bytes:
        """Return what is sent at the end."""

    def error(self, kind: str, message: str, field: str | None) -> bytes:
        """Return what is sent in place of the end when the stream has failed."""


ReadSearch: TypeAlias = Callable[[object], tuple[SearchTask, Callable[[SearchResponse], object]]]
ReadExplanation: TypeAlias = Callable[[object], tuple[ExplanationTask, Callable[[Explanation], object]]]
ReadPrompt: TypeAlias = Callable[[object], tuple[SearchTask, Callable[[PromptResponse], object]]]
ReadGeneration: TypeAlias = Callable[[object], tuple[GenerationRequest, Callable[[GenerationResponse], object]]]
ReadStream: TypeAlias = Callable[[object], tuple[GenerationRequest, Events]]


# ── Search ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Sharing:
    """A dialect of search that shares the path of another.

    Attributes:
        field: a body that has it speaks this dialect.
        read: as for a path of its own.
        write_error: how it words what is wrong once the body is known; until then the path's own dialect does.
    """

    field: str
    read: ReadSearch
    write_error: WriteError


def search(read: ReadSearch, *sharing: Sharing) -> Handler:
    """Return the handler of searches that `read` understands, or one of the dialects that share its path."""

    def read_as(value: object, request: web.Request) -> tuple[SearchTask, Callable[[SearchResponse], object]]:
        for dialect in sharing:
            if isinstance(value, dict) and dialect.field in value:
                request[WRITE_ERROR] = dialect.write_error
                return dialect.read(value)
        return read(value)

    return _found(read_as, Searcher.search, _record_search)


def explain(read: ReadExplanation) -> Handler:
    """Return the handler of explanations that `read` understands: they take what a search takes."""
    return _found(lambda value, _: read(value), Searcher.explain, lambda *_: None)


def _found(
    read: Callable[[object, web.Request], tuple[Task, Callable[[T], object]]],
    do: Callable[[Searcher, Task, str], T],
    record: Callable[[Metrics, Task, T, float], None],
) -> Handler:
    """Return the handler that has the searcher do what `read` understands, off the event loop."""

    async def answer(request: web.Request) -> web.StreamResponse:
        service, scope, coding = request.app[SERVICE], request[KEY_ID], _wanted_coding(request)
        body = await receive(request)
        patience_s = service.settings.queue_timeout_s

        def work() -> tuple[bytes, dict[str, str]]:
            started_s = time.perf_counter()
            with body.account:
                task, present = read(body.parse(work_factor=_SEARCH_FACTOR, patience_s=patience_s), request)
                body.account.take_in_time(_BYTES_PER_CHUNK * len(task.chunks), patience_s)
                found = do(service.searcher, task, scope)
                out, headers = codings.encode(wire.serialize(present(found)), coding)
                body.account.replace(len(out))
            record(service.metrics, task, found, time.perf_counter() - started_s)
            return out, headers

        out, headers = await request[LANE].gate.run(work)
        return web.Response(body=out, content_type="application/json", headers=headers)

    return answer


def _record_search(metrics: Metrics, task: SearchTask, found: SearchResponse, seconds: float) -> None:
    metrics.observe("search_seconds", seconds)
    metrics.add("search_chunks_total", len(task.chunks))
    metrics.add("search_tokens_total", found.metadata.num_query_tokens + found.metadata.num_context_tokens)


# ── Generation ───────────────────────────────────────────────────────────────────────────────────────────────────────


def prompt(read: ReadPrompt) -> Handler:
    """Return the handler of questions that `read` understands: searched first, then written as the model's prompt."""

    async def answer(request: web.Request) -> web.StreamResponse:
        service, scope = request.app[SERVICE], request[KEY_ID]
        body = await receive(request)
        patience_s = service.settings.queue_timeout_s

        def work() -> tuple[str, SearchResponse, Callable[[PromptResponse], object]]:
            with body.account:
                task, present = read(body.parse(work_factor=_SEARCH_FACTOR, patience_s=patience_s))
                body.account.take_in_time(_BYTES_PER_CHUNK * len(task.chunks), patience_s)
                found = service.searcher.search(task, scope)
            return task.query, found, present

        question, found, present = await request[LANE].gate.run(work)
        body.account.replace(sum(sys.getsizeof(result.chunk_txt) for result in found))
        written = await request.app[GENERATOR].prompt(question, found)
        return web.Response(body=wire.serialize(present(written)), content_type="application/json")

    return answer


def generate(read: ReadGeneration) -> Handler:
    """Return the handler of generations that `read` understands, answered when they are complete."""

    async def answer(request: web.Request) -> web.StreamResponse:
        coding = _wanted_coding(request)
        account, generation, present = await _generation(request, read)
        response = await request.app[GENERATOR].complete(generation)
        body, headers = await made_of(response, lambda it: codings.encode(wire.serialize(present(it)), coding))
        account.replace(len(body))
        return web.Response(body=body, content_type="application/json", headers=headers)

    return answer


def stream(read: ReadStream) -> Handler:
    """Return the handler of generations that `read` understands, answered with server-sent events as they go.

    The head is sent with the first text or heartbeat, so that what fails before has a status of its own.
    """

    async def answer(request: web.Request) -> web.StreamResponse:
        service = request.app[SERVICE]
        timeout_s = service.settings.answer_timeout_s
        _, generation, events = await _generation(request, read)
        async with aclosing(request.app[GENERATOR].stream(generation)) as items:
            first = await anext(items)
            response = web.StreamResponse(headers={**_STREAM_HEADERS, **common_headers(request, service)})
            await response.prepare(request)
            await response.write(await _worded(first, events))
            try:
                async for item in items:
                    worded = await _worded(item, events)
                    async with until_read(request, timeout_s):
                        await response.write(worded)
            except ConnectionError:
                raise
            except Exception as error:
                problem = problem_of(error)
                await response.write(events.error(problem.kind, problem.message, problem.field))
        return response

    return answer


async def _generation(
    request: web.Request, read: Callable[[object], tuple[GenerationRequest, T]]
) -> tuple[Account, GenerationRequest, T]:
    """Receive and read a request; its memory stays accounted for while it waits and runs."""
    body = await receive(request)

    def work() -> tuple[GenerationRequest, T]:
        with body.account:
            return read(body.parse())

    generation, presenter = work() if body.is_small else await request[LANE].gate.run(work)
    body.account.replace(_size_bytes(generation))
    return body.account, generation, presenter


def _size_bytes(request: GenerationRequest) -> int:
    """Return the memory of a request's texts and lists."""
    stop, ends = request.stop, request.eos_token_ids
    return sum(map(sys.getsizeof, (request.text, stop, *stop, ends, *ends)))


async def _worded(item: Pieces | GenerationResponse, events: Events) -> bytes:
    if isinstance(item, GenerationResponse):
        return await made_of(item, events.response)
    return b"".join(events.text(sample, piece) for sample, piece in item) or _HEARTBEAT


async def made_of(response: GenerationResponse, make: Callable[[GenerationResponse], T]) -> T:
    """Return ``make(response)``, called in a thread where it takes longer than getting there."""
    n_bytes = len(response.prompt) + _BYTES_PER_TOKEN * sum(one.generated_tokens for one in response.responses)
    return make(response) if n_bytes <= _WRITE_ON_LOOP_BYTES else await asyncio.to_thread(make, response)


def _wanted_coding(request: web.Request) -> str:
    return codings.wanted(request.headers.get("Accept-Encoding", ""))


# ── State ────────────────────────────────────────────────────────────────────────────────────────────────────────────


async def health(request: web.Request) -> web.StreamResponse:
    """Answer GET /health: 200 while a runner takes work, else 503."""
    service = request.app[SERVICE]
    available = not service.draining and (await service.stats()).num_total_runners > 0
    return empty(200 if available else 503, {"Cache-Control": "no-store"})


async def stats(request: web.Request) -> web.StreamResponse:
    """Answer GET /stats."""
    body = wire.serialize(await request.app[SERVICE].stats())
    return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})


async def metrics(request: web.Request) -> web.StreamResponse:
    """Answer GET /metrics in Prometheus' text format."""
    service = request.app[SERVICE]
    now = await service.stats()
    text = service.metrics.exposition(
        {
            "generation_backlog": ("Samples accepted and not yet being decoded.", now.backlog),
            "runners": ("Runners able to take work.", now.num_total_runners),
        }
    )
    return web.Response(body=text.encode(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
