"""Handler of embeddings."""

from __future__ import annotations

import sys

from aiohttp import web

from relevance_gen.errors import InvalidRequestError
from relevance_gen.serve.http.call import Call
from relevance_gen.serve.http.resources import costs


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
