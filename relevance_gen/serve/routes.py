"""The table of all paths. Metrics, the OpenAPI document, and what each process of the server answers follow from it."""

from __future__ import annotations

import attrs

from relevance_gen.serve import pages
from relevance_gen.serve.dialects import cohere, own, tei
from relevance_gen.serve.dialects.openai import chat, completions, embeddings, errors
from relevance_gen.serve.dialects.openai.models import found, listed
from relevance_gen.serve.edge.exchange import OTHER
from relevance_gen.serve.edge.forwarding import forward
from relevance_gen.serve.edge.generations import generation
from relevance_gen.serve.edge.problems import STATUSES
from relevance_gen.serve.edge.route import Route
from relevance_gen.serve.edge.searches import Sharing, embed, explain, extract, prompt, search
from relevance_gen.serve.edge.state import health, metrics, model, models, stats
from relevance_gen.serve.metrics import Layout

ROUTES: tuple[Route, ...] = (
    Route("GET", "/", lambda request: pages.front(request, ROUTES)),
    Route("POST", "/search", search(own.read_search), key="always", work="search", aliases=("/distributor/search",)),
    Route("POST", "/explain", explain(own.read_explanation), key="always", work="search"),
    Route("POST", "/extract", extract(own.read_extraction), key="always", work="extraction"),
    Route("POST", "/prompt", prompt(own.read_prompt), key="always", work="generation"),
    Route("POST", "/generate", generation(own.read_generation), key="setting", work="generation", is_exact=True),
    Route("POST", "/generate_stream", generation(own.read_stream), key="setting", work="generation", is_exact=True),
    Route(
        *("POST", "/rerank", search(cohere.read_rerank, Sharing("texts", tei.read_rerank, tei.error))),
        key="always",
        work="search",
        aliases=("/v1/rerank", "/v2/rerank"),
        write_error=errors.error,
    ),
    Route(
        *("POST", "/v1/completions", generation(completions.read, is_tried_again=True)),
        key="setting",
        work="generation",
        write_error=errors.error,
    ),
    Route(
        *("POST", "/v1/chat/completions", generation(chat.read, is_tried_again=True)),
        key="setting",
        work="generation",
        write_error=chat.error,
    ),
    Route("POST", "/v1/embeddings", embed(embeddings.read), key="always", work="search", write_error=errors.error),
    Route("GET", "/v1/models", models(listed), key="setting", write_error=errors.error),
    Route("GET", "/v1/models/{id}", model(found), key="setting", write_error=errors.error),
    Route("GET", "/health", health, tells_of_model=True),
    Route("GET", "/stats", stats, key="setting", tells_of_model=True),
    Route("GET", "/metrics", metrics),
    Route("GET", "/openapi.json", lambda _: pages.describe(ROUTES)),
    Route("GET", "/docs", pages.docs),
)

LAYOUT = Layout((*(route.endpoint for route in ROUTES), OTHER), STATUSES)
"""Where the processes of the server count requests."""


def of_worker(*, forwards: bool) -> tuple[Route, ...]:
    """Return what a worker answers; one that `forwards` leaves generation to the process that holds the model."""
    if not forwards:
        return ROUTES
    return tuple(attrs.evolve(route, handler=forward) if route.work == "generation" else route for route in ROUTES)


def of_model_process() -> tuple[Route, ...]:
    """Return what the process that holds the model answers: the workers alone ask it."""
    return tuple(route for route in ROUTES if route.work == "generation" or route.tells_of_model)
