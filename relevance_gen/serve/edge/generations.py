"""What generates: the handler for a dialect of it, answered whole or as the text comes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

import attrs
from aiohttp import web

from relevance_gen import wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.llama.model_file import NO_MODEL
from relevance_gen.serve.edge import codings
from relevance_gen.serve.edge.bodies import receive
from relevance_gen.serve.edge.budget import Account
from relevance_gen.serve.edge.connection import until_read
from relevance_gen.serve.edge.exchange import common_headers
from relevance_gen.serve.edge.problems import problem_of
from relevance_gen.serve.edge.route import Handler
from relevance_gen.serve.edge.service import GENERATOR, KEY_ID, LANE, SERVICE
from relevance_gen.serve.work.arrivals import Pieces
from relevance_gen.serve.work.generating import GenerationTask, Responses
from relevance_gen.types import GenerationRequest, GenerationResponse

_STREAM_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
_HEARTBEAT = b": waiting\n\n"
"""A comment in an event stream, which every reader skips."""

_WRITE_ON_LOOP_BYTES = 64 << 10
"""A response up to about this size is written in less time than handing it to a thread takes."""
_BYTES_PER_TOKEN = 32
"""Text, id and log probability of one token, as JSON."""

T = TypeVar("T")


class Events(Protocol):
    """How a dialect words one stream."""

    def text(self, sample: int, piece: str) -> bytes:
        """Return what is sent for a piece of text."""

    def end(self, responses: Responses) -> bytes:
        """Return what is sent at the end."""

    def error(self, kind: str, message: str, field: str | None) -> bytes:
        """Return what is sent in place of the end when the stream has failed."""


Presenter: TypeAlias = Callable[[Responses], object] | Events
ReadGeneration: TypeAlias = Callable[[object], tuple[GenerationTask, Presenter]]


def generation(read: ReadGeneration, *, is_tried_again: bool = False) -> Handler:
    """Return the handler of generations that `read` understands.

    Args:
        read: where it gives a function, that presents the complete responses; where it gives `Events`, these are sent
            as the text comes.
        is_tried_again: whether clients try again after a 503 by themselves; so where there will be no model, they get
            a 400.
    """

    async def answer(request: web.Request) -> web.StreamResponse:
        if is_tried_again and request.app[SERVICE].settings.model == NO_MODEL:
            raise InvalidRequestError("cannot be used: this server has none, and only searches", "model")
        account, task, presenter = await _task(request, read)
        if not callable(presenter):
            return await _stream(request, account, task, presenter)
        coding = codings.wanted(request.headers.get("Accept-Encoding", ""))
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
    task = attrs.evolve(task, manner=attrs.evolve(task.manner, client=request.get(KEY_ID, "")))
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
