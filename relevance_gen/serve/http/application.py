"""The application: from a request to the handler of its route."""

from __future__ import annotations

from aiohttp import web

from relevance_gen.serve.http.admission import admit, check_host
from relevance_gen.serve.http.call import Call
from relevance_gen.serve.http.connections.connection import Handle
from relevance_gen.serve.http.http_errors import UnknownPathError
from relevance_gen.serve.http.route import ROUTE, Route, Router
from relevance_gen.serve.http.service import Service


def application(service: Service, router: Router) -> Handle:
    """Return the function that answers every request that is valid HTTP.

    It raises exceptions, which the middleware converts to error responses.
    """

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        check_host(service.settings, request)
        route: Route | None = request.get(ROUTE)
        if route is None:
            raise UnknownPathError(router.nearest(request.rel_url.path_safe))
        if request.method == "OPTIONS":
            return web.Response(status=204, headers={"Allow": ", ".join(route.methods)})
        if request.method not in route.methods:
            raise web.HTTPMethodNotAllowed(request.method, route.methods)
        # "100 Continue" is sent when the body is received: see `bodies.body`.
        if request.headers.get("Expect", "").lower() not in ("", "100-continue"):
            raise web.HTTPExpectationFailed
        await admit(service, route, request)
        if service.forward is not None and route.pool == "generation":
            return await service.forward(service, request)
        return await route.handle(Call(service, request, route))

    return answer
