"""What each path does."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager

from aiohttp import web

from relevance_gen import wire
from relevance_gen.serve import bodies, openapi
from relevance_gen.serve.admission import admit, admit_generation, read_body
from relevance_gen.serve.app import SERVICE, Route, Service, common_headers
from relevance_gen.serve.generating import Generator, error_event_of, events_of, made_of
from relevance_gen.serve.problems import empty, problem_of
from relevance_gen.types import GenerationRequest

GENERATOR = web.AppKey("GENERATOR", Generator)

_STREAM_HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}

_PARSE_ON_LOOP_BYTES = 64 << 10
"""A body up to this size is parsed in less time than handing it to a thread takes."""


async def search(request: web.Request) -> web.StreamResponse:
    """Answer POST /search: checks run cheapest first: key, rate, type, size, shape."""
    service = request.app[SERVICE]
    scope = await admit(service, request)
    bodies.require_json(request)
    encoding, wanted = bodies.encoding_of(request), bodies.wanted_encoding(request)
    with service.budget.account() as account:
        body = await read_body(service, request, account)
        answer = await service.gate.run(lambda: service.searcher.answer(body, encoding, wanted, scope))
    service.metrics.observe("search_seconds", answer.seconds)
    service.metrics.add("search_chunks_total", answer.n_chunks)
    service.metrics.add("search_tokens_total", answer.n_tokens)
    return web.Response(body=answer.body, content_type="application/json", headers=answer.headers)


async def generate(request: web.Request) -> web.StreamResponse:
    """Answer POST /generate."""
    wanted = bodies.wanted_encoding(request)
    async with _generation_request(request) as generation:
        response = await request.app[GENERATOR].complete(generation)
        body, headers = await made_of(response, lambda made: bodies.encoded(wire.serialize(made), wanted))
    return web.Response(body=body, content_type="application/json", headers=headers)


async def generate_stream(request: web.Request) -> web.StreamResponse:
    """Answer POST /generate_stream with server-sent events.

    The head is sent with the first text or heartbeat, so that what fails before has a status of its own.
    """
    async with (
        _generation_request(request) as generation,
        aclosing(request.app[GENERATOR].stream(generation)) as items,
    ):
        first = await anext(items)
        headers = {**_STREAM_HEADERS, **common_headers(request, request.app[SERVICE])}
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(await events_of(first))
        try:
            async for item in items:
                await response.write(await events_of(item))
        except ConnectionError:
            raise
        except Exception as error:
            await response.write(error_event_of(problem_of(error)))
    return response


async def health(request: web.Request) -> web.StreamResponse:
    """Answer GET /health: 200 while a runner takes work, else 503."""
    service = request.app[SERVICE]
    available = not service.draining and (await service.state()).num_total_runners > 0
    return empty(200 if available else 503, {"Cache-Control": "no-store"})


async def stats(request: web.Request) -> web.StreamResponse:
    """Answer GET /stats."""
    service = request.app[SERVICE]
    if service.settings.generation_requires_key:
        await admit(service, request)
    body = wire.serialize(await service.state())
    return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})


async def metrics(request: web.Request) -> web.StreamResponse:
    """Answer GET /metrics in Prometheus' text format."""
    service = request.app[SERVICE]
    now = await service.state()
    text = service.metrics.exposition(
        {
            "generation_backlog": ("Samples accepted and not yet being decoded.", now.backlog),
            "runners": ("Runners able to take work.", now.num_total_runners),
        }
    )
    return web.Response(body=text.encode(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})


async def description(_: web.Request) -> web.StreamResponse:
    """Answer GET /openapi.json."""
    return web.Response(body=openapi.document(), content_type="application/json")


async def docs(_: web.Request) -> web.StreamResponse:
    """Answer GET /docs: a page that needs nothing but this server."""
    return web.Response(
        body=openapi.page(),
        headers={"Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": openapi.page_policy()},
    )


@asynccontextmanager
async def _generation_request(request: web.Request) -> AsyncIterator[GenerationRequest]:
    """Admit and read the request; its memory stays accounted for while it waits and runs."""
    service = request.app[SERVICE]
    await admit_generation(service, request)
    bodies.require_exactly_json(request)
    encoding = bodies.encoding_of(request)
    with service.budget.account() as account:
        generation, n_bytes = await _parsed(service, await read_body(service, request, account), encoding)
        account.replace(n_bytes)
        yield generation


async def _parsed(service: Service, body: bytes, encoding: str) -> tuple[GenerationRequest, int]:
    """Return the request in `body`, and the bytes it occupies: a character may take four."""

    def parse() -> tuple[GenerationRequest, int]:
        plain = bodies.decoded(body, encoding, limit_bytes=service.settings.max_body_bytes)
        made = wire.structure(GenerationRequest, wire.parse(plain, max_depth=service.settings.max_depth))
        parts = (made.text, made.stop, *made.stop, made.eos_token_ids, *made.eos_token_ids)
        return made, sum(map(sys.getsizeof, parts))

    if encoding == "identity" and len(body) <= _PARSE_ON_LOOP_BYTES:
        return parse()
    return await service.gate.run(parse)


SEARCH_ROUTES = (
    Route("/search", "search", "POST", search),
    Route("/distributor/search", "search", "POST", search),
)
GENERATION_ROUTES = (
    Route("/generate", "generate", "POST", generate),
    Route("/generate_stream", "generate_stream", "POST", generate_stream),
)
STATE_ROUTES = (
    Route("/health", "health", "GET", health),
    Route("/stats", "stats", "GET", stats),
)
OPERATION_ROUTES = (
    Route("/metrics", "metrics", "GET", metrics),
    Route("/openapi.json", "openapi", "GET", description),
    Route("/docs", "docs", "GET", docs),
)
