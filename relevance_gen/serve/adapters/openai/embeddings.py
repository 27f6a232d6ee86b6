"""``POST /v1/embeddings``: vectors of texts, if the server has an encoder."""

from __future__ import annotations

import base64
from typing import Any

from attrs import field, frozen

from relevance_gen import checks, fields
from relevance_gen.embedding.encoder import Embeddings, Kind, Vectors
from relevance_gen.errors import InvalidRequestError
from relevance_gen.serve.adapters.openai.requests import NEVER, read_as
from relevance_gen.serve.adapters.shared import Operation, model_field
from relevance_gen.serve.services.embedding import EmbeddingTask, LongTexts

_KINDS: dict[str, Kind] = {
    "query": "query",
    "passage": "passage",
    "search_query": "query",
    "search_document": "passage",
}
_text = checks.Rule(
    "a string: this server does not accept token ids", lambda value: isinstance(value, str)
)


@frozen(kw_only=True)
class EmbeddingsRequest:
    """The fields of a request, as ``static/openapi.json`` describes them.

    `input_type` is Cohere's, and `enable_chunked_processing` is named after vLLM's option.
    """

    input: Any
    model: str = model_field()
    encoding_format: str = field(default="float", validator=checks.one_of("float", "base64"))
    input_type: str | None = fields.optional(checks.one_of(*_KINDS))
    enable_chunked_processing: bool = fields.flag()


def read(body: object) -> Operation:
    """Check a ``POST /v1/embeddings`` body; return its task and the writer of the response."""
    request = read_as(EmbeddingsRequest, body, {"dimensions": NEVER})
    texts = [request.input] if isinstance(request.input, str) else request.input
    if not isinstance(texts, list) or not texts:
        allowed = "a string or a list of at least one string"
        raise InvalidRequestError.must_be("input", allowed, texts)
    for index, text in enumerate(texts):
        _text.check(f"input[{index}]", text)

    def write_body(embeddings: Embeddings) -> object:
        data = [
            {
                "object": "embedding",
                "index": index,
                "embedding": _write_vector(vector, request.encoding_format),
            }
            for index, vector in enumerate(embeddings.vectors)
        ]
        n_tokens = int(embeddings.n_tokens.sum())
        usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
        return {"object": "list", "data": data, "model": request.model, "usage": usage}

    kind = _KINDS[request.input_type] if request.input_type else None
    long_texts: LongTexts = "mean" if request.enable_chunked_processing else "refuse"
    return EmbeddingTask(texts, kind, "input", request.model, long_texts), write_body


def _write_vector(vector: Vectors, encoding_format: str) -> object:
    if encoding_format == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()
