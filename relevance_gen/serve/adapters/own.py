"""The documented interface. Its fields are those of `request_bodies` and `relevance_gen.types`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from relevance_gen import types, wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.retrieval.params import DEFAULT_NUM_CANDIDATES, SearchParams
from relevance_gen.serve.adapters.request_bodies import (
    CitationRequest,
    CompressionRequest,
    ExplanationRequest,
    ExtractionRequest,
    PromptRequest,
    SearchRequest,
)
from relevance_gen.serve.adapters.shared import Operation
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
from relevance_gen.wire import JsonObject

_ERROR_TYPES = {"context_length_exceeded": "invalid_request"}
"""Kinds of errors that only other API formats distinguish, with the documented type."""


def _read(
    cls: type[Any],
    body: object,
    index_fields: Sequence[str] = ("index",),
    removed: Sequence[str] = ("index",),
) -> JsonObject:
    """Check a body, and return its fields by name, with "query", "chunks" and "index".

    A body has the chunks either in ``chunk_txts`` or in a stored index. In the second case the
    result's "index" is an `IndexRef`, and its "chunks" are empty.

    Args:
        cls: the class of the body without a stored index, such as `SearchRequest`.
        body: the parsed JSON.
        index_fields: fields of the body that belong to the `IndexRef`.
        removed: fields that are not in `cls`, but that an error for an unknown field may suggest.
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
    request = wire.structure(cls, body, removed=removed)
    values = {field.name: getattr(request, field.name) for field in attrs.fields(cls)}
    values.setdefault("query", values.get("question"))
    return {**values, "index": index, "chunks": values["chunk_txts"]}


def _task(cls: type[Any], values: JsonObject, **options: Any) -> Any:
    """Return a task, an instance of `cls`, with the fields of a body.

    The first argument of `cls` is the `SearchParams` of the search options.

    Args:
        cls: the class of the task.
        values: values of the fields of `cls` and of `SearchParams` by name; others are ignored.
        options: further such values, which replace equally named `values`.
    """
    values = values | options
    return cls(SearchParams(**_select(SearchParams, values)), **_select(cls, values))


def _select(cls: type[Any], values: JsonObject) -> JsonObject:
    return {name: values[name] for name in attrs.fields_dict(cls) if name in values}


def read_search(body: object) -> Operation:
    """Check a ``POST /search`` body; return its task and the writer of the response."""
    values = _read(SearchRequest, body, index_fields=("index", "allow_partial"))
    write_body = _write_with_confidence if values["confidence"] else wire.unstructure
    return _task(SearchTask, values), write_body


def _write_with_confidence(response: types.SearchResponse) -> object:
    metadata = attrs.evolve(response.metadata, confidence=response.confidence)
    return wire.unstructure(attrs.evolve(response, metadata=metadata))


def read_explanation(body: object) -> Operation:
    """Check a ``POST /explain`` body; return its task and the writer of the response."""
    return _task(ExplanationTask, _read(ExplanationRequest, body)), wire.unstructure


def read_compression(body: object) -> Operation:
    """Check a ``POST /compress`` body; return its task and the writer of the response."""
    values = _read(CompressionRequest, body)
    task = _task(CompressionTask, values, top_n=DEFAULT_NUM_CANDIDATES, rerank_top_n=0)
    return task, types.CompressionResponse.to_dict


def read_citation(body: object) -> Operation:
    """Check a ``POST /cite`` body; return its task and the writer of the response."""
    request = wire.structure(CitationRequest, body)
    task = CitationTask(request.text, request.chunk_txts)
    return task, lambda sentences: {"citations": wire.unstructure(sentences)}


def read_extraction(body: object) -> Operation:
    """Check a ``POST /extract`` body; return its task and the writer of the response."""
    request = wire.structure(ExtractionRequest, body)
    return ExtractionTask(request.content, request.name), wire.unstructure


def read_prompt(body: object) -> Operation:
    """Check a ``POST /prompt`` body; return its task and the writer of the response."""
    model, rest = _split_model(body)
    values = _read(PromptRequest, rest, removed=("index", "model"))
    options = PromptOptions(**_select(PromptOptions, values), model=model)
    fills = options.fill is not False
    task = _task(PromptTask, values, options=options, fill=fills, true_order=False, spans=True)
    return task, wire.unstructure


def _split_model(body: object) -> tuple[str | None, object]:
    """Return the name of the model in a body, None if it names none, and the rest of the body."""
    if not isinstance(body, dict):
        return None, body
    rest = dict(body)
    model = rest.pop("model", None)
    if not isinstance(model, str | None):
        raise InvalidRequestError.must_be("model", "a string or None", model)
    return model, rest


def read_generation(body: object) -> Operation:
    """Check a ``POST /generate`` body; return its task and the writer of the response."""
    return _generation(body), lambda responses: wire.unstructure(responses[0])


def _generation(body: object) -> GenerationTask:
    model, rest = _split_model(body)
    return GenerationTask((wire.structure(types.GenerationRequest, rest),), model=model)


def read_stream(body: object) -> Operation:
    """Check a ``POST /generate_stream`` body; return its task and the writer of the response."""
    return _generation(body), GenerationEvents()


def error(kind: str, message: str, field: str | None) -> JsonObject:
    """Return the body of an error; it contains ``field`` only if the error has one."""
    details = {"type": _ERROR_TYPES.get(kind, kind), "message": message}
    if field is not None:
        details["field"] = field
    return {"error": details}


class GenerationEvents:
    """The server-sent events of one stream: ``text``, then a ``response`` or an ``error``."""

    stream_format = wire.EVENT_STREAM

    def text(self, sample: int, piece: str) -> bytes:
        """Return the event of a piece of text."""
        return wire.event({"sample": sample, "text": piece}, "text")

    def end(self, responses: Responses) -> bytes:
        """Return the event ``response``, which ends a stream and contains the first response."""
        return wire.event(responses[0], "response")

    def error(self, kind: str, message: str, field: str | None) -> bytes:
        """Return the event that ends a stream that failed."""
        return wire.event(error(kind, message, field), "error")
