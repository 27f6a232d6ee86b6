"""The table of routes.

The metrics, the OpenAPI document and the routes of each process derive from it.
"""

from __future__ import annotations

from functools import partial

from relevance_gen.serve import pages
from relevance_gen.serve.adapters import cohere, mcp, ollama, own, tei
from relevance_gen.serve.adapters.anthropic import blocks, messages
from relevance_gen.serve.adapters.openai import chat, completions, embeddings, responses
from relevance_gen.serve.adapters.openai import requests as openai
from relevance_gen.serve.handlers import generation, search, status
from relevance_gen.serve.http.http_errors import STATUSES
from relevance_gen.serve.http.middleware import OTHER
from relevance_gen.serve.http.route import AlternateBody, Route
from relevance_gen.serve.metrics import Layout
from relevance_gen.serve.settings import Settings

_search = partial(Route, "POST", pool="search", key="always")
_generation = partial(Route, "POST", pool="generation", key="setting")

_get = partial(Route, "GET")

ROUTES: tuple[Route, ...] = (
    _get("/", lambda call: pages.front(call.service.settings, call.request, ROUTES)),
    _search("/search", search.search, own.read_search, aliases=("/distributor/search",)),
    _search("/explain", search.explain, own.read_explanation),
    _search("/compress", search.compress, own.read_compression),
    _search("/cite", search.cite, own.read_citation),
    Route("POST", "/extract", search.extract, own.read_extraction, pool="extraction", key="always"),
    Route("POST", "/prompt", search.prompt, own.read_prompt, pool="generation", key="always"),
    _generation("/generate", generation.generate, own.read_generation, is_exact=True),
    _generation("/generate_stream", generation.generate, own.read_stream, is_exact=True),
    _search(
        "/rerank",
        search.search,
        cohere.read_rerank,
        alternate=AlternateBody("texts", tei.read_rerank, tei.error),
        aliases=("/v1/rerank", "/v2/rerank"),
        write_error=openai.error,
    ),
    _generation("/v1/completions", generation.complete, completions.read, write_error=openai.error),
    _generation("/v1/chat/completions", generation.chat, chat.read, write_error=chat.error),
    _generation("/v1/responses", generation.respond, responses.read, write_error=openai.error),
    _generation("/v1/messages", generation.chat, messages.read, write_error=blocks.error),
    _generation(
        "/v1/messages/count_tokens", generation.chat, messages.read_count, write_error=blocks.error
    ),
    _search("/v1/embeddings", search.embed, embeddings.read, write_error=openai.error),
    _generation("/api/chat", generation.chat, ollama.read_chat, write_error=ollama.error),
    _generation("/api/generate", generation.chat, ollama.read_generate, write_error=ollama.error),
    _search("/api/embed", search.embed, ollama.read_embed, write_error=ollama.error),
    _search("/api/embeddings", search.embed, ollama.read_prompt_embed, write_error=ollama.error),
    Route(
        "POST",
        "/api/show",
        status.ollama_model,
        ollama.read_show,
        pool="search",
        key="setting",
        write_error=ollama.error,
    ),
    _get("/api/tags", status.ollama_models, key="setting", write_error=ollama.error),
    _get("/api/ps", status.ollama_running_models, key="setting", write_error=ollama.error),
    _get("/api/version", status.ollama_version),
    Route("POST", "/mcp", search.mcp, mcp.read, pool="agents", key="always", write_error=mcp.error),
    _get("/v1/models", status.models, key="setting", write_error=openai.error),
    _get("/v1/models/{id}", status.model, key="setting", write_error=openai.error),
    _get("/indexes", status.indexes, key="always"),
    _get("/health", status.health, is_on_model_process=True),
    _get("/stats", status.stats, key="setting", is_on_model_process=True),
    _get("/metrics", status.metrics),
    _get("/openapi.json", lambda call: pages.describe(call.request, ROUTES)),
    _get("/docs", lambda call: pages.page(call.request, "docs.html")),
    _get("/static/{name}", lambda call: pages.part(call.request)),
)

MODEL_PROCESS_ROUTES = tuple(
    route for route in ROUTES if route.pool == "generation" or route.is_on_model_process
)
"""The routes of the process with the model; only the worker processes send it requests."""


def layout(settings: Settings) -> Layout:
    """Return the columns of the metrics table, in which each process of the server has a row.

    They depend only on `settings`, so all processes have the same columns.
    """
    endpoints = [route.endpoint for route in ROUTES]
    models = [(task, model.name) for task, sources in settings.models.items() for model in sources]
    return Layout((*endpoints, OTHER), STATUSES, models)
