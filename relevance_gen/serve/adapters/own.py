"""The documented interface: its fields are those of `relevance_gen.types`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from relevance_gen import types, wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.retrieval.params import N_CANDIDATES, SearchParams
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


def read_search(body: object) -> tuple[SearchTask, Callable[[types.SearchResponse], object]]:
    """Read the body of ``POST /search``."""
    body, named = _read_name(body, "index", "allow_partial")
    request = wire.structure(SearchRequest, body, beside=("index",))
    task = SearchTask(
        _question(request.query, request), request.chunk_txts, named=named, keeps=request.keep
    )
    return task, _present_with_confidence if request.confidence else wire.unstructure


def _question(query: str, request: object, **more: Any) -> SearchParams:
    """Return a question with all that a request says in fields that both have."""
    said = {
        name: getattr(request, name)
        for name in attrs.fields_dict(SearchParams)
        if hasattr(request, name)
    }
    return SearchParams(**{**said, "query": query, **more})


def _present_with_confidence(response: types.SearchResponse) -> object:
    metadata = attrs.evolve(response.metadata, confidence=response.confidence)
    return wire.unstructure(attrs.evolve(response, metadata=metadata))


def read_explanation(body: object) -> tuple[ExplanationTask, Callable[[types.Explanation], object]]:
    """Read the body of ``POST /explain``."""
    body, named = _read_name(body, "index")
    request = wire.structure(ExplanationRequest, body, beside=("index",))
    question = _question(request.query, request)
    task = ExplanationTask(
        question, request.chunk_txts, request.original_index, named=named, keeps=request.keep
    )
    return task, wire.unstructure


def _read_name(body: object, *fields: str) -> tuple[object, IndexRef | None]:
    """Take out of a body which index it asks; one that asks none is returned as it is."""
    if not isinstance(body, dict) or "index" not in body:
        return body, None
    if "chunk_txts" in body:
        raise InvalidRequestError("must be left out where index names an index", "chunk_txts")
    named = wire.structure(IndexRef, {name: body[name] for name in fields if name in body})
    return {name: value for name, value in body.items() if name not in fields} | {
        "chunk_txts": ()
    }, named


def read_compression(
    body: object,
) -> tuple[CompressionTask, Callable[[types.CompressionResponse], object]]:
    """Read the body of ``POST /compress``."""
    body, named = _read_name(body, "index")
    request = wire.structure(CompressionRequest, body, beside=("index",))
    question = SearchParams(request.question, N_CANDIDATES, reranked=0)
    task = CompressionTask(question, request.chunk_txts, named=named, max_tokens=request.max_tokens)
    return task, types.CompressionResponse.to_dict


def read_citation(
    body: object,
) -> tuple[CitationTask, Callable[[list[types.CitedSentence]], object]]:
    """Read the body of ``POST /cite``."""
    request = wire.structure(CitationRequest, body)
    task = CitationTask(request.text, request.chunk_txts)
    return task, lambda cited: {"citations": wire.unstructure(cited)}


def read_extraction(
    body: object,
) -> tuple[ExtractionTask, Callable[[types.ExtractionResponse], object]]:
    """Read the body of ``POST /extract``."""
    request = wire.structure(ExtractionRequest, body)
    return ExtractionTask(request.content, request.name), wire.unstructure


def read_prompt(body: object) -> tuple[PromptTask, Callable[[types.PromptResponse], object]]:
    """Read the body of ``POST /prompt``."""
    body, model = _read_model(body)
    body, named = _read_name(body, "index")
    request = wire.structure(PromptRequest, body, beside=("index", "model"))
    question = _question(request.question, request, true_order=False, spans=True)
    task = PromptTask(
        question,
        request.chunk_txts,
        options=PromptOptions(request.copy, request.min_confidence),
        named=named,
        keeps=request.keep,
        model=model,
    )
    return task, wire.unstructure


def _read_model(body: object) -> tuple[object, str | None]:
    if not isinstance(body, dict) or "model" not in body:
        return body, None
    if not isinstance(model := body["model"], str | None):
        raise InvalidRequestError.must_be("model", "a string or null", model)
    return {name: value for name, value in body.items() if name != "model"}, model


def read_generation(body: object) -> tuple[GenerationTask, Callable[[Responses], object]]:
    """Read the body of ``POST /generate``."""
    return _generation(body), lambda responses: wire.unstructure(responses[0])


def _generation(body: object) -> GenerationTask:
    body, model = _read_model(body)
    return GenerationTask((wire.structure(types.GenerationRequest, body),), model=model)


def read_stream(body: object) -> tuple[GenerationTask, Events]:
    """Read the body of ``POST /generate_stream``."""
    return _generation(body), Events()


def error(kind: str, message: str, field: str | None) -> dict[str, object]:
    """Return the body of an error; ``field`` stands in it only where there is one."""
    return {
        "error": {"type": kind, "message": message} | ({} if field is None else {"field": field})
    }


class Events:
    """The server-sent events of one stream: a ``text`` for each piece, then a ``response`` or an ``error``."""

    def text(self, sample: int, piece: str) -> bytes:
        """Return the event of a piece of text."""
        return wire.event({"sample": sample, "text": piece}, "text")

    def end(self, responses: Responses) -> bytes:
        """Return the event that ends a stream."""
        return wire.event(responses[0], "response")

    def error(self, kind: str, message: str, field: str | None) -> bytes:
        """Return the event that ends a stream that failed."""
        return wire.event(error(kind, message, field), "error")
