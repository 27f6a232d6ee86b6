"""What tells of the server's state."""

from __future__ import annotations

import time
from collections.abc import Callable

from aiohttp import web

from relevance_gen import wire
from relevance_gen.serve.edge.problems import ModelNotFoundError, empty
from relevance_gen.serve.edge.route import Handler
from relevance_gen.serve.edge.service import SERVICE

_STARTED_S = int(time.time())


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

    async def answer(request: web.Request) -> web.StreamResponse:
        body = wire.serialize(listed(request.app[SERVICE].settings.model, _STARTED_S))
        return web.Response(body=body, content_type="application/json")

    return answer


def model(found: Callable[[str | None, int, str], object | None]) -> Handler:
    """Return the handler that tells of the model whose name ends the path, as `found` words it, if there is such."""

    async def answer(request: web.Request) -> web.StreamResponse:
        described = found(request.app[SERVICE].settings.model, _STARTED_S, request.match_info["id"])
        if described is None:
            raise ModelNotFoundError("model is not one that this server has; GET /v1/models lists what it has")
        return web.Response(body=wire.serialize(described), content_type="application/json")

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
