"""The documented interface. Its fields are those of `request_bodies` and `relevance_gen.types`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
from attrs import frozen

from relevance_gen import types, wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.retrieval.params import DEFAULT_NUM_CANDIDATES, SearchParams
from relevance_gen.serve.adapters import Operation
from relevance_gen.serve.adapters.request_bodies import (
    CitationRequest,
    CompressionRequest,
    ExplanationRequest,
    ExtractionRequest,
    PromptRequest,
    SearchRequest,
)
from relevance_gen.serve.services.extraction import ExtractionTask
from relevance_gen.serve.services.generation import GenerationTask, Responses
from relevance_gen.serve.services.indexes.index_registry import IndexRef
from relevance_gen.serve.services.prompts import PromptOptions
from relevance_gen.serve.services.search import (
    CitationTask,
    CompressionTask,
    ExplanationTask,
    PromptTask,
    SearchTask,
)

_ERROR_TYPES = {"context_length_exceeded": "invalid_request"}
"""Kinds of errors that only other API formats distinguish, with the documented type."""


def read_search(body: object) -> Operation:
    """Read the body of ``POST /search``."""
    target = _read_target(SearchRequest, body, "index", "allow_partial")
    request = target.request
    params = _search_params(request.query, request)
    task = SearchTask(
        params, request.chunk_txts, index=target.index, cache_index=request.cache_index
    )
    return task, _present_with_confidence if request.confidence else wire.unstructure


def _search_params(query: str, request: object, **fields: Any) -> SearchParams:
    """Return search parameters with all fields that a request has in common with them."""
    common = {
        name: getattr(request, name)
        for name in attrs.fields_dict(SearchParams)
        if hasattr(request, name)
    }
    return SearchParams(**{**common, "query": query, **fields})


def _present_with_confidence(response: types.SearchResponse) -> object:
    metadata = attrs.evolve(response.metadata, confidence=response.confidence)
    return wire.unstructure(attrs.evolve(response, metadata=metadata))


def read_explanation(body: object) -> Operation:
    """Read the body of ``POST /explain``."""
    target = _read_target(ExplanationRequest, body, "index")
    request = target.request
    task = ExplanationTask(
        _search_params(request.query, request),
        request.chunk_txts,
        request.original_index,
        index=target.index,
        cache_index=request.cache_index,
    )
    return task, wire.unstructure


@frozen
class _SearchTarget:
    """A request, and the index that its body names, if any."""

    request: Any
    index: IndexRef | None


def _read_target(
    cls: type, body: object, *index_fields: str, removed: Sequence[str] = ("index",)
) -> _SearchTarget:
    """Parse a body with either `chunk_txts` or `index`.

    The `index_fields` of a body with `index` are parsed as an `IndexRef`. An error for an unknown
    field can suggest the `removed` fields, too.
    """
    index = None
    if isinstance(body, dict) and "index" in body:
        if "chunk_txts" in body:
            raise InvalidRequestError("cannot be combined with index", "chunk_txts")
        index = wire.structure(
            IndexRef, {name: body[name] for name in index_fields if name in body}
        )
        body = {name: value for name, value in body.items() if name not in index_fields}
        body["chunk_txts"] = ()
    return _SearchTarget(wire.structure(cls, body, removed=removed), index)


def read_compression(
    body: object,
) -> Operation:
    """Read the body of ``POST /compress``."""
    target = _read_target(CompressionRequest, body, "index")
    request = target.request
    task = CompressionTask(
        SearchParams(request.question, DEFAULT_NUM_CANDIDATES, rerank_top_n=0),
        request.chunk_txts,
        index=target.index,
        max_tokens=request.max_tokens,
    )
    return task, types.CompressionResponse.to_dict


def read_citation(
    body: object,
) -> Operation:
    """Read the body of ``POST /cite``."""
    request = wire.structure(CitationRequest, body)
    task = CitationTask(request.text, request.chunk_txts)
    return task, lambda sentences: {"citations": wire.unstructure(sentences)}


def read_extraction(
    body: object,
) -> Operation:
    """Read the body of ``POST /extract``."""
    request = wire.structure(ExtractionRequest, body)
    return ExtractionTask(request.content, request.name), wire.unstructure


def read_prompt(body: object) -> Operation:
    """Read the body of ``POST /prompt``."""
    target = _read_target(PromptRequest, _without_model(body), "index", removed=("index", "model"))
    request = target.request
    task = PromptTask(
        _search_params(request.question, request, true_order=False, spans=True),
        request.chunk_txts,
        options=PromptOptions(request.copy, request.min_confidence),
        index=target.index,
        cache_index=request.cache_index,
        model=_model_name(body),
    )
    return task, wire.unstructure


def _model_name(body: object) -> str | None:
    """Return the name of the model in a body; None if it names none."""
    model = body.get("model") if isinstance(body, dict) else None
    if not isinstance(model, str | None):
        raise InvalidRequestError.must_be("model", "a string or None", model)
    return model


def _without_model(body: object) -> object:
    if not isinstance(body, dict):
        return body
    return {name: value for name, value in body.items() if name != "model"}


def read_generation(body: object) -> Operation:
    """Read the body of ``POST /generate``."""
    return _generation(body), lambda responses: wire.unstructure(responses[0])


def _generation(body: object) -> GenerationTask:
    model = _model_name(body)
    request = wire.structure(types.GenerationRequest, _without_model(body))
    return GenerationTask((request,), model=model)


def read_stream(body: object) -> Operation:
    """Read the body of ``POST /generate_stream``."""
    return _generation(body), GenerationEvents()


def error(kind: str, message: str, field: str | None) -> dict[str, object]:
    """Return the body of an error; it contains ``field`` only if the error has one."""
    details = {"type": _ERROR_TYPES.get(kind, kind), "message": message}
    if field is not None:
        details["field"] = field
    return {"error": details}


class GenerationEvents:
    """The server-sent events of one stream: ``text``, then a ``response`` or an ``error``."""

    def text(self, sample: int, piece: str) -> bytes:
        """Return the event of a piece of text."""
        return wire.event({"sample": sample, "text": piece}, "text")

    def end(self, responses: Responses) -> bytes:
        """Return the event that ends a stream."""
        return wire.event(responses[0], "response")

    def error(self, kind: str, message: str, field: str | None) -> bytes:
        """Return the event that ends a stream that failed."""
        return wire.event(error(kind, message, field), "error")
