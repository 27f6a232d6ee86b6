"""What each path does: for each kind of work, a function that makes the handler for a dialect of it."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

from aiohttp import web
from attrs import frozen

from relevance_gen import wire
from relevance_gen.embedding.jobs import Encoded
from relevance_gen.errors import InvalidRequestError
from relevance_gen.serve.edge import codings
from relevance_gen.serve.edge.bodies import receive
from relevance_gen.serve.edge.budget import Account
from relevance_gen.serve.edge.connection import until_read
from relevance_gen.serve.edge.exchange import common_headers
from relevance_gen.serve.edge.problems import WriteError, empty, problem_of
from relevance_gen.serve.edge.route import Handler
from relevance_gen.serve.edge.service import KEY_ID, LANE, SERVICE, WRITE_ERROR
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.work.arrivals import Pieces
from relevance_gen.serve.work.embedding import Embedder, EmbeddingTask
from relevance_gen.serve.work.generating import GenerationTask, Generator, Responses
from relevance_gen.serve.work.searching import ExplanationTask, Searcher, SearchTask
from relevance_gen.types import (
    Explanation,
    ExtractionRequest,
    ExtractionResponse,
    GenerationRequest,
    GenerationResponse,
    PromptResponse,
    SearchResponse,
)

GENERATOR = web.AppKey("GENERATOR", Generator)
EMBEDDER = web.AppKey("EMBEDDER", Embedder)

SKIPPED = "X-Encoder-Skipped"
"""Says why a search went by words alone, where an encoder was to have a part in it."""

_STREAM_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_HEARTBEAT = b": waiting\n\n"
"""A comment in an event stream, which every reader skips."""

_WRITE_ON_LOOP_BYTES = 64 << 10
"""A response up to about this size is written in less time than handing it to a thread takes."""
_BYTES_PER_TOKEN = 32
"""Text, id and log probability of one token, as JSON."""

_BYTES_PER_NUMBER = 64
"""A number of a vector: as Python has it, as JSON, and the same compressed."""

_SEARCH_FACTOR = 9
_BYTES_PER_CHUNK = 320
"""What a search needs for each byte of its body and for each chunk, beside the chunks: arrays, and then the answer."""

_EXTRACTION_FACTOR = 4
_EXTRACTED_BYTES = 128 << 20
"""What a document needs for each byte of its body, on the way into the sandbox, and at most on its way out."""

T = TypeVar("T")
Task = TypeVar("Task", SearchTask, ExplanationTask)


class Events(Protocol):
    """How a dialect words one stream."""

    def text(self, sample: int, piece: str) -> bytes:
        """Return what is sent for a piece of text."""

    def end(self, responses: Responses) -> bytes:
        """Return what is sent at the end."""

    def error(self, kind: str, message: str, field: str | None) -> bytes:
        """Return what is sent in place of the end when the stream has failed."""


ReadSearch: TypeAlias = Callable[[object], tuple[SearchTask, Callable[[SearchResponse], object]]]
ReadExplanation: TypeAlias = Callable[[object], tuple[ExplanationTask, Callable[[Explanation], object]]]
ReadTexts: TypeAlias = Callable[[object], tuple[EmbeddingTask, Callable[[Encoded], object]]]
ReadExtraction: TypeAlias = Callable[[object], tuple[ExtractionRequest, Callable[[ExtractionResponse], object]]]
ReadPrompt: TypeAlias = Callable[[object], tuple[SearchTask, Callable[[PromptResponse], object]]]
Presenter: TypeAlias = Callable[[Responses], object] | Events
ReadGeneration: TypeAlias = Callable[[object], tuple[GenerationTask, Presenter]]


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
            if task.skipped:
                headers = {**headers, SKIPPED: task.skipped[-1]}
            record(service.metrics, task, found, time.perf_counter() - started_s)
            return out, headers

        out, headers = await request[LANE].gate.run(work)
        return web.Response(body=out, content_type="application/json", headers=headers)

    return answer


def _record_search(metrics: Metrics, task: SearchTask, found: SearchResponse, seconds: float) -> None:
    metrics.observe("search_seconds", seconds)
    metrics.add("search_chunks_total", len(task.chunks))
    metrics.add("search_tokens_total", found.metadata.num_query_tokens + found.metadata.num_context_tokens)


# ── Documents ────────────────────────────────────────────────────────────────────────────────────────────────────────


def extract(read: ReadExtraction) -> Handler:
    """Return the handler of documents that `read` finds in a body: their text is taken out in a sandbox."""

    async def answer(request: web.Request) -> web.StreamResponse:
        service, coding = request.app[SERVICE], _wanted_coding(request)
        body = await receive(request)
        patience_s = service.settings.queue_timeout_s

        def work() -> tuple[bytes, dict[str, str]]:
            with body.account:
                asked, present = read(body.parse(work_factor=_EXTRACTION_FACTOR, patience_s=patience_s))
                body.account.take_in_time(_EXTRACTED_BYTES, patience_s)
                found = service.extractor.extract(asked)
                out, headers = codings.encode(wire.serialize(present(found)), coding)
                body.account.replace(len(out))
            return out, headers

        out, headers = await request[LANE].gate.run(work)
        return web.Response(body=out, content_type="application/json", headers=headers)

    return answer


# ── Vectors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def embed(read: ReadTexts) -> Handler:
    """Return the handler that encodes the texts that `read` finds in a body."""

    async def answer(request: web.Request) -> web.StreamResponse:
        service, gate, coding = request.app[SERVICE], request[LANE].gate, _wanted_coding(request)
        if service.settings.encoder is None:
            raise InvalidRequestError("model: this server has no encoder; it is started with --encoder", field="model")
        body = await receive(request)

        def work() -> tuple[EmbeddingTask, Callable[[Encoded], object]]:
            with body.account:
                return read(body.parse())

        task, present = await gate.run(work)
        body.account.replace(sum(map(sys.getsizeof, task.texts)))
        encoded = await request.app[EMBEDDER].embed(task.texts, kind=task.kind)

        def write() -> tuple[bytes, dict[str, str]]:
            with body.account:
                body.account.take(_BYTES_PER_NUMBER * encoded.vectors.size)
                out, headers = codings.encode(wire.serialize(present(encoded)), coding)
                body.account.replace(len(out))
            return out, headers

        out, headers = await gate.run(write)
        return web.Response(body=out, content_type="application/json", headers=headers)

    return answer


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


def generation(read: ReadGeneration) -> Handler:
    """Return the handler of generations that `read` understands.

    Where `read` gives a function, that presents the complete responses; where it gives `Events`, these are sent as the
    text comes.
    """

    async def answer(request: web.Request) -> web.StreamResponse:
        account, task, presenter = await _task(request, read)
        if not callable(presenter):
            return await _stream(request, account, task, presenter)
        coding = _wanted_coding(request)
        responses = await request.app[GENERATOR].complete(task)
        body, headers = await made_of(responses, lambda them: codings.encode(wire.serialize(presenter(them)), coding))
        account.replace(len(body))
        return web.Response(body=body, content_type="application/json", headers=headers)

    return answer


async def _stream(request: web.Request, account: Account, task: GenerationTask, events: Events) -> web.StreamResponse:
    """Answer with server-sent events. The head goes with the first, so that what fails before has its own status.

    What waits for a slow reader is accounted for: pieces of text, and the event that is being sent.
    """
    service = request.app[SERVICE]
    timeout_s = service.settings.answer_timeout_s
    async with aclosing(request.app[GENERATOR].stream(task, account.take)) as items:
        first = await anext(items)
        response = web.StreamResponse(headers={**_STREAM_HEADERS, **common_headers(request, service)})
        await response.prepare(request)
        await response.write(await _worded(first, events))
        try:
            async for item in items:
                worded = await _worded(item, events)
                account.take(len(worded))
                async with until_read(request, timeout_s):
                    await response.write(worded)
                account.take(-len(worded))
        except ConnectionError:
            raise
        except Exception as error:
            problem = problem_of(error)
            await response.write(events.error(problem.kind, problem.message, problem.field))
    return response


async def _task(request: web.Request, read: ReadGeneration) -> tuple[Account, GenerationTask, Presenter]:
    """Receive and read a request; its memory stays accounted for while it waits and runs."""
    body, gate = await receive(request), request[LANE].gate

    def work() -> tuple[GenerationTask, Presenter]:
        with body.account:
            return read(body.parse())

    task, presenter = work() if body.is_small else await gate.run(work)
    if task.messages is not None:
        task = await gate.run(partial(request.app[GENERATOR].written, task))
    body.account.replace(sum(map(_size_bytes, task.requests)))
    return body.account, task, presenter


def _size_bytes(request: GenerationRequest) -> int:
    """Return the memory of a request's texts and lists."""
    stop, ends = request.stop, request.eos_token_ids
    return sum(map(sys.getsizeof, (request.text, stop, *stop, ends, *ends)))


async def _worded(item: Pieces | Responses, events: Events) -> bytes:
    if isinstance(item, tuple):
        return await made_of(item, events.end)
    return b"".join(events.text(sample, piece) for sample, piece in item) or _HEARTBEAT


async def made_of(responses: Responses, make: Callable[[Responses], T]) -> T:
    """Return ``make(responses)``, called in a thread where it takes longer than getting there."""
    n_bytes = sum(map(_written_bytes, responses))
    return make(responses) if n_bytes <= _WRITE_ON_LOOP_BYTES else await asyncio.to_thread(make, responses)


def _written_bytes(response: GenerationResponse) -> int:
    """Return about how long a response is as JSON."""
    n_tokens = sum(one.generated_tokens + sum(map(len, one.top_logprobs or ())) for one in response.responses)
    return len(response.prompt) + _BYTES_PER_TOKEN * n_tokens


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


def models(listed: Callable[[str | None, int], object]) -> Handler:
    """Return the handler that tells of the model as `listed` words it, given what the settings name and a time."""
    started_s = int(time.time())

    async def answer(request: web.Request) -> web.StreamResponse:
        body = wire.serialize(listed(request.app[SERVICE].settings.model, started_s))
        return web.Response(body=body, content_type="application/json")

    return answer


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
