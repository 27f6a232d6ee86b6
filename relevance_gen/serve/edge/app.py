"""From the table of routes to what answers a request."""

from __future__ import annotations

from aiohttp import web

from relevance_gen.serve.edge import pipeline
from relevance_gen.serve.edge.admission import admit, check_names
from relevance_gen.serve.edge.connection import Handle
from relevance_gen.serve.edge.route import ROUTE, Route, Work
from relevance_gen.serve.edge.service import Service


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
        if not isinstance(route.work, Work):
            return await route.work(service, request)
        if service.forward is not None and route.lane == "generation":
            return await service.forward(service, request)
        return await pipeline.answer(service, request, route.work)

    return answer
