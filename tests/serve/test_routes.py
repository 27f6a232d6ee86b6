"""The table of routes, and its derived data."""

from __future__ import annotations

from relevance_gen.serve import routes
from relevance_gen.serve.routes import ROUTES
from relevance_gen.serve.settings import Settings
from tests.serve.harness import Server


def test_routes_are_unique() -> None:
    """No two routes share a path or an endpoint."""
    paths = [path for route in ROUTES for path in route.paths]
    assert len(set(paths)) == len(paths)
    assert len({route.endpoint for route in ROUTES}) == len(ROUTES)


def test_model_process_routes_are_generation_and_state() -> None:
    """The model process answers generations and its state: workers answer the rest."""
    generation = {
        "/prompt",
        "/generate",
        "/generate_stream",
        "/v1/completions",
        "/v1/chat/completions",
    }
    generation |= {"/v1/responses", "/v1/messages", "/v1/messages/count_tokens"}
    generation |= {"/api/chat", "/api/generate"}
    assert {route.path for route in routes.MODEL_PROCESS_ROUTES} == {
        *generation,
        "/health",
        "/stats",
    }


def test_routes_answer_and_are_counted(server: Server) -> None:
    """Every path of the table answers its method, and is counted under its endpoint's name."""
    for route in ROUTES:
        for path in route.paths:
            answer = server.call(
                route.method, path.replace("{id}", "relevance_gen").replace("{name}", "page.css")
            )
            assert answer.status == {"always": 401}.get(
                route.key, 415 if route.method == "POST" else 200
            )
            series = f'http_requests_total{{endpoint="{route.endpoint}",status="{answer.status}"}}'
            assert server.metric(series) >= 1
    assert {endpoint for endpoint, _ in routes.layout(Settings()).families[0].series} == {
        *(r.endpoint for r in ROUTES),
        "other",
    }
