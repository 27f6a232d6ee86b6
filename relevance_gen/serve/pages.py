"""The description of the interface, as OpenAPI and as a page: texts from ``static``, paths from the table of routes."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

from aiohttp import web

import relevance_gen
from relevance_gen.serve.http.route import ROUTE, Route, name_of
from relevance_gen.serve.settings import Settings

_STATIC = files("relevance_gen.serve").joinpath("static")

_SECURITY: dict[str, list[dict[str, list[str]]]] = {
    "always": [{"key": []}, {"bearer": []}],
    "setting": [{}, {"key": []}, {"bearer": []}],
    "never": [],
}
"""What OpenAPI says of a route's key; the empty object means that none is needed."""


async def describe(routes: tuple[Route, ...]) -> web.StreamResponse:
    """Answer with the OpenAPI document of `routes`."""
    return web.Response(body=document(routes), content_type="application/json")


async def part(request: web.BaseRequest) -> web.StreamResponse:
    """Answer GET /static/{name}: the page's style, or one of its scripts."""
    name = request[ROUTE].rest_of(request.path)
    content = _parts().get(name)
    if content is None:
        raise web.HTTPNotFound
    content_type = "text/css" if name.endswith(".css") else "text/javascript"
    headers = {"Content-Type": f"{content_type}; charset=utf-8", "Cache-Control": "no-cache"}
    return web.Response(body=content, headers=headers)


async def front(
    settings: Settings, request: web.BaseRequest, routes: tuple[Route, ...]
) -> web.StreamResponse:
    """Answer GET /: the page to browsers, and to other programs what there is."""
    if "text/html" in request.headers.get("Accept", ""):
        response = await page("page.html")
    else:
        response = web.Response(body=listing(routes, settings), content_type="application/json")
    response.headers["Vary"] = "Accept"
    return response


@cache
def document(routes: tuple[Route, ...]) -> bytes:
    """Write the OpenAPI document: what ``static/openapi.json`` says of each endpoint, at the paths of its route."""
    described: dict[str, Any] = json.loads(_STATIC.joinpath("openapi.json").read_bytes())
    described["info"]["version"] = relevance_gen.__version__
    operations = described.pop("operations")
    components = described["components"]
    described["paths"] = {
        path: {
            route.method.lower(): _operation(
                route, path, operations[route.endpoint], components["responses"]
            )
        }
        for route in routes
        for path in route.paths
    }
    return json.dumps(described, ensure_ascii=False, separators=(",", ":")).encode()


def _operation(
    route: Route, path: str, operation: dict[str, Any], errors: dict[str, Any]
) -> dict[str, Any]:
    """Describe one path. An operation's ``errors`` is the schema of its error bodies, where that is not the usual."""
    same = f" (the same as {route.path})" if path != route.path else ""
    described = {
        **operation,
        "operationId": name_of(path),
        "summary": operation["summary"] + same,
        "security": _SECURITY[route.key],
        "responses": operation["responses"] | {"403": {"$ref": "#/components/responses/Forbidden"}},
    }
    if "errors" in operation:
        content = {"application/json": {"schema": described.pop("errors")}}
        described["responses"] = {
            status: {**errors[answer["$ref"].rsplit("/", 1)[1]], "content": content}
            if "$ref" in answer
            else answer
            for status, answer in described["responses"].items()
        }
    return described


def listing(routes: tuple[Route, ...], settings: Settings) -> bytes:
    """Write what a program finds at the root: version, paths with their methods, and how large a search may be."""
    endpoints = [f"{route.method} {path}" for route in routes for path in route.paths]
    limits = {"max_chunks": settings.max_chunks, "max_body_bytes": settings.max_body_bytes}
    found = {
        "name": "relevance_gen",
        "version": relevance_gen.__version__,
        "endpoints": endpoints,
        "limits": limits,
    }
    return json.dumps(found).encode() + b"\n"


async def page(name: str) -> web.StreamResponse:
    """Answer with a page that needs nothing but this server."""
    headers = {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": _policy(name),
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
    }
    return web.Response(body=_content(name), headers=headers)


@cache
def _content(name: str) -> bytes:
    return _STATIC.joinpath(name).read_bytes()


@cache
def _parts() -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in _STATIC.joinpath("page").iterdir()}


@cache
def _policy(name: str) -> str:
    """Return a page's Content-Security-Policy: its own script, style and icon, this server, and nothing else.

    What stands in the page itself is known by its hash, else it comes from this server. A frame shows a file that the
    reader opened. Trusted Types, of which there are none, make the browser refuse every text that a script would have
    it parse.
    """
    script, style = (
        " ".join(
            f"'sha256-{base64.b64encode(hashlib.sha256(found).digest()).decode()}'"
            for found in re.findall(b"<%s>(.*?)</" % tag, _content(name), re.DOTALL)
        )
        or "'self'"
        for tag in (b"script", b"style")
    )
    return (
        f"default-src 'none'; connect-src 'self'; img-src data:; script-src {script}; style-src {style}; "
        "frame-src blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    )
