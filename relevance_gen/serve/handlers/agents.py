"""Handler of messages in the Model Context Protocol."""

from __future__ import annotations

from aiohttp import web

from relevance_gen.serve.http.call import Call
from relevance_gen.serve.http.resources import costs
from relevance_gen.serve.services.agents import Message, Reply, check_offers, open_exchange


async def mcp(call: Call) -> web.StreamResponse:
    """Answer a message of an agent."""
    check_offers(call.service.settings)
    async with call.reserve(costs.AGENTS) as reservation:
        message, write_body = await reservation.read_body(call.request.raw_headers)
        await call.service.searcher.refresh(message.index, call.client)
        answer = await reservation.answer(
            lambda: _reply(call, message),
            write_body,
            costs.AGENTS.flat,
            lambda reply: costs.AGENTS.of(char=len(reply.body)),
        )
        answer.response.set_status(answer.result.status)
        return answer.response


def _reply(call: Call, message: Message) -> Reply:
    exchange = open_exchange(call.service.settings.folder)
    searches = call.service.searcher.offered_to(call.client)
    return Reply(*exchange.answer(message.headers, message.body, searches))
