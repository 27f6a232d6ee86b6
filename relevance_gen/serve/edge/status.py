"""What tells of the server's state."""

from __future__ import annotations

import time
from collections.abc import Callable

from aiohttp import web

from relevance_gen import wire
from relevance_gen.serve.edge.problems import ModelNotFoundError, empty
from relevance_gen.serve.edge.route import ROUTE, Handler
from relevance_gen.serve.edge.service import Service

_STARTED_S = int(time.time())
_NOT_KEPT = {"Cache-Control": "no-store"}


def _json(body: object, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=wire.serialize(body), content_type="application/json", headers=headers)


async def health(service: Service, _: web.BaseRequest) -> web.StreamResponse:
    """Answer GET /health: 200 while a runner takes work, else 503."""
    available = not service.draining and (await service.stats()).num_total_runners > 0
    return empty(200 if available else 503, _NOT_KEPT)


async def stats(service: Service, _: web.BaseRequest) -> web.StreamResponse:
    """Answer GET /stats."""
    return _json(await service.stats(), _NOT_KEPT)


def models(listed: Callable[[str | None, int], object]) -> Handler:
    """Return the handler that tells of the model as `listed` words it, given what the settings name and a time."""

    async def answer(service: Service, _: web.BaseRequest) -> web.StreamResponse:
        return _json(listed(service.settings.model, _STARTED_S))

    return answer


def model(found: Callable[[str | None, int, str], object | None]) -> Handler:
    """Return the handler that tells of the model whose name ends the path, as `found` words it, if there is such."""

    async def answer(service: Service, request: web.BaseRequest) -> web.StreamResponse:
        described = found(service.settings.model, _STARTED_S, request[ROUTE].rest_of(request.path))
        if described is None:
            raise ModelNotFoundError("model is not one that this server has; GET /v1/models lists what it has")
        return _json(described)

    return answer


async def metrics(service: Service, _: web.BaseRequest) -> web.StreamResponse:
    """Answer GET /metrics in Prometheus' text format."""
    now = await service.stats()
    text = service.metrics.exposition(
        {
            "generation_backlog": ("Samples accepted and not yet being decoded.", now.backlog),
            "runners": ("Runners able to take work.", now.num_total_runners),
        }
    )
    return web.Response(body=text.encode(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
