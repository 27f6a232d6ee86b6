"""What a request must pass before any work is done for it, cheapest first: key, rate, then its size as it arrives."""

from __future__ import annotations

from aiohttp import web

from relevance_gen.serve import bodies
from relevance_gen.serve.app import KEY_ID, RATE_HEADERS, Service
from relevance_gen.serve.auth import HEADER
from relevance_gen.serve.problems import draining


async def admit(service: Service, request: web.Request) -> str:
    """Check that the server takes work, and the request's key and rate; return the key's id.

    Raises:
        HTTPError: 401, 429, or 503.
    """
    _refuse_while_draining(service)
    key_id = service.keys.check(request.headers.get(HEADER))
    request[KEY_ID] = key_id
    request[RATE_HEADERS] = await service.rate.admit(key_id)
    return key_id


async def admit_generation(service: Service, request: web.Request) -> None:
    """Do the same where generation asks for a key; where it is open, only check that the server takes work.

    Raises:
        HTTPError: 401, 429, or 503.
    """
    if service.settings.generation_requires_key:
        await admit(service, request)
    _refuse_while_draining(service)


def _refuse_while_draining(service: Service) -> None:
    if service.draining:
        raise draining()


async def read_body(service: Service, request: web.Request, account: bodies.Account) -> bytes:
    """Receive the body within the limits that the settings give.

    Raises:
        HTTPError: 408, 413, or 503.
        InvalidRequestError: the body ended before its end.
    """
    settings = service.settings
    body = await bodies.read(request, account, limit_bytes=settings.max_body_bytes, timeout_s=settings.body_timeout_s)
    service.metrics.add("http_request_body_bytes_total", len(body))
    return body
