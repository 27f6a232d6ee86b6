"""Handlers of generations: a function for each cost, used by the routes of several APIs."""

from __future__ import annotations

from functools import partial
from typing import Any

import attrs
from aiohttp import web

from relevance_gen.errors import InvalidRequestError
from relevance_gen.serve.http.call import Call, Reservation
from relevance_gen.serve.http.resources import costs
from relevance_gen.serve.http.resources.costs import Cost
from relevance_gen.serve.http.streaming import stream_generation
from relevance_gen.serve.services.generation import GenerationTask


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


async def _generate(call: Call, cost: Cost) -> web.StreamResponse:
    """Read the body, and answer with the generation that it requests.

    The model is loaded and stays loaded during the generation. If the task has a conversation, the
    prompt is rendered from it first. `cost` is the row of the table of costs for this operation.
    """
    async with call.reserve(cost) as reservation:
        task, write_body = await reservation.read_body()
        backend = await reservation.lease_model(task.model)
        context = attrs.evolve(task.context, client=call.client)
        task = attrs.evolve(task, backend=backend, context=context)
        if task.conversation is not None:
            task = await reservation.run(partial(call.service.generator.render, task))
        return await _respond(call, reservation, cost, task, write_body)


def _require_model(call: Call) -> None:
    # OpenAI's clients retry a 503 automatically, but not a 400.
    if not call.service.settings.models["generate"]:
        raise InvalidRequestError("cannot be used: this server has no generation model", "model")


async def _respond(
    call: Call, reservation: Reservation, cost: Cost, task: GenerationTask, write_body: Any
) -> web.StreamResponse:
    """Run a generation, and answer with its events or with its complete responses.

    `write_body` is the writer that the adapter returned: a function from the responses to the body,
    or for a stream an object that returns events, such as `own.GenerationEvents`.
    """
    reservation.memory.resize(costs.queued_task_bytes(task))
    with reservation.budget():
        if not callable(write_body):
            return await stream_generation(call, reservation, cost, task, write_body)
        responses = await call.service.generator.complete(task)
        n_bytes = cost.of_responses(responses, task)
        return await reservation.respond(responses, write_body, n_bytes)
