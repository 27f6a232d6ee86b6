"""The table of routes. Metrics, the OpenAPI document and the routes of each process derive from it."""

from __future__ import annotations

from relevance_gen.serve import pages
from relevance_gen.serve.adapters import cohere, mcp, own, tei
from relevance_gen.serve.adapters.anthropic import blocks, messages
from relevance_gen.serve.adapters.openai import chat, completions, embeddings, responses
from relevance_gen.serve.adapters.openai import requests as openai
from relevance_gen.serve.handlers import agents, embedding, extraction, generation, search, status
from relevance_gen.serve.http.http_errors import STATUSES
from relevance_gen.serve.http.middleware import OTHER
from relevance_gen.serve.http.route import AlternateBody, Route
from relevance_gen.serve.metrics import Layout
from relevance_gen.serve.settings import Settings

ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "/",
        lambda call: pages.front(call.service.settings, call.request, ROUTES),
    ),
    Route(
        "POST",
        "/search",
        search.search,
        own.read_search,
        pool="search",
        key="always",
        aliases=("/distributor/search",),
    ),
    Route(
        "POST",
        "/explain",
        search.explain,
        own.read_explanation,
        pool="search",
        key="always",
    ),
    Route(
        "POST",
        "/compress",
        search.compress,
        own.read_compression,
        pool="search",
        key="always",
    ),
    Route(
        "POST",
        "/cite",
        search.cite,
        own.read_citation,
        pool="search",
        key="always",
    ),
    Route(
        "POST",
        "/extract",
        extraction.extract,
        own.read_extraction,
        pool="extraction",
        key="always",
    ),
    Route(
        "POST",
        "/prompt",
        search.prompt,
        own.read_prompt,
        pool="generation",
        key="always",
    ),
    Route(
        "POST",
        "/generate",
        generation.generate,
        own.read_generation,
        pool="generation",
        key="setting",
        is_exact=True,
    ),
    Route(
        "POST",
        "/generate_stream",
        generation.generate,
        own.read_stream,
        pool="generation",
        key="setting",
        is_exact=True,
    ),
    Route(
        "POST",
        "/rerank",
        search.search,
        cohere.read_rerank,
        pool="search",
        alternate=AlternateBody("texts", tei.read_rerank, tei.error),
        key="always",
        aliases=("/v1/rerank", "/v2/rerank"),
        write_error=openai.error,
    ),
    Route(
        "POST",
        "/v1/completions",
        generation.complete,
        completions.read,
        pool="generation",
        key="setting",
        write_error=openai.error,
    ),
    Route(
        "POST",
        "/v1/chat/completions",
        generation.chat,
        chat.read,
        pool="generation",
        key="setting",
        write_error=chat.error,
    ),
    Route(
        "POST",
        "/v1/responses",
        generation.respond,
        responses.read,
        pool="generation",
        key="setting",
        write_error=openai.error,
    ),
    Route(
        "POST",
        "/v1/messages",
        generation.chat,
        messages.read,
        pool="generation",
        key="setting",
        write_error=blocks.error,
    ),
    Route(
        "POST",
        "/v1/messages/count_tokens",
        generation.chat,
        messages.read_count,
        pool="generation",
        key="setting",
        write_error=blocks.error,
    ),
    Route(
        "POST",
        "/v1/embeddings",
        embedding.embed,
        embeddings.read,
        pool="search",
        key="always",
        write_error=openai.error,
    ),
    Route(
        "POST",
        "/mcp",
        agents.mcp,
        mcp.read,
        pool="agents",
        key="always",
        write_error=mcp.error,
    ),
    Route("GET", "/v1/models", status.models, key="setting", write_error=openai.error),
    Route("GET", "/v1/models/{id}", status.model, key="setting", write_error=openai.error),
    Route("GET", "/indexes", status.indexes, key="always"),
    Route("GET", "/health", status.health, is_on_model_process=True),
    Route("GET", "/stats", status.stats, key="setting", is_on_model_process=True),
    Route("GET", "/metrics", status.metrics),
    Route("GET", "/openapi.json", lambda _: pages.describe(ROUTES)),
    Route("GET", "/docs", lambda _: pages.page("docs.html")),
    Route("GET", "/static/{name}", lambda call: pages.part(call.request)),
)

MODEL_PROCESS_ROUTES = tuple(
    route for route in ROUTES if route.pool == "generation" or route.is_on_model_process
)
"""The routes that the process with the model answers, for the worker processes only."""


def layout(settings: Settings) -> Layout:
    """Return the layout of the metrics of a server's processes."""
    endpoints = [route.endpoint for route in ROUTES]
    models = [(task, model.name) for task, sources in settings.models.items() for model in sources]
    return Layout((*endpoints, OTHER), STATUSES, models)
