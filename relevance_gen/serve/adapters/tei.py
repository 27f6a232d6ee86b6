"""Rerank as Hugging Face's Text Embeddings Inference has it: ``texts`` in, a bare list out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import field, frozen
from attrs.validators import optional

from relevance_gen import checks, wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.serve.services.search import SearchTask, every_chunk
from relevance_gen.serve.settings import DEFAULT_NAME
from relevance_gen.types import SearchResponse

_ERROR_TYPES = {
    "invalid_request": "Validation",
    "model_not_found": "Validation",
    "too_large": "Validation",
    "overloaded": "Overloaded",
    "rate_limited": "Overloaded",
}
"""TEI's words for errors; what is not here is the server's own affair."""


@frozen
class TextsRequest:
    """The fields that are read, as ``static/openapi.json`` describes them; whatever else TEI has changes nothing here.

    TEI itself has no `top_n` and no `model`, but its clients send them. Blank texts have score 0.
    """

    query: str = field(validator=checks.not_blank)
    texts: Sequence[Any] = field(validator=checks.a_list)
    top_n: int | None = field(default=None, validator=optional(checks.integer(1)))
    return_text: bool = field(default=False, validator=checks.flag)
    model: str = field(default=DEFAULT_NAME, validator=checks.string)


def read_rerank(body: object) -> tuple[SearchTask, Callable[[SearchResponse], object]]:
    """Read the body of ``POST /rerank`` where it has ``texts``."""
    request = wire.structure(TextsRequest, body, is_lenient=True)
    texts = request.texts
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise InvalidRequestError.must_be(f"texts[{place}]", "a string", text)
    n_wanted = len(texts) if request.top_n is None else min(request.top_n, len(texts))
    question = SearchParams(request.query, max(1, n_wanted), true_order=False, reranked=None)
    task = SearchTask(question, texts, path="texts", blank="skip", reranker=request.model)

    def present(response: SearchResponse) -> object:
        return [
            {"index": place, "score": found.chunk_score if found else 0.0}
            | ({"text": texts[place]} if request.return_text else {})
            for place, found in every_chunk(response, len(texts))[:n_wanted]
        ]

    return task, present


def error(kind: str, message: str, field: str | None) -> dict[str, object]:  # noqa: ARG001 - the message names it
    """Return the body of an error."""
    return {"error": message, "error_type": _ERROR_TYPES.get(kind, "Backend")}
