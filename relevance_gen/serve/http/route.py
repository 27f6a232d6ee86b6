"""Routes: the paths of the server, their handlers, and their access rules."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeAlias

from aiohttp import web
from attrs import frozen

from relevance_gen.errors import nearest
from relevance_gen.serve.adapters import own
from relevance_gen.serve.http.http_errors import WriteError

Handler: TypeAlias = Callable[[Any], Awaitable[web.StreamResponse]]
"""An async function that answers a `Call`."""
ReadBody: TypeAlias = Callable[..., tuple[Any, Any]]
"""An adapter's function that checks parsed JSON, and returns a task and a response writer.

The writer is a function from the task's result to the JSON of the response, or, for a stream, a
`handlers.generation.Events`.
"""


def name_of(path: str) -> str:
    """Return an identifier made of a route's path.

    >>> name_of("/distributor/search"), name_of("/v1/models/{id}")
    ('distributor_search', 'v1_models_id')
    """
    return re.sub(r"\W+", "_", path.strip("/{}")) or "root"


@frozen
class AlternateBody:
    """A second API format on a path, which is used if the body of a request has `field`.

    Attributes:
        field: the name of a field that only bodies in this format have.
        read: the adapter's function that reads a parsed body.
        write_error: writes errors in this format.
    """

    field: str
    read: ReadBody
    write_error: WriteError


@frozen
class Route:
    """One row of the table of routes.

    An adapter is a module of `relevance_gen.serve.adapters`, which implements one API format.

    Attributes:
        method: "GET", which answers HEAD too, or "POST".
        path: the path; a last segment in braces matches the rest of a path, including slashes.
        handle: async function that answers a `Call`.
        read: the adapter's function that checks the parsed JSON of a body, and returns a task and
            a response writer; see `ReadBody`.
        pool: the name of the resource pool whose memory and threads requests take; None for
            requests without a body. Anonymous generations use the pool "anonymous_generation"
            instead.
        alternate: a second API format on the same path; None if there is none.
        key: whether an API key is required; "setting" if ``generation_requires_key`` decides, and
            "never" if keys are not even checked.
        is_on_model_process: whether the process that holds the model answers requests for this
            route too. It always answers the routes of the "generation" pool.
        aliases: further paths of the same route.
        is_exact: whether Content-Type must be exactly application/json, without parameters.
        write_error: writes errors in the adapter's format.
    """

    method: Literal["GET", "POST"]
    path: str
    handle: Handler
    read: ReadBody = lambda _: (None, None)
    pool: str | None = None
    alternate: AlternateBody | None = None
    key: Literal["always", "setting", "never"] = "never"
    is_on_model_process: bool = False
    aliases: tuple[str, ...] = ()
    is_exact: bool = False
    write_error: WriteError = own.error

    @property
    def endpoint(self) -> str:
        """The name of the route in metrics and in ``static/openapi.json``."""
        return name_of(self.path)

    @property
    def paths(self) -> tuple[str, ...]:
        """The path and its aliases."""
        return (self.path, *self.aliases)

    @property
    def methods(self) -> tuple[str, ...]:
        """The HTTP methods that the route accepts."""
        if self.method == "GET":
            return ("OPTIONS", "GET", "HEAD")
        return ("OPTIONS", self.method)

    def rest_of(self, path: str) -> str:
        """Return the part of `path` that the segment in braces matches.

        `path` must be a path of this route, and not an alias.
        """
        return path.removeprefix(self.path.partition("{")[0])


class Router:
    """Finds the route of a path; no two routes may have the same path."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._by_path: dict[str, Route] = {}
        self._by_prefix: dict[str, Route] = {}
        for route in routes:
            for path in route.paths:
                prefix, brace, _ = path.partition("{")
                if brace:
                    self._by_prefix[prefix] = route
                else:
                    self._by_path[path] = route

    def find(self, path: str) -> Route | None:
        """Return the route of a path; None if there is none.

        The caller must have decoded all escapes in `path` except those of slashes (``%2F``).
        """
        if path in self._by_path:
            return self._by_path[path]
        for prefix, route in self._by_prefix.items():
            if path.startswith(prefix) and path != prefix:
                return route
        return None

    def nearest(self, path: str) -> str | None:
        """Return the known path that a client with a wrong path probably needs, or None.

        This is the shortest known path that ends with `path`, because a client may have left out a
        prefix such as ``/v1``. If there is none, it is the known path that is most similar to
        `path`.
        """
        with_prefix = [known for known in self._by_path if known.endswith(path)]
        if with_prefix and len(path) > 1:
            return min(with_prefix, key=len)
        return nearest(path, self._by_path)


ROUTE = web.RequestKey("ROUTE", Route)
