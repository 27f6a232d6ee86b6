"""What a request must pass before its body is received, cheapest first: host and origin, key, rate, type."""

from __future__ import annotations

import ipaddress
from functools import partial
from urllib.parse import urlsplit

from aiohttp import web

from relevance_gen.errors import BusyError, ShuttingDownError
from relevance_gen.serve.http.access.auth import HEADER, presented_key
from relevance_gen.serve.http.bodies import body as bodies
from relevance_gen.serve.http.connections.connection import Connection
from relevance_gen.serve.http.http_errors import ForbiddenError, UnauthorizedError
from relevance_gen.serve.http.route import Route
from relevance_gen.serve.http.service import HELD, KEY_ID, LANE, RATE_HEADERS, Service
from relevance_gen.serve.settings import Settings

_CHALLENGE = {"WWW-Authenticate": f'ApiKey header="{HEADER}", Bearer'}


def check_names(settings: Settings, request: web.BaseRequest) -> None:
    """See that a browser that sends this means this server, and was not told to by a page from elsewhere.

    A page may have its own name lead to this server's address, and would then count as one of this server's own. So a
    name must be known; an address in figures leads nowhere else.

    Raises:
        ForbiddenError: ``Host`` is another's name, or ``Origin`` is, and its pages may not call.
    """
    host, origin = request.headers.get("Host"), request.headers.get("Origin")
    if host is not None and not (_is_known(f"//{host}", settings) or _address(f"//{host}")):
        raise ForbiddenError("Host must be a name that --allowed-hosts has")
    if origin is None or origin in settings.cors_origins or "*" in settings.cors_origins:
        return
    address = _address(origin)
    is_from_here = host is not None and origin.partition("://")[2].lower() == host.lower()
    if (
        not is_from_here
        and not _is_known(origin, settings)
        and not (address and address.is_loopback)
    ):
        raise ForbiddenError("Origin must be this server's, or one that --cors-origins has")


def _is_known(url: str, settings: Settings) -> bool:
    known = ("localhost", settings.host.lower(), *settings.allowed_hosts)
    return "*" in settings.allowed_hosts or _name(url) in known


def _address(url: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address that a URL has in figures; None if it has a name."""
    try:
        return ipaddress.ip_address(_name(url))
    except ValueError:
        return None


def _name(url: str) -> str:
    try:
        return (urlsplit(url).hostname or "").rstrip(".")
    except ValueError:
        return ""


async def admit(service: Service, route: Route, request: web.BaseRequest) -> None:
    """Let `request` in; remember whose it is and what lane it takes.

    A valid key is noticed where none is asked for too: it opens the lane of those who have one.

    Raises:
        ShuttingDownError: no new work is taken.
        BusyError: as many requests without a key as there may be are being answered.
        UnauthorizedError: a key is asked for, and it is missing or wrong.
        RateLimitedError: the key made too many requests.
        MediaTypeError: the body is of another type.
    """
    if route.lane is not None and service.draining:
        raise ShuttingDownError
    key_id = None if route.key == "never" else service.identify(request.headers)
    if key_id is not None:
        request[KEY_ID] = key_id
        if isinstance(request.protocol, Connection):
            request.protocol.has_key = True
    elif (
        route.lane is not None
    ):  # whether the server lives can be asked however many others ask for work
        too_many = partial(BusyError, "too many requests without a key at once")
        request[HELD].enter_context(service.strangers.acquired(refusal=too_many))
    if route.key == "always" or (
        route.key == "setting" and service.settings.generation_requires_key
    ):
        if key_id is None:
            what = "wrong" if presented_key(request.headers) else "missing"
            raise UnauthorizedError(
                f"the key in {HEADER} (or Authorization: Bearer) is {what}", _CHALLENGE
            )
        request[RATE_HEADERS] = await service.rate.admit(key_id)
    if route.lane is not None:
        is_anonymous = (
            route.lane == "generation" and key_id is None
        )  # those with a key are apart from those without
        request[LANE] = service.lanes["anonymous_generation" if is_anonymous else route.lane]
        bodies.require_json(request, is_exact=route.is_exact)
