"""What routes have done: in which lane, at what cost, by whom."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Literal

import attrs
from attrs import frozen

from relevance_gen.embedding.jobs import Embeddings
from relevance_gen.errors import InvalidRequestError
from relevance_gen.serve.http.resources import costs
from relevance_gen.serve.http.resources.costs import Cost
from relevance_gen.serve.http.service import Service
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.services.agents import Message, Reply, check_offers, open_exchange
from relevance_gen.serve.services.embedding import EmbeddingTask
from relevance_gen.serve.services.generation import GenerationTask, Responses
from relevance_gen.serve.services.search import ExplanationTask, PromptTask, SearchTask
from relevance_gen.types import PromptResponse, SearchResponse


@frozen
class Action:
    """What a route has done with the task that its dialect reads.

    Attributes:
        lane: whose memory it takes; generations without a key have one of their own.
        cost: what it takes of the memory.
        do: done in a thread, given the task and the id of the key that asks; returns what came of it.
        threads: whose threads it takes; its lane's if empty.
        lend: gives the task, once it is read, with the model that it asks, until all is answered; given the bytes that
            the request holds.
        finish: awaited then, given the task and that; returns what is answered. None where nothing is left to do.
        check: refuses before the body is received, where this server does no such thing.
        headers: says what else is answered of the task: why a model had no part in a search in which it was to have
            one, and what its index is called.
        status: says which status an outcome is answered with.
        count: counts it, given the task, what `do` returned, and the seconds in the thread.
        waits: whether its thread may wait for memory; not where it is the only one of its lane.
        is_quick: whether all of that but what is awaited is done on the event loop, where the body is small.
    """

    lane: Literal["search", "generation", "extraction", "agents"]
    cost: Cost
    do: Callable[[Service, Any, str], Any]
    threads: str = ""
    lend: Callable[[Service, Any, str, int], AbstractAsyncContextManager[Any]] | None = None
    finish: Callable[[Service, Any, Any], Awaitable[Any]] | None = None
    check: Callable[[Service], object] = lambda _: None
    headers: Callable[[Any], Mapping[str, str]] = lambda _: {}
    status: Callable[[Any], int] = lambda _: 200
    count: Callable[[Metrics, Any, Any, float], None] = lambda *_: None
    waits: bool = True
    is_quick: bool = False


def _headers_of(task: SearchTask | ExplanationTask) -> Mapping[str, str]:
    skipped = {f"X-{model}-Skipped": reason for model, reason in task.skipped.items()}
    return skipped | ({"X-Index": task.kept[-1]} if task.kept else {})


def _count_search(
    metrics: Metrics, task: SearchTask, found: SearchResponse, seconds: float
) -> None:
    metrics.observe("search_seconds", seconds)
    metrics.add("search_chunks_total", len(task.chunks))
    n_context = found.metadata.num_context_tokens if task.named is None else 0
    metrics.add("search_tokens_total", found.metadata.num_query_tokens + n_context)


async def _write_prompt(
    service: Service, task: PromptTask, found: SearchResponse
) -> PromptResponse:
    return await service.generator.prompt(
        task.question.query, task.options, found, task.model, task.backend
    )


def _check_encoder(service: Service) -> None:
    if not service.settings.encoder:
        raise InvalidRequestError(
            "cannot be used: this server has no encoder", "model", remedy="start it with --encoder"
        )


async def _embed(service: Service, task: EmbeddingTask, _: EmbeddingTask) -> Embeddings:
    return await service.embedder.embed(task)


def _tell_agent(service: Service, task: Message, key: str) -> Reply:
    exchange = open_exchange(service.settings.folder)
    return Reply(*exchange.answer(task.headers, task.body, service.searcher.offered_to(key)))


def _check_model(service: Service) -> None:
    if not service.settings.models[
        "generate"
    ]:  # clients of OpenAI try again after a 503 by themselves
        raise InvalidRequestError(
            "cannot be used: this server has none, and only searches", "model"
        )


@asynccontextmanager
async def _lend_model(service: Service, task: Any, client: str, n_bytes: int) -> AsyncIterator[Any]:
    async with service.generator.lent(task.model, client, n_bytes) as backend:
        yield attrs.evolve(task, backend=backend)


def _name_client(_: Service, task: GenerationTask, client: str) -> GenerationTask:
    return attrs.evolve(task, context=attrs.evolve(task.context, client=client))


def _write_conversation(service: Service, task: GenerationTask, client: str) -> GenerationTask:
    return service.generator.written(_name_client(service, task, client))


async def _generate(service: Service, _: GenerationTask, written: GenerationTask) -> Responses:
    return await service.generator.complete(written)


SEARCH: Final = Action(
    "search",
    costs.SEARCH,
    lambda service, task, key: service.searcher.search(task, key),
    headers=_headers_of,
    count=_count_search,
)
EXPLANATION: Final = Action(
    "search",
    costs.SEARCH,
    lambda service, task, key: service.searcher.explain(task, key),
    headers=_headers_of,
)
COMPRESSION: Final = Action(
    "search", costs.COMPRESSION, lambda service, task, key: service.searcher.compress(task, key)
)
CITATION: Final = Action(
    "search", costs.CITATION, lambda service, task, _: service.searcher.cite(task)
)
EXTRACTION: Final = Action(
    "extraction", costs.EXTRACTION, lambda service, task, _: service.extractor.extract(task)
)
PROMPT: Final = attrs.evolve(
    SEARCH,
    lane="generation",
    threads="search",  # the one thread of its own lane has to stay free for what generates
    cost=costs.PROMPT,
    lend=_lend_model,
    finish=_write_prompt,
)
AGENTS: Final = Action(
    "agents",
    costs.AGENTS,
    _tell_agent,
    check=lambda service: check_offers(service.settings),
    status=lambda reply: reply.status,
)
EMBEDDING: Final = Action(
    "search", costs.EMBEDDING, lambda _, task, __: task, check=_check_encoder, finish=_embed
)
GENERATION: Final = Action(
    "generation",
    costs.GENERATION,
    _name_client,
    lend=_lend_model,
    finish=_generate,
    is_quick=True,
    waits=False,
)
COMPLETION: Final = attrs.evolve(GENERATION, cost=costs.COMPLETION, check=_check_model)
CHAT: Final = attrs.evolve(COMPLETION, cost=costs.CHAT, do=_write_conversation, is_quick=False)
RESPONSE: Final = attrs.evolve(CHAT, cost=costs.RESPONSE)
