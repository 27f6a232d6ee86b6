"""Tests that a new adapter needs only rows in the route table."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable
from typing import Any

import aiohttp

from relevance_gen.errors import InvalidRequestError
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.serve.adapters.shared import Problem
from relevance_gen.serve.handlers.generation import generate
from relevance_gen.serve.handlers.search import search
from relevance_gen.serve.http.access.auth import Keys, digest
from relevance_gen.serve.http.access.rate_limit import RateLimit
from relevance_gen.serve.http.application import application
from relevance_gen.serve.http.connections.connection import Listener
from relevance_gen.serve.http.connections.connection import Server as HTTPServer
from relevance_gen.serve.http.middleware import middleware
from relevance_gen.serve.http.resources.resource_pools import make_resource_pools
from relevance_gen.serve.http.route import Route, Router
from relevance_gen.serve.http.service import Service
from relevance_gen.serve.metrics import Layout, Metrics
from relevance_gen.serve.services.embedding import EmbeddingService
from relevance_gen.serve.services.generation import GenerationTask, Generator, Responses
from relevance_gen.serve.services.model_registry import ModelRegistry
from relevance_gen.serve.services.search import Searcher, SearchTask
from relevance_gen.serve.settings import Settings
from relevance_gen.types import GenerationRequest, SearchResponse
from relevance_gen.wire import JSON_LINES
from tests.serve.scripted import ScriptedBackend


def read_rerank(body: Any) -> tuple[SearchTask, Callable[[SearchResponse], object]]:
    """Read ``{question, texts}``; return all texts with scores, best first, 0 without a match."""
    if "question" not in body:
        raise InvalidRequestError("is required", "question")
    texts = body["texts"]

    def present(found: SearchResponse) -> object:
        scores = {result.original_index: result.chunk_score for result in found.results}
        return sorted(
            ([scores.get(place, 0.0), place] for place in range(len(texts))),
            key=lambda s: (-s[0], s[1]),
        )

    return SearchTask(
        SearchParams(body["question"], len(texts), False), texts, path="texts"
    ), present


class Lines:
    """A stream as lines of text."""

    stream_format = JSON_LINES

    def text(self, sample: int, piece: str) -> bytes:
        """Write a piece."""
        return f"+{sample} {piece}\n".encode()

    def end(self, responses: Responses) -> bytes:
        """Write the end."""
        return b"done " + responses[0].responses[0].finish_reason.encode() + b"\n"

    def error(self, problem: Problem) -> bytes:
        """Write a failure."""
        return f"failed {problem.kind} {problem.message} {problem.field}\n".encode()


def read_lines(body: Any) -> tuple[GenerationTask, Lines]:
    """Read a prompt (``say``) and its maximum number of tokens (``words``)."""
    return GenerationTask((GenerationRequest(body["say"], max_tokens=body["words"]),)), Lines()


def write_error(problem: Problem) -> object:
    """Word an error as a list."""
    return ["sorry", problem.kind, problem.field]


TABLE = (
    Route(
        "POST",
        "/rank",
        search,
        read_rerank,
        pool="search",
        key="always",
        aliases=("/v9/rank",),
        write_error=write_error,
    ),
    Route(
        "POST",
        "/say",
        generate,
        read_lines,
        pool="generation",
        key="setting",
        write_error=write_error,
    ),
)


async def served(path: str, *bodies: object, **headers: str) -> list[tuple[int, str]]:
    """Serve `TABLE` and return the answers to `bodies`."""
    settings = Settings(access_log=False)
    layout = Layout(
        ("rank", "say", "other"), (200, 400, 401, 413, 499, 500), (("generate", "relevance_gen"),)
    )
    metrics = Metrics.for_one_process(layout)
    registry = ModelRegistry(settings, {"generate": lambda _: ScriptedBackend(0.0)}, metrics)
    generator = Generator(registry, settings, metrics)
    service = Service(
        settings=settings,
        identify=Keys([digest("key")]).identify,
        rate=RateLimit("off", "memory://", metrics),
        pools=make_resource_pools(settings, metrics),
        searcher=Searcher(settings, metrics),
        embedder=EmbeddingService(registry, settings, metrics),
        generator=generator,
        stats=generator.stats,
        metrics=metrics,
        http_metrics=metrics,
    )
    sock = socket.create_server(("127.0.0.1", 0))
    router = Router(TABLE)
    http_server = HTTPServer(application(service, router), middleware(service, router), 5)
    listener = Listener(sock, http_server, max_connections=10)
    try:
        url = f"http://127.0.0.1:{sock.getsockname()[1]}{path}"
        async with aiohttp.ClientSession(headers=headers) as session:
            answers = []
            for body in bodies:
                async with session.post(url, json=body) as answer:
                    answers.append((answer.status, await answer.text()))
            return answers
    finally:
        await listener.close(1)
        for pool in service.pools.values():
            pool.executor.close()
        registry.close()


def test_added_adapter_searches() -> None:
    """The added route runs a search with its own answers and errors, also under an alias."""
    good = {"question": "cats", "texts": ["dogs bark", "cats purr"]}
    bad = {"texts": []}
    for path in ("/rank", "/v9/rank"):
        (status, ranked), refused = asyncio.run(served(path, good, bad, Authorization="Bearer key"))
        assert status == 200
        assert [place for _, place in json.loads(ranked)] == [1, 0]
        assert json.loads(ranked)[1] == [0.0, 0]
        assert refused == (400, '["sorry","invalid_request","question"]')
    assert asyncio.run(served("/rank", good)) == [(401, '["sorry","unauthorized",null]')]


def test_added_adapter_streams() -> None:
    """The added adapter formats the pieces, the end and the errors of a stream."""
    good, dying = {"say": "x", "words": 2}, {"say": "die", "words": 2}
    (status, text), (failed, problem) = asyncio.run(served("/say", good, dying))
    assert (status, text) == (200, "+0 word0 \n+0 word1 \ndone length\n")
    assert (failed, problem) == (503, '["sorry","no_runner",null]')
