"""Handler of text extraction."""

from __future__ import annotations

from functools import partial

from aiohttp import web

from relevance_gen.serve.http.call import Call
from relevance_gen.serve.http.resources import costs


async def extract(call: Call) -> web.StreamResponse:
    """Extract the text of a document."""
    async with call.reserve(costs.EXTRACTION) as reservation:
        task, write_body = await reservation.read_body()
        work = partial(call.service.extractor.extract, task)
        answer = await reservation.answer(work, write_body, costs.EXTRACTION.flat)
        return answer.response
