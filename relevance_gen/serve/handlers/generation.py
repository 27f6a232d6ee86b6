"""Handlers of generations: a function for each cost, used by the routes of several APIs."""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import Any, Protocol

import attrs
from aiohttp import web

from relevance_gen import wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.serve.adapters.shared import Problem
from relevance_gen.serve.http.call import Call, Reservation, run_off_loop
from relevance_gen.serve.http.connections.connection import write_deadline
from relevance_gen.serve.http.http_errors import problem_of
from relevance_gen.serve.http.middleware import common_headers
from relevance_gen.serve.http.resources import costs
from relevance_gen.serve.http.resources.costs import Cost
from relevance_gen.serve.http.resources.resource_pools import MemoryReservation
from relevance_gen.serve.services.generation import GenerationTask, Pieces, Responses

_STREAM_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class Events(Protocol):
    """Writes the events of one stream in an API format."""

    stream_format: wire.StreamFormat

    def text(self, sample: int, piece: Any) -> bytes:
        """Return the events for the next piece of a sample.

        Args:
            sample: the number of the sample, from 0.
            piece: a string of generated text, or a `ContentPart` if the sample is a model's turn in
                a conversation.
        """

    def end(self, responses: Responses) -> bytes:
        """Return the events at the end of a stream, given the complete responses."""

    def error(self, problem: Problem) -> bytes:
        """Return the event that replaces the end of a stream that failed after its first event."""


async def generate(call: Call) -> web.StreamResponse:
    """Continue a text, in the server's own format: that of ``POST /generate``."""
    return await _generate(call, costs.GENERATION)


async def complete(call: Call) -> web.StreamResponse:
    """Continue texts, in OpenAI's format."""
    _require_model(call)
    return await _generate(call, costs.COMPLETION)


async def chat(call: Call) -> web.StreamResponse:
    """Write the next turn of a conversation."""
    _require_model(call)
    return await _generate(call, costs.CHAT)


async def respond(call: Call) -> web.StreamResponse:
    """Write the next turn of a conversation, in the format of OpenAI's responses."""
    _require_model(call)
    return await _generate(call, costs.RESPONSE)


def _require_model(call: Call) -> None:
    # OpenAI's clients retry a 503 automatically, but not a 400.
    if not call.service.settings.models["generate"]:
        raise InvalidRequestError("cannot be used: this server has no generation model", "model")


async def _generate(call: Call, cost: Cost) -> web.StreamResponse:
    """Read the body, and answer with the generation that it requests.

    The model is loaded and stays loaded during the generation. If the task has a conversation, the
    prompt is rendered from it first. If the adapter's writer is a function, it writes the body of
    the response; otherwise it is an object that returns the `Events` of a stream. `cost` is the row
    of the table of costs for this operation.
    """
    generator = call.service.generator
    async with call.reserve(cost) as reservation:
        task, write_body = await reservation.read_body()
        backend = await reservation.lease_model(task.model)
        context = attrs.evolve(task.context, client=call.client)
        task = attrs.evolve(task, backend=backend, context=context)
        if task.conversation is not None:
            task = await reservation.run(partial(generator.render, task))
        reservation.memory.resize(costs.queued_task_bytes(task))
        with reservation.budget():
            if not callable(write_body):
                return await _stream(call, reservation, cost, task, write_body)
            responses = await generator.complete(task)
            n_bytes = cost.of_responses(responses, task)
            return await reservation.respond(responses, write_body, n_bytes)


async def _stream(
    call: Call, reservation: Reservation, cost: Cost, task: GenerationTask, events: Events
) -> web.StreamResponse:
    """Answer a generation request with a stream of events.

    The headers are sent with the first event, so that an error before that has its own HTTP status;
    a later error becomes an event. The request's memory includes the text that waits for a slow
    client, and the event that is being sent.
    """
    memory = reservation.memory
    settings = call.service.settings
    response = web.StreamResponse(
        headers={**_STREAM_HEADERS, **common_headers(call.request, settings)}
    )
    response.content_type = events.stream_format.content_type

    async def send(event: bytes) -> None:
        memory.acquire(len(event))
        async with write_deadline(call.request, settings.write_timeout_s):
            await response.prepare(call.request)
            await response.write(event)
        memory.acquire(-len(event))

    generator = call.service.generator
    try:
        async with (
            call.service.abortable(),
            aclosing(generator.stream(task, memory.acquire)) as items,
        ):
            async for item in items:
                await send(await write_event(memory, cost, task, item, events))
    except ConnectionError:
        raise
    except Exception as error:
        if not response.prepared:
            raise
        memory.resize(0)  # nothing waits to be sent any more
        await send(events.error(problem_of(error)))
    return response


async def write_event(
    memory: MemoryReservation,
    cost: Cost,
    task: GenerationTask,
    item: Pieces | Responses,
    events: Events,
) -> bytes:
    """Return the events for pieces of text, or for the end of the stream.

    Memory for the work is acquired before, and released after it. If the memory is large, the
    events are written in a thread.

    Args:
        memory: the memory that the request holds.
        cost: the row of the table of costs for this operation.
        task: the generation.
        item: the pieces, or at the end of the stream the responses. Without a piece, the result is
            the heartbeat that keeps the connection open.
        events: writes the events.
    """
    if isinstance(item, tuple):
        n_bytes = cost.of_responses(item, task)
        write = partial(events.end, item)
    else:
        n_bytes = cost.of_pieces(task)
        write = partial(_write_pieces, item, events)

    def write_holding_memory() -> bytes:
        with memory:
            return write()

    memory.acquire(n_bytes)
    event = await run_off_loop(write_holding_memory, n_bytes)
    memory.acquire(-n_bytes)
    return event


def _write_pieces(pieces: Pieces, events: Events) -> bytes:
    written = [events.text(sample, piece) for sample, piece in pieces]
    return b"".join(written) or events.stream_format.heartbeat
