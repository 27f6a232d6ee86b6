"""The application: from the table of routes to what answers each path."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp import web

from relevance_gen.serve.edge.admission import admit
from relevance_gen.serve.edge.route import Handler, Route
from relevance_gen.serve.edge.service import SERVICE, Service


def make_app(service: Service, routes: Sequence[Route]) -> web.Application:
    """Make the application that answers `routes`."""
    app = web.Application()
    app[SERVICE] = service
    for route in routes:
        for path in route.paths:
            _add(app.router, path, route)
    # What aiohttp itself refuses, it would ask for a body first.
    app.router.add_route("*", "/{path:.*}", _not_found, expect_handler=_no_expectation_yet)
    return app


def _add(router: web.UrlDispatcher, path: str, route: Route) -> None:
    allowed = ("OPTIONS", *route.methods)
    path = path.replace("}", ":.+}")

    async def answer(request: web.Request) -> web.StreamResponse:
        await admit(route, request)
        return await route.handler(request)

    for method in route.methods:
        router.add_route(method, path, answer, expect_handler=_no_expectation_yet)
    router.add_route("OPTIONS", path, _options(", ".join(allowed)))
    router.add_route("*", path, _not_allowed(allowed), expect_handler=_no_expectation_yet)


async def _no_expectation_yet(request: web.Request) -> None:
    """Do not answer "100 Continue" yet: `bodies` does when the body is wanted."""
    if request.headers["Expect"].lower() != "100-continue":
        raise web.HTTPExpectationFailed


def _options(allow: str) -> Handler:
    async def options(_: web.Request) -> web.StreamResponse:
        return web.Response(status=204, headers={"Allow": allow})

    return options


def _not_allowed(allowed: tuple[str, ...]) -> Handler:
    async def not_allowed(request: web.Request) -> web.StreamResponse:
        raise web.HTTPMethodNotAllowed(request.method, allowed)

    return not_allowed


async def _not_found(_: web.Request) -> web.StreamResponse:
    raise web.HTTPNotFound
