"""What tells of the server's state."""

from __future__ import annotations

import time
from typing import Any

from aiohttp import web

from relevance_gen import wire
from relevance_gen.serve.http.http_errors import empty
from relevance_gen.serve.http.route import ROUTE
from relevance_gen.serve.http.service import KEY_ID, Service
from relevance_gen.serve.metrics import STATES
from relevance_gen.serve.services.model_registry import UnknownModelError

_STARTED_S = int(time.time())
_NOT_KEPT = {"Cache-Control": "no-store"}


def _json(body: object, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=wire.serialize(body), content_type="application/json", headers=headers)


async def health(service: Service, _: web.BaseRequest) -> web.StreamResponse:
    """Answer GET /health: 200 while a runner takes work, else 503."""
    available = not service.draining and (await service.stats()).num_total_runners > 0
    return empty(200 if available else 503, _NOT_KEPT)


async def indexes(service: Service, request: web.BaseRequest) -> web.StreamResponse:
    """Answer GET /indexes: those that the caller's key may ask by their names."""
    return _json(
        {"indexes": await service.searcher.named.described(request.get(KEY_ID, ""))}, _NOT_KEPT
    )


async def stats(service: Service, _: web.BaseRequest) -> web.StreamResponse:
    """Answer GET /stats."""
    return _json(await service.stats(), _NOT_KEPT)


async def models(service: Service, _: web.BaseRequest) -> web.StreamResponse:
    """Answer GET /v1/models."""
    return _json({"object": "list", "data": _described(service)}, _NOT_KEPT)


async def model(service: Service, request: web.BaseRequest) -> web.StreamResponse:
    """Answer GET /v1/models/NAME."""
    name = request[ROUTE].rest_of(request.path)
    found = [one for one in _described(service) if one["id"] == name]
    if not found:
        raise UnknownModelError(
            "is not one that this server has; GET /v1/models lists what it has", "model"
        )
    return _json(found[0], _NOT_KEPT)


def _described(service: Service) -> list[dict[str, Any]]:
    """Describe all models, each in the best state that it has in any process."""
    found: list[dict[str, Any]] = []
    for task, sources in service.settings.models.items():
        for name in (source.name for source in sources):
            states = (
                state for state in STATES if service.metrics.total("models", task, name, state)
            )
            head = {
                "id": name,
                "object": "model",
                "created": _STARTED_S,
                "owned_by": "relevance_gen",
            }
            found.append({**head, "task": task, "status": {"value": next(states, "unloaded")}})
    return found


async def metrics(service: Service, _: web.BaseRequest) -> web.StreamResponse:
    """Answer GET /metrics in Prometheus' text format."""
    now = await service.stats()
    encoders = service.settings.models["embed"]
    n_encoders = sum(
        service.metrics.total("models", "embed", encoder.name, "loaded") for encoder in encoders
    )
    text = service.metrics.exposition(
        {
            "generation_backlog": ("Samples accepted and not yet being decoded.", now.backlog),
            "runners": ("Runners able to take work.", now.num_total_runners),
            "encoders": ("Encoders that are loaded, those of all processes.", n_encoders),
        }
    )
    return web.Response(
        body=text.encode(), headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
    )
