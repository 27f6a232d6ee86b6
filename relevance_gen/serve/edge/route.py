"""What the table of routes says of each path."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias

from aiohttp import web
from attrs import frozen

from relevance_gen.serve.dialects import own
from relevance_gen.serve.edge.lanes import Work
from relevance_gen.serve.edge.problems import WriteError

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


def name_of(path: str) -> str:
    """Return a path as a name.

    >>> name_of("/distributor/search"), name_of("/v1/models/{id}")
    ('distributor_search', 'v1_models_id')
    """
    return re.sub(r"\W+", "_", path.strip("/{}")) or "root"


@frozen
class Route:
    """One row of the table of routes.

    Attributes:
        method: "GET", which answers HEAD too, or "POST".
        path: where it is; where it ends with a name in braces, that stands for all of the rest, slashes included.
        handler: what answers.
        key: whether it asks for an API key; "setting" leaves that to ``generation_requires_key``.
        work: the work that it gives, which says whose threads and memory it takes; a process that holds no model
            passes "generation" on. ``None`` where it gives none.
        tells_of_model: whether the process that holds the model must answer it too, though it gives no work.
        aliases: further paths of the same.
        is_exact: whether Content-Type must be application/json to the letter.
        write_error: how its dialect words errors.
    """

    method: Literal["GET", "POST"]
    path: str
    handler: Handler
    key: Literal["always", "setting", "never"] = "never"
    work: Work | None = None
    tells_of_model: bool = False
    aliases: tuple[str, ...] = ()
    is_exact: bool = False
    write_error: WriteError = own.error

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
        """The methods that it answers, but for OPTIONS."""
        return (self.method, "HEAD") if self.method == "GET" else (self.method,)
