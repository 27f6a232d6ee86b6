"""What reads, searches or encodes texts: for each, a function that makes the handler for a dialect of it."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TypeAlias, TypeVar

from aiohttp import web
from attrs import frozen

from relevance_gen import wire
from relevance_gen.embedding.jobs import Encoded
from relevance_gen.errors import InvalidRequestError
from relevance_gen.serve.edge import codings
from relevance_gen.serve.edge.bodies import receive
from relevance_gen.serve.edge.problems import WriteError
from relevance_gen.serve.edge.route import Handler
from relevance_gen.serve.edge.service import EMBEDDER, GENERATOR, KEY_ID, LANE, SERVICE, WRITE_ERROR
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.work.embedding import EmbeddingTask
from relevance_gen.serve.work.searching import ExplanationTask, Searcher, SearchTask
from relevance_gen.types import (
    Explanation,
    ExtractionRequest,
    ExtractionResponse,
    PromptResponse,
    SearchResponse,
)

_SKIPPED = "X-Encoder-Skipped"
"""Says why a search went by words alone, where an encoder was to have a part in it."""

_BYTES_PER_NUMBER = 64
"""A number of a vector: as Python has it, as JSON, and the same compressed."""

_SEARCH_FACTOR = 9
_BYTES_PER_CHUNK = 320
"""What a search needs for each byte of its body and for each chunk, beside the chunks: arrays, and then the answer."""

_NAMED_BYTES = 16 << 20
"""What an answer from an index of a cluster needs, whose chunks are not known before."""

_BYTES_PER_SPAN = 800
"""A span of a result: as Python has it, twice, and as JSON. Only the search tells how many there are."""

_EXTRACTION_FACTOR = 4
_EXTRACTED_BYTES = 128 << 20
"""What a document needs for each byte of its body, on the way into the sandbox, and at most on its way out."""

T = TypeVar("T")
Task = TypeVar("Task", SearchTask, ExplanationTask)

ReadSearch: TypeAlias = Callable[[object], tuple[SearchTask, Callable[[SearchResponse], object]]]
ReadExplanation: TypeAlias = Callable[[object], tuple[ExplanationTask, Callable[[Explanation], object]]]
ReadExtraction: TypeAlias = Callable[[object], tuple[ExtractionRequest, Callable[[ExtractionResponse], object]]]
ReadPrompt: TypeAlias = Callable[[object], tuple[SearchTask, Callable[[PromptResponse], object]]]
ReadTexts: TypeAlias = Callable[[object], tuple[EmbeddingTask, Callable[[Encoded], object]]]


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

    return _found(read_as, Searcher.search, _measured)


def explain(read: ReadExplanation) -> Handler:
    """Return the handler of explanations that `read` understands: they take what a search takes."""
    return _found(lambda value, _: read(value), Searcher.explain, lambda *_: lambda _: None)


def _found(
    read: Callable[[object, web.Request], tuple[Task, Callable[[T], object]]],
    do: Callable[[Searcher, Task, str], T],
    measure: Callable[[Task, T, float], Callable[[Metrics], None]],
) -> Handler:
    """Return the handler that has the searcher do what `read` understands, off the event loop."""

    async def answer(request: web.Request) -> web.StreamResponse:
        service, scope = request.app[SERVICE], request[KEY_ID]
        coding = codings.wanted(request.headers.get("Accept-Encoding", ""))
        body = await receive(request)
        patience_s = service.settings.queue_timeout_s

        def work() -> tuple[bytes, dict[str, str], Callable[[Metrics], None]]:
            started_s = time.perf_counter()
            with body.account:
                task, present = read(body.parse(work_factor=_SEARCH_FACTOR, patience_s=patience_s), request)
                body.account.take_in_time(_BYTES_PER_CHUNK * len(task.chunks), patience_s)
                if task.named is not None:
                    body.account.take_in_time(_NAMED_BYTES, patience_s)
                found = do(service.searcher, task, scope)
                body.account.take_in_time(_BYTES_PER_SPAN * _n_spans(found), patience_s)
                out, headers = codings.encode(wire.serialize(present(found)), coding)
                body.account.replace(len(out))
            return out, headers | _skipped(task), measure(task, found, time.perf_counter() - started_s)

        out, headers, record = await request[LANE].gate.run(work)
        record(service.metrics)  # here, where no other thread counts
        return web.Response(body=out, content_type="application/json", headers=headers)

    return answer


def _n_spans(found: object) -> int:
    return sum(len(result.spans or ()) for result in found) if isinstance(found, SearchResponse) else 0


def _skipped(task: SearchTask | ExplanationTask) -> dict[str, str]:
    """Return the header that says why the encoder had no part in what was done, if it was to have one."""
    return {_SKIPPED: task.skipped[-1]} if task.skipped else {}


def _measured(task: SearchTask, found: SearchResponse, seconds: float) -> Callable[[Metrics], None]:
    n_chunks, n_tokens = len(task.chunks), found.metadata.num_query_tokens
    if task.named is None:
        n_tokens += found.metadata.num_context_tokens

    def record(metrics: Metrics) -> None:
        metrics.observe("search_seconds", seconds)
        metrics.add("search_chunks_total", n_chunks)
        metrics.add("search_tokens_total", n_tokens)

    return record


def extract(read: ReadExtraction) -> Handler:
    """Return the handler of documents that `read` finds in a body: their text is taken out in a sandbox."""

    async def answer(request: web.Request) -> web.StreamResponse:
        service = request.app[SERVICE]
        coding = codings.wanted(request.headers.get("Accept-Encoding", ""))
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


def prompt(read: ReadPrompt) -> Handler:
    """Return the handler of questions that `read` understands: searched first, then written as the model's prompt."""

    async def answer(request: web.Request) -> web.StreamResponse:
        service, scope = request.app[SERVICE], request[KEY_ID]
        body = await receive(request)
        patience_s = service.settings.queue_timeout_s

        def work() -> tuple[SearchTask, SearchResponse, Callable[[PromptResponse], object]]:
            with body.account:
                task, present = read(body.parse(work_factor=_SEARCH_FACTOR, patience_s=patience_s))
                body.account.take_in_time(_BYTES_PER_CHUNK * len(task.chunks), patience_s)
                found = service.searcher.search(task, scope)
            return task, found, present

        # With the searches: the one thread of this request's own lane has to stay free for what generates.
        task, found, present = await service.lanes["search"].gate.run(work)
        body.account.replace(sum(sys.getsizeof(result.chunk_txt) for result in found))
        written = await request.app[GENERATOR].prompt(task.query, found)
        return web.Response(
            body=wire.serialize(present(written)), content_type="application/json", headers=_skipped(task)
        )

    return answer


def embed(read: ReadTexts) -> Handler:
    """Return the handler that encodes the texts that `read` finds in a body."""

    async def answer(request: web.Request) -> web.StreamResponse:
        service, gate, coding = (
            request.app[SERVICE],
            request[LANE].gate,
            codings.wanted(request.headers.get("Accept-Encoding", "")),
        )
        if service.settings.encoder is None:
            raise InvalidRequestError(
                "cannot be used: this server has no encoder", "model", remedy="start it with --encoder"
            )
        body = await receive(request)

        def work() -> tuple[EmbeddingTask, Callable[[Encoded], object]]:
            with body.account:
                return read(body.parse())

        task, present = await gate.run(work)
        body.account.replace(sum(map(sys.getsizeof, task.texts)))
        encoded = await request.app[EMBEDDER].embed(task)

        def write() -> tuple[bytes, dict[str, str]]:
            with body.account:
                body.account.take(_BYTES_PER_NUMBER * encoded.vectors.size)
                out, headers = codings.encode(wire.serialize(present(encoded)), coding)
                body.account.replace(len(out))
            return out, headers

        out, headers = await gate.run(write)
        return web.Response(body=out, content_type="application/json", headers=headers)

    return answer
