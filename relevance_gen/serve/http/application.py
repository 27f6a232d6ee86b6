"""The one way of a request: admitted, and where it gives work, received, accounted for, read, done and worded."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import Any, Protocol, TypeVar

from aiohttp import web

from relevance_gen import wire
from relevance_gen.request_scope import budget_scope
from relevance_gen.serve.http.access.admission import admit, check_names
from relevance_gen.serve.http.actions import Action
from relevance_gen.serve.http.bodies import content_coding as codings
from relevance_gen.serve.http.bodies.body import receive
from relevance_gen.serve.http.connections.connection import Handle, until_read
from relevance_gen.serve.http.http_errors import problem_of
from relevance_gen.serve.http.middleware import common_headers
from relevance_gen.serve.http.resources.costs import Cost, kept_bytes
from relevance_gen.serve.http.resources.resource_pools import MemoryReservation
from relevance_gen.serve.http.route import ROUTE, Route
from relevance_gen.serve.http.service import KEY_ID, LANE, WRITE_ERROR, Service
from relevance_gen.serve.services.generation import GenerationTask, Responses
from relevance_gen.serve.services.stream_buffer import Pieces

_STREAM_HEADERS = {
    "Content-Type": "text/event-stream",
    "Cache-Control": "no-store",
    "X-Accel-Buffering": "no",
}
_HEARTBEAT = b": waiting\n\n"
"""A comment in an event stream, which every reader skips."""

_ON_LOOP_BYTES = 64 << 10
"""What costs about this is worded in less time than handing it to a thread takes."""

T = TypeVar("T")
Outcome = TypeVar("Outcome")


class Events(Protocol):
    """How a dialect words one stream."""

    def text(self, sample: int, piece: Any) -> bytes:
        """Return what is sent for a piece of text, or of a conversation for a `ContentPart` of a turn."""

    def end(self, responses: Responses) -> bytes:
        """Return what is sent at the end."""

    def error(self, kind: str, message: str, field: str | None) -> bytes:
        """Return what is sent in place of the end when the stream has failed."""


def application(service: Service) -> Handle:
    """Return what answers requests whose route is known, or that have none."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        check_names(service.settings, request)
        route: Route | None = request.get(ROUTE)
        if route is None:
            raise web.HTTPNotFound
        if request.method == "OPTIONS":
            return web.Response(status=204, headers={"Allow": ", ".join(route.methods)})
        if request.method not in route.methods:
            raise web.HTTPMethodNotAllowed(request.method, route.methods)
        # What is expected is asked for when the body is wanted: see `bodies`.
        if request.headers.get("Expect", "").lower() not in ("", "100-continue"):
            raise web.HTTPExpectationFailed
        await admit(service, route, request)
        if not isinstance(route.work, Action):
            return await route.work(service, request)
        if service.forward is not None and route.lane == "generation":
            return await service.forward(service, request)
        return await _answer(service, request, route, route.work)

    return answer


