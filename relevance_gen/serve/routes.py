"""The table of all paths. Metrics, the OpenAPI document, and what each process of the server answers follow from it."""

from __future__ import annotations

from relevance_gen.serve import pages
from relevance_gen.serve.dialects import cohere, mcp, own, tei
from relevance_gen.serve.dialects.anthropic import blocks, messages
from relevance_gen.serve.dialects.openai import chat, completions, embeddings, requests, responses
from relevance_gen.serve.edge import actions
from relevance_gen.serve.edge.exchange import OTHER
from relevance_gen.serve.edge.problems import STATUSES
from relevance_gen.serve.edge.route import Guest, Route, Work
from relevance_gen.serve.edge.status import health, indexes, metrics, model, models, stats
from relevance_gen.serve.metrics import Layout
from relevance_gen.serve.settings import Settings

ROUTES: tuple[Route, ...] = (
    Route("GET", "/", lambda _, request: pages.front(request, ROUTES)),
    Route("POST", "/search", Work(own.read_search, actions.SEARCH), key="always", aliases=("/distributor/search",)),
    Route("POST", "/explain", Work(own.read_explanation, actions.EXPLANATION), key="always"),
    Route("POST", "/compress", Work(own.read_compression, actions.COMPRESSION), key="always"),
    Route("POST", "/cite", Work(own.read_citation, actions.CITATION), key="always"),
    Route("POST", "/extract", Work(own.read_extraction, actions.EXTRACTION), key="always"),
    Route("POST", "/prompt", Work(own.read_prompt, actions.PROMPT), key="always"),
    Route("POST", "/generate", Work(own.read_generation, actions.GENERATION), key="setting", is_exact=True),
    Route("POST", "/generate_stream", Work(own.read_stream, actions.GENERATION), key="setting", is_exact=True),
    Route(
        *("POST", "/rerank", Work(cohere.read_rerank, actions.SEARCH, Guest("texts", tei.read_rerank, tei.error))),
        key="always",
        aliases=("/v1/rerank", "/v2/rerank"),
        write_error=requests.error,
    ),
    Route(
        *("POST", "/v1/completions", Work(completions.read, actions.COMPLETION)),
        key="setting",
        write_error=requests.error,
    ),
    Route("POST", "/v1/chat/completions", Work(chat.read, actions.CHAT), key="setting", write_error=chat.error),
    Route("POST", "/v1/responses", Work(responses.read, actions.RESPONSE), key="setting", write_error=requests.error),
    Route("POST", "/v1/messages", Work(messages.read, actions.CHAT), key="setting", write_error=blocks.error),
    Route(
        "POST",
        "/v1/messages/count_tokens",
        Work(messages.read_count, actions.CHAT),
        key="setting",
        write_error=blocks.error,
    ),
    Route("POST", "/v1/embeddings", Work(embeddings.read, actions.EMBEDDING), key="always", write_error=requests.error),
    Route(*("POST", "/mcp", Work(mcp.read, actions.AGENTS, wants_headers=True)), key="always", write_error=mcp.error),
    Route("GET", "/v1/models", models, key="setting", write_error=requests.error),
    Route("GET", "/v1/models/{id}", model, key="setting", write_error=requests.error),
    Route("GET", "/indexes", indexes, key="always"),
    Route("GET", "/health", health, tells_of_model=True),
    Route("GET", "/stats", stats, key="setting", tells_of_model=True),
    Route("GET", "/metrics", metrics),
    Route("GET", "/openapi.json", lambda _, __: pages.describe(ROUTES)),
    Route("GET", "/docs", lambda _, __: pages.docs()),
    Route("GET", "/static/{name}", lambda _, request: pages.part(request)),
)


def layout(settings: Settings) -> Layout:
    """Return where the processes of a server count requests, and what becomes of its models."""
    models = [(task, one.name) for task, several in settings.models.items() for one in several]
    return Layout((*(route.endpoint for route in ROUTES), OTHER), STATUSES, models)


OF_MODEL = tuple(route for route in ROUTES if route.lane == "generation" or route.tells_of_model)
"""What the process that holds the model answers: the workers alone ask it."""
