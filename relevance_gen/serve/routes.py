"""The table of all paths. Metrics, the OpenAPI document, and what each process of the server answers follow from it."""

from __future__ import annotations

from relevance_gen.serve import pages
from relevance_gen.serve.adapters import cohere, mcp, own, tei
from relevance_gen.serve.adapters.anthropic import blocks, messages
from relevance_gen.serve.adapters.openai import chat, completions, embeddings, responses
from relevance_gen.serve.adapters.openai import requests as openai
from relevance_gen.serve.handlers.status import health, indexes, metrics, model, models, stats
from relevance_gen.serve.http import actions
from relevance_gen.serve.http.http_errors import STATUSES
from relevance_gen.serve.http.middleware import OTHER
from relevance_gen.serve.http.route import AlternateBody, Route
from relevance_gen.serve.metrics import Layout
from relevance_gen.serve.settings import Settings

ROUTES: tuple[Route, ...] = (
    Route("GET", "/", lambda service, request: pages.front(service.settings, request, ROUTES)),
    Route(
        "POST",
        "/search",
        actions.SEARCH,
        own.read_search,
        key="always",
        aliases=("/distributor/search",),
    ),
    Route("POST", "/explain", actions.EXPLANATION, own.read_explanation, key="always"),
    Route("POST", "/compress", actions.COMPRESSION, own.read_compression, key="always"),
    Route("POST", "/cite", actions.CITATION, own.read_citation, key="always"),
    Route("POST", "/extract", actions.EXTRACTION, own.read_extraction, key="always"),
    Route("POST", "/prompt", actions.PROMPT, own.read_prompt, key="always"),
    Route(
        "POST", "/generate", actions.GENERATION, own.read_generation, key="setting", is_exact=True
    ),
    Route(
        "POST",
        "/generate_stream",
        actions.GENERATION,
        own.read_stream,
        key="setting",
        is_exact=True,
    ),
    Route(
        *(
            "POST",
            "/rerank",
            actions.SEARCH,
            cohere.read_rerank,
            AlternateBody("texts", tei.read_rerank, tei.error),
        ),
        key="always",
        aliases=("/v1/rerank", "/v2/rerank"),
        write_error=openai.error,
    ),
    Route(
        "POST",
        "/v1/completions",
        actions.COMPLETION,
        completions.read,
        key="setting",
        write_error=openai.error,
    ),
    Route(
        "POST",
        "/v1/chat/completions",
        actions.CHAT,
        chat.read,
        key="setting",
        write_error=chat.error,
    ),
    Route(
        "POST",
        "/v1/responses",
        actions.RESPONSE,
        responses.read,
        key="setting",
        write_error=openai.error,
    ),
    Route(
        "POST", "/v1/messages", actions.CHAT, messages.read, key="setting", write_error=blocks.error
    ),
    Route(
        *("POST", "/v1/messages/count_tokens", actions.CHAT, messages.read_count),
        key="setting",
        write_error=blocks.error,
    ),
    Route(
        "POST",
        "/v1/embeddings",
        actions.EMBEDDING,
        embeddings.read,
        key="always",
        write_error=openai.error,
    ),
    Route(
        "POST",
        "/mcp",
        actions.AGENTS,
        mcp.read,
        wants_headers=True,
        key="always",
        write_error=mcp.error,
    ),
    Route("GET", "/v1/models", models, key="setting", write_error=openai.error),
    Route("GET", "/v1/models/{id}", model, key="setting", write_error=openai.error),
    Route("GET", "/indexes", indexes, key="always"),
    Route("GET", "/health", health, tells_of_model=True),
    Route("GET", "/stats", stats, key="setting", tells_of_model=True),
    Route("GET", "/metrics", metrics),
    Route("GET", "/openapi.json", lambda _, __: pages.describe(ROUTES)),
    Route("GET", "/docs", lambda _, __: pages.page("docs.html")),
    Route("GET", "/static/{name}", lambda _, request: pages.part(request)),
)


def layout(settings: Settings) -> Layout:
    """Return where the processes of a server count requests, and what becomes of its models."""
    models = [(task, one.name) for task, several in settings.models.items() for one in several]
    return Layout((*(route.endpoint for route in ROUTES), OTHER), STATUSES, models)


OF_MODEL = tuple(route for route in ROUTES if route.lane == "generation" or route.tells_of_model)
"""What the process that holds the model answers: the workers alone ask it."""
