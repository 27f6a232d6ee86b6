"""The table of all paths. Metrics, the OpenAPI document, and what each process of the server answers follow from it."""

from __future__ import annotations

import attrs

from relevance_gen.serve import pages
from relevance_gen.serve.dialects import own
from relevance_gen.serve.edge import handlers
from relevance_gen.serve.edge.exchange import OTHER
from relevance_gen.serve.edge.forwarding import forward
from relevance_gen.serve.edge.problems import STATUSES
from relevance_gen.serve.edge.route import Route
from relevance_gen.serve.metrics import Layout

ROUTES: tuple[Route, ...] = (
    Route(
        *("POST", "/search", "search", handlers.search(own.read_search)),
        "Search chunks",
        key="always",
        work="search",
        aliases=("/distributor/search",),
    ),
    Route(
        *("POST", "/generate", "generate", handlers.generate(own.read_generation)),
        "Generate completions",
        key="setting",
        work="generation",
        is_exact=True,
    ),
    Route(
        *("POST", "/generate_stream", "generate_stream", handlers.stream(own.read_stream)),
        "Generate completions, text as it comes",
        key="setting",
        work="generation",
        is_exact=True,
    ),
    Route("GET", "/health", "health", handlers.health, "Tell whether generation is available", tells_of_model=True),
    Route(
        *("GET", "/stats", "stats", handlers.stats),
        "Tell the backlog and the runners",
        key="setting",
        tells_of_model=True,
    ),
    Route("GET", "/metrics", "metrics", handlers.metrics, "Metrics in Prometheus' text format"),
    Route("GET", "/openapi.json", "openapi", lambda _: pages.describe(ROUTES), "This description"),
    Route("GET", "/docs", "docs", pages.docs, "This description as a page"),
)

LAYOUT = Layout((*dict.fromkeys(route.endpoint for route in ROUTES), OTHER), STATUSES)
"""Where the processes of the server count requests."""


def of_worker(*, forwards: bool) -> tuple[Route, ...]:
    """Return what a worker answers; one that `forwards` leaves generation to the process that holds the model."""
    if not forwards:
        return ROUTES
    return tuple(attrs.evolve(route, handler=forward) if route.work == "generation" else route for route in ROUTES)


def of_model_process() -> tuple[Route, ...]:
    """Return what the process that holds the model answers: the workers alone ask it."""
    return tuple(route for route in ROUTES if route.work == "generation" or route.tells_of_model)
