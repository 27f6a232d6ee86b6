"""Rerank requests of Hugging Face's Text Embeddings Inference (TEI): ``texts`` in, a list out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import field, frozen

from relevance_gen import checks, fields
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.serve.adapters.shared import Operation, Problem, read_lenient
from relevance_gen.serve.services.search import SearchTask, every_chunk
from relevance_gen.serve.settings import DEFAULT_NAME
from relevance_gen.types import SearchResponse
from relevance_gen.wire import JsonObject

_ERROR_TYPES = {
    "invalid_request": "Validation",
    "model_not_found": "Validation",
    "too_large": "Validation",
    "overloaded": "Overloaded",
    "rate_limited": "Overloaded",
}
"""TEI's error types; all other errors are of type ``Backend``."""


@frozen
class TextsRequest:
    """The fields of a request, as ``static/openapi.json`` describes them.

    Other fields of TEI are ignored. TEI has no `top_n` and no `model`, but its clients send them.
    Blank texts have score 0.
    """

    query: str
    texts: Sequence[Any] = field(validator=checks.a_list)
    top_n: int | None = fields.optional(checks.integer(1))
    return_text: bool = fields.flag()
    model: str = field(default=DEFAULT_NAME, validator=checks.string)


def read_rerank(body: object) -> Operation:
    """Check a ``POST /rerank`` body; return its task and response writer."""
    request = read_lenient(TextsRequest, body)
    texts = request.texts
    for index, text in enumerate(texts):
        checks.string.check(f"texts[{index}]", text)
    top_n = request.top_n or max(1, len(texts))
    params = SearchParams(request.query, top_n, true_order=False, rerank_top_n=None)
    task = SearchTask(params, texts, path="texts", blank="skip", reranker=request.model)

    def write_body(response: SearchResponse) -> object:
        rows = []
        for index, result in every_chunk(response, len(texts))[:top_n]:
            row: JsonObject = {
                "index": index,
                "score": result.chunk_score if result else 0.0,
            }
            if request.return_text:
                row["text"] = texts[index]
            rows.append(row)
        return rows

    return task, write_body


def error(problem: Problem) -> JsonObject:
    """Return the body of an error."""
    return {"error": problem.message, "error_type": _ERROR_TYPES.get(problem.kind, "Backend")}
