"""Handlers of searches and of other work on texts, except generations."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from aiohttp import web

from relevance_gen.errors import InvalidRequestError
from relevance_gen.serve.http.call import Call
from relevance_gen.serve.http.resources import costs
from relevance_gen.serve.http.resources.costs import Cost
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.services.agents import Reply, check_offers, open_exchange
from relevance_gen.serve.services.search import SearchReport, SearchTask
from relevance_gen.types import SearchResponse


async def search(call: Call) -> web.StreamResponse:
    """Rank chunks, or the chunks of an index, by a query."""
    return await _answer(call, costs.SEARCH, call.service.searcher.search)


async def explain(call: Call) -> web.StreamResponse:
    """Explain the score of one chunk."""
    return await _answer(call, costs.SEARCH, call.service.searcher.explain)


async def compress(call: Call) -> web.StreamResponse:
    """Select the sentences of chunks that are most relevant to a question."""
    compress = call.service.searcher.compress
    return await _answer(call, costs.COMPRESSION, lambda task, client, _: compress(task, client))


async def _answer(call: Call, cost: Cost, work: Callable[..., Any]) -> web.StreamResponse:
    """Return the response with the result of a search, an explanation or a compression.

    The index that the request names is refreshed first. A search is counted in the metrics.

    Args:
        call: the request.
        cost: the row of the table of costs for this operation.
        work: function from the task, the id of the client's key and a `SearchReport`, to the
            result. The headers of the report are added to the response.
    """
    async with call.reserve(cost) as reservation:
        task, write_body = await reservation.read_body()
        await call.service.searcher.refresh(task.index, call.client)
        report = SearchReport()
        run = partial(work, task, call.client, report)
        answer = await reservation.answer(run, write_body, cost.of_task(task))
        if isinstance(task, SearchTask):
            _count_search(call.service.metrics, task, answer.result, reservation.seconds)
        answer.response.headers.update(report.headers)
        return answer.response


async def cite(call: Call) -> web.StreamResponse:
    """Find the sentences of chunks that support the sentences of a text."""
    async with call.reserve(costs.CITATION) as reservation:
        task, write_body = await reservation.read_body()
        n_bytes = costs.CITATION.of(chunk=len(task.chunks))
        work = partial(call.service.searcher.cite, task)
        answer = await reservation.answer(work, write_body, n_bytes)
        return answer.response


async def extract(call: Call) -> web.StreamResponse:
    """Extract the text of a document."""
    async with call.reserve(costs.EXTRACTION) as reservation:
        task, write_body = await reservation.read_body()
        work = partial(call.service.extractor.extract, task)
        answer = await reservation.answer(work, write_body, costs.EXTRACTION.flat)
        return answer.response


async def embed(call: Call) -> web.StreamResponse:
    """Encode texts as vectors."""
    if not call.service.settings.encoder:
        raise InvalidRequestError(
            "cannot be used: this server has no encoder", "model", remedy="start it with --encoder"
        )
    async with call.reserve(costs.EMBEDDING) as reservation:
        task, write_body = await reservation.read_body()
        reservation.memory.resize(sum(map(sys.getsizeof, task.texts)))
        embeddings = await call.service.embedder.embed(task)
        n_bytes = costs.EMBEDDING.of(vector_component=embeddings.vectors.size)
        return await reservation.respond(embeddings, write_body, n_bytes)


async def mcp(call: Call) -> web.StreamResponse:
    """Answer a message of an agent in the Model Context Protocol."""
    settings, searcher = call.service.settings, call.service.searcher
    check_offers(settings)
    async with call.reserve(costs.AGENTS) as reservation:
        message, write_body = await reservation.read_body(call.request.raw_headers)
        await searcher.refresh(message.index, call.client)

        def reply() -> Reply:
            exchange = open_exchange(settings.folder)
            searches = searcher.offered_to(call.client)
            return Reply(*exchange.answer(message.headers, message.body, searches))

        answer = await reservation.answer(
            reply,
            write_body,
            costs.AGENTS.flat,
            lambda reply: costs.AGENTS.of(char=len(reply.body)),
        )
        answer.response.set_status(answer.result.status)
        return answer.response


async def prompt(call: Call) -> web.StreamResponse:
    """Search, and write a prompt for a model from the results."""
    service, client = call.service, call.client
    # The only thread of the request's own pool must stay free for generations.
    async with call.reserve(costs.PROMPT, threads="search") as reservation:
        task, write_body = await reservation.read_body()
        await service.searcher.refresh(task.index, client)
        backend = await reservation.lease_model(task.options.model)
        report = SearchReport()
        work = partial(service.searcher.search, task, client, report)
        response = await reservation.run(work, costs.PROMPT.of_task(task))
        _count_search(service.metrics, task, response, reservation.seconds)
        reservation.memory.resize(costs.search_results_bytes(response))
        prompt = await service.generator.prompt(task.options, response, backend)
        n_bytes = costs.PROMPT.of_prompt(prompt)
        answer = await reservation.respond(prompt, write_body, n_bytes)
        answer.headers.update(report.headers)
        return answer


def _count_search(
    metrics: Metrics, task: SearchTask, response: SearchResponse, seconds: float
) -> None:
    """Count a search. Must run on the event loop: only one thread may write these counters."""
    metrics.observe("search_seconds", seconds)
    metrics.add("search_chunks_total", len(task.chunks))
    n_tokens = response.metadata.num_query_tokens
    if task.index is None:
        n_tokens += response.metadata.num_context_tokens
    metrics.add("search_tokens_total", n_tokens)
