"""What the table of routes says of each path."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, TypeAlias

from aiohttp import web
from attrs import frozen

from relevance_gen.serve.adapters import own
from relevance_gen.serve.http.actions import Action
from relevance_gen.serve.http.http_errors import WriteError
from relevance_gen.serve.http.service import Service

Handler: TypeAlias = Callable[[Service, web.BaseRequest], Awaitable[web.StreamResponse]]
Reader: TypeAlias = Callable[[object], tuple[Any, Any]]
"""A dialect's way from parsed JSON to a task, and to what presents its outcome: a function, or `pipeline.Events`."""


def name_of(path: str) -> str:
    """Return a path as a name.

    >>> name_of("/distributor/search"), name_of("/v1/models/{id}")
    ('distributor_search', 'v1_models_id')
    """
    return re.sub(r"\W+", "_", path.strip("/{}")) or "root"


@frozen
class AlternateBody:
    """A dialect that shares the path of another: it words what is wrong once the body is known to have `field`."""

    field: str
    read: Reader
    write_error: WriteError


@frozen
class Route:
    """One row of the table of routes.

    Attributes:
        method: "GET", which answers HEAD too, or "POST".
        path: where it is; where it ends with a name in braces, that stands for all of the rest, slashes included.
        work: what is done; or what answers at once, with no body and no lane.
        read: how its dialect reads a body.
        guest: another dialect on the same path.
        wants_headers: whether `read` is given the headers, too.
        key: whether it asks for an API key; "setting" leaves that to ``generation_requires_key``.
        tells_of_model: whether the process that holds the model must answer it too, though it gives no work.
        aliases: further paths of the same.
        is_exact: whether Content-Type must be application/json to the letter.
        write_error: how its dialect words errors.
    """

    method: Literal["GET", "POST"]
    path: str
    work: Action | Handler
    read: Callable[..., tuple[Any, Any]] = lambda _: (None, None)
    guest: AlternateBody | None = None
    wants_headers: bool = False
    key: Literal["always", "setting", "never"] = "never"
    tells_of_model: bool = False
    aliases: tuple[str, ...] = ()
    is_exact: bool = False
    write_error: WriteError = own.error

    @property
    def lane(self) -> str | None:
        """The lane whose memory it takes; None where it gives no work."""
        return self.work.lane if isinstance(self.work, Action) else None

    @property
    def endpoint(self) -> str:
        """Its name in metrics, and of its text in ``static/openapi.json``."""
        return name_of(self.path)

    @property
    def paths(self) -> tuple[str, ...]:
        """All of its paths."""
        return (self.path, *self.aliases)

    @property
    def methods(self) -> tuple[str, ...]:
        """The methods that it answers."""
        return (
            ("OPTIONS", self.method, "HEAD") if self.method == "GET" else ("OPTIONS", self.method)
        )

    def rest_of(self, path: str) -> str:
        """Return what stands in `path` for the name in braces."""
        return path.removeprefix(self.path.partition("{")[0])


class Router:
    """Finds routes by their paths."""

    def __init__(self, routes: Sequence[Route]) -> None:
        paths = {path: route for route in routes for path in route.paths}
        self._by_path = {path: route for path, route in paths.items() if "{" not in path}
        self._by_beginning = {
            path.partition("{")[0]: route for path, route in paths.items() if "{" in path
        }

    def find(self, path: str) -> Route | None:
        """Return the route of a path, in which no slash was escaped; None if there is none."""
        longer = (
            route
            for start, route in self._by_beginning.items()
            if path.startswith(start) and path != start
        )
        return self._by_path.get(path) or next(longer, None)


ROUTE = web.RequestKey("ROUTE", Route)
