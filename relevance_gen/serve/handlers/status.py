"""Handlers that report the state of the server."""

from __future__ import annotations

import asyncio
import time

from aiohttp import web

from relevance_gen import wire
from relevance_gen.serve.adapters import ollama
from relevance_gen.serve.http.call import Call
from relevance_gen.serve.http.http_errors import empty
from relevance_gen.serve.http.resources import costs
from relevance_gen.serve.http.service import Service
from relevance_gen.serve.metrics import STATES, Metrics
from relevance_gen.serve.services.model_details import ModelDetails, model_details
from relevance_gen.serve.services.model_registry import UnknownModelError
from relevance_gen.wire import JsonObject

_STARTED_S = int(time.time())
_NO_STORE = {"Cache-Control": "no-store"}
_METRICS_TYPE = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}


def _json(body: object) -> web.Response:
    return web.Response(
        body=wire.serialize(body), content_type="application/json", headers=_NO_STORE
    )


async def health(call: Call) -> web.StreamResponse:
    """Answer GET /health: 200 if a runner, which generates with a model, accepts work.

    The status is 503 if no runner accepts work, or if the server is shutting down.
    """
    if call.service.is_draining:
        return empty(503, _NO_STORE)
    stats = await call.service.stats()
    return empty(200 if stats.num_total_runners > 0 else 503, _NO_STORE)


async def indexes(call: Call) -> web.StreamResponse:
    """Answer GET /indexes: the indexes of the server that the client's key may search by name.

    Indexes of a cluster are not listed.
    """
    described = await call.service.searcher.indexes.describe(call.client)
    return _json({"indexes": described})


async def stats(call: Call) -> web.StreamResponse:
    """Answer GET /stats: see `Stats`.

    This is the number of samples that wait to be generated, and the number of runners, which
    generate with a model, that accept work.
    """
    return _json(await call.service.stats())


async def models(call: Call) -> web.StreamResponse:
    """Answer GET /v1/models: a list of all models, each with its purpose and its state."""
    return _json({"object": "list", "data": _describe_models(call.service)})


async def model(call: Call) -> web.StreamResponse:
    """Answer GET /v1/models/NAME: the model with this name, with its purpose and its state.

    Raises:
        UnknownModelError: the server has no model with this name.
    """
    name = call.route.rest_of(call.request.path)
    for described in _describe_models(call.service):
        if described["id"] == name:
            return _json(described)
    raise _unknown_model()


def _unknown_model() -> UnknownModelError:
    return UnknownModelError(
        "is not one that this server has; GET /v1/models lists what it has", "model"
    )


def _describe_models(service: Service) -> list[JsonObject]:
    """Describe all models, as ``GET /v1/models`` lists them.

    ``id`` is the model's name, ``task`` its purpose, and ``status`` has its state as ``value``. If
    processes have the model in different states, it is the first of "loaded", "loading", "failed"
    and "unloaded".
    """
    return [
        {
            "id": source.name,
            "object": "model",
            "created": _STARTED_S,
            "owned_by": "relevance_gen",
            "task": task,
            "status": {"value": _best_state(service.metrics, task, source.name)},
        }
        for task, sources in service.settings.models.items()
        for source in sources
    ]


async def ollama_version(_: Call) -> web.StreamResponse:
    """Answer GET /api/version: the version of Ollama's API, `ollama.VERSION`."""
    return _json({"version": ollama.VERSION})


async def ollama_models(call: Call) -> web.StreamResponse:
    """Answer GET /api/tags: the models that generate and embed."""
    return _json(ollama.list_models(await _model_details(call.service)))


async def ollama_running_models(call: Call) -> web.StreamResponse:
    """Answer GET /api/ps: the models of GET /api/tags that are loaded."""
    running = [
        model
        for model in await _model_details(call.service)
        if _best_state(call.service.metrics, model.task, model.name) == "loaded"
    ]
    return _json(ollama.list_running_models(running))


async def ollama_model(call: Call) -> web.StreamResponse:
    """Answer POST /api/show: the details of the model that the body names.

    Names are compared without the suffix ":latest".

    Raises:
        UnknownModelError: no model that generates or embeds has this name.
    """
    async with call.reserve(costs.MODEL_DETAILS) as reservation:
        name, write_body = await reservation.read_body()
        name = name.removesuffix(":latest")
        for model in await _model_details(call.service):
            if model.name.removesuffix(":latest") == name:
                return await reservation.respond(model, write_body, costs.MODEL_DETAILS.flat)
    raise _unknown_model()


async def _model_details(service: Service) -> list[ModelDetails]:
    def read() -> list[ModelDetails]:
        settings = service.settings
        return [
            model_details(settings, task, source)
            for task in ("generate", "embed")
            for source in settings.models[task]
        ]

    return await asyncio.to_thread(read)


def _best_state(metrics: Metrics, task: str, name: str) -> str:
    states = (state for state in STATES if metrics.total("models", task, name, state))
    return next(states, "unloaded")


async def metrics(call: Call) -> web.StreamResponse:
    """Answer GET /metrics in the text format of Prometheus."""
    service = call.service
    stats = await service.stats()
    n_encoders = sum(
        service.metrics.total("models", "embed", encoder.name, "loaded")
        for encoder in service.settings.models["embed"]
    )
    text = service.metrics.exposition(
        {
            "generation_backlog": ("Samples accepted and not yet decoding.", stats.backlog),
            "runners": ("Runners that accept work.", stats.num_total_runners),
            "encoders": ("Loaded encoders, in all processes.", n_encoders),
        }
    )
    return web.Response(body=text.encode(), headers=_METRICS_TYPE)