async def _answer(
    service: Service, request: web.BaseRequest, route: Route, action: Action
) -> web.StreamResponse:
    client = request.get(KEY_ID, "")
    action.check(service)
    coding = codings.wanted(request.headers.get("Accept-Encoding", ""))
    received = await receive(service, request)
    held, cost = received.held, action.cost
    patience_s = service.settings.queue_timeout_s if action.waits else 0.0

    def word(
        task: object, outcome: object, present: Callable[[Any], object], patience_s: float = 0.0
    ) -> web.Response:
        with held:
            held.take(cost.of(outcome, task), patience_s)
            presented = present(outcome)
            body = presented if isinstance(presented, bytes) else wire.serialize(presented)
            out, headers = codings.encode(body, coding)
            held.replace(len(out))
        return web.Response(
            status=action.status(outcome),
            body=out,
            content_type="application/json",
            headers=headers,
        )

    def expect(unit: str, number: int) -> None:
        held.take(getattr(cost, unit) * number, patience_s)

    def begin() -> tuple[Callable[[], Awaitable[None]] | None, Any, Any]:
        started_s = time.perf_counter()
        with held:
            task, present = _read(
                request, route, received.parse(work_factor=cost.body_byte, patience_s=patience_s)
            )
            look = service.searcher.look(task, client)
            rest = partial(do, present, time.perf_counter() - started_s)
            return look, task, rest if look or action.lend else rest(task)

    def do(
        present: Callable[[Any], object], parsing_s: float, task: Any
    ) -> tuple[Any, Any, Any, Any, float]:
        started_s = time.perf_counter()
        with held:
            held.take(cost.flat + cost.of(task), patience_s)
            with budget_scope(expect):
                done = action.do(service, task, client)
            response = None if action.finish else word(task, done, present, patience_s)
        return task, present, done, response, parsing_s + time.perf_counter() - started_s

    async def run(work: Callable[[], T]) -> T:
        gate = (service.lanes[action.threads] if action.threads else request[LANE]).gate
        return work() if action.is_quick and received.is_small else await gate.run(work, client)

    async with AsyncExitStack() as lent:
        look, task, begun = await run(begin)
        if look is not None:  # without a thread, of which there are few
            await look()
        if action.lend is not None:
            task = await lent.enter_async_context(
                action.lend(service, task, client, held.taken_bytes)
            )
        task, present, done, response, seconds = (
            await run(partial(begun, task)) if callable(begun) else begun
        )
        action.count(service.metrics, task, done, seconds)  # here, where no other thread counts
        if action.finish is not None:
            held.replace(kept_bytes(done))
            with budget_scope(expect):  # also in threads that are begun here
                if not callable(present):
                    return await _stream(service, request, held, cost, done, present)
                outcome = await action.finish(service, task, done)
                response = await made_of(
                    outcome, cost.of(outcome, task), lambda it: word(task, it, present)
                )
        response.headers.update(action.headers(task))
        return response  # type: ignore[no-any-return]


def _read(request: web.BaseRequest, route: Route, value: object) -> tuple[Any, Any]:
    """Read a parsed body in the dialect that it speaks, which words what is wrong from here on."""
    if route.wants_headers:
        return route.read(value, request.raw_headers)
    if route.guest is None or not isinstance(value, dict) or route.guest.field not in value:
        return route.read(value)
    request[WRITE_ERROR] = route.guest.write_error
    return route.guest.read(value)


async def made_of(outcome: Outcome, n_bytes: int, make: Callable[[Outcome], T]) -> T:
    """Return ``make(outcome)``, called in a thread where what costs `n_bytes` takes longer than getting there."""
    return make(outcome) if n_bytes <= _ON_LOOP_BYTES else await asyncio.to_thread(make, outcome)


async def _stream(
    service: Service,
    request: web.BaseRequest,
    held: MemoryReservation,
    cost: Cost,
    task: GenerationTask,
    events: Events,
) -> web.StreamResponse:
    """Answer with server-sent events. The head goes with the first, so that what fails before has its own status.

    What waits for a slow reader is accounted for: pieces of text, and the event that is being sent.
    """
    response = web.StreamResponse(
        headers={**_STREAM_HEADERS, **common_headers(request, service.settings)}
    )

    async def send(event: bytes) -> None:
        held.take(len(event))
        async with until_read(request, service.settings.write_timeout_s):
            await response.prepare(request)
            await response.write(event)
        held.take(-len(event))

    try:
        async with aclosing(service.generator.stream(task, held.take)) as items:
            async for item in items:
                await send(await _worded(held, cost, task, item, events))
    except ConnectionError:
        raise
    except Exception as error:
        if not response.prepared:
            raise
        held.replace(0)  # nothing waits any more
        problem = problem_of(error)
        await send(events.error(problem.kind, problem.message, problem.field))
    return response


async def _worded(
    held: MemoryReservation,
    cost: Cost,
    task: GenerationTask,
    item: Pieces | Responses,
    events: Events,
) -> bytes:
    def word(item: Pieces | Responses) -> bytes:
        with held:
            if isinstance(item, tuple):
                return events.end(item)
            return b"".join(events.text(sample, piece) for sample, piece in item) or _HEARTBEAT

    n_bytes = cost.of(item, task)
    held.take(n_bytes)
    event = await made_of(item, n_bytes, word)
    held.take(-n_bytes)
    return event
