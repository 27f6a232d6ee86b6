"""The application: admission of a request, cheapest check first, and the handler of its route."""

from __future__ import annotations

import ipaddress
from functools import partial
from urllib.parse import urlsplit

from aiohttp import web

from relevance_gen.errors import BusyError, ShuttingDownError
from relevance_gen.serve.http.access.auth import HEADER, presented_key
from relevance_gen.serve.http.bodies.body import require_json
from relevance_gen.serve.http.call import Call
from relevance_gen.serve.http.connections.connection import Connection, Handle
from relevance_gen.serve.http.http_errors import (
    ForbiddenError,
    UnauthorizedError,
    UnknownPathError,
)
from relevance_gen.serve.http.route import ROUTE, Route, Router
from relevance_gen.serve.http.service import KEY_ID, POOL, RATE_HEADERS, RESERVATIONS, Service
from relevance_gen.serve.settings import Settings

_CHALLENGE = {"WWW-Authenticate": f'ApiKey header="{HEADER}", Bearer'}


def check_host(settings: Settings, request: web.BaseRequest) -> None:
    """Check that the request is for this server, and not from a page whose origin is not allowed.

    A page can point its own host name at the address of this server (DNS rebinding), and would then
    count as same-origin. Therefore host names must be known; an IP address cannot be rebound.

    Raises:
        ForbiddenError: ``Host`` is a name that is not allowed, or ``Origin`` is an origin whose
            pages may not call this server.
    """
    host = request.headers.get("Host")
    origin = request.headers.get("Origin")
    if host is not None:
        host_url = f"//{host}"
        if not _is_known(host_url, settings) and _address(host_url) is None:
            raise ForbiddenError("Host must be listed in --allowed-hosts")
    if origin is None or origin in settings.cors_origins or "*" in settings.cors_origins:
        return
    origin_host = origin.partition("://")[2].lower()
    is_same_origin = host is not None and origin_host == host.lower()
    address = _address(origin)
    is_loopback = address is not None and address.is_loopback
    if not is_same_origin and not is_loopback and not _is_known(origin, settings):
        raise ForbiddenError(
            "Origin must be the origin of this server, or be listed in --cors-origins"
        )


def _is_known(url: str, settings: Settings) -> bool:
    known_names = ("localhost", settings.host.lower(), *settings.allowed_hosts)
    return "*" in settings.allowed_hosts or _host_name(url) in known_names


def _address(url: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address in a URL; None if the URL has a host name."""
    try:
        return ipaddress.ip_address(_host_name(url))
    except ValueError:
        return None


def _host_name(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""


async def admit(service: Service, route: Route, request: web.BaseRequest) -> None:
    """Check whether `request` may be answered, and store its key id and its resource pool in it.

    A valid key is also used on routes that do not require a key: generations of authenticated
    clients have a pool separate from anonymous generations.

    Raises:
        ShuttingDownError: the server is shutting down, and the request needs a pool.
        BusyError: the maximum number of anonymous requests is being answered.
        UnauthorizedError: a key is required, and it is missing or wrong.
        RateLimitedError: a key is required, and it made too many requests.
        MediaTypeError: the type of the body is not JSON.
    """
    needs_pool = route.pool is not None
    if needs_pool and service.is_draining:
        raise ShuttingDownError
    key_id = None if route.key == "never" else service.identify(request.headers)
    if key_id is not None:
        request[KEY_ID] = key_id
        if isinstance(request.protocol, Connection):
            request.protocol.has_key = True
    elif needs_pool:  # health checks are answered regardless of the number of other requests
        refusal = partial(BusyError, "too many requests without a key at once")
        request[RESERVATIONS].enter_context(service.anonymous.acquired(refusal=refusal))
    is_key_required = route.key == "always"
    if route.key == "setting":
        is_key_required = service.settings.generation_requires_key
    if is_key_required:
        if key_id is None:
            problem = "wrong" if presented_key(request.headers) else "missing"
            raise UnauthorizedError(
                f"the key in {HEADER} (or Authorization: Bearer) is {problem}", _CHALLENGE
            )
        request[RATE_HEADERS] = await service.rate.admit(key_id)
    if route.pool is not None:
        is_anonymous = route.pool == "generation" and key_id is None
        request[POOL] = service.pools["anonymous_generation" if is_anonymous else route.pool]
        require_json(request, is_exact=route.is_exact)


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
