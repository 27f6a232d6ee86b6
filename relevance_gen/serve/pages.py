"""The OpenAPI document and the web pages.

Their texts are in ``static``, their paths in the table of routes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from importlib.resources import files

from aiohttp import ETag, web
from attrs import frozen

import relevance_gen
from relevance_gen.serve.http.bodies.content_coding import encode, preferred_coding
from relevance_gen.serve.http.route import ROUTE, Route, name_of
from relevance_gen.serve.settings import Settings
from relevance_gen.wire import JsonObject

_STATIC = files("relevance_gen.serve").joinpath("static")

_SECURITY: dict[str, list[dict[str, list[str]]]] = {
    "always": [{"key": []}, {"bearer": []}],
    "setting": [{}, {"key": []}, {"bearer": []}],
    "never": [],
}
"""The security requirement in OpenAPI for a route's key; {} means that no key is needed."""


async def describe(request: web.BaseRequest, routes: tuple[Route, ...]) -> web.StreamResponse:
    """Return the response with the OpenAPI document of `routes`."""
    return _respond(request, document(routes), {"Content-Type": "application/json"})


async def part(request: web.BaseRequest) -> web.StreamResponse:
    """Return the response to GET /static/{name}: the style of the page, or a script of it.

    Raises:
        HTTPNotFound: the page has no such file.
    """
    name = request[ROUTE].rest_of(request.path)
    content = _parts().get(name)
    if content is None:
        raise web.HTTPNotFound
    content_type = "text/css" if name.endswith(".css") else "text/javascript"
    return _respond(request, content, {"Content-Type": f"{content_type}; charset=utf-8"})


async def front(
    settings: Settings, request: web.BaseRequest, routes: tuple[Route, ...]
) -> web.StreamResponse:
    """Return the response to GET /: the page if the client accepts HTML, otherwise `listing`."""
    if "text/html" in request.headers.get("Accept", ""):
        response = await page(request, "page.html")
    else:
        body = listing(routes, settings)
        response = _respond(request, body, {"Content-Type": "application/json"})
    response.headers["Vary"] = "Accept, Accept-Encoding"
    return response


@cache
def document(routes: tuple[Route, ...]) -> bytes:
    """Return the OpenAPI document of `routes` as JSON.

    Each path gets the operation of its endpoint in ``static/openapi.json``.
    """
    openapi: JsonObject = json.loads(_STATIC.joinpath("openapi.json").read_bytes())
    openapi["info"]["version"] = relevance_gen.__version__
    operations = openapi.pop("operations")
    errors = openapi["components"]["responses"]
    openapi["paths"] = {}
    for route in routes:
        for path in route.paths:
            operation = dict(operations[route.endpoint])
            if path != route.path:
                operation["summary"] += f" (the same as {route.path})"
            operation["operationId"] = name_of(path)
            operation["security"] = _SECURITY[route.key]
            operation["responses"] = _responses(operation, errors)
            operation.pop("errors", None)
            openapi["paths"][path] = {route.method.lower(): operation}
    return json.dumps(openapi, ensure_ascii=False, separators=(",", ":")).encode()


def _responses(operation: JsonObject, errors: JsonObject) -> JsonObject:
    """Return the responses of an operation, with the response 403 in addition.

    If the operation has ``errors``, each reference to a common error response is replaced by a copy
    of that response whose body has this schema.

    Args:
        operation: the operation; its ``errors``, if any, is the schema of its error bodies.
        errors: the common error responses, by name.
    """
    responses: JsonObject = operation["responses"] | {
        "403": {"$ref": "#/components/responses/Forbidden"}
    }
    if "errors" in operation:
        content = {"application/json": {"schema": operation["errors"]}}
        for status, response in responses.items():
            if "$ref" in response:
                name = response["$ref"].rsplit("/", 1)[1]
                responses[status] = {**errors[name], "content": content}
    return responses


def listing(routes: tuple[Route, ...], settings: Settings) -> bytes:
    """Return the JSON at the root: the version, the endpoints, and the limits of a search."""
    endpoints = [f"{route.method} {path}" for route in routes for path in route.paths]
    body = {
        "name": "relevance_gen",
        "version": relevance_gen.__version__,
        "endpoints": endpoints,
        "limits": {"max_chunks": settings.max_chunks, "max_body_bytes": settings.max_body_bytes},
    }
    return json.dumps(body).encode() + b"\n"


async def page(request: web.BaseRequest, name: str) -> web.StreamResponse:
    """Return the response with the page in the file ``static/{name}``.

    Its Content-Security-Policy is the result of `_policy`.
    """
    headers = {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": _policy(name),
        "Referrer-Policy": "no-referrer",
    }
    return _respond(request, _content(name), headers)


@frozen
class _EncodedFile:
    """A file in a content coding, the headers about its coding, and its entity tag."""

    body: bytes
    headers: dict[str, str]
    tag: ETag


@cache
def _encoded(content: bytes, coding: str) -> _EncodedFile:
    body, headers = encode(content, coding)
    return _EncodedFile(body, headers, ETag(hashlib.sha256(body).hexdigest()))


def _respond(
    request: web.BaseRequest,
    content: bytes,
    headers: dict[str, str],
) -> web.Response:
    """Return the response with the bytes of a file, in the coding that the client prefers.

    The status is 304, without a body, if the client has the file already (RFC 9110, 13.1.2).

    Args:
        request: the client's request.
        content: the content of the file, not yet encoded.
        headers: headers of a response with a body, in addition to those about the coding.
    """
    coding = preferred_coding(request.headers.get("Accept-Encoding", ""))
    encoded = _encoded(content, coding)
    values = {tag.value for tag in request.if_none_match or ()}
    if values.isdisjoint({encoded.tag.value, "*"}):
        response = web.Response(body=encoded.body, headers=headers | encoded.headers)
    else:
        response = web.Response(status=304, headers={"Vary": encoded.headers["Vary"]})
    response.headers["Cache-Control"] = "no-cache"
    response.etag = encoded.tag
    return response


@cache
def _content(name: str) -> bytes:
    return _STATIC.joinpath(name).read_bytes()


@cache
def _parts() -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in _STATIC.joinpath("page").iterdir()}


@cache
def _policy(name: str) -> str:
    """Return the Content-Security-Policy of a page: it may load only its own resources.

    `name` is the file name of the page. An inline script or style is allowed by the hash of its
    content; a page without inline scripts (or styles) may load them from this server. Images must
    be ``data:`` addresses, such as the icon. Requests go to this server only. Frames may show only
    ``blob:`` addresses, such as a file that the user opened. Because no Trusted Types policy is
    allowed, the browser refuses to parse as HTML any string that a script passes to it.
    """
    script = _sources(name, b"script")
    style = _sources(name, b"style")
    return (
        "default-src 'none'; connect-src 'self'; img-src data:; "
        f"script-src {script}; style-src {style}; "
        "frame-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )


def _sources(name: str, tag: bytes) -> str:
    """Return the sources that the Content-Security-Policy of a page allows for an element type.

    These are the SHA-256 hashes of the page's inline elements; ``'self'`` if the page has none.

    Args:
        name: file name of the page.
        tag: the element type, ``b"script"`` or ``b"style"``.
    """
    hashes = []
    for content in re.findall(b"<%s>(.*?)</" % tag, _content(name), re.DOTALL):
        digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
        hashes.append(f"'sha256-{digest}'")
    return " ".join(hashes) or "'self'"
